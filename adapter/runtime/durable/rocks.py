"""RocksDB for both stores: options, opening with clear errors, and the table from its errors to ours."""

import contextlib
import errno
import gc
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict, RdictIter, ReadOptions

from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError, StoreLockedError
from adapter.runtime import descriptors
from adapter.runtime.durable.files import sync_directory

R = TypeVar("R")

WRITE_BUFFER_BYTES = 16 * 2**20  # one memtable; an open has to replay about as much
WRITE_BUFFERS = 6  # many, since a write that waits for a free memtable holds the GIL
BLOCK_CACHE_BYTES = 64 * 2**20
MAX_WAL_BYTES = 128 * 2**20
CLOSE_TRIES, CLOSE_PAUSE_S = 1_000, 0.01
MAX_SKIPPED = 1_000  # deleted rows that a look at a few rows goes over
LOG_FILES = 3  # RocksDB's own LOG, kept for support

# Integer properties for the metrics: RocksDB's name -> ours.
PROPERTIES = {
    "rocksdb.estimate-num-keys": "estimated_keys",
    "rocksdb.cur-size-all-mem-tables": "memtable_bytes",
    "rocksdb.total-sst-files-size": "sst_bytes",
    "rocksdb.block-cache-usage": "block_cache_bytes",
    "rocksdb.num-running-compactions": "running_compactions",
    "rocksdb.num-running-flushes": "running_flushes",
    "rocksdb.estimate-pending-compaction-bytes": "pending_compaction_bytes",
    "rocksdb.num-files-at-level0": "level0_files",
}

OUT_OF_FILES = "Too many open files"

_DESCRIPTORS = "/proc/self/fd"
_BY_DESCRIPTOR = re.compile(rf"{_DESCRIPTORS}/\d+")

FAILED_BEFORE = "Writer has previous error"  # of a file whose error RocksDB has told to another call: a sync in its thread
_TABLE: tuple[tuple[str, type[AdapterError]], ...] = (
    ("No space left on device", DiskFullError),
    ("Disk quota exceeded", DiskFullError),
    ("SST file size limit", DiskFullError),
    ("Corruption", StoreDamagedError),
    ("While lock file", StoreLockedError),
    ("lock hold by current process", StoreLockedError),
    ("No such file or directory", StoreDamagedError),
)


class Database(NamedTuple):
    """An open database, the descriptor of its directory, and device and inode of its LOCK file.

    RocksDB reaches its files through the descriptor. By the path it would write into, and delete from, whatever was mounted or
    moved there since the open: at the latest when it is closed.
    """

    db: Rdict
    directory: int
    lock: tuple[int, int]

    def close(self) -> None:
        """Close the database; see `close` for what it raises. Blocks."""
        try:
            close(self.db)
        finally:
            # While something still uses the database, the number must not become that of another file.
            if not _is_open(self.lock):
                os.close(self.directory)


def options(*, create: bool = True) -> Options:
    """Return the options of both stores. The WAL is recovered up to the first damaged record; watermarks detect a loss."""
    made = Options(raw_mode=True)
    made.create_if_missing(create)
    made.create_missing_column_families(True)
    made.set_write_buffer_size(WRITE_BUFFER_BYTES)
    made.set_max_write_buffer_number(WRITE_BUFFERS)
    made.set_max_total_wal_size(MAX_WAL_BYTES)
    made.set_keep_log_file_num(LOG_FILES)
    made.set_max_background_jobs(2)
    made.set_max_open_files(descriptors.store_tables())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(10, False)
    made.set_block_based_table_factory(table)
    return made


def open_store(path: Path, families: Sequence[str], advice: str, fill: Callable[[Rdict], None] = lambda _: None) -> Database:
    """Open or create a database. Raises StoreLockedError, StoreDamagedError (with `advice`), DiskFullError or StorageFailedError.

    Only an empty directory becomes a new database: one that has files but no CURRENT was a database once, and RocksDB
    would in some cases silently begin an empty one there. `fill` puts the first rows into a new one.
    """
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in path.iterdir()}
        if not names:
            _create(path, families, fill)
    except OSError as error:
        raise unusable(error, path) from error
    except Exception as error:
        raise _explained(error, path, advice) from error
    if names and "CURRENT" not in names:
        raise StoreDamagedError(f"{path}: has files of a store, but its CURRENT file is missing. {advice}")
    opening = options(create=False)
    # Without it a family with few rows would keep old logs: a start would have to replay all of MAX_WAL_BYTES.
    opening.set_atomic_flush(len(families) > 1)
    with contextlib.ExitStack() as undo:
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, directory)
            is_open = _is_open(_lock_of(directory))
        except OSError as error:
            raise unusable(error, path) from error
        if is_open:  # RocksDB compares only the names under which this process opens a database
            raise StoreLockedError(f"{path}: this process has not yet closed this store")
        try:
            db = Rdict(f"{_DESCRIPTORS}/{directory}", options=opening, column_families={name: options() for name in families})
        except Exception as error:
            raise _explained(error, path, advice) from error
        undo.pop_all()
    return Database(db, directory, _lock_of(directory))


