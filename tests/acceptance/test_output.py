"""What commands print as processes: at a terminal, into a pipe, to a reader that goes away; and whom they blame."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest

from adapter.testing.processes import free_port
from adapter.testing.waiting import eventually
from tests.acceptance.conftest import Pair, run
from tests.acceptance.helpers import commit
from tests.acceptance.terminals import at_a_terminal
from tests.integration.helpers import commits, rpc

OK, NO, ERROR, READER_GONE = 0, 1, 2, 141
LONG = "a-consumer-group-of-which-only-the-end-differs-from-the-other-one-that-is-there-"
MANY = 30_006
PIECE = 5_000


def pair_output(pair: Pair, command: Sequence[str]) -> str:
    """What it prints into a pipe, of a process that believes in 80 columns."""
    return run(*command, OFFSET_ADAPTER_ADDRESS=pair.adapter.address, COLUMNS="80").out


def test_two_groups_that_differ_at_their_end_look_different_everywhere(shared: Pair) -> None:
    """They looked alike on 80 columns and in pipes."""
    for end in "ab":
        commit(shared, LONG + end, {"orders/0": 1})
    where = {"OFFSET_ADAPTER_ADDRESS": shared.adapter.address}
    for command in (["list"], ["groups", "list"], ["groups", "describe", "--all-groups"], ["get", LONG + "a"]):
        for shown in (pair_output(shared, command), at_a_terminal(command, where)[1]):
            assert [LONG + end in shown for end in "ab"] == [True, command[0] != "get"], command


def test_a_terminal_obeys_nothing_that_a_consumer_wrote(shared: Pair) -> None:
    """Colours, the title of the window, a cleared screen; neither in tables nor in JSON."""
    metadata = "\x1b[31mred\x1b]0;title\x07 \x9b2J\nline"
    with rpc(shared.adapter.address) as stubs:
        stubs.store.CommitOffsets(commits({"s": 1}, "hostile", metadata=metadata), timeout=30)
    where = {"OFFSET_ADAPTER_ADDRESS": shared.adapter.address}
    for command in (["get", "hostile"], ["list"], ["groups", "describe", "hostile", "--wide"], ["get", "hostile", "--json"]):
        for shown in (pair_output(shared, command), at_a_terminal(command, where)[1]):
            assert shown.replace("\n", "").replace("\t", "").isprintable(), command
            assert "2J" in shown
    assert shared("get", "hostile", "--json").json[0]["metadata"] == metadata


def test_a_pipe_gets_tabs_and_nothing_but_the_rows(shared: Pair) -> None:
    """`cut` and `awk` need no more; how many there are is said on standard error."""
    commit(shared, "tabs", {"orders/0": 7})
    ran = shared("get", "tabs")
    names, row = (line.split("\t") for line in ran.out.splitlines())
    assert names == ["namespace", "group", "shard", "offset", "epoch", "committed", "state", "metadata"]
    assert row[:5] == ["default", "tabs", "orders/0", "7", "0.1"]
    assert ran.err == "1 offset\n"


def test_describe_says_of_each_row_which_group_it_is_of(shared: Pair) -> None:
    """With --all-groups nothing else tells it."""
    for group in ("described-a", "described-b"):
        commit(shared, group, {"orders/0": 7, "orders/1": 8})
    rows = [line.split("\t") for line in shared("groups", "describe", "--all-groups").out.splitlines()]
    assert rows[0][:3] == ["group", "shard", "current-offset"]
    assert [row[:3] for row in rows if row[0].startswith("described-")] == [
        [group, shard, offset]
        for group in ("described-a", "described-b")
        for shard, offset in (("orders/0", "7"), ("orders/1", "8"))
    ]


def test_a_long_list_comes_whole_and_a_reader_that_goes_away_ends_it_without_a_word(pair: Pair) -> None:
    """Like `list | head`, in both forms: no traceback, no message, and the code of a command that SIGPIPE ended."""
    with rpc(pair.adapter.address) as stubs:
        for at in range(0, MANY, PIECE):
            stubs.store.CommitOffsets(commits({f"s{number}": 1 for number in range(at, min(at + PIECE, MANY))}), timeout=60)
    for form in ([], ["--json"]):
        command = [sys.executable, "-m", "adapter", "list", *form, "--address", pair.adapter.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout
            assert process.stderr
            process.stdout.readline()
            process.stdout.close()
            assert (process.stderr.read(), process.wait(60)) == (b"", READER_GONE)
    ran = pair("list")
    assert len(ran.out.splitlines()) == len({*ran.out.splitlines()}) == MANY + 1
    assert ran.err == f"{MANY:,} offsets\n"
    assert len(pair("list", "--json").json) == MANY


async def test_who_did_not_answer_is_named(pair: Pair) -> None:
    """The adapter, which says that the Meta Service does not; or nobody at the address."""
    commit(pair, "g", {"s": 1})
    pair.meta.kill()
    commit(pair, "g", {"s": 2})  # the first one may have been flushed, and a flush of nothing calls nobody
    await eventually(lambda: not pair("status", "--json").json["meta_available"], 30)
    for command in (
        ["get", "g", "--mode", "store"],
        ["get", "absent", "s"],
        ["flush"],
        ["offsets", "reset", "g", "--to-offset", "3"],
        ["offsets", "delete", "g"],
        ["groups", "clone", "g", "h"],
        ["export", "g"],
    ):
        ran = pair(*command)
        assert (ran.code, ran.out) == (ERROR, ""), command
        assert ran.err.endswith("; the adapter answers, the Meta Service does not\n"), command
        assert "is the adapter running" not in ran.err
    address = f"127.0.0.1:{free_port()}"
    nobody = run("get", "g", "--mode", "store", "--address", address)
    assert nobody.err.endswith("; is the adapter running there, and ready? (--address)\n")


@pytest.mark.parametrize("execute", [[], ["--execute"]], ids=["dry", "execute"])
def test_a_mistyped_shard_is_refused_with_what_was_perhaps_meant(shared: Pair, execute: list[str]) -> None:
    """It made a shard "orders" beside orders/0 and orders/1, and said "done: 1 offsets moved"."""
    group = f"typed-{len(execute)}"
    commit(shared, group, {"orders/0": 100, "orders/1": 200, "payments/0": 300})
    ran = shared("offsets", "reset", group, "orders", "--to-offset", "3", *execute)
    assert (ran.code, ran.out) == (ERROR, "")
    assert f"default/{group} has no offset of 'orders'; did you mean orders/0, orders/1?" in ran.err
    assert "--topic orders" in ran.err
    assert "--create" in ran.err
    assert shared("get", group, "orders").code == NO
    ran = shared("offsets", "reset", group, "--topic", "orders", "--to-offset", "3", "--json", *execute)
    assert (ran.code, [row["shard"] for row in ran.json["rows"]]) == (OK, ["orders/0", "orders/1"])
    ran = shared("offsets", "reset", group, "new/0", "--create", "--to-offset", "3", *execute)
    assert (ran.code, "dry run: 1 of 1 offset" in ran.out) == (OK, not execute)
    ran = shared("offsets", "reset", "no-such-group", "orders/0", "--to-offset", "3", *execute)
    assert (ran.code, "default/no-such-group has no offsets; `groups list` shows" in ran.err) == (ERROR, True)


def test_after_ones_own_reset_nobody_is_told_to_stop_consumers(shared: Pair) -> None:
    """There are none: the last move was the operator's."""
    commit(shared, "own", {"own/0": 100})
    assert "stop its consumers" in shared("offsets", "reset", "own", "--to-offset", "3", "--execute").err
    ran = shared("offsets", "reset", "own", "--to-offset", "4", "--execute")
    assert (ran.code, ran.out.splitlines()[-1]) == (OK, "done: 1 offset moved, read back and equal")
    assert "stop its consumers" not in ran.err
    ran = shared("offsets", "reset", "own", "--to-offset", "4", "--execute")
    assert ran.out.splitlines()[-1] == "done: 0 offsets moved, 1 kept where it is, in a new epoch, read back and equal"
    epoch = shared("get", "own", "--json").json[0]["epoch"]
    assert shared("commit", "own", "own/0", "500", "--epoch", str(epoch)).code == OK
    assert "stop its consumers" in shared("offsets", "reset", "own", "--to-offset", "3").err


