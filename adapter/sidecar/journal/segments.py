"""The journal's directory: the open segment, finished ones as Parquet, the lock, the bound on the disk. For one thread.

    <path>/.open/<BROKER>/<RUN>-<NUMBER>.batches                         open, see `frames`
    <path>/date=<DATE>/broker=<BROKER>/<RUN>-<NUMBER>.parquet            finished

Each segment says its version in its schema. One that a later version has left open is left to that version, which finishes it at
its next start; another form than frames of Arrow needs another ending than `.batches`.

A method that raises OSError has changed nothing that counts, and may be called again.
"""

import errno
import fcntl
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from adapter.model.schemas import BROKER, JOURNAL, JOURNAL_VERSION, VERSION_OF_JOURNAL
from adapter.runtime.durable.files import sync_directory
from adapter.sidecar.config import JournalSection
from adapter.sidecar.journal.frames import Found, framed, read, write_all
from adapter.sidecar.journal.notes import Counts

log = structlog.get_logger(__name__)

OPEN = ".open"  # Spark does not look into directories with such names
ZSTD_LEVEL = 3
DAY_MS = 86_400_000
# Who reads finished segments beside their owner, by the mode of the journal's directory: an operator makes it for a group.
GROUP = stat.S_IRGRP | stat.S_IXGRP

_NAME = re.compile(r"[0-9]{13}-[0-9]{8}\.parquet")
_RUN = re.compile(rb"[0-9]{13}")


class Finished(NamedTuple):
    """A finished segment. The oldest has the smallest name."""

    name: str
    path: Path
    size: int


