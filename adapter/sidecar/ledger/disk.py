"""What the store needs of a disk: a store of bytes, a watermark outside it, and a mark that the store is open.

RocksDB implements it here; the model test passes in a simulated one. Promises what `Disk` documents for a kill and a power cut;
knows nothing of records.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar, cast

import anyio
import anyio.to_thread
from rocksdict import Rdict, WriteBatch

from adapter.errors import DiskFullError, StorageFailedError, StoreDamagedError, StoreLockedError
from adapter.runtime import heap
from adapter.runtime.durable import format_mark, rocks
from adapter.runtime.durable.backups import refuse_unfinished
from adapter.runtime.durable.checkpoint import Checkpoints
from adapter.runtime.durable.format_mark import ADAPTER_STORE
from adapter.runtime.durable.watermark import Watermark
from adapter.sidecar.config import WalSync
from adapter.sidecar.ledger import boot_marker

R = TypeVar("R")

FORMAT = b"\0format"  # the key of the mark within the database: the same as in the file, in case that this gets lost
OPENING_S, LOCK_AGAIN_S = 30.0, 0.02
REOPEN_SPARE_BYTES = 2**20  # beyond the replay: manifest, options, a new WAL
# Errors that do not show whether a file is there.
_NO_ROOM_TO_LOOK = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

ADVICE = (
    "Stop the adapter and run `offset-adapter repair --config FILE`, which keeps a copy; "
    "with --start-from-meta it begins with what the Meta Service holds instead."
)


class Batch(Protocol):
    """Changes that are written together."""

    def put(self, key: bytes, value: bytes, /) -> None:
        """Store a value under a key when the batch is written."""

    def delete(self, key: bytes, /) -> None:
        """Remove a value, if it exists, when the batch is written."""


class Disk(Protocol):
    """An open store. What was written survives a killed process; what was synced after it, a power cut.

    The store's methods raise DiskFullError, StoreDamagedError or StorageFailedError; those of the watermark raise OSError.
    """

    name: str

    @property
    def watermark(self) -> int:
        """The number that was last given to `advance_watermark`."""

    @property
    def watermark_intact(self) -> bool:
        """False if there was no readable watermark at the open; `begin` then creates a new one."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it is absent."""

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        """The values of keys, in the same order; None for absent ones."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `start` up to, not including, `end` (empty: to the last), in key order."""

    def batch(self) -> Batch:
        """An empty batch, for `write`."""

    def write(self, batch: Batch) -> None:
        """Write a batch: all or nothing, after the batches before it."""

    def sync_now(self) -> None:
        """Sync what was written. Blocks."""

    async def sync(self) -> None:
        """Sync what was written, away from the event loop, one sync after the other."""

    async def apart(self, work: Callable[[], R]) -> R:
        """Run slow work (a scan, a close) outside of the event loop."""

    def advance_watermark(self, value: int) -> None:
        """Overwrite the watermark: it survives a kill, and as of its last sync a power cut."""

    async def sync_watermark(self) -> None:
        """Sync the watermark, away from the event loop."""

    def machine_went_down(self) -> bool:
        """True if the machine went down under an adapter that may have had unsynced writes. Raises OSError."""

    def begin(self, wal_sync: WalSync) -> None:
        """Mark the store as open, synced, for the next `machine_went_down`."""

    def shrink(self, *, sort: bool) -> None:
        """Give memory back to the system; with `sort` also that of what was written last, which is on the disk in any case.

        Thread-safe.
        """

    def missing(self) -> str:
        """Name an open file that is not where it was opened: what is written to it will not be found at the next open.

        Thread-safe.

        Empty while all are in their place.
        """

    def finish(self) -> None:
        """Sync store and watermark, and remove the mark of `begin`. Blocks."""

    def has_room(self) -> bool:
        """True if there is enough space for an open."""

    def properties(self) -> dict[str, int]:
        """The store's own numbers, by our names. Thread-safe. Raises StorageFailedError once it is closed."""

    @property
    def checkpoints(self) -> Checkpoints:
        """Copies of its files, for a backup."""

    def close(self) -> None:
        """Close without a sync. Raises what closing the store raises."""


