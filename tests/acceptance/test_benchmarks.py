"""The benchmarks run. What they measure is no test's business: their bars are printed, never asserted."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.during_flush import Spans, told_apart
from benchmarks.report import Bar

ROOT = Path(__file__).parent.parent.parent
BARS = {
    "rates": 1,
    "flush": 2,
    "recovery": 2,
    "floor": 3,
    "client": 3,
    "batches": 3,
    "wal_sync": 3,
    "during_flush": 1,
    "journal": 3,
    "meta_bulk": 2,
    "offset_files": 9,
}
BY_H2LOAD = {"floor": 0, "client": 2}  # the bars that are left without it

needs_h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed (nghttp2-client)")


class Ran(NamedTuple):
    """One short run of all benchmarks."""

    exit_code: int
    screen: str
    errors: str
    directory: Path

    def stored(self, name: str) -> Any:
        """What it stored of one benchmark."""
        return json.loads((self.directory / f"{name}.json").read_text())

    def rows(self, name: str, table: int = 0) -> dict[str, list[Any]]:
        """A table of it, by the first column."""
        return {first: rest for first, *rest in self.stored(name)["tables"][table]["rows"]}


def bench(*arguments: str, scale: str = "short", path: str = "") -> subprocess.CompletedProcess[str]:
    """Run benchmarks as `make bench` does."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, "BENCH": scale, **({"PATH": path} if path else {})},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Everything once."""
    directory = tmp_path_factory.mktemp("results")
    process = bench("--results", str(directory))
    return Ran(process.returncode, process.stdout, process.stderr, directory)


def test_all_benchmarks_run(ran: Ran) -> None:
    """Each one that needs no foreign server stores its tables."""
    assert ran.exit_code == 0, ran.errors
    for name in (*BARS, "modes", "ack_window"):
        assert all(table["rows"] for table in ran.stored(name)["tables"])
    assert not (ran.directory / "peers.json").exists()


@pytest.mark.parametrize(("name", "bars"), BARS.items())
def test_each_bar_is_printed_and_stored_with_its_verdict(ran: Ran, name: str, bars: int) -> None:
    """On the screen, in the JSON and in the summary."""
    stored = ran.stored(name)["bars"]
    summary = (ran.directory / "summary.md").read_text()
    assert len(stored) == (bars if shutil.which("h2load") else BY_H2LOAD.get(name, bars))
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
    """Every load is answered, and the Meta Service and the adapter both count save calls."""
    rows = ran.stored("rates")["tables"][0]["rows"]
    assert len(rows) == 5
    for _, commits, _, _, seen, sent, *_ in rows:
        assert commits > 0
        assert min(seen, sent) > 0


@needs_h2load
def test_the_adapter_stands_beside_servers_that_do_nothing(ran: Ran) -> None:
    """Under each shape of call, and as a stream."""
    assert len(ran.stored("floor")["tables"]) == 4
    for table in range(4):
        rows = ran.rows("floor", table)
        assert all(rate > 0 for rate, *_ in rows.values())
        assert {"no-op, aio", "no-op, threads-4", "no-op, aio-uvloop, two processes", "adapter, wal_sync = interval"} <= set(rows)


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
