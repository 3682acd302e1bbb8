"""The journal as the rest of the adapter sees it: what changed is noted, by reference, for a thread that writes it down.

Never waits, raises, or touches a disk: what has no room is counted as dropped. Imports no pyarrow where there is no journal.
A kill -9 costs the rows that the thread had not handed to the kernel: those of the last 200 ms, and what was queued behind a slow
disk. A power cut costs the segment that was open as well.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import anyio
import anyio.to_thread
import structlog

from adapter.bounds import ReportedBounds
from adapter.clocks import REAL, Clocks
from adapter.config import JournalSection
from adapter.errors import ConfigError
from adapter.model import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome

log = structlog.get_logger(__name__)

MAX_QUEUED_ROWS = 200_000  # some 600 bytes each; one flush call more may be in the queue


class Moved(NamedTuple):
    """What stood under a key and what stands now."""

    key: OffsetKey
    before: OffsetRecord | None
    after: OffsetRecord


class Flushed(NamedTuple):
    """One save, at a Unix time in milliseconds; `outcomes` are in the places of their entries."""

    at_ms: int
    entries: Sequence[SaveEntry]
    outcomes: Sequence[SaveOutcome]


class Moves(NamedTuple):
    """What was moved on purpose, at a Unix time in milliseconds; `kind` is one of tables.KINDS."""

    at_ms: int
    kind: str
    moved: Sequence[Moved]


Note = Flushed | Moves


@dataclass
class Counts:
    """How the journal does. Each number has one writer: the event loop or the thread."""

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
        """Rows that no segment will have."""
        return self.overflowed + self.lost

    @property
    def queued(self) -> int:
        """Rows that wait for the thread."""
        return self.noted - self.taken


class Journal(Protocol):
    """Where changes are noted. `counts` is None where there is no journal."""

    counts: Counts | None

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """The Meta Service answered a save. Neither list may change from here on."""

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """Offsets were moved on purpose."""

    def sees(self, bounds: ReportedBounds) -> None:
        """Rows get their watermarks from here."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Meanwhile what is noted is written; at the end all of it is, if the disk is willing."""


class NoJournal:
    """Instead of a journal, where none is configured."""

    counts: Counts | None = None

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """See `Journal.flushed`."""

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """See `Journal.moved`."""

    def sees(self, bounds: ReportedBounds) -> None:
        """See `Journal.sees`."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """See `Journal.running`."""
        yield


NO_JOURNAL = NoJournal()


class Writer(Protocol):
    """The thread that writes notes down."""

    def start(self) -> None:
        """Begin."""

    def wake(self) -> None:
        """There is a note."""

    def stop(self) -> None:
        """Write what is noted, end, and return then, or after a while."""


class Notes:
    """The queue between the event loop, which puts, and the thread, which takes and looks `bounds` up: atomic steps, no lock."""

    def __init__(self, counts: Counts, max_rows: int = MAX_QUEUED_ROWS) -> None:
        self.counts = counts
        self.bounds = ReportedBounds()
        self._max_rows = max_rows
        self._notes: deque[tuple[int, Note]] = deque()

    def put(self, note: Note, rows: int) -> bool:
        """Take a note of so many rows; False when there is no room."""
        if self.counts.queued >= self._max_rows:
            self.counts.overflowed += rows
            return False
        self.counts.noted += rows
        self._notes.append((rows, note))
        return True

    def take(self) -> Note | None:
        """The oldest note, which then leaves; None when there is none."""
        if not self._notes:
            return None
        rows, note = self._notes.popleft()
        self.counts.taken += rows
        return note


class WrittenJournal:
    """A journal that `writer`, made of the queue, writes down."""

    def __init__(self, counts: Counts, make: Callable[[Notes], Writer], now_ms: Callable[[], int], **limits: int) -> None:
        self.counts: Counts | None = counts
        self._counts = counts
        self._notes = Notes(counts, **limits)
        self._writer = make(self._notes)
        self._now_ms = now_ms
        self._overflowing = False

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """See `Journal.flushed`."""
        self._note(Flushed(self._now_ms(), entries, outcomes), len(entries))

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """See `Journal.moved`."""
        if moved:
            self._note(Moves(self._now_ms(), kind, moved), len(moved))

    def sees(self, bounds: ReportedBounds) -> None:
        """See `Journal.sees`."""
        self._notes.bounds = bounds

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """See `Journal.running`."""
        self._writer.start()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._writer.stop)

    def _note(self, note: Note, rows: int) -> None:
        if self._notes.put(note, rows):
            if self._counts.queued == rows:
                self._overflowing = False  # the thread had caught up: the next time is another outage
            self._writer.wake()
        elif not self._overflowing:
            self._overflowing = True
            help_text = "rows are left out of the journal and counted; commits go on"
            log.error("journal.overflowed", queued=self._counts.queued, reason=self._counts.last_error or "slow", help=help_text)


def journal_of(broker: str, section: JournalSection, clocks: Clocks = REAL) -> Journal:
    """The journal that the configuration asks for. Raises ConfigError when its extra is not installed."""
    root = section.path
    if root is None:
        return NO_JOURNAL
    try:
        # Here: a sidecar without a journal does without pyarrow.
        from adapter.journal_files import SegmentFiles  # noqa: PLC0415
        from adapter.journal_writer import SegmentWriter, warm_up  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"journal.path is set, but {error.name} is not installed: pip install 'offset-adapter[journal]'"
        ) from error
    warm_up()
    counts = Counts(str(root))
    files = SegmentFiles(root, broker, section, counts, clocks.now_ms())
    return WrittenJournal(counts, lambda notes: SegmentWriter(section, notes, files, clocks), clocks.now_ms)