class SegmentFiles:
    """The segments of one broker, and their numbers. `open` comes first, `close` last."""

    def __init__(self, root: Path, broker: str, section: JournalSection, counts: Counts, started_ms: int) -> None:
        self._root = root
        self._broker = broker
        self._quoted = quote(broker, safe="")
        self._open_dir = self._root / OPEN / self._quoted
        self._max_bytes = section.segment_max_bytes
        self._disk_max_bytes = section.disk_max_bytes
        self._counts = counts
        self._run = started_ms
        self._number = 0
        self._lock = -1
        self._numbered = self._ready = False
        self._segment = -1  # the open one; it is made with its first rows
        self._size = 0
        self._day = 0  # of its rows, since 1970
        self._finished: deque[Finished] = deque()
        self._held = 0  # bytes of these

    @property
    def empty(self) -> bool:
        """True when no segment is open."""
        return self._segment < 0

    def open(self) -> None:
        """Lock the directory, and finish segments of former runs. A second call has no effect."""
        if self._ready:
            return
        if self._lock < 0:
            make_directory(self._open_dir)
            self._lock = _locked(self._open_dir / "lock", self._broker)
        if not self._numbered:
            self._number_the_run()
        for fragment in self._open_dir.glob("*.tmp"):
            fragment.unlink()
        for left in sorted(self._open_dir.glob("*.batches")):
            found = read(left.read_bytes())
            if _is_later(found.rows):
                log.warning(
                    "journal.later_version", segment=left.stem, help="a later version left it, and finishes it when it is back"
                )
                continue
            if self._publish(left.stem, found):
                log.info("journal.recovered", segment=left.stem)
            left.unlink()
        self._finished = deque(sorted(self._scan()))
        self._held = sum(segment.size for segment in self._finished)
        self._make_room()
        self._ready = True

    def append(self, batch: pa.RecordBatch, at_ms: int) -> None:
        """Write rows of one day to the kernel. An open segment that is full, or of another day, is finished first."""
        day = at_ms // DAY_MS
        if not self.empty and (day != self._day or self._size >= self._max_bytes):
            self.finish()
        if self.empty:
            make_directory(self._open_dir)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._segment = os.open(self._open_dir / f"{self._name}.batches", flags, 0o600)
            self._day = day
        frames = framed(batch.serialize())
        if not self._size:
            frames = framed(self._schema().serialize()) + frames
        self._make_room(len(frames))
        # At the end of what counts: what an attempt that failed left behind is written over.
        write_all(self._segment, frames, self._size)
        self._size += len(frames)

    def finish(self) -> None:
        """Finish the open segment, if there is one."""
        if self.empty:
            return
        # Not by its path: whatever became of the directory, these are the rows.
        published = self._publish(self._name, read(os.pread(self._segment, self._size, 0)))
        (self._open_dir / f"{self._name}.batches").unlink(missing_ok=True)
        file, self._segment, self._size = self._segment, -1, 0
        self._number += 1
        if published:
            self._finished.append(published)
            self._held += published.size
        os.close(file)
        self._make_room()

    def close(self) -> None:
        """Release the directory. The next run finishes an open segment."""
        for file in (self._segment, self._lock):
            if file >= 0:
                os.close(file)
        self._segment = self._lock = -1

    @property
    def _name(self) -> str:
        return f"{self._run:013d}-{self._number:08d}"

    def _schema(self) -> pa.Schema:
        return JOURNAL.with_metadata({VERSION_OF_JOURNAL: JOURNAL_VERSION, BROKER: self._broker})

    def _number_the_run(self) -> None:
        """The time of the start, or where the clock went back, one more than the last run's.

        That one stands in the lock's file as well: its segments may have been deleted.
        """
        written = os.pread(self._lock, 13, 0)
        last = int(written) if _RUN.fullmatch(written) else 0
        on_disk = max((int(segment.name[:13]) for segment in self._scan()), default=0)
        self._run = max(self._run, last + 1, on_disk + 1)
        write_all(self._lock, f"{self._run:013d}".encode(), 0)
        os.fsync(self._lock)
        self._numbered = True

    def _publish(self, name: str, found: Found) -> Finished | None:
        """Move the rows of an open segment to their place; None if there are none. A repetition gives the same file."""
        rows, torn = found
        if torn:
            log.warning("journal.torn", segment=name, bytes=torn, help="what a killed process had not written whole is left out")
        if rows is None:
            return None
        date = datetime.fromtimestamp(rows["at"][0].value / 1e6, UTC).date()
        target = self._root / f"date={date}" / f"broker={self._quoted}" / f"{name}.parquet"
        content = as_parquet(rows)
        make_directory(self._open_dir)
        readers = self._root.stat().st_mode & GROUP
        make_directory(target.parent, readers)
        fresh = self._open_dir / f"{name}.tmp"
        with fresh.open("wb") as file:
            os.fchmod(file.fileno(), 0o600 | readers & ~stat.S_IXGRP)
            write_all(file.fileno(), content, 0)
            os.fsync(file.fileno())
        fresh.rename(target)
        sync_directory(target.parent)
        return Finished(name, target, content.size)

    def _scan(self) -> Iterator[Finished]:
        for path in self._root.glob(f"date=*/broker={self._quoted}/*.parquet"):
            if _NAME.fullmatch(path.name):
                yield Finished(path.stem, path, path.stat().st_size)

    def _make_room(self, more: int = 0) -> None:
        """Delete the oldest finished segments while all segments together, with `more` bytes, are over the bound."""
        while self._finished and self._held + self._size + more > self._disk_max_bytes:
            name, path, size = self._finished[0]
            path.unlink(missing_ok=True)
            self._finished.popleft()
            self._held -= size
            self._counts.deleted_segments += 1
            log.info("journal.deleted", segment=name, bytes=size)
            with suppress(OSError):  # others are in it
                path.parent.rmdir()
                path.parent.parent.rmdir()
        self._counts.segments, self._counts.bytes = len(self._finished), self._held


def _is_later(rows: pa.Table | None) -> bool:
    """Whether the rows of an open segment are of a later version than this program writes. One that cannot be read is, too."""
    if rows is None:
        return False
    version = (rows.schema.metadata or {}).get(VERSION_OF_JOURNAL, b"")
    return not version.isdigit() or int(version) > int(JOURNAL_VERSION)


def as_parquet(rows: pa.Table) -> pa.Buffer:
    """The bytes of a Parquet file with these rows."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_page_checksum=True, compression_level=ZSTD_LEVEL)
    return sink.getvalue()


def make_directory(path: Path, readers: int = 0) -> None:
    """Create it durably, with its parents: for its owner, and for `readers`, which are bits of GROUP. Raises OSError."""
    if path.is_dir():
        return
    if path.exists():
        raise NotADirectoryError(errno.ENOTDIR, "is there, and no directory", str(path))
    make_directory(path.parent, readers)
    path.mkdir(0o700, exist_ok=True)
    if readers:  # the umask left them out; a set-group-ID bit stays set
        path.chmod(path.stat().st_mode | readers)
    sync_directory(path.parent)


def _locked(path: Path, broker: str) -> int:
    """Open the file and lock it. Raises OSError, also if another adapter has locked it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        text = f"another adapter writes here as {broker!r}: give each its own broker, or its own journal.path"
        raise BlockingIOError(error.errno, text, str(path)) from error
    except OSError:
        os.close(file)
        raise
    return file