def peek(path: Path, key: bytes) -> bytes | None:
    """Read one value of a database without changing a file of RocksDB's. Raises StoreDamagedError or StorageFailedError.

    Takes as long as a replay of the write-ahead log, which stays in memory. rocksdict writes its own file, rocksdict-config.json,
    anew at any open: the same content, and it is not read where options are given, as all of ours are. A look at links to the
    files from another directory would spare it, but needs a place to write, which a container may not have.
    """
    families = {"default": options(create=False)}
    with contextlib.closing(
        guarded(lambda: Rdict(str(path), options(create=False), families, access_type=AccessType.read_only()))
    ) as db:
        found: bytes | None = guarded(db.get, key)
        return found


def _lock_of(directory: int) -> tuple[int, int]:
    """Device and inode of the LOCK file of a database; zeros, which no file has, when there is none."""
    try:
        found = os.stat("LOCK", dir_fd=directory)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _is_open(lock: tuple[int, int]) -> bool:
    """Whether this process holds a LOCK file open, also after what was unreachable has been collected: an old iterator, say."""
    for collect in (False, True):
        if collect:
            gc.collect()
        if not any(_is_file(number, lock) for number in os.listdir(_DESCRIPTORS)):  # noqa: PTH208 - only names are needed
            return False
    return True


def _is_file(number: str, file: tuple[int, int]) -> bool:
    try:
        found = os.fstat(int(number))
    except OSError:  # closed meanwhile
        return False
    return (found.st_dev, found.st_ino) == file


def unusable(error: OSError, path: Path) -> AdapterError:
    """Translate an OSError about the directory of a store, with what to do."""
    where = error.filename or path
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFullError(f"{where}: {error.strerror}")
    what = "raise the limit of open files" if error.errno in {errno.EMFILE, errno.ENFILE} else "it must be writable by this user"
    return StorageFailedError(f"{where}: {error.strerror}: {what}")


def _explained(error: Exception, path: Path, advice: str) -> AdapterError:
    """Translate what opening the database at `path` raised, with what to do."""
    found = translate(error)
    if isinstance(found, StoreLockedError):
        return StoreLockedError(f"{path}: another process has this store open; stop it, or give this one another path")
    return type(found)(f"{path}: {found}. {advice}" if isinstance(found, StoreDamagedError) else f"{path}: {found}")


def _create(path: Path, families: Sequence[str], fill: Callable[[Rdict], None]) -> None:
    """Make a database beside `path`, and rename it to `path` when it is complete and synced.

    So an interrupted creation is not mistaken for a database that lost files: the next start creates it again.
    """
    if not os.access(path, os.W_OK | os.X_OK):  # a rename over it would succeed without these permissions
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    fresh = path.with_name(f"{path.name}.new")
    if fresh.exists():
        shutil.rmtree(fresh)
    db = new(fresh, families)
    try:
        fill(db)
        db.flush_wal(True)
    finally:
        db.close()
    publish(fresh, path)


def new(path: Path, families: Sequence[str]) -> Rdict:
    """Create a database. Its column families get the same numbers as in any other that is created with the same names."""
    db = Rdict(str(path), options=options())
    for name in families:
        if name != "default":
            db.create_column_family(name, options())
    return db


def publish(complete: Path, path: Path) -> None:
    """Sync a directory and rename it to `path`, which must be free or an empty directory. Raises OSError."""
    for file in complete.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_directory(complete)
    complete.rename(path)
    sync_directory(path.parent)


def translate(error: Exception) -> AdapterError:
    """Translate an error of RocksDB, which is a bare Exception with a text."""
    text = _BY_DESCRIPTOR.sub(_path_of, str(error))
    kind = next((kind for part, kind in _TABLE if part in text), StorageFailedError)
    return kind(text)


def _path_of(name: re.Match[str]) -> str:
    """The path of the directory whose descriptor an error names."""
    try:
        return str(Path(name[0]).readlink())
    except OSError:  # closed meanwhile
        return name[0]