def test_a_narrow_terminal_gets_every_cell_whole(shared: Pair) -> None:
    """As records, one line for each cell; the same table fits where there is room."""
    commit(shared, "narrow", {"a-topic-with-a-name/0": 7})
    where = {"OFFSET_ADAPTER_ADDRESS": shared.adapter.address}
    _, shown = at_a_terminal(["get", "narrow"], where, 60)
    record = dict(line.split(maxsplit=1) for line in shown.splitlines() if line)
    assert {name: record[name] for name in ("group", "shard", "offset", "epoch")} == {
        "group": "narrow",
        "shard": "a-topic-with-a-name/0",
        "offset": "7",
        "epoch": "0.1",
    }
    assert "metadata" not in record
    _, wide = at_a_terminal(["get", "narrow"], where, 120)
    assert wide.splitlines()[0].split()[:4] == ["namespace", "group", "shard", "offset"]


def test_the_width_of_a_terminal_changes_nothing_in_a_pipe(shared: Pair) -> None:
    """Nor do colours that are forced, in any form."""
    commit(shared, "piped", {"orders/0": 7})
    shared("flush")  # what is dirty is in the tables
    for form in ("table", "json", "csv"):
        command = ("get", "piped", "--output", form, "--address", shared.adapter.address)
        narrow, wide, plain = (
            run(*command, COLUMNS="5"),
            run(*command, COLUMNS="500", FORCE_COLOR="1"),
            run(*command, NO_COLOR="1"),
        )
        assert narrow.out == wide.out == plain.out


