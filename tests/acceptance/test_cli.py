"""The tools: tables for a person, JSON for a script, exit codes for both."""

import subprocess
import sys
from pathlib import Path

import pytest

from adapter import __version__
from adapter.model.records import U64_MAX
from adapter.runtime.version import commit
from adapter.testing.processes import free_port
from adapter.testing.waiting import eventually
from tests.acceptance.conftest import Pair, run
from tests.integration.helpers import commits, rpc

OK, NO, ERROR = 0, 1, 2


def test_the_installed_command_is_the_module() -> None:
    """`offset-adapter` in the virtual environment, as README names it."""
    command = Path(sys.executable).parent / "offset-adapter"
    ran = subprocess.run([command, "--version"], check=False, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (OK, f"offset-adapter, version {__version__}, commit {commit()}\n")


def test_help_names_every_command() -> None:
    """And each tells what its exit codes mean."""
    commands = [
        "serve",
        "meta",
        "status",
        "health",
        "get",
        "commit",
        "list",
        "flush",
        "check-config",
        "repair",
        "groups",
        "offsets",
    ]
    shown = run("--help")
    assert shown.code == OK
    assert all(f"  {command} " in shown.out for command in commands)
    assert "Exit code 0 after a complete stop" in run("serve", "--help").out


def test_commit_get_and_rewind(shared: Pair) -> None:
    """Exit 0 when it stands, 1 when a larger one does."""
    committed = shared("commit", "rewind", "t/0", "42", "--metadata", "from a person")
    assert (committed.code, committed.out) == (OK, "committed\n")
    lower = shared("commit", "rewind", "t/0", "40")
    assert (lower.code, lower.out) == (NO, "not applied: 42 (epoch 0.1) stands; --overwrite rewinds\n")
    assert "default rewind t/0 42 0.1" in shared("get", "rewind").words
    assert shared("commit", "rewind", "t/0", "40", "--overwrite").code == OK
    shown = shared("get", "rewind", "t/0")
    assert (shown.code, "default rewind t/0 40 0.2" in shown.words, shown.err) == (OK, True, "1 offset\n")


def test_commit_in_json(shared: Pair) -> None:
    """The reply, with numbers as numbers."""
    assert shared("commit", "json", "s", str(U64_MAX), "--json").json == {"superseded": [], "written_through": [], "raised": []}
    lower = shared("commit", "json", "s", "1", "--json")
    row = {"namespace": "default", "group": "json", "shard": "s", "epoch": 1, "offset": U64_MAX, "deleted": False, "held": False}
    assert (lower.code, lower.json) == (NO, {"superseded": [row], "written_through": [], "raised": []})


@pytest.mark.parametrize("offset", ["x", "", str(U64_MAX + 1), "\u0663"])
def test_a_bad_offset_is_told(offset: str) -> None:
    """What is allowed, and what was given; nobody is called."""
    ran = run("commit", "g", "s", offset)
    assert (ran.code, ran.out) == (ERROR, "")
    assert ran.err == f"error: OFFSET: {offset!r} is not a whole number from 0 to {U64_MAX}\n"


def test_a_negative_offset_is_refused() -> None:
    """It looks like an option, and is told as what it is; one that is misspelled as well."""
    ran = run("commit", "g", "s", "-5")
    assert (ran.code, ran.err) == (ERROR, "error: OFFSET: '-5' is not a whole number from 0 to 18446744073709551615\n")
    assert "No such option '--overwrit'" in run("commit", "g", "s", "5", "--overwrit").err


@pytest.mark.parametrize("command", [["get", "g"], ["commit", "g", "s", "5"], ["meta", "status"], ["status"]])
def test_an_address_without_a_port_is_refused(command: list[str]) -> None:
    """Port 443 would be called, and somebody may answer there."""
    ran = run(*command, "--address", "localhost")
    said = "error: 'localhost' is not host:port with a port from 0 to 65535, nor unix:PATH\n"
    assert (ran.code, ran.err) == (ERROR, said)


def test_what_the_adapter_refuses_is_one_line(shared: Pair) -> None:
    """Status and message as the adapter said them (10)."""
    ran = shared("commit", "", "s", "1")
    assert (ran.code, ran.out) == (ERROR, "")
    assert ran.err == f"error: {shared.adapter.address}: INVALID_ARGUMENT: groups[0].group is empty\n"
    ran = shared("list", "--group", "g")
    assert ran.code == ERROR
    assert "namespace: is empty, but a group is named; name both" in ran.err


def test_get_says_by_its_exit_code_whether_a_named_shard_has_an_offset(shared: Pair) -> None:
    """Absent is not 0, in any mode."""
    shared("commit", "absent", "s", "0")
    for mode in ("memory", "store", "memory-first"):
        assert shared("get", "absent", "s", "--mode", mode).code == OK
        absent = shared("get", "absent", "s", "absent", "--mode", mode, "--json")
        assert (absent.code, [row["shard"] for row in absent.json]) == (NO, ["s"])
    assert shared("get", "nothing").code == NO
    assert shared("get", "absent", "--mode", "fast").code == ERROR


def test_get_in_json_has_all_fields(shared: Pair) -> None:
    """For scripts."""
    shared("commit", "fields", "s", "7", "-n", "team", "--metadata", "m")
    (row,) = shared("get", "fields", "-n", "team", "--json").json
    assert row.pop("committed_at_ms") > 1_600_000_000_000
    assert isinstance(row.pop("dirty"), bool)
    names = {"namespace": "team", "group": "fields", "shard": "s"}
    assert row == {
        **names,
        "epoch": 1,
        "offset": 7,
        "metadata": "m",
        "topic": "",
        "partition": 0,
        "deleted": False,
        "held": False,
        "uncompared": False,
    }


async def test_list_shows_what_is_local_and_what_the_meta_service_holds(pair: Pair) -> None:
    """Both in the same form; flush brings them together."""
    for number in range(3):
        pair("commit", f"g{number}", "s", str(number), "-n", "a" if number else "b")
    await eventually(lambda: pair("list", "--meta", pair.meta.address, "--json").json != [], 30)
    assert pair("flush").code == OK
    local, remote = pair("list", "--json").json, pair("list", "--meta", pair.meta.address, "--json").json
    assert [(row["namespace"], row["group"], row["offset"]) for row in local] == [("a", "g1", 1), ("a", "g2", 2), ("b", "g0", 0)]
    assert local == remote
    one = pair("list", "-n", "a", "-g", "g2")
    assert "a g2 s 2 0.1" in one.words
    assert one.err == "1 offset\n"
    other = pair("list", "--meta", pair.meta.address, "--cluster", "other")
    assert (other.code, len(other.out.splitlines()), other.err) == (OK, 1, "0 offsets\n")


def test_list_follows_all_pages(pair: Pair) -> None:
    """More than one page on either side, each offset once."""
    with rpc(pair.adapter.address) as stubs:
        for group in range(3):
            stubs.store.CommitOffsets(commits({f"s{at:04d}": at for at in range(1_500)}, f"g{group}"), timeout=60)
    assert pair("flush").code == OK
    local, remote = pair("list", "--json").json, pair("list", "--meta", pair.meta.address, "--json").json
    assert len({(row["group"], row["shard"]) for row in local}) == len(local) == 4_500
    assert local == remote


def test_a_metadata_that_looks_like_markup_is_shown_as_it_is(shared: Pair) -> None:
    """Tables do not interpret what users wrote."""
    shared("commit", "[bold]g[/bold]", "[/red]", "1", "--metadata", "[red]x[/red]")
    words = shared("list").words
    assert "[bold]g[/bold] [/red] 1" in words
    assert "[red]x[/red]" in words


def test_flush_tells_how_many_offsets_were_sent(pair: Pair) -> None:
    """And is an error when the Meta Service is away."""
    assert pair("flush", "--json").json == {"flushed": 0}
    assert pair("flush").out == "flushed 0 offsets\n"
    pair.meta.kill()
    pair("commit", "g", "s", "1")
    ran = pair("flush")
    assert ran.code == ERROR
    assert ran.err.startswith(f"error: {pair.adapter.address}: UNAVAILABLE: ")
    assert pair.meta.address in ran.err
    assert len(ran.err.splitlines()) == 1


def test_status_for_a_person_and_for_a_script(pair: Pair) -> None:
    """The state, the counts, the recovery, and what is at risk."""
    pair("commit", "g", "s", "1")
    pair("flush")
    shown = pair("status")
    assert shown.code == OK
    for text in (
        "state serving",
        __version__,
        "mode write_back",
        "interval:",
        "power cut",
        pair.meta.address,
        "recovery done in",
    ):
        assert text in shown.words
    status = pair("status", "--json").json
    assert (status["state"], status["commits"], status["dirty_keys"]) == ("SERVING", 1, 0)
    assert (status["recovery"]["done"], status["meta_endpoint"]) == (True, pair.meta.address)
    assert status["save_calls"] >= 1


async def test_status_shows_the_journal(pair: Pair) -> None:
    """Where it is and how much is in it, what was dropped, and its trouble; without a journal not a word."""
    assert "journal" not in pair("status").words
    assert "journal" not in pair("status", "--json").json
    path = pair.directory / "journal"
    path.write_text("in the way")
    pair.adapter.settings += f"\n[journal]\npath = '{path}'\nsegment_max_age_ms = 86_400_000"
    pair.restart()
    pair("commit", "g", "s", "1")
    pair("flush")
    await eventually(lambda: pair("status", "--json").json["journal"]["last_error"] != "")
    assert f"is there, and no directory: '{path}'" in pair("status").words
    path.unlink()
    await eventually(lambda: pair("status", "--json").json["journal"]["rows"] == 1)
    assert pair("status", "--json").json["journal"] == {
        "path": str(path),
        "rows": 1,
        "dropped_rows": 0,
        "segments": 0,
        "bytes": 0,
        "deleted_segments": 0,
        "last_error": "",
    }
    assert f"journal {path}, 1 row since the start, 0 segments of 0.0 MiB" in pair("status").words


async def test_status_shows_an_outage(pair: Pair) -> None:
    """How much is dirty, since when, and why."""
    pair.meta.kill()
    pair("commit", "g", "s", "1")
    await eventually(lambda: not pair("status", "--json").json["meta_available"], 30)
    shown = pair("status")
    assert shown.code == OK
    assert f"{pair.meta.address} (does not answer)" in shown.words
    assert "dirty 1 key, oldest" in shown.words


def test_health_has_an_exit_code_and_no_words(shared: Pair) -> None:
    """For container health checks, of both processes."""
    assert (shared("health").code, shared("health", "--address", shared.meta.address).code) == (OK, OK)
    assert shared("health", "--address", f"127.0.0.1:{free_port()}").code == NO


def test_the_unix_socket_is_an_address(shared: Pair) -> None:
    """By option and by environment; the option wins."""
    path = shared.directory / "a.sock"
    assert shared("commit", "unix", "s", "1", "--address", f"unix:{path}").code == OK
    assert run("get", "unix", "s", OFFSET_ADAPTER_ADDRESS=f"unix:{path}").code == OK
    assert run("get", "unix", "--address", f"unix:{path}", OFFSET_ADAPTER_ADDRESS="127.0.0.1:1").code == OK


COMMANDS = (["status"], ["get", "g"], ["commit", "g", "s", "1"], ["list"], ["flush"])


@pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])
def test_when_nothing_runs_there_it_says_so(tmp_path: Path, command: list[str]) -> None:
    """One line: the address, the status, and what to look at."""
    address = f"unix:{tmp_path}/no.sock" if command == ["list"] else f"127.0.0.1:{free_port()}"
    ran = run(*command, "--address", address)
    assert (ran.code, ran.out) == (ERROR, "")
    assert ran.err.startswith(f"error: {address}: UNAVAILABLE: ")
    assert ran.err.endswith("is the adapter running there, and ready? (--address)\n")
    assert len(ran.err.splitlines()) == 1


def test_when_no_meta_service_runs_there_it_says_so() -> None:
    """With its address."""
    address = f"127.0.0.1:{free_port()}"
    ran = run("list", "--meta", address)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (ERROR, "", 1)
    assert ran.err.startswith(f"error: {address}: UNAVAILABLE")
    assert run("list", "--meta", "nonsense").err.startswith("error: --meta")


def test_an_adapter_is_no_meta_service(shared: Pair) -> None:
    """The wrong port is told as such, not as an empty list."""
    ran = shared("list", "--meta", shared.adapter.tcp_address)
    assert ran.code == ERROR
    assert "this server has no offsets of a Meta Service: it is an adapter" in ran.err
    ran = shared("status", "--address", shared.meta.address)
    assert ran.code == ERROR
    assert "UNIMPLEMENTED" in ran.err
