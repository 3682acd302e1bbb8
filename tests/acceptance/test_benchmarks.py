"""The benchmarks run. What they measure is no test's business: their bars are printed, never asserted."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import http2_load, http2_redis
from benchmarks.during_flush import Spans, told_apart
from benchmarks.http2_rising import Rising
from benchmarks.report import Bar, Result
from benchmarks.scale import SHORT

pytestmark = pytest.mark.timeout(1_600)
ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 1_500  # some 110 on two idle cores
BENCHMARKS = ("-m", "benchmarks")
# The same with adapters and Meta Services as forks: their starts are a third of a short run's processor time.
FORKED = """
from adapter.testing.processes import ServiceProcess
from benchmarks.__main__ import main
from tests import forking

ServiceProcess.by_default = forking.start
main()
"""
BARS = {
    "rates": 1,
    "flush": 2,
    "recovery": 2,
    "recovery_loss": 2,
    "start": 3,
    "floor": 3,
    "client": 3,
    "batches": 3,
    "wal_sync": 3,
    "http2": 8,
    "during_flush": 1,
    "drain": 4,
    "restart": 1,
    "worst_requests": 2,
    "journal": 3,
    "lag_live": 1,
    "memory": 1,
    "fleet": 3,
    "meta_bulk": 2,
    "offset_files": 9,
    "command": 2,
}
BY_H2LOAD = {"floor": 0, "client": 2, "http2": 7, "lag_live": 0}  # the bars that are left without it
BY_REDIS = {"http2": 4}  # the bars that need it

needs_h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed (nghttp2-client)")


class Ran(NamedTuple):
    """One short run of all benchmarks."""

    exit_code: int
    screen: str
    errors: str
    directory: Path

    def stored(self, name: str) -> Any:
        """What it stored of one benchmark."""
        return json.loads((self.directory / "results.json").read_text())[name]

    def rows(self, name: str, table: int = 0) -> dict[str, list[Any]]:
        """A table of it, by the first column."""
        return {first: rest for first, *rest in self.stored(name)["tables"][table]["rows"]}


def bench(
    *arguments: str, scale: str = "short", path: str = "", program: Sequence[str] = BENCHMARKS
) -> subprocess.CompletedProcess[str]:
    """Run benchmarks, by default as `make bench` does."""
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=ROOT,
        env={**os.environ, "BENCH": scale, **({"PATH": path} if path else {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Everything once. In test_without_h2load_the_tables_say_so processes start as users start them."""
    directory = tmp_path_factory.mktemp("results")
    process = bench("--results", str(directory), program=("-c", FORKED))
    return Ran(process.returncode, process.stdout, process.stderr, directory)


def test_all_benchmarks_run(ran: Ran) -> None:
    """Each one that needs no foreign server stores its tables."""
    assert ran.exit_code == 0, ran.errors
    for name in (*BARS, "modes", "ack_window"):
        assert all(table["rows"] for table in ran.stored(name)["tables"])
    assert "peers" not in json.loads((ran.directory / "results.json").read_text())


@pytest.mark.parametrize(("name", "bars"), BARS.items())
def test_each_bar_is_printed_and_stored_with_its_verdict(ran: Ran, name: str, bars: int) -> None:
    """On the screen, in the JSON and in the summary."""
    stored = ran.stored(name)["bars"]
    summary = (ran.directory / "summary.md").read_text()
    expected = bars if shutil.which("h2load") else BY_H2LOAD.get(name, bars)
    assert len(stored) == expected - (BY_REDIS.get(name, 0) if http2_redis.lacking() else 0)
    for bar in stored:
        met = bar["value"] >= bar["limit"] if bar["least"] else bar["value"] <= bar["limit"]
        assert bar["verdict"] == ("met" if met else "MISSED")
        assert bar["text"] in ran.screen
        assert f"| {bar['text']} |" in summary


def test_a_bar_may_be_a_least_or_a_most() -> None:
    """On the limit it is met in both."""
    assert [Bar("a", value, 2.0).verdict for value in (1.0, 2.0, 3.0)] == ["met", "met", "MISSED"]
    assert [Bar("a", value, 2.0, least=True).verdict for value in (1.0, 2.0, 3.0)] == ["MISSED", "met", "met"]
    assert Bar("a", 1.0, 2.0, least=True).sentence == "a: 1 (bar: >= 2)"


def test_a_load_is_counted_on_both_sides(ran: Ran) -> None:
    """Every load is answered, and the Meta Service and the adapter both count save calls.

    Not in each load: on a busy machine the counters may be read twice between two flushes.
    """
    rows = ran.stored("rates")["tables"][0]["rows"]
    assert len(rows) == 5
    assert all(commits > 0 for _, commits, *_ in rows)
    assert any(seen > 0 for _, _, _, _, seen, *_ in rows)
    assert any(sent > 0 for _, _, _, _, _, sent, *_ in rows)


@needs_h2load
def test_the_adapter_stands_beside_servers_that_do_nothing(ran: Ran) -> None:
    """Under each shape of call, and as a stream."""
    assert len(ran.stored("floor")["tables"]) == 4
    for table in range(4):
        rows = ran.rows("floor", table)
        assert all(rate > 0 for rate, *_ in rows.values())
        assert {"no-op, aio", "no-op, threads-4", "no-op, aio-uvloop, two processes", "adapter, wal_sync = interval"} <= set(rows)