LISTINGS = (
    ("list",),
    ("get", "everywhere"),
    ("groups", "list"),
    ("top",),
    ("groups", "describe", "everywhere"),
    ("groups", "broadcast", "everywhere", "orders/0"),
    ("status",),
)


def test_every_listing_has_three_forms(shared: Pair) -> None:
    """`--json` is short for `--output json`. CSV has a line of names, and the same number of cells in each line."""
    commit(shared, "everywhere", {"orders/0": 7})
    shared("flush")
    forms = ((), ("--output", "json"), ("--json",), ("--output", "csv"))
    for command in LISTINGS:
        table, long, short, rows = (shared(*command, *form) for form in forms)
        assert table.code == long.code == short.code == rows.code, command
        assert type(long.json) is type(short.json), command
        names, *cells = csv.reader(StringIO(rows.out))
        assert cells, command
        assert {len(row) for row in cells} == {len(names)}, command
        assert (long.err, rows.err) == ("", ""), command


def test_a_watched_command_looks_again(shared: Pair) -> None:
    """In a pipe each look follows the one before; at a terminal it takes its place. SIGINT ends it with exit code 0."""
    commit(shared, "watched", {"orders/0": 7})
    command = [sys.executable, "-m", "adapter", "get", "watched", "--address", shared.adapter.address]
    assert subprocess.run([*command, "--watch"], capture_output=True, check=False, timeout=120).returncode == ERROR
    # A shell without job control has a command in the background ignore SIGINT, which the tests may be.
    code = "import signal; signal.signal(2, signal.default_int_handler); from adapter.__main__ import main; main()"
    command = [sys.executable, "-c", code, "groups", "list", "watch*", "--watch=0.1", "--output", "csv"]
    with subprocess.Popen([*command, "--address", shared.adapter.address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(6)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(120) == OK
    assert lines[::2] == ["namespace,group,shards,dirty,last_commit_at_ms,status,lag,lag_seconds\n"] * 3
    assert all(line.startswith("default,watched,1,") for line in lines[1::2])


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    """By the script that `completion` prints, in a real bash."""
    shim = tmp_path / "offset-adapter"
    code = "import sys; sys.argv[0] = 'offset-adapter'; from adapter.__main__ import main; main()"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    shim.chmod(0o700)
    lines = ["source <(offset-adapter completion bash)"]
    for words in ("groups desc", "doctor --out", "meta placement show --outp"):
        typed = f"offset-adapter {words}"
        lines.append(
            f"COMPREPLY=(); COMP_WORDS=({typed}); COMP_CWORD={len(typed.split()) - 1}; _offset_adapter_completion offset-adapter"
        )
        lines.append('echo "${COMPREPLY[@]}"')
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run(
        ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    assert ran.stdout.splitlines() == ["describe", "--output", "--output"]


def test_groups_are_chosen_by_a_pattern_of_their_whole_name(shared: Pair) -> None:
    """As a shell has it for files; for `list` and for `describe`."""
    for group in ("pattern-a", "pattern-b", "a-pattern"):
        commit(shared, group, {"t/0": 1})
    for pattern, expected in (("pattern-?", ["pattern-a", "pattern-b"]), ("patter[n]", []), ("*pattern", ["a-pattern"])):
        listed = shared("groups", "list", pattern, "--json").json
        described = shared("groups", "describe", pattern, "--json").json
        assert [row["group"] for row in listed] == [row["group"] for row in described] == expected


def test_json_of_a_list_is_one_array(shared: Pair) -> None:
    """A line for each row, and an empty one where there is nothing."""
    commit(shared, "array", {"s": 1, "t": 2})
    out = shared("get", "array", "--json").out
    assert [line[:1] for line in out.splitlines()] == ["[", "{", "{", "]"]
    assert len(json.loads(out)) == 2
    assert shared("get", "nothing-here", "--json").out == "[]\n"
