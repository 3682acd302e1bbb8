"""The directory of an embedded store: a RocksDB in `db` and the watermark file next to it. Used by one process at a time.

A store that holds less than it acknowledged is refused at every start, with its files unchanged. Therefore the check comes before
RocksDB opens the store for writing: that would save the readable part of the write-ahead log and delete the log.
"""

import contextlib
import fcntl
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
from rocksdict import AccessType, DBRecoveryMode, Rdict

from adapter.errors import StoreDamagedError, StoreLockedError
from adapter.metaservice.bulk import KeySample
from adapter.model.codec import decode_seq
from adapter.model.records import STORE_ID_BYTES, StoreStart
from adapter.runtime.durable import format_mark, rocks
from adapter.runtime.durable.backups import refuse_unfinished
from adapter.runtime.durable.format_mark import META_STORE
from adapter.runtime.durable.watermark import Loss, Watermark

log = structlog.get_logger(__name__)

DATA, META = "data", "meta"
FAMILIES = (DATA, META)
# Keys of the bookkeeping in `meta`. The value of every other row starts with its sequence number.
STATE, LOSS, SCHEMA, _STARTS, _NOTES = b"\0state", b"\0loss", b"\0schema", b"\0starts", b"\0notes"
ROWS = b"\1"  # the keys of rows start here
_CURRENT = 2  # stands for version 1 of the store; each later version has the next number here, too
CREATED = 1  # the sequence number of a new store; a watermark of 0 is an unreadable one
MAX_STARTS = 16  # starts that are kept; an adapter that has missed more compares everything
_SLICE = 1_000  # rows read at a time
REPAIRED = "db.repaired"  # a store that a repair has built and not yet moved to `db`
ADVICE = (
    "Run `offset-adapter meta repair --config FILE`: it keeps the store as it is, builds one of all that can be read, and has "
    "every adapter push again what it holds. Or restore a backup: docs/backup.md."
)


class State(NamedTuple):
    """The store's bookkeeping, written with every batch.

    `store_id` is random and made with the store. `incarnation` is raised by a repair. `seq` is the newest sequence number.
    `records` is the number of rows, and `digest` the sum of their sequence numbers modulo 2^64: a row that disappears or goes
    back to an older version changes them.
    """

    store_id: bytes
    incarnation: int = 1
    seq: int = CREATED
    records: int = 0
    digest: int = 0

    def with_one(self) -> "State":
        """The state after the next write adds one row."""
        seq = self.seq + 1
        return self._replace(seq=seq, records=self.records + 1, digest=self.digest + seq)

    def without(self, seq: int) -> "State":
        """The state after a row with this sequence number is removed or replaced."""
        return self._replace(records=self.records - 1, digest=self.digest - seq)

    @classmethod
    def decode(cls, value: bytes) -> "State":
        """Decode the stored form."""
        return cls(*_STATE_FORM.unpack(value))

    def encode(self) -> bytes:
        """Encode; the inverse of `decode`."""
        return _STATE_FORM.pack(*self)


_STATE_FORM = struct.Struct(f">{STORE_ID_BYTES}sQQQQ")
_START_FORM = struct.Struct(">QQ")


class Opened(NamedTuple):
    """An open store. `lock` is a file descriptor that keeps other processes out while it is open.

    `sample` is one of the keys in DATA. `starts` are the last starts on this store, oldest first; the last one is this process's.
    `notes_floor`: a sequence number behind which every process that wrote has noted which groups were changed.
    """

    database: rocks.Database
    state: State
    sample: KeySample
    starts: tuple[StoreStart, ...]
    notes_floor: int
    loss: Loss | None
    watermark: Watermark
    lock: int


