"""The daily commands at real terminals of 80, 120 and 200 columns, and by contexts. One adapter for all of them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from adapter.testing.waiting import eventually
from tests import forking
from tests.acceptance.conftest import Pair, Ran, run
from tests.acceptance.helpers import commit
from tests.acceptance.terminals import at_a_terminal

OK, NO, ERROR = 0, 1, 2
WIDTHS = (80, 120, 200)
GROUP, TOPIC = "payments-fraud-check", "card-payments"
SHARDS = 12


@pytest.fixture(scope="module")
def filled(shared: Pair) -> Pair:
    """Groups whose names end with numbers, one of twelve shards of two topics."""
    for number in (2, 10, 1):
        commit(shared, f"orders-{number}", {"orders/0": 7}, low=0, high=30_000)
    commit(shared, GROUP, {f"{TOPIC}/{number}": 1_000_000 + number for number in range(SHARDS)}, low=0, high=2_000_000)
    commit(shared, GROUP, {"refunds/0": 5}, low=0, high=9)
    asyncio.run(eventually(lambda: len(shared("top", "--json").json) == 4, 60))
    return shared


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of a person who has no context so far."""
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def typed(*arguments: str, home: Mapping[str, str], cwd: Path | None = None) -> Ran:
    """A command of a person with this home."""
    return run(*arguments, cwd=cwd, answer="", **home)


def shown(pair: Pair, *arguments: str, columns: int) -> list[str]:
    """The lines that a command shows at a terminal, notes included."""
    _, text = at_a_terminal([*arguments, "--address", pair.adapter.address], {}, columns, errors=True)
    return text.splitlines()


@pytest.mark.parametrize("columns", WIDTHS)
def test_daily_commands_are_tables_at_every_width(filled: Pair, columns: int) -> None:
    """One line of names, and a line for each row below it, none wider than the terminal."""
    for command, rows in (
        (("groups", "describe", GROUP), SHARDS + 1),
        (("groups", "describe", GROUP, "--state"), 1),
        (("groups", "list", "--topic", "orders"), 3),
        (("top", "orders-*", "--once", "--sort", "name"), 3),
    ):
        lines = shown(filled, *command, columns=columns)
        heads = [at for at, line in enumerate(lines) if {"lag", "group"} <= {*line.split()}]
        assert len(heads) == 1, lines
        (head,) = heads
        table = lines[head : head + rows + 1]
        assert len(table) == rows + 1, lines
        assert max(map(len, table)) <= columns, lines
        group_at = len(lines[head].split("group")[0])
        assert all(line[group_at:].startswith((GROUP, "orders-")) for line in table[1:]), lines
    described = [line for line in shown(filled, "groups", "describe", GROUP, columns=columns) if line.startswith(GROUP)]
    assert [line.split()[1] for line in described] == [*(f"{TOPIC}/{number}" for number in range(SHARDS)), "refunds/0"]


def test_eight_columns_fit_120_and_others_are_asked_for(filled: Pair) -> None:
    """What a terminal of 80 leaves out is said; `--wide` has all, `--columns` those that are named, in their order."""

    def head(*options: str, columns: int) -> list[str]:
        lines = shown(filled, "groups", "describe", GROUP, *options, columns=columns)
        return next(line for line in lines if "current-offset" in line).split()

    core = ["group", "shard", "current-offset", "log-end-offset", "lag", "lag-time", "status", "state"]
    assert head(columns=120) == core
    assert head("--columns", "lag,current-offset,shard", columns=80) == ["lag", "current-offset", "shard"]
    assert {*core, "meta-service", "epoch", "committed"} < {*head("--wide", columns=300)}
    narrow = shown(filled, "groups", "describe", GROUP, columns=80)
    assert "left out for lack of room: lag-time, state, log-end-offset; --wide shows all" in narrow
    ran = filled("groups", "describe", GROUP, "--columns", "lag,size")
    assert (ran.code, "--columns: there is no 'size'; there are group, shard, current-offset" in ran.err) == (ERROR, True)
    listed = filled("top", "--once", "--columns", "group,lag").out.splitlines()
    assert listed[0] == "group\tlag"


