"""Repairs an embedded store that does not start: builds a new store from everything readable. Nothing is deleted.

Each row is a complete value of a max-register with a sequence number, and batches do not depend on each other. So any readable
row counts, and of two rows under one key the one with the higher sequence number. A repair that is killed can be run again.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from rocksdict import Rdict, ReadOptions

from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError, StoreVersionError
from adapter.metaservice.rocksdb import store
from adapter.metaservice.rocksdb.metadata import LAST_REVISION, REVISION_FORM
from adapter.metaservice.rocksdb.store import DATA, FAMILIES, LOSS, META, REPAIRED, ROWS, SCHEMA, STATE, State
from adapter.model.codec import decode_record, decode_seq
from adapter.model.records import STORE_ID_BYTES, is_old_tombstone
from adapter.runtime.clocks import wall_ms
from adapter.runtime.durable import format_mark, rocks
from adapter.runtime.durable.backups import refuse_unfinished
from adapter.runtime.durable.files import refuse_root_for, sync_directory
from adapter.runtime.durable.watermark import Loss, Watermark

log = structlog.get_logger(__name__)

HALVINGS = 10  # how often a key range with an unreadable block is halved to find readable rows
ABOVE_ALL = b"\xff" * 8  # above every key, whose first byte is the length of a name, or printable
_SEQ_BYTES = 8
_SCRATCH = "db.salvage"


def repair(path: Path, tombstones_before_ms: int) -> str:
    """Replace the damaged store by a new one built from all that is readable; the old one is kept. Blocks.

    Returns a report. Tombstones from before `tombstones_before_ms` (Unix ms) are left out of what is read from files that the
    store no longer used. Raises StoreLockedError while a Meta Service runs, StoreDamagedError if there is no store,
    StoreVersionError for a store of a later version, DiskFullError, or StorageFailedError, also for root if another user has it.
    """
    try:
        if not any((path / name).exists() for name in ("db", REPAIRED, "watermark")):
            raise StoreDamagedError(f"{path}: there is no store; store.path in the configuration names it")
        refuse_unfinished(path)
        refuse_root_for(path)
        lock = store.lock_directory(path)
    except OSError as error:
        raise rocks.unusable(error, path) from error
    try:
        format_mark.is_marked(format_mark.META_STORE, path)
        if not (path / REPAIRED).exists():
            watermark = _watermark(path)
            if _is_whole(path, watermark):
                return f"The store {path} holds all that it acknowledged; nothing was done."
            _build(path, watermark, tombstones_before_ms)
        return _install(path)
    except OSError as error:
        raise rocks.unusable(error, path) from error
    finally:
        os.close(lock)


def _is_whole(path: Path, watermark: int) -> bool:
    try:
        return store.exists(path) and bool(store.check(path, watermark))
    except StoreDamagedError as error:
        log.warning("repair.damaged", error=str(error))
    return False


def _build(path: Path, watermark: int, tombstones_before_ms: int) -> None:
    """Build the new store, complete and synced, next to the damaged one."""
    fresh = path / "db.new"
    for left in (fresh, path / _SCRATCH):
        if left.exists():
            shutil.rmtree(left)
    db = rocks.new(fresh, FAMILIES)
    with contextlib.closing(db):
        salvage = _Salvage(db, path / "db")
        if not salvage.read("the store", lambda: store.read_only(path / "db", skip=True)) or _has_unlisted_tables(path / "db"):
            # The list of files or a block is unreadable, or the list lacks some files.
            salvage.drop_tombstones_before_ms = tombstones_before_ms
            salvage.read("its logs", lambda: _logs_alone(path))
            salvage.read("its tables", lambda: _tables_alone(path))
        salvage.finish(watermark)
    shutil.rmtree(path / _SCRATCH, ignore_errors=True)
    rocks.publish(fresh, path / REPAIRED)


def _install(path: Path) -> str:
    """Move the damaged store aside and the new one into its place; returns the report."""
    with contextlib.closing(store.read_only(path / REPAIRED)) as db:
        state, loss = store.bookkeeping(db, path / REPAIRED)
    aside = _aside(path)
    if (path / "db").exists():
        if (path / "watermark").exists():
            shutil.copyfile(path / "watermark", aside / "watermark")
        (path / "db").rename(aside / "db")
        sync_directory(aside)
    watermark = Watermark.open(path / "watermark")
    try:
        watermark.advance(state.seq)
        watermark.sync()
    finally:
        watermark.close()
    (path / REPAIRED).rename(path / "db")
    sync_directory(path)
    lost = f" About {loss.writes:,} acknowledged writes were missing: adapters push again what they hold." if loss else ""
    return f"Repaired: {state.records:,} rows are readable.{lost} The damaged store is kept in {aside}."


class _Salvage:
    """Copies what is readable in the files of a damaged store into a new one."""

    def __init__(self, db: Rdict, database: Path) -> None:
        self._db = db
        self._database = database
        self._state: State | None = None
        self._loss: Loss | None = None
        self.drop_tombstones_before_ms = 0

    def read(self, name: str, opened: Callable[[], Rdict]) -> bool:
        """Copy the readable rows of a source; returns whether all were readable. Raises DiskFullError."""
        whole = True
        try:
            with contextlib.closing(opened()) as source:
                for family in FAMILIES:
                    whole &= self._copy_family(family, source)
        except (DiskFullError, StoreVersionError):
            raise
        except (AdapterError, OSError) as error:
            _refuse_shortage(error)
            log.warning("repair.not_readable", source=name, error=str(error))
            return False
        log.info("repair.read", source=name, whole=whole)
        return whole

    def problem(self, watermark: int) -> str:
        """How the copied rows differ from what was acknowledged; empty if they do not."""
        return store.problem(self._state, watermark, *self._tally()[:2]) if self._state else "its bookkeeping is missing"

    def finish(self, watermark: int) -> None:
        """Write the bookkeeping: next incarnation, a sequence number above all acknowledged ones, and the loss."""
        problem = self.problem(watermark)
        records, digest, newest = self._tally()
        state = self._state or State(secrets.token_bytes(STORE_ID_BYTES))
        seq = max(watermark, state.seq, newest) + 1
        loss = self._loss
        if problem:
            # Each metadata revision took a sequence number, so no later revision equals a lost one.
            revision = REVISION_FORM.pack(seq)
            self._db.get_column_family(META).put(LAST_REVISION, revision + revision)
            records, digest, _ = self._tally()
            missing = max(watermark - state.seq, 0) + max(state.records - records, 0)
            loss = Loss(max(missing, 1) + (loss.writes if loss else 0), wall_ms())
            log.error("repair.acknowledged_writes_lost", writes=loss.writes, problem=problem)
        store.write_bookkeeping(self._db, State(state.store_id, state.incarnation + 1, seq, records, digest), loss)
        rocks.guarded(self._db.flush_wal, True)

    def _copy_family(self, family: str, source: Rdict) -> bool:
        """Copy the readable rows of a column family; returns whether all were readable."""
        target, found, whole = self._db.get_column_family(family), _family(source, family), True
        if found is None:
            return False
        for row in _readable(found):
            if row is None:
                whole = False
                continue
            key, value = row
            if family == META and key < ROWS:
                self._copy_bookkeeping(key, value)
            elif len(value) >= _SEQ_BYTES and not self._may_be_dropped(family, value):
                standing = rocks.guarded(target.get, key)
                if standing is None or decode_seq(standing) < decode_seq(value):
                    rocks.guarded(target.put, key, value)
        return whole

    def _copy_bookkeeping(self, key: bytes, value: bytes) -> None:
        if key == SCHEMA:
            with contextlib.suppress(StoreDamagedError):  # of a damaged store
                store.refuse_later_version(value, self._database)
        elif key == STATE:
            found = State.decode(value)
            if self._state is None or (found.incarnation, found.seq) > (self._state.incarnation, self._state.seq):
                self._state = found
        elif key == LOSS:
            self._loss = Loss.decode(value)

    def _may_be_dropped(self, family: str, value: bytes) -> bool:
        """True for an old tombstone: the store may have dropped it since, and it would hide later commits."""
        if family != DATA or not self.drop_tombstones_before_ms:
            return False
        return is_old_tombstone(decode_record(value), self.drop_tombstones_before_ms)

    def _tally(self) -> tuple[int, int, int]:
        """The number of rows, the sum of their sequence numbers, and the highest one."""
        records = digest = newest = 0
        for name in FAMILIES:
            for _, value in rocks.scan(self._db.get_column_family(name), ROWS, b""):
                seq = decode_seq(value)
                records, digest, newest = records + 1, digest + seq, max(newest, seq)
        return records, digest % 2**64, newest


def _logs_alone(path: Path) -> Rdict:
    """Open the write-ahead logs over an empty store. Column families get the same numbers as in the old one."""
    scratch = _scratch(path)
    rocks.new(scratch, FAMILIES).close()
    for own in scratch.glob("*.log"):
        own.unlink()
    for file in (path / "db").glob("*.log"):
        shutil.copyfile(file, scratch / file.name)
    return store.read_only(scratch, skip=True)


def _tables_alone(path: Path) -> Rdict:
    """Open the tables with a list of files that RocksDB rebuilds. Rows that are only in the logs are missing."""
    scratch = _scratch(path)
    scratch.mkdir()
    for file in (path / "db").glob("*.sst"):
        try:
            os.link(file, scratch / file.name)
        except OSError:  # a file system without links
            shutil.copyfile(file, scratch / file.name)
    rocks.guarded(Rdict.repair, str(scratch), rocks.options())
    return store.read_only(scratch, families=Rdict.list_cf(str(scratch), rocks.options(create=False)))


def _scratch(path: Path) -> Path:
    scratch = path / _SCRATCH
    if scratch.exists():
        shutil.rmtree(scratch)
    return scratch


def _has_unlisted_tables(database: Path) -> bool:
    """True if there are tables that the store, though it can be opened, does not list."""
    with contextlib.closing(store.read_only(database, skip=True)) as db:
        listed = {Path(file["name"]).name for file in db.live_files()}
    return any(file.name not in listed for file in database.glob("*.sst"))


def _family(source: Rdict, name: str) -> Rdict | None:
    try:
        return source.get_column_family(name)
    except Exception:  # noqa: BLE001 - rocksdict's error if the source does not have it
        return None


def _readable(family: Rdict) -> Iterator[tuple[bytes, bytes] | None]:
    """All rows outside unreadable blocks, some possibly twice; and a None if there is such a block."""
    low = b""
    for row in _walk(family, b"", b""):
        yield row
        if row is None:
            break
        low = row[0] + b"\0"
    else:
        return
    high = ABOVE_ALL
    for row in _walk(family, high, low, forward=False):
        if row is None:
            break
        yield row
        high = row[0]
    yield from _between(family, low, high, HALVINGS)


def _between(family: Rdict, low: bytes, high: bytes, halvings: int) -> Iterator[tuple[bytes, bytes]]:
    """The readable rows from `low` up to but excluding `high`, where reading forward from `low` fails."""
    middle = _middle(low, high)
    if not halvings or not low < middle < high:
        return
    begin, end, readable = middle, middle, True
    for row in _walk(family, middle, high):
        if row is None:
            readable = False
            break
        yield row
        end = row[0] + b"\0"
    for row in _walk(family, middle, low, forward=False):
        if row is None:
            break
        yield row
        begin = row[0]
    yield from _between(family, low, begin, halvings - 1)
    if not readable:
        yield from _between(family, end, high, halvings - 1)


def _walk(family: Rdict, start: bytes, end: bytes, *, forward: bool = True) -> Iterator[tuple[bytes, bytes] | None]:
    """Rows from `start` up to `end` (empty: the last row), or backwards down to `end`; None for an unreadable block."""
    found = family.iter(ReadOptions())
    (found.seek if forward else found.seek_for_prev)(start)
    while found.valid():
        key = found.key()
        if end and (key >= end if forward else key < end):
            return
        yield key, found.value()
        (found.next if forward else found.prev)()
    try:
        found.status()
    except Exception as error:  # noqa: BLE001 - any error of RocksDB
        _refuse_shortage(error)
        yield None


def _refuse_shortage(error: Exception) -> None:
    """Raise StorageFailedError if file descriptors ran out: such a file is not damaged, and must not be left out."""
    if rocks.OUT_OF_FILES in str(error):
        raise StorageFailedError(f"{error}: raise the limit of open files, and repair again") from error


def _middle(low: bytes, high: bytes) -> bytes:
    """A key about halfway between two keys."""
    size = max(len(low), len(high)) + 1
    both = int.from_bytes(low.ljust(size, b"\0"), "big") + int.from_bytes(high.ljust(size, b"\0"), "big")
    return (both // 2).to_bytes(size, "big")


def _watermark(path: Path) -> int:
    watermark = Watermark.open(path / "watermark")
    watermark.close()
    return watermark.value


def _aside(path: Path) -> Path:
    """A new directory for the damaged store; the newest existing one if an interrupted repair has moved it already."""
    if not (path / "db").exists():
        former = sorted(path.glob("damaged-*"))
        if former:
            return former[-1]
    name = f"damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    aside = next(place for number in range(1_000_000) if not (place := path / (f"{name}-{number}" if number else name)).exists())
    aside.mkdir(mode=0o700)
    return aside