def open_store(path: Path) -> Opened:
    """Open or create the store at `path`, and check it by reading every row once. Blocks.

    Raises StoreLockedError, StoreDamagedError, DiskFullError, StorageFailedError, or StoreVersionError for a store of a later
    version. The message says what to do.
    """
    database = path / "db"
    with contextlib.ExitStack() as undo:
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = lock_directory(path)
            undo.callback(os.close, lock)
            marked = format_mark.is_marked(META_STORE, path)
            watermark = Watermark.open(path / "watermark")
            undo.callback(watermark.close)
            checked, sample = None, KeySample()
            if exists(path):
                checked, sample = check(path, watermark.value)
            elif watermark.value > CREATED:
                # Refuse now: a new, empty store would be accepted by the next start.
                raise StoreDamagedError(f"{path}: is empty, though {watermark.value} writes were acknowledged here. {ADVICE}")
            else:
                # Create the watermark first. At CREATED it says that a store may exist, not that it holds anything.
                watermark.advance(CREATED)
                watermark.sync()
        except OSError as error:
            raise rocks.unusable(error, path) from error
        opened = rocks.open_store(database, FAMILIES, ADVICE, _initialize)
        undo.callback(opened.close)
        state, loss = bookkeeping(opened.db, database)
        if checked and checked != state:
            raise StoreDamagedError(
                f"{path}: the store changed while it was opened: it ended at {checked.seq}, and now ends at {state.seq}. {ADVICE}"
            )
        starts = rocks.guarded(_record_start, opened.db, state)
        notes_floor = rocks.guarded(_noted_from, opened.db, starts)
        if not marked:
            try:
                format_mark.write(META_STORE, path)
            except OSError as error:
                raise rocks.unusable(error, path) from error
        undo.pop_all()
    return Opened(opened, state, sample, starts, notes_floor, loss, watermark, lock)


def _record_start(db: Rdict, state: State) -> tuple[StoreStart, ...]:
    """Record this start, synced. Replies carry it; a store that lacks it later is an older copy."""
    meta = db.get_column_family(META)
    former = [StoreStart(*start) for start in _START_FORM.iter_unpack(meta.get(_STARTS) or b"")]
    starts = (*former, StoreStart(secrets.randbits(64), state.seq))[-MAX_STARTS:]
    meta.put(_STARTS, b"".join(_START_FORM.pack(*start) for start in starts))
    db.flush_wal(True)
    return starts


def _noted_from(db: Rdict, starts: Sequence[StoreStart]) -> int:
    """The first start from which on no other version was started in between: one that does not note what was changed."""
    meta = db.get_column_family(META)
    last, floor = _START_FORM.unpack(meta.get(_NOTES) or bytes(_START_FORM.size))
    *_, former, this = (StoreStart(0, 0), *starts)
    if not last or last != former.id:
        floor = this.revision
    meta.put(_NOTES, _START_FORM.pack(this.id, floor))
    db.flush_wal(True)
    return int(floor)


