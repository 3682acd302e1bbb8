"""The embedded engine: one RocksDB, offsets in the column family `data`, everything else in `meta`.

A save is one WriteBatch, synced before the reply; concurrent saves share the sync.
"""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Self

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from rocksdict import Rdict, WriteBatch

from adapter import rocks
from adapter.codec import decode_record, encode_record, pack_names, prefix_end, unpack_names
from adapter.combine import Combiner
from adapter.errors import StorageFailedError, StoreDamagedError
from adapter.metaservice.engine import Page, buried, settle
from adapter.model import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome

log = structlog.get_logger(__name__)

DATA, META = "data", "meta"
_SCHEMA_KEY, _SCHEMA = b"schema", b"1"
ADVICE = (
    "Restore it from a backup, or move it away and start empty: every adapter then pushes what it still holds "
    "(offsets of brokers that are gone are only in the backup)."
)
MAX_SYNC_CALLERS = 1_024
SLICE = 500  # entries decided before the event loop gets a turn


class RocksDbEngine:
    """Offsets of clusters in one RocksDB. `run` must be running: it does the syncs."""

    def __init__(self, db: Rdict, path: Path) -> None:
        self._db = db
        self._data = db.get_column_family(DATA)
        self._handle = db.get_column_family_handle(DATA)
        self._path = path
        self._saving = anyio.Lock()
        self._limiter = anyio.CapacityLimiter(1)
        self._failure: str | None = None
        self.failed = anyio.Event()
        self._syncs: Combiner[None, None] = Combiner(self._sync, max_items=MAX_SYNC_CALLERS)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the store. Blocks. Raises StoreLockedError, StoreDamagedError, DiskFullError or StorageFailedError."""
        db = rocks.open_store(path, (DATA, META), ADVICE)
        meta = db.get_column_family(META)
        schema: bytes | None = meta.get(_SCHEMA_KEY)
        if schema is None:
            meta.put(_SCHEMA_KEY, _SCHEMA)
            db.flush_wal(True)
        elif schema != _SCHEMA:
            db.close()
            raise StoreDamagedError(f"{path}: was written by another version (schema {schema!r}, this one is {_SCHEMA!r})")
        log.info("engine.opened", path=str(path), created=schema is None)
        return cls(db, path)

    async def run(self) -> None:
        """Sync for those who wait; raises StorageFailedError once a sync has failed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._syncs.run, name="engine.sync")
            await self.failed.wait()
            raise StorageFailedError(f"{self._path}: {self._failure}")

    async def save(self, cluster: str, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """One WriteBatch, synced."""
        outcomes: list[SaveOutcome] = []
        staged: dict[bytes, OffsetRecord] = {}
        # Between the decision and the write nobody else may decide on the same keys (invariant 2).
        async with self._saving:
            for at in range(0, len(entries), SLICE):
                outcomes += [self._decide(cluster, entry, staged) for entry in entries[at : at + SLICE]]
                await anyio.lowlevel.checkpoint()
            self._write(staged)
        # Even when nothing was written: what stands may come from a save that is not synced yet.
        await self._syncs.submit(None)
        return outcomes

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """Point reads."""
        prefix = pack_names(cluster)
        found = []
        for at in range(0, len(keys), SLICE):
            for key in keys[at : at + SLICE]:
                record = self._standing(prefix + pack_names(*key))
                if record is not None:
                    found.append((key, record))
            await anyio.lowlevel.checkpoint()
        return found

    async def get_group(self, cluster: str, namespace: str, group: str) -> list[tuple[OffsetKey, OffsetRecord]]:
        """A scan of the group's prefix."""
        prefix = pack_names(cluster, namespace, group)
        return [_entry(key, value) for key, value in rocks.scan(self._data, prefix, prefix_end(prefix))]

    async def delete(self, cluster: str, namespace: str, group: str, shards: Sequence[str]) -> None:
        """Tombstones in one WriteBatch, synced."""
        async with self._saving:
            wanted = [OffsetKey(namespace, group, shard) for shard in shards]
            standing = await (self.get(cluster, wanted) if shards else self.get_group(cluster, namespace, group))
            now_ms = time.time_ns() // 1_000_000
            prefix = pack_names(cluster)
            self._write({prefix + pack_names(*key): buried(record, now_ms) for key, record in standing if record.live})
        await self._syncs.submit(None)

    async def list_page(self, cluster: str, names: Sequence[str], size: int, after: bytes) -> Page:
        """A bounded scan."""
        prefix = pack_names(cluster, *names)
        start = after + b"\0" if after else prefix
        rows = list(islice(rocks.scan(self._data, start, prefix_end(prefix)), size))
        return Page([_entry(key, value) for key, value in rows], rows[-1][0] if len(rows) == size else b"")

    def gauges(self) -> dict[str, tuple[str, float]]:
        """RocksDB's own numbers for the metrics. Thread-safe."""
        return {
            f"rocksdb_{ours}": (f"RocksDB: {ours}.", float(self._data.property_int_value(theirs) or 0))
            for theirs, ours in rocks.PROPERTIES.items()
        }

    def close(self) -> None:
        """Sync, unless a sync has failed, and close. Blocks."""
        try:
            if not self._failure:
                rocks.guarded(self._db.flush_wal, True)
        finally:
            del self._handle  # it holds the database, and so the lock
            self._data.close()
            self._db.close()

    def _decide(self, cluster: str, entry: SaveEntry, staged: dict[bytes, OffsetRecord]) -> SaveOutcome:
        key = pack_names(cluster, *entry.key)
        standing = staged.get(key) or self._standing(key)
        outcome = settle(entry, standing)
        if outcome.standing is not None and outcome.standing != standing:
            staged[key] = outcome.standing
        return outcome

    def _standing(self, key: bytes) -> OffsetRecord | None:
        value: bytes | None = rocks.guarded(self._data.get, key)
        return None if value is None else decode_record(value)

    def _write(self, staged: dict[bytes, OffsetRecord]) -> None:
        self._check()
        if not staged:
            return
        batch = WriteBatch(raw_mode=True)
        for key, record in staged.items():
            batch.put(key, encode_record(record), self._handle)
        try:
            rocks.guarded(self._db.write, batch)
        except StorageFailedError as error:
            self._fail(str(error))
            raise

    async def _sync(self, callers: Sequence[None]) -> Sequence[None]:
        self._check()
        try:
            await anyio.to_thread.run_sync(rocks.guarded, self._db.flush_wal, True, limiter=self._limiter)
        except Exception as error:
            self._fail(f"the sync of the store failed: {error}")
            raise StorageFailedError(str(error)) from error
        return callers

    def _check(self) -> None:
        if self._failure:
            raise StorageFailedError(self._failure)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self.failed.set()


def _entry(key: bytes, value: bytes) -> tuple[OffsetKey, OffsetRecord]:
    _, namespace, group, shard = unpack_names(key)
    return OffsetKey(namespace, group, shard), decode_record(value)
