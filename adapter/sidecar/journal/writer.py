"""The journal's thread: takes notes, writes rows, and finishes segments by size, age, date and at the stop.

A failure is counted, shown in status and tried again, while the queue fills and then drops rows: commits are not affected.
"""

import threading
import time
from itertools import islice

import pyarrow as pa
import structlog

from adapter.runtime.clocks import Clocks
from adapter.sidecar.config import JournalSection
from adapter.sidecar.journal.notes import Notes
from adapter.sidecar.journal.rows import Row, heartbeat, rows_of, to_batch
from adapter.sidecar.journal.segments import DAY_MS, SegmentFiles, as_parquet
from adapter.sidecar.shard_bounds import ReportedBounds

log = structlog.get_logger(__name__)

LINGER_S = 0.2  # after a note came: others come with it, and a kill -9 costs no more
SLICE_ROWS = 512  # half a millisecond; the event loop waits for it
BREATH_S = 0.0005  # after each slice: the event loop gets Python's lock at once, and not after 5 ms
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 5.0
STOP_LIMIT_S = 10.0  # for a disk that does not answer


def warm_up() -> None:
    """Convert and discard one row before the first commit.

    Arrow's first conversion loads what it may need, even pandas where that is installed: it would hold up the event loop for 0.3
    s.
    """
    as_parquet(pa.Table.from_batches([to_batch([heartbeat(1)], 0, ReportedBounds())]))


class SegmentWriter:
    """Writes notes into segment files, in a separate thread."""

    def __init__(self, section: JournalSection, notes: Notes, files: SegmentFiles, clocks: Clocks) -> None:
        self._notes = notes
        self._counts = notes.counts
        self._clock = clocks.monotonic
        self._now_ms = clocks.now_ms
        self._files = files
        self._max_age_s = section.segment_max_age_ms / 1000
        self._due_at = self._clock() + self._max_age_s
        self._rows: list[Row] = []  # taken, and not written yet
        self._rest = iter(list[Row]())  # of the note that was taken last
        self._rest_day = 0  # since 1970
        self._pause_s = 0.0
        self._last_logged = ""
        self._woken = threading.Event()
        self._stopping = threading.Event()
        # A disk that does not answer must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Let the thread check the queue soon."""
        if not self._woken.is_set():
            self._woken.set()

    def stop(self) -> None:
        """Let the thread write what is queued, and wait up to 10 s for its end."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(STOP_LIMIT_S)
        if self._thread.is_alive():
            help_text = "the next start goes on with what is on the disk"
            log.error("journal.stuck", path=self._counts.path, seconds=STOP_LIMIT_S, help=help_text)

    def _run(self) -> None:
        """Write until stopped, then once more."""
        stopping = False
        while not stopping:
            stopping = self._stopping.is_set()
            try:
                self._turn(stopping=stopping)
            except OSError as error:
                self._failed(str(error))
            except Exception as error:
                # Not a disk's trouble: with these rows it would come again.
                log.exception("journal.rows_lost", rows=len(self._rows))
                self._lose()
                self._failed(f"{type(error).__name__}: {error}")
            else:
                self._well()
            if not stopping:
                self._wait()
        self._end()

    def _wait(self) -> None:
        """Return when there is something to do."""
        if self._pause_s:
            self._stopping.wait(self._pause_s)
        elif self._woken.wait(max(self._due_at - self._clock(), 0)):
            self._stopping.wait(LINGER_S)
        self._woken.clear()

    def _turn(self, *, stopping: bool) -> None:
        """Write all that is noted, then finish the segment if it is due."""
        self._files.open()
        while self._fill():
            self._write()
            if self._clock() >= self._due_at:
                self._finish()
            time.sleep(BREATH_S)
        if not stopping and self._files.empty and self._clock() >= self._due_at:
            # So that readers know that time passed.
            self._rows.append(heartbeat(self._now_ms()))
            self._write()
        if stopping or self._clock() >= self._due_at:
            self._finish()

    def _fill(self) -> bool:
        """Take a slice of rows of one day; False if there are none."""
        while len(self._rows) < SLICE_ROWS:
            if self._rows and self._rows[0][0] // DAY_MS != self._rest_day:
                break
            before = len(self._rows)
            self._rows += islice(self._rest, SLICE_ROWS - before)
            if len(self._rows) == before:
                note = self._notes.take()
                if note is None:
                    break
                self._rest, self._rest_day = rows_of(note), note.at_ms // DAY_MS
        return bool(self._rows)

    def _write(self) -> None:
        """Write the rows that were taken."""
        # What was dropped leaves a gap in the numbers.
        seq = self._counts.rows + self._counts.dropped
        self._files.append(to_batch(self._rows, seq, self._notes.bounds), self._rows[0][0])
        self._counts.rows += len(self._rows)
        self._rows.clear()

    def _finish(self) -> None:
        self._files.finish()
        self._due_at = self._clock() + self._max_age_s

    def _failed(self, error: str) -> None:
        self._counts.failures += 1
        self._counts.last_error = error
        self._pause_s = min(max(2 * self._pause_s, RETRY_FIRST_S), RETRY_MAX_S)
        if error != self._last_logged:
            log.error("journal.failed", error=error, help="tried again until it works; commits and flushes go on")
            self._last_logged = error

    def _well(self) -> None:
        if self._last_logged:
            log.info("journal.resumed", dropped_rows=self._counts.dropped)
        self._pause_s, self._last_logged, self._counts.last_error = 0.0, "", ""

    def _lose(self) -> None:
        self._counts.lost += len(self._rows)
        self._rows.clear()

    def _end(self) -> None:
        """Count what could not be written, and release the directory."""
        while self._fill():
            self._lose()
        if self._counts.dropped:
            log.error("journal.incomplete", dropped_rows=self._counts.dropped, error=self._counts.last_error)
        self._files.close()