def guarded(call: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401 - whatever the wrapped call takes
    """Call into RocksDB and translate what it raises."""
    try:
        return call(*arguments)
    except Exception as error:
        raise translate(error) from error


def sync(db: Rdict) -> None:
    """Sync what was written. Blocks."""
    guarded(db.flush_wal, True)


def close(db: Rdict) -> None:
    """Close a store, or one column family of it, and wait for the calls of other threads that use it. Blocks.

    Raises the error of the last flush; the store is closed nevertheless.
    """
    for _ in range(CLOSE_TRIES):
        try:
            guarded(db.close)
        except StorageFailedError as error:
            if not isinstance(error.__cause__, RuntimeError) or "borrowed" not in str(error):  # rocksdict's term for in use
                raise
        else:
            return
        time.sleep(CLOSE_PAUSE_S)
    raise StorageFailedError("the store could not be closed: a call that uses it does not end")


def scan(db: Rdict, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values from `start` up to, not including, `end` (empty: to the last), in key order.

    Raises StoreDamagedError at a block that cannot be read: rocksdict's own iterators stop there without an error.
    """
    found = guarded(db.iter, _up_to(end))
    found.seek(start)
    while found.valid():
        yield found.key(), found.value()
        found.next()
    guarded(found.status)


def rows_below(db: Rdict, prefixes: Sequence[bytes], after: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows below each of these ascending prefixes, from behind the key `after`, by one iterator.

    `end`: behind the last prefix. Where prefixes follow each other nothing is looked for. Raises what `scan` does.
    """
    found, key = guarded(db.iter, _near(end)), b""
    for at, prefix in enumerate(prefixes):
        start = after + b"\0" if after.startswith(prefix) else prefix
        if not key.startswith(prefix):
            found.seek(start)
            key = found.key() or b""
        while key.startswith(prefix):
            start = key + b"\0"
            yield key, found.value()
            found.next()
            key = found.key() or b""
        if not key:
            # The end, a block that cannot be read, or many deleted rows: looked at up to the next prefix only.
            rest = scan(db, start, prefixes[at + 1] if at + 1 < len(prefixes) else end)
            yield from takewhile(lambda row, prefix=prefix: row[0].startswith(prefix), rest)  # type: ignore[misc]


def scan_slices(db: Rdict, start: bytes, end: bytes, size: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """As `scan`, in lists of `size` rows (the last one may be shorter), at half the cost of a row."""
    rest = guarded(db.iter, _up_to(end))  # shows the same instant as `rows`
    rows = cast("Iterator[tuple[bytes, bytes]]", db.items(from_key=start, read_opt=_up_to(end)))
    while found := list(islice(rows, size)):
        start = found[-1][0] + b"\0"
        yield found
    _check_nothing_is_left(rest, start)


def key_slices(db: Rdict, start: bytes, end: bytes, size: int) -> Iterator[list[bytes]]:
    """As `scan_slices`, only the keys."""
    rest = guarded(db.iter, _up_to(end))
    keys = cast("Iterator[bytes]", db.keys(from_key=start, read_opt=_up_to(end)))
    while found := list(islice(keys, size)):
        start = found[-1] + b"\0"
        yield found
    _check_nothing_is_left(rest, start)


def rows_between(db: Rdict, keys: Sequence[bytes]) -> dict[bytes, bytes] | None:
    """The rows from the first to the last of these ascending keys, both included, for less than a get of each key.

    None if that would not be so, or not all rows could be read: the first row is not that of the first key, there are more rows
    than keys, or many deleted ones. Then get them.
    """
    first, end = keys[0], keys[-1] + b"\0"
    rest = guarded(db.iter, _near(end))  # shows the same instant as `rows`
    rows = cast("Iterator[tuple[bytes, bytes]]", db.items(from_key=first, read_opt=_near(end)))
    row = next(rows, None)
    if row is not None and row[0] != first:
        return None
    found = dict(islice(rows, len(keys) - 1))
    last = next(reversed(found), first)
    if row is not None:
        found[first] = row[1]
    rest.seek(last + b"\0" if found else first)
    if rest.valid():
        return None
    try:
        rest.status()
    except Exception:  # noqa: BLE001 - a damaged block, or too many deleted rows: a get says which
        return None
    return found


def _near(end: bytes) -> ReadOptions:
    """As `_up_to`, for a look that gives up at many deleted rows, since it takes time to go over them."""
    made = _up_to(end)
    made.set_max_skippable_internal_keys(MAX_SKIPPED)
    return made


def _check_nothing_is_left(rest: RdictIter, start: bytes) -> None:
    """Raise if there are rows from `start` on, or it cannot be read: rocksdict's fast iterators end there without an error."""
    rest.seek(start)
    guarded(rest.status)
    if rest.valid():
        raise StorageFailedError(f"the rows from the key {start.hex()} on could not be read; try again")


def _up_to(end: bytes) -> ReadOptions:
    """Options to read up to, not including, `end`. RocksDB does not copy it: the caller has to keep it until he has read all."""
    made = ReadOptions()
    if end:
        made.set_iterate_upper_bound(end)
    return made