def test_topics_and_patterns_of_shards_choose_rows_in_every_form(filled: Pair) -> None:
    """Of `groups list`, the groups that have an offset of the topic."""
    cases = (
        (("--topic", "refunds"), ["refunds/0"]),
        (("--shard", "*/1?"), [f"{TOPIC}/10", f"{TOPIC}/11"]),
        (("--topic", TOPIC, "--shard", "*/3", "--shard", "*/0"), [f"{TOPIC}/0", f"{TOPIC}/3"]),
    )
    for options, expected in cases:
        table = filled("groups", "describe", GROUP, *options).out.splitlines()[1:]
        assert [line.split("\t")[1] for line in table] == expected
        (found,) = filled("groups", "describe", GROUP, *options, "--json").json
        assert [row["shard"] for row in found["shards"]] == expected
        rows = filled("groups", "describe", GROUP, *options, "--output", "csv").out.splitlines()[1:]
        assert [line.split(",")[2] for line in rows] == expected
    having = filled("groups", "list", "--topic", "orders", "--json").json
    assert [row["group"] for row in having] == ["orders-1", "orders-2", "orders-10"]


def test_names_are_sorted_as_people_count(filled: Pair) -> None:
    """By numbers in them, and not by their length: in the list, and where a pattern names them."""
    names = ["orders-1", "orders-2", "orders-10"]
    listed = [row["group"] for row in filled("groups", "list", "--json").json]
    assert listed == [*names, GROUP]
    assert [row["group"] for row in filled("groups", "describe", "orders-*", "--json").json] == names
    assert [line.split("\t")[1] for line in filled("groups", "list", "orders-*").out.splitlines()[1:]] == names


def test_state_and_members_are_a_line_for_each_group(filled: Pair) -> None:
    """As users of kafka-consumer-groups type them; whose JSON is that of the group all the same."""
    state = filled("groups", "describe", "orders-*", GROUP, "--state")
    rows = [line.split("\t") for line in state.out.splitlines()]
    assert (state.code, rows[0]) == (OK, ["group", "status", "lag", "shards", "dirty", "held", "mode", "generation"])
    assert [(row[0], row[3], row[6]) for row in rows[1:]] == [
        (GROUP, str(SHARDS + 1), "write_back"),
        *((f"orders-{number}", "1", "write_back") for number in (1, 2, 10)),
    ]
    members = filled("groups", "describe", GROUP, "--members")
    assert members.out.splitlines() == ["group\tconsumer-id\tgeneration\tlast-commit"]
    assert "who is in a group is the broker's knowledge" in members.err
    assert filled("groups", "describe", GROUP, "--members", "--json").json[0]["mode"] == "write_back"


def test_a_group_that_was_mistyped_is_guessed(filled: Pair) -> None:
    """Or is in another namespace."""
    commit_elsewhere = filled("commit", "of-tenant", "s", "1", "-n", "tenant")
    assert commit_elsewhere.code == OK
    for command in (("groups", "describe"), ("get",), ("export",)):
        ran = filled(*command, "payment-fraud-check")
        assert (ran.code, f"did you mean {GROUP}?" in ran.err) == (NO, True), (command, ran.err)
        ran = filled(*command, "of-tenant")
        assert (ran.code, "it has some in tenant: -n tenant" in ran.err) == (NO, True), (command, ran.err)


def test_a_context_says_whom_to_call(filled: Pair, home: dict[str, str], tmp_path: Path) -> None:
    """An option is before the environment, that before the context in use, and that before the default."""
    here, nobody = filled.adapter.address, "127.0.0.1:1"

    def status(*arguments: str, **environment: str) -> Ran:
        return run("groups", "list", "--json", *arguments, cwd=tmp_path, **home, **environment)

    made = typed("context", "set", "here", "--address", here, "--meta", filled.meta.address, cwd=tmp_path, home=home)
    assert (made.code, made.out) == (OK, "made: here, which is in use\n")
    typed("context", "set", "away", "--address", nobody, cwd=tmp_path, home=home)
    assert (status().code, len(status().json) > 3) == (OK, True)
    for arguments, environment, reached in (
        (("--context", "away"), {}, False),
        ((), {"OFFSET_ADAPTER_CONTEXT": "away"}, False),
        (("--context", "here"), {"OFFSET_ADAPTER_CONTEXT": "away"}, True),
        ((), {"OFFSET_ADAPTER_ADDRESS": nobody}, False),
        (("--context", "here"), {"OFFSET_ADAPTER_ADDRESS": nobody}, True),
        (("--address", nobody), {"OFFSET_ADAPTER_CONTEXT": "here"}, False),
        (("--address", here, "--context", "away"), {}, True),
        (("--context", ""), {"OFFSET_ADAPTER_ADDRESS": here}, True),
    ):
        ran = status(*arguments, **environment)
        assert (ran.code == OK) is reached, (arguments, environment, ran.err)
    assert "is the adapter running there, and ready? (context away)" in status("--context", "away").err
    assert typed("--context", "away", "groups", "list", cwd=tmp_path, home=home).code == ERROR
    assert typed("meta", "status", cwd=tmp_path, home=home).code == OK
    ran = typed("meta", "status", "--context", "away", cwd=tmp_path, home=home)
    assert (
        ran.err == "error: context away: has no meta: offset-adapter context set away --meta HOST:PORT names the Meta Service\n"
    )
    assert typed("list", "--meta", "--json", cwd=tmp_path, home=home).json


