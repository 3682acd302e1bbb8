"""Shared by the tests of the journal: a journal that only records, segments that a test breaks, and reading files back."""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from adapter.model.records import OffsetKey, SaveEntry, SaveOutcome, Status
from adapter.runtime.clocks import Clocks
from adapter.sidecar.config import JournalSection
from adapter.sidecar.journal.journal import NoJournal
from adapter.sidecar.journal.notes import Counts, Flushed, Moved, Moves, Notes
from adapter.sidecar.journal.rows import rows_of, to_batch
from adapter.sidecar.journal.segments import SegmentFiles
from adapter.sidecar.journal.writer import SegmentWriter
from adapter.sidecar.shard_bounds import ReportedBounds
from tests.unit.helpers import key, record

NOW_MS = 1_700_000_000_000  # 2023-11-14, 22:13:20 UTC
DAY = "2023-11-14"
DAY_MS = 86_400_000
BROKER = "b/1"


class Recording(NoJournal):
    """A journal that keeps what is noted."""

    def __init__(self) -> None:
        self.notes: list[Flushed | Moves] = []

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """Keep the reply to a save."""
        self.notes.append(Flushed(NOW_MS, entries, outcomes))

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """Keep the moved offsets."""
        if moved:
            self.notes.append(Moves(NOW_MS, kind, moved))

    def told(self) -> list[tuple[Any, ...]]:
        """All rows since the last call: kind, shard, position before, position after, live."""
        rows = [row for note in self.notes for row in rows_of(note)]
        self.notes.clear()
        return [(kind, at.shard, old and old.position, new.position, new.live) for _, kind, at, new, old in rows]


class SetTime:
    """Clocks that change only when a test sets them."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.clocks = Clocks(lambda: self.now_ms / 1000, lambda: self.now_ms)

    def passes(self, ms: int) -> None:
        """Let this much time pass."""
        self.now_ms += ms


class BrokenFiles(SegmentFiles):
    """Segment files that fail, or wait, as long as a test wants."""

    fault: Exception | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def append(self, batch: pa.RecordBatch, at_ms: int) -> None:
        """Wait for the gate, then raise the fault or append."""
        self.entered.set()
        self.gate.wait()
        if self.fault:
            raise self.fault
        super().append(batch, at_ms)


def section_of(path: Path, **settings: Any) -> JournalSection:
    """The settings of a journal in this directory."""
    return JournalSection(path=path, **settings)


def files_of(path: Path, at_ms: int = NOW_MS, **settings: Any) -> SegmentFiles:
    """The segment files of a run that began at a given time."""
    return SegmentFiles(path, BROKER, section_of(path, **settings), Counts(str(path)), at_ms)


def writer_over(path: Path, time: SetTime, **settings: Any) -> tuple[SegmentWriter, Notes, BrokenFiles]:
    """A writer whose steps the test runs itself."""
    section, notes = section_of(path, **settings), Notes(Counts(str(path)))
    files = BrokenFiles(path, BROKER, section, notes.counts, time.now_ms)
    return SegmentWriter(section, notes, files, time.clocks), notes, files


def flush_of(offsets: Iterable[int], at_ms: int = NOW_MS, shard: str = "s") -> Flushed:
    """An acknowledged save of one shard."""
    entries = [SaveEntry(key(shard), record(offset)) for offset in offsets]
    return Flushed(at_ms, entries, [SaveOutcome(Status.APPLIED, entry.record) for entry in entries])


def batch_of(offsets: Iterable[int], first_seq: int = 0, at_ms: int = NOW_MS) -> pa.RecordBatch:
    """The same as an Arrow batch."""
    return to_batch(list(rows_of(flush_of(offsets, at_ms))), first_seq, ReportedBounds())


def segments(path: Path) -> list[Path]:
    """The finished segments, oldest first."""
    return sorted(path.glob("date=*/broker=*/*.parquet"), key=lambda found: found.name)


def rows_in(path: Path) -> list[dict[str, Any]]:
    """The rows of the finished segments."""
    return [row for found in segments(path) for row in rows_of_file(found)]


def rows_of_file(path: Path) -> list[dict[str, Any]]:
    """The rows of one segment."""
    return list(pq.ParquetFile(path).read().to_pylist())


def offsets_in(path: Path) -> list[int]:
    """The offsets in the finished segments."""
    return [row["offset"] for row in rows_in(path)]


def open_segments(path: Path) -> list[Path]:
    """The unfinished segments."""
    return sorted((path / ".open").rglob("*.batches"))


def moves_of(kind: str, where: OffsetKey, before: int | None, after: int) -> Moves:
    """A change of one offset by an operator."""
    return Moves(NOW_MS, kind, [Moved(where, None if before is None else record(before), record(after, 1 << 32))])
