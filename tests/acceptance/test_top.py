"""`top` with a real adapter: one listing in pipes, and a live table on a real terminal (tmux): its keys, a restart, signals."""

import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from adapter.rpc import offsets_pb
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.conftest import Pair
from tests.acceptance.helpers import commit
from tests.integration.helpers import rpc

ROOT = Path(__file__).parents[2]
HOSTILE = "[red]x[/red][@click=app.quit]\u202e"  # an adapter takes no control characters; test_top_app has them
OK, NOT_ALL, ERROR = 0, 1, 2
WORST = ["stop", "stall", "rewind", "warn", "ok", "unknown"]
STALLED = {"stall", "stop"}  # nobody commits while a test runs


@pytest.fixture(scope="module")
def behind(shared: Pair) -> Pair:
    """An adapter with a group that keeps up, one that commits the same offset again and again, and one with a hostile name."""
    _feed(shared)
    return shared


def _feed(pair: Pair) -> None:
    """Commits with the bounds of their logs, until the adapter has judged them, and has seen the last one."""
    end = 0
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = {row["group"]: row for row in pair("top", "team-*", "--json").json}
        judged = len(rows) == 2 and rows["team-a"]["status"] == "ok" and rows["team-b"]["status"] in STALLED
        if judged and rows["team-b"]["lag"] == 2 * (100 + end) - 15:
            return
        assert time.monotonic() < deadline, rows
        if not judged:
            end += 10
            commit(pair, "team-a", {"a/0": end}, 0, end)  # bounds are those of a shard, whichever group tells them
            commit(pair, "team-b", {"orders/0": 10, "orders/1": 5}, 0, 100 + end)
            commit(pair, HOSTILE, {"h/0": 1}, 0, 100)
        time.sleep(0.5)


