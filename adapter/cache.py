"""The one owner of the local RocksDB: what is durable on this machine.

Promises: a write that returned survives a killed process; one that was synced survives a power cut; a store that lost
acknowledged writes says so at open. Never knows of the Meta Service.
"""

import contextlib
import shutil
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import anyio
import anyio.to_thread
import structlog
from rocksdict import Rdict, WriteBatch

from adapter import rocks, running
from adapter.codec import decode_key, decode_record, decode_seq, encode_key, encode_record, prefix_end
from adapter.config import WalSync
from adapter.errors import AdapterError, DiskFullError, StorageFailedError, StoreDamagedError
from adapter.model import OffsetKey, OffsetRecord
from adapter.watermark import Watermark

log = structlog.get_logger(__name__)

_STATE = b"\0state"
_LOSS = b"\0loss"
_STATE_FORM = struct.Struct(">QQQQ")
_LOSS_FORM = struct.Struct(">QQ")
_FIRST_KEY = b"\1"  # bookkeeping is below, length-prefixed names are from here on


SPACE_CHECK_S = 0.5  # while the disk is full
REOPEN_SPARE_BYTES = 2**20  # beyond the replay: manifest, options, a new WAL

ADVICE = (
    "Stop the adapter and run `offset-adapter repair --config FILE`, which keeps a copy; "
    "with --start-from-meta it begins with what the Meta Service holds instead."
)


class Stored(NamedTuple):
    """A record in the store with its write counter."""

    key: OffsetKey
    record: OffsetRecord
    seq: int


class Loss(NamedTuple):
    """Acknowledged writes that were missing at an open: about how many, at least 1, and when that was found (Unix ms)."""

    writes: int
    found_at_ms: int


class State(NamedTuple):
    """The store's bookkeeping, written with every batch.

    `seq`: the newest write counter. `flushed_seq`: up to which the Meta Service has everything. `keys` and `digest`: how many
    records there are, and the sum of their write counters modulo 2^64: a record that vanished or went back changes them.
    """

    seq: int = 0
    flushed_seq: int = 0
    keys: int = 0
    digest: int = 0


