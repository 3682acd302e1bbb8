"""The journal as the rest of the adapter sees it: changes are noted by reference, and a thread writes them down.

Never waits, raises, or touches a disk: what has no room is counted as dropped. Imports no pyarrow where there is no journal. A
kill -9 costs the rows that the thread had not handed to the kernel: those of the last 200 ms, and what was queued behind a slow
disk. A power cut costs the segment that was open as well.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio
import anyio.to_thread
import structlog

from adapter.model.records import SaveEntry, SaveOutcome
from adapter.sidecar.journal.notes import Counts, Flushed, Moved, Moves, Note, Notes, Writer
from adapter.sidecar.shard_bounds import ReportedBounds

log = structlog.get_logger(__name__)


class Journal(Protocol):
    """Notes changes. `counts` is None if there is no journal."""

    counts: Counts | None

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """Note the reply to a save. The caller must not change either list from here on."""

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """Note that offsets were moved on purpose."""

    def sees(self, bounds: ReportedBounds) -> None:
        """Set where rows get their watermarks from."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Write what is noted meanwhile. At the end the rest is written, unless the disk does not answer."""


class NoJournal:
    """Used where no journal is configured."""

    counts: Counts | None = None

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """Drop the note."""

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """Drop the note."""

    def sees(self, bounds: ReportedBounds) -> None:
        """Do nothing: there are no rows."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do nothing."""
        yield


NO_JOURNAL = NoJournal()


class WrittenJournal:
    """A journal that the thread of `writer` writes."""

    def __init__(self, counts: Counts, make: Callable[[Notes], Writer], now_ms: Callable[[], int], **limits: int) -> None:
        self.counts: Counts | None = counts
        self._counts = counts
        self._notes = Notes(counts, **limits)
        self._writer = make(self._notes)
        self._now_ms = now_ms
        self._overflowing = False

    def flushed(self, entries: Sequence[SaveEntry], outcomes: Sequence[SaveOutcome]) -> None:
        """Note a save for the thread."""
        self._note(Flushed(self._now_ms(), entries, outcomes), len(entries))

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """Note moved offsets for the thread."""
        if moved:
            self._note(Moves(self._now_ms(), kind, moved), len(moved))

    def sees(self, bounds: ReportedBounds) -> None:
        """Take the watermarks of later rows from here."""
        self._notes.use_bounds(bounds)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the thread, and stop it at the end, which may take some seconds."""
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