def test_whom_a_command_asked_is_said_at_a_terminal(filled: Pair, home: dict[str, str]) -> None:
    """Where it was not typed; never in a pipe, nor where a program reads."""
    typed("context", "set", "here", "--address", filled.adapter.address, home=home)
    asking = f"asking {filled.adapter.address} (context here)"
    for arguments, told in (
        (("groups", "list"), asking),
        (("groups", "list", "--json"), ""),
        (("groups", "list", "--context", "here"), asking),
        (("groups", "list", "--address", filled.adapter.address), ""),
    ):
        _, text = at_a_terminal(arguments, home, 120, errors=True)
        assert [line for line in text.splitlines() if line.startswith("asking")] == ([told] if told else [])
    _, text = at_a_terminal(["groups", "list"], {**home, "OFFSET_ADAPTER_ADDRESS": filled.adapter.address}, errors=True)
    assert text.startswith(f"asking {filled.adapter.address} (by OFFSET_ADAPTER_ADDRESS)\n")
    assert "asking" not in typed("groups", "list", home=home).err


def test_contexts_are_listed_changed_and_removed(home: dict[str, str], tmp_path: Path) -> None:
    """The file is its owner's alone; a field that is wrong is named, with the file."""

    def context(*arguments: str) -> Ran:
        return typed("context", *arguments, cwd=tmp_path, home=home)

    file = tmp_path / "config" / "offset-adapter" / "contexts.toml"
    assert context("show").err.startswith("error: no context is in use")
    token = tmp_path / "token"
    assert context("set", "prod", "--address", "unix:data/a.sock", "--token-file", "token").code == OK
    assert context("set", "test", "--address", "127.0.0.1:9520", "--meta", "127.0.0.1:9530").code == OK
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    rows = {row["name"]: row for row in context("list", "--json").json}
    assert (rows["prod"]["current"], rows["test"]["current"]) == (True, False)
    assert (rows["prod"]["address"], rows["prod"]["token_file"]) == (f"unix:{tmp_path}/data/a.sock", str(token))
    assert context("use", "test").out == "in use: test\n"
    assert context("set", "test", "--meta", "").code == OK
    assert context("show").out.splitlines()[1:] == ["name\ttest", "address\t127.0.0.1:9520"]
    assert "it was in use" in context("remove", "test").err
    for arguments, error in (
        (("use", "tset"), "NAME: no context 'tset' (there are prod)"),
        (("set", "prod", "--address", "host"), "context prod: address: 'host' is not host:port"),
        (("set", "prod", "--tls-cert", "c.pem"), "context prod: tls_ca: is missing"),
        (("set", "new", "--token-file", "token"), "--address: is missing"),
    ):
        ran = context(*arguments)
        assert (ran.code, error in ran.err) == (ERROR, True), (arguments, ran.err)
    good = file.read_text()
    for text, error in (
        (f"{good}\naddres = 'a:1'\n", "contexts.prod.addres: is not a field of a context"),
        (good.replace('address = "unix:', 'address = 5 # "unix:'), "contexts.prod.address: 5 is not a text"),
        (f'current = "gone"\n{good}', "current: no context 'gone'"),
        ("[contexts", "is not valid TOML"),
        ("[context.prod]\naddress = 'a:1'", "context: is not a field; there are current and [contexts.NAME]"),
        ("[contexts.prod]\ntoken_file = 'token'", "contexts.prod.token_file: 'token' is another file in each directory"),
    ):
        file.write_text(text)
        ran = typed("health", cwd=tmp_path, home=home)
        assert (ran.code, str(file) in ran.err, error in ran.err) == (ERROR, True, True), (text, ran.err)
    file.write_text(good)
    file.chmod(0o666)
    assert "others could have written it" in typed("health", cwd=tmp_path, home=home).err
    assert typed("health", "--address", "127.0.0.1:1", cwd=tmp_path, home=home).code == NO