class Tmux:
    """A terminal of its own, with a command in it."""

    def __init__(self, directory: Path, command: str, width: int, height: int) -> None:
        self._socket = directory / "tmux.sock"
        environment = f"TERM=tmux-256color PYTHONPATH={shlex.quote(str(ROOT))} LC_ALL=C.UTF-8"
        line = f"{environment} {command}; echo ended with $?; sleep 600"
        self("-f", os.devnull, "new-session", "-d", "-x", str(width), "-y", str(height), line)

    def __call__(self, *arguments: str) -> str:
        """Have the server do something; returns what it says."""
        # COLUMNS and LINES, which a test process may have, count more than the size of the terminal.
        others = ("TMUX", "OFFSET_ADAPTER_", "COLUMNS", "LINES")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        ran = subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments], capture_output=True, text=True, check=True, timeout=60, env=clean
        )
        return ran.stdout

    def type(self, *keys: str) -> None:
        """Press keys."""
        self("send-keys", *keys)

    @property
    def screen(self) -> str:
        """What a person sees."""
        return self("capture-pane", "-p")

    def until(self, holds: Callable[[str], bool]) -> str:
        """Wait for it; returns the screen."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(screen := self.screen):
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)
        return screen


@contextmanager
def at_a_terminal(directory: Path, *arguments: str, width: int = 120, height: int = 20) -> Iterator[Tmux]:
    """`offset-adapter` with these arguments on a terminal."""
    if not shutil.which("tmux"):
        pytest.skip("not run: tmux is not on PATH (make tools)")
    made = Tmux(directory, shlex.join([sys.executable, "-m", "adapter", *arguments]), width, height)
    try:
        yield made
    finally:
        made("kill-server")


def test_in_a_pipe_it_is_one_listing(behind: Pair) -> None:
    """The worst first, with the same numbers in all forms, and as `groups describe` and `groups list` have them."""
    rows = behind("top", "--json").json
    assert [row["status"] for row in rows] == sorted((row["status"] for row in rows), key=WORST.index)
    (stalled,) = (row for row in rows if row["group"] == "team-b")
    table = [line.split("\t") for line in behind("top", "team-b").out.splitlines()]
    assert dict(zip(*table, strict=True))["lag"] == str(stalled["lag"])
    described = behind("groups", "describe", "team-b", "--json").json[0]
    assert described["live"]["lag"] == sum(row["live"]["lag"] for row in described["shards"]) == stalled["lag"]
    assert {row["live"]["status"] for row in described["shards"]} <= STALLED
    (listed,) = (row for row in behind("groups", "list", "--json").json if row["group"] == "team-b")
    assert (listed["status"] in STALLED, listed["lag"]) == (True, stalled["lag"])


def test_options_choose_groups(behind: Pair) -> None:
    """A pattern, a namespace, a status, a number."""
    for options, expected in (
        (["team-*", "--sort", "name"], ["team-a", "team-b"]),
        (["team-b", "--at-least", "stall"], ["team-b"]),
        (["team-*", "--sort", "lag", "--limit", "1"], ["team-b"]),
        (["--namespace", "nowhere"], []),
        (["absent"], []),
    ):
        ran = behind("top", *options, "--json")
        assert (ran.code, [row["group"] for row in ran.json]) == (OK, expected), options
    ran = behind("top", "--sort", "size")
    assert (ran.code, ran.out) == (ERROR, "")


def test_a_fleet_is_one_listing(behind: Pair) -> None:
    """Nothing but rows on standard output; an adapter that does not answer is named, and the exit code is 1."""
    here = ("--fleet", behind.adapter.address)
    ran = behind("top", "team-*", *here, "--sort", "name", "--json")
    assert (ran.code, [row["group"] for row in ran.json]) == (OK, ["team-a", "team-b"]), ran.err
    ran = behind("top", "team-*", *here, "--fleet", "unix:/nowhere.sock", "--json")
    assert (ran.code, len(ran.json)) == (NOT_ALL, 2)
    assert "warning: unix:/nowhere.sock: " in ran.err
    ran = behind("top", "--fleet", "unix:/nowhere.sock")
    assert (ran.code, ran.out) == (ERROR, "")
    assert "unix:/nowhere.sock" in ran.err


def test_what_is_printed_obeys_nobody(behind: Pair) -> None:
    """In any form."""
    for form in ("table", "json", "csv"):
        out = behind("top", "--output", form).out
        assert out.replace("\n", "").replace("\t", "").isprintable(), form
    assert HOSTILE in [row["group"] for row in behind("top", "--json").json]


def test_at_a_terminal_it_is_live(behind: Pair, tmp_path: Path) -> None:
    """What is committed is seen without a key; sorted, filtered, the shards of a group; `q` gives the terminal back."""
    with at_a_terminal(tmp_path, "top", "--address", behind.adapter.address, width=200) as terminal:
        screen = terminal.until(lambda seen: "live" in seen and "default/team-a" in seen and "default/team-b" in seen)
        assert STALLED & {*next(line for line in screen.splitlines() if "default/team-b" in line).split()}
        assert "default/[red]x[/red][@click=app.quit]\\u202e" in screen
        commit(behind, "fresh", {"fresh/0": 1}, 0, 4_321)
        terminal.until(lambda seen: "default/fresh" in seen and "4,320" in seen)
        terminal.type("n")
        screen = terminal.until(lambda seen: "sorted by name" in seen)
        lines = [line.split()[-1] for line in screen.splitlines() if "default/team" in line]
        assert len(lines) == 2
        terminal.type("/", "team-b", "Enter")
        screen = terminal.until(lambda seen: "1 shown" in seen and "filter: team-b" in seen)
        assert "default/team-a" not in screen
        terminal.type("Enter")
        screen = terminal.until(lambda seen: "orders/1" in seen and "offset" in seen)
        assert "default/team-b  live" in screen
        terminal.type("BSpace")
        terminal.until(lambda seen: "filter: team-b" in seen)
        terminal.type("q")
        terminal.until(lambda seen: "ended with 0" in seen and "sorted by" not in seen)


def test_once_at_a_terminal_is_a_table(behind: Pair, tmp_path: Path) -> None:
    """Aligned, and the command ends."""
    with at_a_terminal(tmp_path, "top", "--once", "--address", behind.adapter.address, width=160) as terminal:
        screen = terminal.until(lambda seen: "ended with 0" in seen)
        assert "team-b" in screen
        assert "PAUSED" not in screen


def test_a_restart_of_the_adapter_is_seen_and_survived(pair: Pair, tmp_path: Path) -> None:
    """It says that nobody answers, keeps what it knew, and is live again without a key. SIGTERM gives the terminal back."""
    _feed(pair)
    with at_a_terminal(tmp_path, "top", "--address", pair.adapter.address) as terminal:
        terminal.until(lambda seen: "live" in seen and "default/team-b" in seen)
        pair.adapter.kill()
        terminal.until(lambda seen: "NO ANSWER" in seen and "UNAVAILABLE" in seen and "default/team-b" in seen)
        pair.adapter.start()
        commit(pair, "after", {"after/0": 1}, 0, 50)
        terminal.until(lambda seen: "  live" in seen and "default/after" in seen)
        pid = terminal("list-panes", "-F", "#{pane_pid}").strip()
        child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        subprocess.run(["kill", "-TERM", child], check=True)
        terminal.until(lambda seen: "ended with 143" in seen and "default/after" not in seen)


def test_an_adapter_without_lag_says_so(pair: Pair) -> None:
    """`top` is an error; the other commands do what they did."""
    settings = pair.adapter.settings
    pair.adapter.kill()
    pair.adapter.settings = f"{settings}\n[lag]\nshards = 0\n"
    pair.adapter.start()
    commit(pair, "g", {"orders/0": 1}, 0, 4)
    ran = pair("top")
    assert (ran.code, ran.out) == (ERROR, "")
    assert "lag" in ran.err
    described = pair("groups", "describe", "g")
    assert (described.code, described.err.count("no live lag")) == (OK, 1)
    row = pair("groups", "describe", "g", "--json").json[0]
    assert "live" not in row["shards"][0]
    assert row["lag_error"]
    assert "status" not in pair("groups", "list", "--json").json[0]


def test_thousands_of_groups_on_a_terminal(pair: Pair, tmp_path: Path) -> None:
    """The end of the list is one key away."""
    with rpc(pair.adapter.address) as stubs:
        for at in range(0, 5_000, 500):
            shards = [offsets_pb.ShardCommit(shard="t/0", offset=1, low_watermark=0, high_watermark=9)]
            groups = [offsets_pb.GroupCommits(group=f"g{number:04}", shards=shards) for number in range(at, at + 500)]
            stubs.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=60)
    with at_a_terminal(tmp_path, "top", "--sort", "name", "--address", pair.adapter.address) as terminal:
        terminal.until(lambda seen: "5,000 groups" in seen)
        terminal.type("End")
        terminal.until(lambda seen: "default/g4999" in seen)
        terminal.type("/", "g123", "Enter")
        screen = terminal.until(lambda seen: "10 shown" in seen)
        assert "default/g1239" in screen


@pytest.mark.parametrize("goes", [True, False])
def test_it_ends_with_its_terminal_and_when_that_is_not_read(behind: Pair, *, goes: bool) -> None:
    """Nobody sends SIGHUP, as behind `docker exec -t`; or SIGTERM comes while what is written waits for a reader."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "adapter", "top", "--address", behind.adapter.address]
    process = subprocess.Popen(
        command, stdin=its, stdout=its, stderr=its, start_new_session=True, env={**os.environ, "TERM": "xterm"}
    )
    try:
        os.close(its)
        seen = b""
        while b"team-b" not in seen:
            seen += os.read(ours, 65_536)
        if goes:
            os.close(ours)
        else:
            fill = os.open(f"/proc/{process.pid}/fd/1", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            with suppress(BlockingIOError):
                while True:
                    os.write(fill, b" " * 4_096)
            time.sleep(1)  # in which the table is drawn again, and again
            process.terminate()
        code = process.wait(PATIENCE_S)
        # Of a terminal that is gone Textual hears as well, and may be the first to end: nobody is there to see the code.
        assert code if goes else code == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):
            os.close(ours)
