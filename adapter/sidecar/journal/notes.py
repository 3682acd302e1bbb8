"""What is noted for the journal, and the queue to the thread that writes it down."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome
from adapter.sidecar.shard_bounds import ReportedBounds

MAX_QUEUED_ROWS = 200_000  # some 600 bytes each; one flush call more may be in the queue


class Moved(NamedTuple):
    """The records under a key before and after a change."""

    key: OffsetKey
    before: OffsetRecord | None
    after: OffsetRecord


class Flushed(NamedTuple):
    """One save, at a Unix time in milliseconds; `outcomes` are in the places of their entries."""

    at_ms: int
    entries: Sequence[SaveEntry]
    outcomes: Sequence[SaveOutcome]


class Moves(NamedTuple):
    """Offsets that were moved on purpose, at a Unix time in milliseconds; `kind` is one of tables.KINDS."""

    at_ms: int
    kind: str
    moved: Sequence[Moved]


Note = Flushed | Moves


@dataclass
class Counts:
    """The numbers of the journal for status and metrics. Each is written by one side only: the event loop or the thread."""

    path: str
    rows: int = 0  # handed to the kernel
    overflowed: int = 0  # by the event loop: no room in the queue
    lost: int = 0  # by the thread: it had taken them, and could not write them
    failures: int = 0
    segments: int = 0  # finished ones of this broker that are on the disk
    bytes: int = 0  # their size
    deleted_segments: int = 0
    last_error: str = ""
    noted: int = 0
    taken: int = 0

    @property
    def dropped(self) -> int:
        """Rows that will be in no segment."""
        return self.overflowed + self.lost

    @property
    def queued(self) -> int:
        """Rows that wait for the thread."""
        return self.noted - self.taken


class Writer(Protocol):
    """The thread that writes notes."""

    def start(self) -> None:
        """Start the thread."""

    def wake(self) -> None:
        """Let the thread check the queue."""

    def stop(self) -> None:
        """Let the thread write what is queued, and wait for its end, up to a limit."""


class Notes:
    """The queue between the event loop, which puts, and the thread, which takes and reads `bounds`: atomic steps, no lock."""

    def __init__(self, counts: Counts, max_rows: int = MAX_QUEUED_ROWS) -> None:
        self.counts = counts
        self.bounds = ReportedBounds()
        self._max_rows = max_rows
        self._notes: deque[tuple[int, Note]] = deque()

    def use_bounds(self, bounds: ReportedBounds) -> None:
        """Read the watermarks of shards here from now on."""
        self.bounds = bounds

    def put(self, note: Note, rows: int) -> bool:
        """Queue a note with this number of rows; False if there is no room."""
        if self.counts.queued >= self._max_rows:
            self.counts.overflowed += rows
            return False
        self.counts.noted += rows
        self._notes.append((rows, note))
        return True

    def take(self) -> Note | None:
        """Remove and return the oldest note; None if there is none."""
        if not self._notes:
            return None
        rows, note = self._notes.popleft()
        self.counts.taken += rows
        return note