def test_contexts_that_are_set_at_once_are_all_kept_and_a_kill_tears_nothing(home: dict[str, str], tmp_path: Path) -> None:
    """Each command reads and replaces the file: one at a time. What a killed one was about to write is there whole, or not."""
    environment = {**os.environ, **home}
    said = [tmp_path / f"said-{number}" for number in range(16)]
    with ExitStack() as files:
        started = []
        for number, path in enumerate(said):
            command = ["context", "set", f"c{number}", "--address", f"127.0.0.1:{number + 1}"]
            started.append(forking.start(command, environment, files.enter_context(path.open("wb"))))
        for process in started[::3]:
            process.kill()
        codes = [process.wait(120) for process in started]
    made = {f"c{number}" for number, path in enumerate(said) if path.read_text().startswith("made: ")}
    assert all(code == OK for at, code in enumerate(codes) if at % 3), codes
    listed = {row["name"]: row["address"] for row in typed("context", "list", "--json", home=home).json}
    assert made <= {*listed}
    assert len(made) >= 10
    assert listed == {name: f"127.0.0.1:{int(name[1:]) + 1}" for name in listed}
    assert typed("context", "set", "after", "--address", "127.0.0.1:99", home=home).code == OK, "a killed one holds nothing"


def test_words_of_the_adapter_are_completed(filled: Pair, home: dict[str, str]) -> None:
    """Groups, shards and namespaces of the adapter of the context, and contexts; without an answer nothing, and no error."""

    def completed(*words: str) -> list[set[str]]:
        code = (
            "import grpc, os, sys; from adapter.__main__ import main; sys.argv[0] = 'offset-adapter'\n"
            f"for words in {words}:\n"
            "    if not os.fork():\n"
            "        os.environ.update(COMP_WORDS=words, COMP_CWORD=str(words.count(' '))); main()\n"
            "    os.wait(); print('end', flush=True)"
        )
        environment = {**os.environ, **home, "_OFFSET_ADAPTER_COMPLETE": "bash_complete"}
        ran = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        assert ran.stderr == ""
        answers = ran.stdout.split("end\n")[:-1]
        return [{line.partition(",")[2] for line in answer.splitlines()} - {""} for answer in answers]

    typed("context", "set", "here", "--address", filled.adapter.address, "--meta", filled.meta.address, home=home)
    typed("context", "set", "nobody", "--address", "127.0.0.1:1", home=home)
    orders = {"orders-1", "orders-2", "orders-10"}
    cases = {
        "offset-adapter groups describe ord": orders,
        "offset-adapter top ord": orders,
        "offset-adapter export orders-1 ord": orders,
        "offset-adapter get orders-1 o": {"orders/0"},
        f"offset-adapter offsets reset {GROUP} r": {"refunds/0"},
        "offset-adapter groups list -n def": {"default"},
        "offset-adapter status --context ": {"here", "nobody"},
        "offset-adapter context use n": {"nobody"},
        "offset-adapter get --context nobody ord": set(),
    }
    assert dict(zip(cases, completed(*cases), strict=True)) == cases


def test_doctor_looks_at_the_servers_of_the_context(filled: Pair, home: dict[str, str], tmp_path: Path) -> None:
    """And not at a Meta Service of the default settings, which nobody here calls. What it cannot see from here is said."""
    typed("context", "set", "here", "--address", filled.adapter.address, "--meta", filled.meta.address, home=home)
    typed("context", "set", "away", "--address", "127.0.0.1:1", home=home)

    def doctor(*arguments: str) -> tuple[int, dict[str, tuple[str, str]]]:
        ran = typed("doctor", "--json", *arguments, home=home, cwd=tmp_path)
        return ran.code, {row["check"]: (row["state"], row["seen"]) for row in ran.json}

    code, found = doctor()
    assert (code, found["adapter"][0], found["Meta Service"][0]) == (OK, "ok", "ok"), found
    assert "no --config was given" in found["configuration"][1]
    assert found["its Meta Service"] == ("ok", f"{filled.adapter.address} calls {filled.meta.address}, which answers")
    assert not any("127.0.0.1:9530" in seen for _, seen in found.values())
    assert not any(check.startswith("store") for check in found)
    code, found = doctor("--context", "away")
    assert (code, found["adapter"][0], "Meta Service" in found) == (NO, "fail", False)
    refused = typed("doctor", "--config", "x.toml", "--context", "away", home=home, cwd=tmp_path)
    assert (refused.code, "--config and --context: name one of them" in refused.err) == (ERROR, True)
    assert "store directory" in doctor("--context", "")[1]
