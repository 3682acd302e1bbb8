"""The one owner of the local RocksDB: what is durable on this machine.

Promises: a write that returned survives a killed process; one that was synced survives a power cut; a store that lost
acknowledged writes says so at open. Never knows of the Meta Service.
"""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

import anyio
import anyio.to_thread
import structlog
from rocksdict import Rdict, WriteBatch

from adapter import rocks
from adapter.codec import decode_key, decode_record, decode_seq, encode_key, encode_record, prefix_end
from adapter.config import WalSync
from adapter.errors import StorageFailedError, StoreDamagedError
from adapter.model import OffsetKey, OffsetRecord
from adapter.watermark import Watermark

log = structlog.get_logger(__name__)

_SEQ = b"\0seq"
_FLUSHED = b"\0flushed"
_LOSS = b"\0loss"
_FIRST_KEY = b"\1"  # bookkeeping is below, length-prefixed names are from here on


class Stored(NamedTuple):
    """A record in the store with its write counter."""

    key: OffsetKey
    record: OffsetRecord
    seq: int


class Loss(NamedTuple):
    """Acknowledged writes that were missing at an open: at most how many, and when that was found (Unix ms)."""

    writes: int
    found_at_ms: int


class OffsetCache:
    """Offsets in RocksDB, a write counter, and the counter up to which the Meta Service has everything.

    Reads and writes are called on the event loop: they do not release the GIL, so that a thread would only add a hop.
    """

    def __init__(self, db: Rdict, watermark: Watermark, path: Path, wal_sync: WalSync) -> None:
        self._db = db
        self._watermark = watermark
        self._limiter = anyio.CapacityLimiter(1)
        self._failure: str | None = None
        self.failed = anyio.Event()
        self.path = path
        self.wal_sync = wal_sync
        self.seq = max(self._number(_SEQ), watermark.value)
        self.synced_seq = self.seq
        self.flushed_seq = self._number(_FLUSHED)
        self.loss_at_open = False

    @classmethod
    def open(cls, path: Path, wal_sync: WalSync) -> Self:
        """Open or create the store at `path`. Blocks.

        Raises StoreLockedError, StoreDamagedError, DiskFullError or StorageFailedError; the text says what to do.
        """
        database = path / "db"
        existed = database.exists() and any(database.iterdir())
        db = rocks.open_store(database, lambda: Rdict(str(database), options=rocks.options()))
        try:
            watermark = Watermark.open(path / "watermark")
        except OSError as error:
            db.close()
            raise StorageFailedError(f"{path / 'watermark'}: {error.strerror}") from error
        if not existed and watermark.value:
            value = watermark.value
            watermark.close()
            db.close()
            Rdict.destroy(str(database))
            raise StoreDamagedError(f"{database}: is empty, though {value} writes were acknowledged here")
        cache = cls(db, watermark, path, wal_sync)
        cache._detect_loss()
        log.info("cache.opened", path=str(path), created=not existed, seq=cache.seq, flushed_seq=cache.flushed_seq)
        return cache

    def get(self, key: OffsetKey) -> OffsetRecord | None:
        """What stands locally. A tombstone is a record."""
        value: bytes | None = rocks.guarded(self._db.get, encode_key(key))
        return None if value is None else decode_record(value)

    def seq_of(self, key: OffsetKey) -> int:
        """The write counter of a stored key; 0 when it is absent."""
        value: bytes | None = rocks.guarded(self._db.get, encode_key(key))
        return 0 if value is None else decode_seq(value)

    def write(self, changes: Mapping[OffsetKey, OffsetRecord | None]) -> list[Stored]:
        """Store records, or forget keys (None), as one WriteBatch. Returns the stored ones with their write counters.

        When it returns, a killed process loses nothing of it. All or nothing. Raises DiskFullError or StorageFailedError.
        """
        self.check()
        batch = WriteBatch(raw_mode=True)
        stored: list[Stored] = []
        seq = self.seq
        for key, record in changes.items():
            if record is None:
                batch.delete(encode_key(key))
                continue
            seq += 1
            batch.put(encode_key(key), encode_record(record, seq))
            stored.append(Stored(key, record, seq))
        batch.put(_SEQ, _pack(seq))
        batch.put(_FLUSHED, _pack(self.flushed_seq))
        try:
            rocks.guarded(self._db.write, batch)
        except StorageFailedError as error:
            raise self._fail(f"a write of the local store failed: {error}") from error
        self.seq = seq
        # After the batch, before the acknowledgement: a watermark above the store always means a loss.
        self._advance_watermark(seq)
        return stored

    async def sync(self) -> None:
        """Make every write so far survive a power cut. Raises StorageFailedError, and so does every later write: a sync is never retried."""
        self.check()
        seq = self.seq
        try:
            await anyio.to_thread.run_sync(rocks.guarded, self._db.flush_wal, True, limiter=self._limiter)
        except Exception as error:
            raise self._fail(f"the sync of the local store failed: {error}") from error
        self.synced_seq = max(self.synced_seq, seq)

    async def run_sync(self, interval_s: float) -> None:
        """Sync WAL and watermark once per interval while something was written. For `never` it does nothing."""
        marked = self.seq
        while self.wal_sync != "never":
            await anyio.sleep(interval_s)
            if self.seq == marked:
                continue
            marked = self.seq
            await self.sync()
            try:
                await anyio.to_thread.run_sync(self._watermark.sync, limiter=self._limiter)
            except OSError as error:
                raise self._fail(f"the sync of the watermark failed: {error}") from error

    async def watch(self) -> None:
        """Wait for the store to fail, and raise StorageFailedError."""
        await self.failed.wait()
        self.check()

    def check(self) -> None:
        """Raise StorageFailedError once a sync has failed."""
        if self._failure:
            raise StorageFailedError(self._failure)

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
    def estimated_keys(self) -> int:
        """RocksDB's estimate of how many keys there are."""
        return self._db.property_int_value("rocksdb.estimate-num-keys") or 0

    @property
    def loss(self) -> Loss | None:
        """The last loss of acknowledged writes that was ever found here."""
        value: bytes | None = self._db.get(_LOSS)
        return Loss(int.from_bytes(value[:8]), int.from_bytes(value[8:])) if value else None

    def rocksdb_properties(self) -> dict[str, int]:
        """RocksDB's own numbers, by our names. Thread-safe."""
        return {ours: self._db.property_int_value(theirs) or 0 for theirs, ours in rocks.PROPERTIES.items()}

    def close(self) -> None:
        """Store the flushed watermark, sync, close. After a failure it only closes."""
        try:
            if not self._failure:
                self.write({})
                rocks.guarded(self._db.flush_wal, True)
                self._watermark.sync()
        finally:
            self._watermark.close()
            self._db.close()

    def _detect_loss(self) -> None:
        writes = self._watermark.value - self._number(_SEQ)
        if writes <= 0:
            return
        self.loss_at_open = True
        # Stored with the new counter in one synced batch: found once, told in status for ever.
        batch = WriteBatch(raw_mode=True)
        batch.put(_LOSS, _pack(writes) + _pack(time.time_ns() // 1_000_000))
        batch.put(_SEQ, _pack(self.seq))
        rocks.guarded(self._db.write, batch)
        rocks.guarded(self._db.flush_wal, True)
        log.error(
            "cache.acknowledged_writes_lost",
            writes=writes,
            path=str(self.path),
            help="the store's WAL was damaged; the values of affected keys are fetched from the Meta Service",
        )

    def _advance_watermark(self, seq: int) -> None:
        try:
            self._watermark.advance(seq)
        except OSError as error:
            raise self._fail(f"the watermark could not be written: {error}") from error

    def _fail(self, reason: str) -> StorageFailedError:
        self._failure = self._failure or reason
        self.failed.set()
        return StorageFailedError(self._failure)

    def _number(self, key: bytes) -> int:
        return int.from_bytes(self._db.get(key) or b"")


def _pack(number: int) -> bytes:
    return number.to_bytes(8)