class RocksDisk:
    """A directory with a RocksDB, the watermark file, the `running` file, and the mark of its version.

    Reads and writes are called on the event loop: they do not release the GIL, so that a thread would only add a hop.
    """

    def __init__(self, path: Path, opened: rocks.Database, watermark: Watermark) -> None:
        self.name = str(path)
        self._path = path
        self._opened = opened
        self._db = opened.db
        self._watermark = watermark
        self.checkpoints = Checkpoints(opened.db, path)
        self._limiter = anyio.CapacityLimiter(1)
        self._newest_log = _newest_log(_names(path / "db"))

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> Self:
        """Open or create the store at `path`. Blocks.

        Raises StoreLockedError, StoreDamagedError, DiskFullError or StorageFailedError; the text says what to do. With `create`
        False a store that is not there raises StorageFailedError as well: its disk may come back.
        """
        database = path / "db"
        with contextlib.ExitStack() as opening, contextlib.ExitStack() as undo:
            try:
                refuse_later_version(path)
                refuse_unfinished(path)
                if create:
                    path.mkdir(0o700, parents=True, exist_ok=True)
                if path.exists():
                    opening.enter_context(one_at_a_time(path))
                existed = database.exists() and any(database.iterdir())
                if not existed and not create:
                    raise StorageFailedError(f"{path}: the store is gone; is its disk mounted?")
                watermark = Watermark.open(path / "watermark")
            except OSError as error:
                raise rocks.unusable(error, path) from error
            undo.callback(watermark.close)
            if not existed and watermark.value:
                # Refused before RocksDB could make an empty database here, which the next start would take for the store.
                raise StoreDamagedError(f"{path}: is empty, though {watermark.value} writes were acknowledged here. {ADVICE}")
            opened = rocks.open_store(database, ("default",), ADVICE, _mark)
            undo.callback(opened.close)
            # For a store whose file FORMAT is of another one.
            _check_row(path, lambda: rocks.guarded(opened.db.get, FORMAT))
            undo.pop_all()
        return cls(path, opened, watermark)

    @property
    def watermark(self) -> int:
        """The value in the watermark file."""
        return self._watermark.value

    @property
    def watermark_intact(self) -> bool:
        """False when the watermark file was missing or unreadable at the open."""
        return self._watermark.intact

    def get(self, key: bytes) -> bytes | None:
        """Read a value; holds the GIL."""
        value: bytes | None = rocks.guarded(self._db.get, key)
        return value

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        """Read values with one call of RocksDB."""
        return cast("list[bytes | None]", rocks.guarded(self._db.get, keys))

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over keys and values in key order. Raises StoreDamagedError at a block that cannot be read."""
        return rocks.scan(self._db, start, end)

    def batch(self) -> WriteBatch:
        """An empty RocksDB WriteBatch of bytes."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: Batch) -> None:
        """Write a batch to the kernel, without a sync."""
        try:  # not `rocks.guarded`: this is in the path of each commit
            self._db.write(cast("WriteBatch", batch))
        except Exception as error:
            if rocks.FAILED_BEFORE in str(error) and not self.has_room():
                raise DiskFullError(f"{self.name}: a sync that is still under way found no space left") from error
            raise rocks.translate(error) from error

    def sync_now(self) -> None:
        """Sync the WAL (fsync). Blocks."""
        rocks.guarded(self._db.flush_wal, True)

    async def sync(self) -> None:
        """Sync the WAL in a worker thread; one sync at a time."""
        await anyio.to_thread.run_sync(self.sync_now, limiter=self._limiter)

    async def apart(self, work: Callable[[], R]) -> R:
        """Run `work` in a worker thread."""
        return await anyio.to_thread.run_sync(work)

    def advance_watermark(self, value: int) -> None:
        """Overwrite the watermark file in place."""
        self._watermark.advance(value)

    async def sync_watermark(self) -> None:
        """Sync the watermark file in a worker thread."""
        await anyio.to_thread.run_sync(self._watermark.sync, limiter=self._limiter)

    def machine_went_down(self) -> bool:
        """True when the file `running` was written in another boot of the machine."""
        return boot_marker.machine_went_down(self._path / "running")

    def begin(self, wal_sync: WalSync) -> None:
        """Make the watermark durable if it is new, and write the file `running`; mark a store from before there were marks."""
        if self.get(FORMAT) is None:
            rocks.guarded(_mark, self._db)
            self.sync_now()
        try:
            if not format_mark.is_marked(ADAPTER_STORE, self._path):
                format_mark.write(ADAPTER_STORE, self._path)
            self._watermark.establish()
            boot_marker.begin(self._path / "running", wal_sync)
        except OSError as error:
            raise rocks.translate(error) from error

    def finish(self) -> None:
        """Sync WAL and watermark, and remove the file `running`."""
        self.sync_now()
        self._watermark.sync()
        boot_marker.end(self._path / "running")

    def shrink(self, *, sort: bool) -> None:
        """Let RocksDB write its memtable to a table, in its own threads; and the C library give back what is free."""
        if sort:
            rocks.guarded(self._db.flush, False)
        heap.give_back()

    def missing(self) -> str:
        """Look for the watermark, RocksDB's LOCK and CURRENT, and its newest WAL."""
        database = self._path / "db"
        try:
            if not self._watermark.is_in_place():
                return f"{self._path / 'watermark'}: the file that is open is not there any more"
            if _file_id(database / "LOCK") != self._opened.lock:
                return f"{database}: is not the database that is open"
            names = _names(database)
        except OSError as error:
            return "" if error.errno in _NO_ROOM_TO_LOOK else f"{error.filename or self._path}: {error.strerror}"
        if "CURRENT" not in names:
            return f"{database / 'CURRENT'}: is gone"
        # RocksDB begins a new WAL before it deletes an old one.
        newest = _newest_log(names)
        if newest < self._newest_log:
            return f"{database / f'{self._newest_log:06}.log'}: is gone"
        self._newest_log = newest
        return ""

    def has_room(self) -> bool:
        """True when the file system has room for a replay, which writes the WAL's contents into a new file."""
        try:
            replay = sum(file.stat().st_size for file in (self._path / "db").glob("*.log"))
        except FileNotFoundError:  # RocksDB has removed one since it was listed
            return False
        return shutil.disk_usage(self._path).free > replay + REOPEN_SPARE_BYTES

    def properties(self) -> dict[str, int]:
        """RocksDB's integer properties, by our names."""
        return {ours: rocks.guarded(self._db.property_int_value, theirs) or 0 for theirs, ours in rocks.PROPERTIES.items()}

    def close(self) -> None:
        """Close the watermark and RocksDB, without a sync."""
        self.checkpoints.finish()
        try:
            self._watermark.close()
        finally:
            self._opened.close()


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Wait until no other process opens the store at `path`: two that make it at once would take each other's files for damage.

    Behind that RocksDB's own lock decides. Where directories cannot be locked, as on NFS, it does so alone. Raises
    StoreLockedError after OPENING_S.
    """
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        until = time.monotonic() + OPENING_S
        while not _locked(directory):
            if time.monotonic() >= until:
                raise StoreLockedError(f"{path}: another process has been opening this store for {OPENING_S:g} s: stop it")
            time.sleep(LOCK_AGAIN_S)
        yield
    finally:
        os.close(directory)


def _locked(directory: int) -> bool:
    """Lock a directory; False while another process has it locked."""
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # it cannot be locked
        return True
    return True


def refuse_later_version(path: Path) -> None:
    """Refuse the store at `path` if it is of a later version than this program reads. Changes it no more than `rocks.peek`.

    Raises StoreVersionError; StoreDamagedError when the version cannot be read; StorageFailedError, OSError.
    """
    database = path / "db"
    if format_mark.is_marked(ADAPTER_STORE, path) or not (database / "CURRENT").exists():
        return
    _check_row(path, lambda: rocks.peek(database, FORMAT))


def _check_row(path: Path, read: Callable[[], bytes | None]) -> None:
    """Check the mark within the database; it has none if no program has opened it since there are marks."""
    try:
        row = read()
    except StoreDamagedError as error:
        raise StoreDamagedError(f"{path}: {error}. {ADVICE}") from error
    if row is not None:
        format_mark.check(ADAPTER_STORE, row, str(path / "db"), ADVICE)


def _mark(db: Rdict) -> None:
    db.put(FORMAT, format_mark.encode(ADAPTER_STORE))


def _names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}


def _newest_log(names: Iterable[str]) -> int:
    """The number of the newest WAL among a database's files; 0 when there is none."""
    return max((int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal()), default=0)


def _file_id(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
