"""What is done about an embedded store that does not start: a new one of all that can be read. Nothing is deleted.

Each row is a whole value of a max-register with a write counter, and batches are independent of each other: so whatever is found,
wherever, counts, and of two rows under a key the one with the higher counter. Killed anywhere, it can be run again.
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

from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError
from adapter.metaservice.rocksdb import store
from adapter.metaservice.rocksdb.metadata import LAST_REVISION, REVISION_FORM
from adapter.metaservice.rocksdb.store import DATA, FAMILIES, LOSS, META, REPAIRED, ROWS, STATE, State
from adapter.model.codec import decode_record, decode_seq
from adapter.model.records import STORE_ID_BYTES
from adapter.runtime import rocks
from adapter.runtime.clocks import wall_ms
from adapter.runtime.files import sync_directory
from adapter.runtime.watermark import Loss, Watermark

log = structlog.get_logger(__name__)

HALVINGS = 10  # of a range of keys that holds an unreadable block: what can still be read in it is looked for so closely
ABOVE_ALL = b"\xff" * 8  # no key is: its first byte is the length of a name, or printable
_SEQ_BYTES = 8
_SCRATCH = "db.salvage"


def repair(path: Path, tombstones_before_ms: int) -> str:
    """Put a new store of all that can be read in the place of the damaged one, which is kept; says what is left. Blocks.

    Tombstones from before `tombstones_before_ms` (Unix ms) are left out where files are read that the store had done with.
    Raises StoreLockedError while a Meta Service runs, StoreDamagedError when there is no store, DiskFullError or
    StorageFailedError.
    """
    if not any((path / name).exists() for name in ("db", REPAIRED, "watermark")):
        raise StoreDamagedError(f"{path}: there is no store; store.path in the configuration names it")
    lock = store.lock_directory(path)
    try:
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
        return store.has_files(path) and bool(store.check(path, watermark))
    except StoreDamagedError as error:
        log.warning("repair.damaged", error=str(error))
    return False


def _build(path: Path, watermark: int, tombstones_before_ms: int) -> None:
    """Make the new store, complete and synced, beside the damaged one."""
    fresh = path / "db.new"
    for left in (fresh, path / _SCRATCH):
        if left.exists():
            shutil.rmtree(left)
    db = rocks.new(fresh, FAMILIES)
    with contextlib.closing(db):
        salvage = _Salvage(db)
        if not salvage.read("the store", lambda: store.read_only(path / "db", skip=True)) or _has_unlisted_tables(path / "db"):
            # Its list of files is not readable or leaves some out, or a block of one is not readable.
            salvage.drop_tombstones_before_ms = tombstones_before_ms
            salvage.read("its logs", lambda: _logs_alone(path))
            salvage.read("its tables", lambda: _tables_alone(path))
        salvage.finish(watermark)
    shutil.rmtree(path / _SCRATCH, ignore_errors=True)
    rocks.publish(fresh, path / REPAIRED)


def _install(path: Path) -> str:
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
    """Fills a new store with what is found in the files of a damaged one."""

    def __init__(self, db: Rdict) -> None:
        self._db = db
        self._state: State | None = None
        self._loss: Loss | None = None
        self.drop_tombstones_before_ms = 0

    def read(self, name: str, opened: Callable[[], Rdict]) -> bool:
        """Take over what a source has, as far as it can be read; returns whether that was all of it. Raises DiskFullError."""
        whole = True
        try:
            with contextlib.closing(opened()) as source:
                for family in FAMILIES:
                    whole &= self._copy_family(family, source)
        except DiskFullError:
            raise
        except (AdapterError, OSError) as error:
            _refuse_shortage(error)
            log.warning("repair.not_readable", source=name, error=str(error))
            return False
        log.info("repair.read", source=name, whole=whole)
        return whole

    def problem(self, watermark: int) -> str:
        """How what was found differs from what was acknowledged; empty when it does not."""
        return store.problem(self._state, watermark, *self._tally()[:2]) if self._state else "its bookkeeping is missing"

    def finish(self, watermark: int) -> None:
        """Put the bookkeeping: a raised incarnation, a counter above all that was acknowledged, and what is missing."""
        problem = self.problem(watermark)
        records, digest, newest = self._tally()
        state = self._state or State(secrets.token_bytes(STORE_ID_BYTES))
        seq = max(watermark, state.seq, newest) + 1
        loss = self._loss
        if problem:
            # Each revision of the metadata took a write: so no later one is like one that is lost.
            revision = REVISION_FORM.pack(seq)
            self._db.get_column_family(META).put(LAST_REVISION, revision + revision)
            records, digest, _ = self._tally()
            missing = max(watermark - state.seq, 0) + max(state.records - records, 0)
            loss = Loss(max(missing, 1) + (loss.writes if loss else 0), wall_ms())
            log.error("repair.acknowledged_writes_lost", writes=loss.writes, problem=problem)
        store.write_bookkeeping(self._db, State(state.store_id, state.incarnation + 1, seq, records, digest), loss)
        rocks.guarded(self._db.flush_wal, True)

    def _copy_family(self, family: str, source: Rdict) -> bool:
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
            elif len(value) >= _SEQ_BYTES and not self._is_old(family, value):
                standing = rocks.guarded(target.get, key)
                if standing is None or decode_seq(standing) < decode_seq(value):
                    rocks.guarded(target.put, key, value)
        return whole

    def _copy_bookkeeping(self, key: bytes, value: bytes) -> None:
        if key == STATE:
            found = State.decode(value)
            if self._state is None or (found.incarnation, found.seq) > (self._state.incarnation, self._state.seq):
                self._state = found
        elif key == LOSS:
            self._loss = Loss.decode(value)

    def _is_old(self, family: str, value: bytes) -> bool:
        """A tombstone that was forgotten may still be in a file, and would bury what was committed since."""
        if family != DATA or not self.drop_tombstones_before_ms:
            return False
        record = decode_record(value)
        return not record.live and record.committed_at_ms < self.drop_tombstones_before_ms

    def _tally(self) -> tuple[int, int, int]:
        """The number of rows, the sum of their write counters, and the highest one."""
        records = digest = newest = 0
        for name in FAMILIES:
            for _, value in rocks.scan(self._db.get_column_family(name), ROWS, b""):
                seq = decode_seq(value)
                records, digest, newest = records + 1, digest + seq, max(newest, seq)
        return records, digest % 2**64, newest


def _logs_alone(path: Path) -> Rdict:
    """The logs over an empty store: families have the same numbers in each store, as they are made in the same order."""
    scratch = _scratch(path)
    rocks.new(scratch, FAMILIES).close()
    for own in scratch.glob("*.log"):
        own.unlink()
    for file in (path / "db").glob("*.log"):
        shutil.copyfile(file, scratch / file.name)
    return store.read_only(scratch, skip=True)


def _tables_alone(path: Path) -> Rdict:
    """The tables, with a list of files that RocksDB makes anew. It would leave out what only the logs have of a family."""
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
    """True when there are tables that a store which can be opened does not know of."""
    with contextlib.closing(store.read_only(database, skip=True)) as db:
        listed = {Path(file["name"]).name for file in db.live_files()}
    return any(file.name not in listed for file in database.glob("*.sst"))


def _family(source: Rdict, name: str) -> Rdict | None:
    try:
        return source.get_column_family(name)
    except Exception:  # noqa: BLE001 - rocksdict's, for one that the source does not have
        return None


def _readable(family: Rdict) -> Iterator[tuple[bytes, bytes] | None]:
    """All rows but those in blocks that cannot be read, some maybe twice; and a None when there is such a block."""
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
    """What can be read from `low` up to `high`, not included, where the way from `low` on is not readable."""
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
    """Rows from `start` on up to `end` (empty: to the last), or back down to `end`; None in place of an unreadable block."""
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
    except Exception as error:  # noqa: BLE001 - whatever RocksDB says of the block
        _refuse_shortage(error)
        yield None


def _refuse_shortage(error: Exception) -> None:
    """What cannot be opened for want of file descriptors is not damaged: nothing may be left out for it."""
    if rocks.OUT_OF_FILES in str(error):
        raise StorageFailedError(f"{error}: raise the limit of open files, and repair again") from error


def _middle(low: bytes, high: bytes) -> bytes:
    size = max(len(low), len(high)) + 1
    both = int.from_bytes(low.ljust(size, b"\0"), "big") + int.from_bytes(high.ljust(size, b"\0"), "big")
    return (both // 2).to_bytes(size, "big")


def _watermark(path: Path) -> int:
    watermark = Watermark.open(path / "watermark")
    watermark.close()
    return watermark.value


def _aside(path: Path) -> Path:
    """A new directory for the damaged store; the newest one, when a repair goes on that had put it aside."""
    if not (path / "db").exists():
        former = sorted(path.glob("damaged-*"))
        if former:
            return former[-1]
    name = f"damaged-{time.strftime('%Y%m%dT%H%M%S')}"
    aside = next(place for number in range(1_000_000) if not (place := path / (f"{name}-{number}" if number else name)).exists())
    aside.mkdir(mode=0o700)
    return aside