class OffsetCache:
    """Offsets in RocksDB, with the bookkeeping that tells what is flushed and whether anything was lost.

    Reads and writes are called on the event loop: they do not release the GIL, so that a thread would only add a hop.
    """

    def __init__(self, db: Rdict, watermark: Watermark, path: Path, wal_sync: WalSync) -> None:
        self._db = db
        self._watermark = watermark
        self._limiter = anyio.CapacityLimiter(1)
        self.failure = ""
        self._disk_full = False
        state = State(*_STATE_FORM.unpack(db.get(_STATE) or _STATE_FORM.pack(*State())))
        self._keys, self._digest = state.keys, state.digest
        self.failed = anyio.Event()
        self.path = path
        self.wal_sync = wal_sync
        self.seq = self.synced_seq = state.seq
        self.flushed_seq = state.flushed_seq
        loss = db.get(_LOSS)
        self.loss = Loss(*_LOSS_FORM.unpack(loss)) if loss else None
        self.loss_at_open = False

    @classmethod
    def open(cls, path: Path, wal_sync: WalSync, *, create: bool = True) -> Self:
        """Open or create the store at `path`, and verify it: reads every record once. Blocks.

        Raises StoreLockedError, StoreDamagedError, DiskFullError or StorageFailedError; the text says what to do. With `create`
        False a store that is not there raises StorageFailedError as well: its disk may come back.
        """
        database = path / "db"
        try:
            path.mkdir(parents=create, exist_ok=True)
            existed = database.exists() and any(database.iterdir())
            if not existed and not create:
                raise StorageFailedError(f"{path}: the store is gone; is its disk mounted?")
            watermark = Watermark.open(path / "watermark")
        except OSError as error:
            where = error.filename or path
            raise StorageFailedError(f"{where}: {error.strerror}: it must be writable by this user") from error
        with contextlib.ExitStack() as undo:
            undo.callback(watermark.close)
            if not existed and watermark.value:
                # Refused before RocksDB could make an empty database here, which the next start would take for the store.
                raise StoreDamagedError(f"{path}: is empty, though {watermark.value} writes were acknowledged here. {ADVICE}")
            db = rocks.open_store(database, ("default",), ADVICE)
            undo.callback(db.close)
            cache = cls(db, watermark, path, wal_sync)
            cache._verify()
            try:
                running.begin(path / "running", wal_sync)
            except OSError as error:
                raise rocks.translate(error) from error
            undo.pop_all()
        log.info(
            "cache.opened", path=str(path), created=not existed, keys=cache.keys, seq=cache.seq, flushed_seq=cache.flushed_seq
        )
        return cache

    def get(self, key: OffsetKey) -> OffsetRecord | None:
        """What stands locally. A tombstone is a record."""
        value = self._value(key)
        return None if value is None else decode_record(value)

    def seq_of(self, key: OffsetKey) -> int:
        """The write counter of a stored key; 0 when it is absent."""
        value = self._value(key)
        return 0 if value is None else decode_seq(value)

    def find(self, key: OffsetKey) -> tuple[OffsetRecord | None, int]:
        """What `get` and `seq_of` say, in one read."""
        value = self._value(key)
        return (None, 0) if value is None else (decode_record(value), decode_seq(value))

    def write(
        self, changes: Mapping[OffsetKey, OffsetRecord | None], replaced: Mapping[OffsetKey, int] | None = None
    ) -> list[Stored]:
        """Store records, or forget keys (None), as one WriteBatch. Returns the stored ones with their write counters.

        `replaced` is what `seq_of` says of the keys, where the caller has read it already. When this returns, a killed process
        loses nothing of it. All or nothing. Raises DiskFullError or StorageFailedError.
        """
        self.check()
        batch = WriteBatch(raw_mode=True)
        stored: list[Stored] = []
        seq, keys, digest = self.seq, self._keys, self._digest
        for key, record in changes.items():
            before = replaced[key] if replaced is not None and key in replaced else self.seq_of(key)
            if record is None:
                batch.delete(encode_key(key))
                keys, digest = keys - bool(before), digest - before
                continue
            seq += 1
            batch.put(encode_key(key), encode_record(record, seq))
            stored.append(Stored(key, record, seq))
            keys, digest = keys + (not before), digest + seq - before
        state = State(seq, self.flushed_seq, keys, digest % 2**64)
        batch.put(_STATE, _STATE_FORM.pack(*state))
        self._write(batch)
        self.seq, _, self._keys, self._digest = state
        # After the batch, before the acknowledgement: a watermark above the store always means a loss. With `always` the batch
        # is not acknowledged before its sync, and a power cut until then takes nothing that counts: `sync` advances it.
        if self.wal_sync != "always":
            self._advance_watermark(seq)
        return stored

    async def sync(self) -> None:
        """Make every write so far survive a power cut.

        Raises StorageFailedError, and so does every later write: a sync is never retried. DiskFullError while the disk is full:
        RocksDB then refuses to sync for want of an intact WAL; the open that has to follow syncs what was written before.
        """
        self.check()
        seq = self.seq
        try:
            await anyio.to_thread.run_sync(rocks.guarded, self._db.flush_wal, True, limiter=self._limiter)
        except Exception as error:
            if self._disk_full:
                raise DiskFullError(f"{self.path}: no space left: {error}") from error
            raise self._fail(f"the sync of the local store failed: {error}") from error
        self.synced_seq = max(self.synced_seq, seq)
        if self.wal_sync == "always" and seq > self._watermark.value:
            self._advance_watermark(seq)

    async def run_sync(self, interval_s: float) -> None:
        """Sync WAL and watermark once per interval while something was written. For `never` it does nothing."""
        marked = self.seq
        while self.wal_sync != "never":
            await anyio.sleep(interval_s)
            if self.seq == marked or self._disk_full:
                continue
            marked = self.seq
            try:
                await self.sync()
                await anyio.to_thread.run_sync(self._watermark.sync, limiter=self._limiter)
            except DiskFullError:
                marked = -1
            except OSError as error:
                raise self._fail(f"the sync of the watermark failed: {error}") from error

    async def watch(self) -> None:
        """Raise StorageFailedError when the store has to be opened again: it failed, or its full disk has space again."""
        while True:
            with anyio.move_on_after(SPACE_CHECK_S):
                await self.failed.wait()
            self.check()
            if self._disk_full and self._has_space():
                raise self._fail("the disk was full and has space again")

    def check(self) -> None:
        """Raise StorageFailedError once a sync has failed."""
        if self.failure:
            raise StorageFailedError(self.failure)

    def scan(self, prefix: bytes = b"", after: OffsetKey | None = None) -> Iterator[Stored]:
        """The records below `prefix`, in key order, from behind `after`."""
        start = encode_key(after) + b"\0" if after else prefix or _FIRST_KEY
        for key, value in rocks.scan(self._db, start, prefix_end(prefix)):
            yield Stored(decode_key(key), decode_record(value), decode_seq(value))

    @property
    def unsynced_writes(self) -> int:
        """Acknowledged writes that a power cut could lose now."""
        return self.seq - self.synced_seq

    @property
    def keys(self) -> int:
        """How many records there are, tombstones included."""
        return self._keys

    def rocksdb_properties(self) -> dict[str, int]:
        """RocksDB's own numbers, by our names. Thread-safe."""
        return {ours: self._db.property_int_value(theirs) or 0 for theirs, ours in rocks.PROPERTIES.items()}

    def close(self) -> None:
        """Store the bookkeeping, sync, close. Never raises: what goes wrong here is found at the next open."""
        try:
            if not self.failure:
                self.write({})
                rocks.guarded(self._db.flush_wal, True)
                self._watermark.sync()
                running.end(self.path / "running")
        except (AdapterError, OSError) as error:
            log.error("cache.close", error=str(error))
        self._watermark.close()
        try:
            rocks.guarded(self._db.close)
        except AdapterError as error:
            log.error("cache.close", error=str(error))

    def _verify(self) -> None:
        """Compare the store with its watermark and its digest; raises StoreDamagedError when it cannot be read to the end."""
        keys = digest = 0
        try:
            for _, value in rocks.scan(self._db, _FIRST_KEY, b""):
                keys += 1
                digest += decode_seq(value)
        except StoreDamagedError as error:
            raise StoreDamagedError(f"{self.path}: {error}. {ADVICE}") from error
        missing = max(self._watermark.value - self.seq, 0)
        if (keys, digest % 2**64) != (self._keys, self._digest):
            missing += max(self._keys - keys, 1)
        self._keys, self._digest = keys, digest % 2**64
        if running.machine_went_down(self.path / "running"):
            log.warning("cache.machine_went_down", help="acknowledged commits that were not synced yet may be missing")
            missing = max(missing, 1)
        if missing:
            self._note_loss(missing)

    def _note_loss(self, writes: int) -> None:
        """Store the loss and the new bookkeeping in one synced batch: found once, told in status for ever."""
        self.loss = Loss(writes, time.time_ns() // 1_000_000)
        self.loss_at_open = True
        self.seq = self.synced_seq = max(self.seq, self._watermark.value)
        batch = WriteBatch(raw_mode=True)
        batch.put(_LOSS, _LOSS_FORM.pack(*self.loss))
        batch.put(_STATE, _STATE_FORM.pack(self.seq, self.flushed_seq, self._keys, self._digest))
        self._write(batch)
        rocks.guarded(self._db.flush_wal, True)
        log.error(
            "cache.acknowledged_writes_lost",
            writes=writes,
            path=str(self.path),
            help="a power cut, or damaged files; what is missing is looked up in the Meta Service",
        )

    def _value(self, key: OffsetKey) -> bytes | None:
        value: bytes | None = rocks.guarded(self._db.get, encode_key(key))
        return value

    def _write(self, batch: WriteBatch) -> None:
        try:
            rocks.guarded(self._db.write, batch)
        except DiskFullError as error:
            self._disk_full = True
            raise DiskFullError(f"{self.path}: no space left; nothing was stored. Free some space there: {error}") from error
        except StorageFailedError as error:
            raise self._fail(f"a write of the local store failed: {error}") from error
        self._disk_full = False

    def _has_space(self) -> bool:
        """True when an open could replay the WAL into a new file, after RocksDB did not resume by itself."""
        try:
            self.write({})
        except DiskFullError:
            replay = sum(file.stat().st_size for file in (self.path / "db").glob("*.log"))
            return shutil.disk_usage(self.path).free > replay + REOPEN_SPARE_BYTES
        return False

    def _advance_watermark(self, seq: int) -> None:
        try:
            self._watermark.advance(seq)
        except OSError as error:
            raise self._fail(f"the watermark could not be written: {error}") from error

    def _fail(self, reason: str) -> StorageFailedError:
        self.failure = self.failure or reason
        self.failed.set()
        return StorageFailedError(self.failure)
