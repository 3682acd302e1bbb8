"""Runs of `python -m benchmarks`, for the tests of what they print and store."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 1_500  # some 110 on two idle cores, for all benchmarks
BENCHMARKS = ("-m", "benchmarks")
# What a short run of all has: how many bars by benchmark.
BARS = {
    "rates": 1,
    "flush": 2,
    "recovery": 2,
    "recovery_loss": 3,
    "start": 3,
    "floor": 3,
    "client": 3,
    "batches": 3,
    "wal_sync": 3,
    "http2": 8,
    "during_flush": 1,
    "drain": 4,
    "restart": 2,
    "worst_requests": 2,
    "journal": 3,
    "lag_live": 1,
    "memory": 1,
    "fleet": 3,
    "meta_bulk": 2,
    "offset_files": 9,
    "command": 2,
    "robustmq_front": 3,
}
WITHOUT_BARS = ("modes", "ack_window", "console", "lag_rules")
BY_H2LOAD = {"floor": 0, "client": 2, "http2": 7, "lag_live": 0}  # the bars that are left without it
BY_REDIS = {"http2": 4}  # the bars that need it


class Ran(NamedTuple):
    """A short run of some benchmarks, or of all."""

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

    def assert_bars(self, name: str, count: int) -> None:
        """So many bars of it are on the screen, in the JSON and in the summary, each with its verdict."""
        stored = self.stored(name)["bars"]
        summary = (self.directory / "summary.md").read_text()
        assert len(stored) == count
        for bar in stored:
            met = bar["value"] >= bar["limit"] if bar["least"] else bar["value"] <= bar["limit"]
            assert bar["verdict"] == ("met" if met else "MISSED")
            assert bar["text"] in self.screen
            assert f"| {bar['text']} |" in summary


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
