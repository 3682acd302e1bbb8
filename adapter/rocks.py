"""What both stores share of RocksDB: options, opening with clear errors, and the table foreign error -> ours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rocksdict import BlockBasedOptions, Cache, Options, Rdict, ReadOptions

from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError, StoreLockedError

R = TypeVar("R")

WRITE_BUFFER_BYTES = 32 * 2**20  # one memtable; also the order of what an open has to replay
BLOCK_CACHE_BYTES = 64 * 2**20
MAX_WAL_BYTES = 128 * 2**20
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
    "rocksdb.is-write-stopped": "write_stopped",
    "rocksdb.background-errors": "background_errors",
}

_TABLE: tuple[tuple[str, type[AdapterError]], ...] = (
    ("No space left on device", DiskFullError),
    ("Disk quota exceeded", DiskFullError),
    ("SST file size limit", DiskFullError),
    ("lock ", StoreLockedError),
    ("LOCK", StoreLockedError),
    ("Corruption", StoreDamagedError),
)


def options() -> Options:
    """The options of both stores. The WAL is recovered up to the first damaged record; who needs more compares watermarks."""
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.create_missing_column_families(True)
    made.set_write_buffer_size(WRITE_BUFFER_BYTES)
    made.set_max_total_wal_size(MAX_WAL_BYTES)
    made.set_keep_log_file_num(LOG_FILES)
    made.set_max_background_jobs(2)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(10, False)
    made.set_block_based_table_factory(table)
    return made


def open_store(path: Path, opened: Callable[[], Rdict]) -> Rdict:
    """Open a database. Raises StoreLockedError, StoreDamagedError, DiskFullError or StorageFailedError, with what to do.

    A directory that has files but no CURRENT was a database once: RocksDB would silently begin an empty one there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise StorageFailedError(f"{path}: {error.strerror}: the store's directory must be writable by this user") from error
    if names and "CURRENT" not in names:
        raise StoreDamagedError(f"{path}: has files of a store, but its CURRENT file is missing")
    try:
        return opened()
    except Exception as error:
        found = translate(error)
        if isinstance(found, StoreLockedError):
            raise StoreLockedError(
                f"{path}: another process has this store open; stop it, or give this one another path"
            ) from error
        raise type(found)(f"{path}: {found}") from error


def translate(error: Exception) -> AdapterError:
    """Our error for one of RocksDB's, which come as a bare Exception with a text."""
    text = str(error)
    kind = next((kind for part, kind in _TABLE if part in text), StorageFailedError)
    return kind(text)


def guarded(call: Callable[..., R], *arguments: Any) -> R:  # noqa: ANN401 - whatever the wrapped call takes
    """Call into RocksDB and translate what it raises."""
    try:
        return call(*arguments)
    except Exception as error:
        raise translate(error) from error


def scan(db: Rdict, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values from `start` up to, not including, `end` (empty: to the last), in key order."""
    read_options = ReadOptions()
    if end:
        read_options.set_iterate_upper_bound(end)
    items: Iterator[tuple[bytes, bytes]] = db.items(read_opt=read_options, from_key=start)  # type: ignore[assignment]
    return items
