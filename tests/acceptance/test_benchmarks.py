"""The benchmarks run. What they measure is no test's business: their bars are printed, never asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent


class Ran(NamedTuple):
    """One short run of all benchmarks."""

    exit_code: int
    screen: str
    errors: str
    directory: Path

    def stored(self, name: str) -> Any:
        """What it stored of one benchmark."""
        return json.loads((self.directory / f"{name}.json").read_text())


def bench(*arguments: str, scale: str = "short") -> subprocess.CompletedProcess[str]:
    """Run benchmarks as `make bench` does."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, "BENCH": scale},
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
    """Each one stores its tables."""
    assert ran.exit_code == 0, ran.errors
    for name in ("rates", "flush", "recovery", "modes", "ack_window"):
        assert all(table["rows"] for table in ran.stored(name)["tables"])


@pytest.mark.parametrize(("name", "bars"), [("rates", 1), ("flush", 2), ("recovery", 2)])
def test_each_bar_is_printed_and_stored_with_its_verdict(ran: Ran, name: str, bars: int) -> None:
    """On the screen, in the JSON and in the summary."""
    stored = ran.stored(name)["bars"]
    summary = (ran.directory / "summary.md").read_text()
    assert len(stored) == bars
    for bar in stored:
        assert bar["verdict"] == ("met" if bar["value"] <= bar["limit"] else "MISSED")
        assert bar["text"] in ran.screen
        assert bar["text"] in summary


def test_a_load_is_counted_on_both_sides(ran: Ran) -> None:
    """Every load is answered, and the Meta Service and the adapter both count save calls."""
    rows = ran.stored("rates")["tables"][0]["rows"]
    assert len(rows) == 5
    for _, commits, _, _, seen, sent, *_ in rows:
        assert commits > 0
        assert min(seen, sent) > 0


def test_the_summary_names_the_machine_and_the_command(ran: Ran) -> None:
    """A number without them is worth nothing."""
    summary = (ran.directory / "summary.md").read_text()
    for fact in ("| CPU |", "| cores |", "| kernel |", "| grpcio |", "| date |", "BENCH=short python -m benchmarks"):
        assert fact in summary


def test_an_unknown_benchmark_or_scale_is_refused() -> None:
    """A typing mistake does not start minutes of work."""
    assert "'flsh' is not one of" in bench("flsh").stderr
    assert "BENCH='tiny' is unknown" in bench(scale="tiny").stderr
