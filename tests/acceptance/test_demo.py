"""`make demo` on a machine without a terminal, what it compares, and what it leaves behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from adapter.model.records import OffsetKey
from demo.__main__ import exit_code
from demo.comparison import Positions, compare
from demo.display import comparison_table, verdict
from demo.state import State

ROOT = Path(__file__).parents[2]
LIMIT_S = 280  # far above what it takes

GROUPS = {"lsqGroup": 5, "please_rename_unique_group_name": 5, "please_rename_unique_group_name_4": 5}

A, B = OffsetKey("default", "g", "t/0"), OffsetKey("default", "h", "t/0")
ACKNOWLEDGED = {A: (1, 10), B: (1, 0)}


# The demo with less time between its steps: the consumers commit as fast as they can, on all cores.
SHORT = """
import sys
from demo import __main__, phases

phases.CONSUME_S, phases.AWAY_S, phases.AFTER_S = 0.2, {away_s}, 0.1
sys.exit(__main__.main())
"""


@contextmanager
def demo(directory: Path, *program: str) -> Iterator[subprocess.Popen[str]]:
    """The demo as a process whose temporary files are in `directory`; its children are killed if they outlive the test."""
    environment = {**os.environ, "TMPDIR": str(directory), "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, *program],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_the_demo_ends_with_nothing_missing(tmp_path: Path) -> None:
    """A kill -9 and an outage on the way (invariants 1, 3, 4, 8): exit code 0, the table, the verdict, no file left."""
    with demo(tmp_path, "-c", SHORT.format(away_s=0.3)) as process:
        output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output + errors
    assert errors == ""
    rows = {cells[0]: [int(cell.replace(",", "")) for cell in cells[1:]] for cells in _cells(output) if cells[0] in GROUPS}
    assert {group: row[0] for group, row in rows.items()} == GROUPS
    for _, acknowledged, local, remote, missing in rows.values():
        assert acknowledged == local == remote > 0
        assert missing == 0
    assert "Nothing is missing" in output
    assert "recovery compared 15" in output
    assert list(tmp_path.iterdir()) == []


def _cells(output: str) -> Iterator[list[str]]:
    return (line.split() for line in output.splitlines() if len(line.split()) == 6)


# How SIGTERM ends a program and its processes holds the same for servers, whose tests run on each change.
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.release)])
def test_a_signal_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in the middle: both processes end, the directory goes, the exit code tells."""
    with demo(tmp_path, "-c", SHORT.format(away_s=60)) as process:
        assert process.stdout is not None
        assert any("consumers read on" in line for line in process.stdout)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        # A terminal sends Ctrl-C to all three; SIGTERM goes to the demo alone.
        (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert errors == "Interrupted: both processes are stopped, their directory is removed.\n"
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []


def test_equal_keys_are_complete() -> None:
    """The same in all three places, also offset 0."""
    comparison = compare(ACKNOWLEDGED, ACKNOWLEDGED, ACKNOWLEDGED)
    assert comparison.rows == (("g", 1, 10, 10, 10, 0), ("h", 1, 0, 0, 0, 0))
    assert exit_code(comparison) == 0


ABSENT = {A: (1, 10)}
BELOW = {A: (1, 9), B: (1, 0)}
OLD_EPOCH = {A: (0, 99), B: (1, 0)}
ABOVE = {A: (1, 11), B: (1, 0)}
UNKNOWN = {**ACKNOWLEDGED, OffsetKey("default", "g", "t/1"): (1, 1)}


@pytest.mark.parametrize(
    ("local", "remote", "missing", "text"),
    [
        (ABSENT, ACKNOWLEDGED, [0, 1], "h t/0: acknowledged 0, local absent, remote 0"),
        (ACKNOWLEDGED, ABSENT, [0, 1], "h t/0: acknowledged 0, local 0, remote absent"),
        (ACKNOWLEDGED, {}, [1, 1], "2 of 2 keys"),
        (BELOW, ACKNOWLEDGED, [1, 0], "g t/0: acknowledged 10, local 9, remote 10"),
        (ACKNOWLEDGED, BELOW, [1, 0], "g t/0: acknowledged 10, local 10, remote 9"),
        (OLD_EPOCH, ACKNOWLEDGED, [1, 0], "MISSING"),
        (ABOVE, BELOW, [1, 0], "MISSING"),
    ],
)
def test_a_key_that_lacks_something_is_missing(local: Positions, remote: Positions, missing: list[int], text: str) -> None:
    """Absent or below what was acknowledged, in either place (invariants 1 and 3): not complete, and the verdict names it."""
    comparison = compare(ACKNOWLEDGED, local, remote)
    assert [row.missing for row in comparison.rows] == missing
    assert text in verdict(comparison, State())
    assert exit_code(comparison) == 1


@pytest.mark.parametrize(("local", "remote"), [(ABOVE, ABOVE), (ACKNOWLEDGED, ABOVE), (UNKNOWN, UNKNOWN)])
def test_a_key_above_what_was_acknowledged_is_wrong(local: Positions, remote: Positions) -> None:
    """Such an offset would skip messages."""
    comparison = compare(ACKNOWLEDGED, local, remote)
    assert verdict(comparison, State()).startswith("WRONG: 1 keys")
    assert exit_code(comparison) == 1


def test_nothing_compared_is_no_success() -> None:
    """Neither an empty comparison nor none at all."""
    assert exit_code(compare({}, {}, {})) == 1
    assert exit_code(None) == 1
    assert exit_code(None, interrupted=True) == 130


def test_the_table_fits_80_columns() -> None:
    """The longest group name of the data and far more messages than the demo sends, on one line."""
    key = OffsetKey("default", "please_rename_unique_group_name_4", "TopicTest/0")
    at = {key: (1, 999_999)}
    console = Console(width=80, file=StringIO())
    with console.capture() as captured:
        console.print(comparison_table(compare(at, at, at)))
    assert any(line.split()[:2] == [key.group, "1"] for line in captured.get().splitlines())