def test_the_builtin_server_stands_beside_grpcio_servers_that_write(ran: Ran) -> None:
    """In each shape of calls, over TCP and over a Unix socket."""
    tables = [table for table in ran.stored("http2")["tables"] if table["title"].startswith("Lone commits, ")]
    assert len(tables) == 4
    for table in tables:
        assert {"adapter", "aio-uvloop, writes"} == {row[0] for row in table["rows"]}
        assert all(rate > 0 for _, rate, *_ in table["rows"])


def test_what_is_left_of_a_commit_is_told_by_stage(ran: Ran) -> None:
    """All stages and the rest are what the server's process took."""
    stages = ran.rows("http2", -1)
    parts = [us for name, (us, _) in stages.items() if not name.startswith(("of these", "all"))]
    assert sum(parts) == pytest.approx(stages["all, by the server's process"][0])


async def test_without_redis_a_table_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it would have measured is not left out in silence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = Result("http2", "")
    nothing: Any = None
    await http2_redis.measure(result, SHORT, tmp_path, nothing, nothing, Rising(), nothing)
    assert result.tables[0].rows == [[http2_redis.MISSING]]
    assert not result.bars


def test_answers_are_counted_wherever_their_bytes_are_cut() -> None:
    """What a server asks for meanwhile is acknowledged; a call that it ends early is an error."""
    answer = http2_load.frame(http2_load.HEADERS, 4, 1, b"") + http2_load.frame(http2_load.HEADERS, 5, 1, b"\x88")
    data = (
        http2_load.frame(http2_load.SETTINGS, 0, 0, bytes(6)) + 3 * answer + http2_load.frame(http2_load.PING, 0, 0, b"12345678")
    )
    for size in range(1, len(data)):
        replies: list[bytes] = []
        answers = http2_load.GrpcAnswers(replies.append)
        assert sum(answers.count(data[at : at + size]) for at in range(0, len(data), size)) == 3
        assert replies == [http2_load.frame(http2_load.SETTINGS, 1, 0, b""), http2_load.frame(http2_load.PING, 1, 0, b"12345678")]
    with pytest.raises(RuntimeError, match="type 3"):
        http2_load.GrpcAnswers(print).count(http2_load.frame(http2_load.RST_STREAM, 0, 1, bytes(4)))


def test_without_h2load_the_tables_say_so(tmp_path: Path) -> None:
    """What it would have measured is not left out in silence."""
    process = bench("floor", "--results", str(tmp_path), path=str(tmp_path))
    assert process.returncode == 0, process.stderr
    assert "h2load is not installed: apt-get install nghttp2-client" in process.stdout
    assert "h2load is not installed" in (tmp_path / "summary.md").read_text()


def test_a_commit_belongs_to_a_flush_when_its_life_overlaps_it() -> None:
    """One that was sent before and answered during it, too; what lived partly in neither time counts nowhere."""
    spans = Spans(quiet=[(0.0, 10.0)], flushing=[(20.0, 30.0)])
    commits = [(1.0, 2.0), (9.0, 3.0), (12.0, 4.0), (19.0, 5.0), (21.0, 6.0), (29.0, 7.0), (18.0, 15.0), (30.0, 8.0)]
    assert told_apart(commits, spans) == ([2.0], [5.0, 6.0, 7.0, 15.0])


def test_commits_are_told_apart_by_whether_a_flush_was_under_way(ran: Ran) -> None:
    """Both kinds have their row."""
    rows = ran.stored("during_flush")["tables"][0]["rows"]
    assert [row[1].split()[0] for row in rows] == ["without", "during"]
    assert sum(row[2] for row in rows) > 0


def test_a_drain_is_told_with_the_cpu_of_both_processes(ran: Ran) -> None:
    """Of new keys and of known ones; a killed adapter compares all of them at its start, and pushes what was dirty."""
    for _, offsets, seconds, rate, *cpu in ran.stored("drain")["tables"][0]["rows"]:
        assert rate == pytest.approx(offsets / seconds)
        assert len(cpu) == 2
    (_, keys, *_), _ = ran.stored("drain")["tables"][0]["rows"]
    dirty, clean = (row[4:6] for row in ran.stored("drain")["tables"][2]["rows"])
    assert dirty[0] >= keys
    assert clean[1] >= keys


def test_the_rates_are_drawn_or_the_screen_says_why_not(ran: Ran) -> None:
    """Matplotlib is no dependency of the tests."""
    if importlib.util.find_spec("matplotlib"):
        assert (ran.directory / "rates.png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "no plot: matplotlib is not installed" in ran.screen


def test_the_summary_names_the_machine_and_the_command(ran: Ran) -> None:
    """A number without them is worth nothing."""
    summary = (ran.directory / "summary.md").read_text()
    for fact in ("| CPU |", "| cores |", "| kernel |", "| grpcio |", "| date |", "BENCH=short python -m benchmarks"):
        assert fact in summary


def test_an_unknown_benchmark_or_scale_is_refused() -> None:
    """A typing mistake does not start minutes of work."""
    assert "'flsh' is not one of" in bench("flsh").stderr
    assert "BENCH='tiny' is unknown" in bench(scale="tiny").stderr