def lock_directory(path: Path) -> int:
    """Lock the directory against other processes until the descriptor is closed. Raises StoreLockedError or OSError."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreLockedError(f"{path}: another process has this store open; stop it, or give this one another path") from error
    return lock


def exists(path: Path) -> bool:
    """True if there is a store, damaged or not. Raises StoreDamagedError after an interrupted repair or restore, or OSError."""
    refuse_unfinished(path)
    if (path / REPAIRED).exists():
        raise StoreDamagedError(
            f"{path}: a repair was stopped before its end. Run `offset-adapter meta repair --config FILE` again."
        )
    if (path / "CURRENT").exists():
        raise StoreDamagedError(f"{path}: is a RocksDB itself; store.path names the directory around one. Give it another path.")
    return (path / "db").exists() and any((path / "db").iterdir())


def check(path: Path, watermark: int) -> tuple[State, KeySample]:
    """Read the whole store, changing it no more than `read_only` does; returns its bookkeeping, and a sample of the keys in DATA.

    Raises StoreDamagedError if it holds less than it acknowledged.
    """
    try:
        state, sample, wrong = look(path / "db", watermark)
    except StoreDamagedError as error:
        raise StoreDamagedError(f"{path}: the store is damaged: {error}. Nothing was changed. {ADVICE}") from error
    if wrong:
        raise StoreDamagedError(f"{path}: {wrong}. Nothing was changed. {ADVICE}")
    return state, sample


def look(database: Path, watermark: int) -> tuple[State, KeySample, str]:
    """As `check`; what is wrong, see `problem`, is returned. Raises StoreDamagedError if not all can be read."""
    sample = KeySample()
    with contextlib.closing(read_only(database)) as db:
        state, _ = bookkeeping(db, database)
        records = digest = 0
        for name, start, kept in ((DATA, b"", sample), (META, ROWS, KeySample())):
            more, seqs = _count_rows(db.get_column_family(name), start, kept)
            records += more
            digest += seqs
    return state, sample, problem(state, watermark, records, digest % 2**64)


def read_only(database: Path, families: Sequence[str] = FAMILIES, *, skip: bool = False) -> Rdict:
    """Open without changing a file of RocksDB's; see `rocks.peek` for rocksdict's own. Rows only in the log are kept in memory.

    With `skip`, damaged records of the log are left out. Raises StoreDamagedError or StorageFailedError.
    """

    def opened() -> Rdict:
        options = rocks.options(create=False)
        if skip:
            options.set_wal_recovery_mode(DBRecoveryMode.skip_any_corrupted_record())
        named = {name: rocks.options(create=False) for name in families}
        return Rdict(str(database), options=options, column_families=named, access_type=AccessType.read_only())

    if not (database / "CURRENT").exists():
        raise StoreDamagedError("its CURRENT file is missing")
    return rocks.guarded(opened)


def write_bookkeeping(db: Rdict, state: State, loss: Loss | None = None) -> None:
    """Write the bookkeeping of a new store."""
    meta = db.get_column_family(META)
    meta.put(SCHEMA, b"%d" % _CURRENT)
    if loss:
        meta.put(LOSS, loss.encode())
    meta.put(STATE, state.encode())


def _initialize(db: Rdict) -> None:
    write_bookkeeping(db, State(secrets.token_bytes(STORE_ID_BYTES)))


def bookkeeping(db: Rdict, database: Path) -> tuple[State, Loss | None]:
    """Read a store's bookkeeping. Raises StoreDamagedError, or StoreVersionError for a store of a later version."""
    meta = db.get_column_family(META)
    schema, state, loss = (rocks.guarded(meta.get, key) for key in (SCHEMA, STATE, LOSS))
    if schema is None or state is None:
        raise StoreDamagedError("its bookkeeping is missing")
    refuse_later_version(schema, database)
    return State.decode(state), Loss.decode(loss) if loss else None


def refuse_later_version(schema: bytes, database: Path) -> None:
    """Check the version within the database. Raises StoreDamagedError, or StoreVersionError."""
    if not schema.isdigit() or int(schema) < _CURRENT:
        raise StoreDamagedError(f"its version is damaged: {schema!r}")
    format_mark.refuse_later(META_STORE, int(schema) - _CURRENT + format_mark.FIRST, str(database))


def _count_rows(family: Rdict, start: bytes, sample: KeySample) -> tuple[int, int]:
    """The number of rows from `start` on, whose keys are added to `sample`, and the sum of their sequence numbers.

    Also reads what is before `start`, with every older version: a damaged block there would stop the first compaction. Raises
    StoreDamagedError.
    """
    count = total = 0
    for rows in rocks.scan_slices(family, b"", b"", _SLICE):
        found = [(key, decode_seq(value)) for key, value in rows if key >= start]
        count += len(found)
        total += sum(seq for _, seq in found)
        sample.add([key for key, _ in found])
    return count, total


def problem(state: State, watermark: int, records: int, digest: int) -> str:
    """How the store differs from what it acknowledged; empty if it does not."""
    if not watermark:
        return "the store's watermark is missing or unreadable, so it is unknown what the store acknowledged"
    if state.seq < watermark:
        return (
            f"{watermark - state.seq:,} acknowledged writes are missing: it ends at {state.seq:,}, and acknowledged {watermark:,}"
        )
    if records != state.records:
        return f"{records:,} rows are there, and {state.records:,} should be"
    return "" if digest == state.digest else "some of its rows are older than what was acknowledged"
