"""What the lag job shows at a terminal."""

import io
from pathlib import Path

import pyarrow as pa
from rich.console import Console

from adapter.pipeline.jobs import Switches
from adapter.pipeline.lag.display import LagDisplay, worst
from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.places import Place
from tests.pipeline import lag_tables
from tests.pipeline.lag_tables import group

GROUPS = [group("none"), group("unknown", lag=None), group("small", lag=1), group("large", lag=2), group("back", "REWIND", 5)]


def test_the_worst_groups_come_first() -> None:
    """By status, then by lag; an unknown lag comes last."""
    names = [row["group"] for row in worst(pa.Table.from_pylist(GROUPS), 4)]
    assert names == ["back", "large", "small", "none"]


def test_at_a_terminal_the_last_batch_stays_visible_and_all_are_counted(tmp_path: Path) -> None:
    """Its groups are those of its manifest."""
    lag_tables.write_batch(tmp_path, 0, 5, GROUPS)
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with LagDisplay(Switches(console=console), LagFiles(Place.of(tmp_path))) as display:
        display.batch(BatchInfo(0, rows=3_000, now=int(lag_tables.START.timestamp()) * 1_000_000, settled=0, rejects=2), 1.5)
        display.batch(BatchInfo(0, rows=1_000, now=0, settled=0), 0.5)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "batch 0, 2026-11-21 08:00:00 UTC: 3,000 rows in 1.5 s, 2,000 rows/s" in shown
    assert "REWIND" in shown
    assert display.summary().startswith("lag: 2 batches, 4,000 rows, 2,000 rows/s; tables in ")
    assert "2 rows not taken as they stand" in display.summary()
