"""The embedded engine: one RocksDB, offsets in the column family `data`, everything else in `meta`.

A save is one WriteBatch, synced before the reply; concurrent saves share the sync.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Self, cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from rocksdict import Rdict, WriteBatch

from adapter import rocks
from adapter.codec import decode_record, encode_record, pack_names, prefix_end, unpack_names
from adapter.combine import Combiner
from adapter.errors import StorageFailedError, StoreDamagedError
from adapter.large import LargeCalls
from adapter.metaservice.bulk import Cuts, Merge
from adapter.metaservice.engine import Expiry, GroupPage, MergeCounts, Page, Parts, RawPage, buried, row_bytes, settle
from adapter.model import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, expired
from adapter.wire import others

log = structlog.get_logger(__name__)

DATA, META = "data", "meta"
_SCHEMA_KEY, _SCHEMA = b"schema", b"1"
ADVICE = (
    "Restore it from a backup, or move it away and start empty: every adapter then pushes what it still holds "
    "(offsets of brokers that are gone are only in the backup)."
)
MAX_SYNC_CALLERS = 1_024
SLICE = 500  # entries decided before the event loop gets a turn
READ_SLICE = 200  # records read before
PAGE_BYTES = 16 * 2**20  # of the records of a scanned page; its keys are less than 16 MiB: both fit in a reply


class RocksDbEngine:
    """Offsets of clusters in one RocksDB. `run` must be running: it does the syncs."""

    def __init__(self, db: Rdict, path: Path) -> None:
        self._db = db
        self._data = db.get_column_family(DATA)
        self._handle = db.get_column_family_handle(DATA)
        self._meta = db.get_column_family(META)
        self._meta_handle = db.get_column_family_handle(META)
        self._path = path
        self._saving = anyio.Lock()
        self._large = LargeCalls("large saves", at_once=1)
        self._limiter = anyio.CapacityLimiter(1)
        self._failure: str | None = None
        self.failed = anyio.Event()
        self._written = self._synced = 0  # batches
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
        # Between the decision and the write nobody else may decide on the same keys (invariant 2). Of large saves one at a time
        # comes to that lock, so that small ones wait for one at most.
        line = self._large.one(patient=True) if len(entries) > SLICE else nullcontext()
        async with line, self._saving:
            for at in range(0, len(entries), SLICE):
                outcomes += self._decide(cluster, entries[at : at + SLICE], staged)
                await others()
            await self._write_in_slices(staged)
        # Even when nothing was written: what stands may come from a save that is not synced yet.
        await self._syncs.submit(None)
        return outcomes

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """Point reads."""
        found = await self._get(cluster, keys)
        await self.settle()
        return found

    async def _get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        prefix = pack_names(cluster)
        found = []
        for at in range(0, len(keys), SLICE):
            for key in keys[at : at + SLICE]:
                record = self._standing(prefix + pack_names(*key))
                if record is not None:
                    found.append((key, record))
            await anyio.lowlevel.checkpoint()
        return found

    async def group_page(self, cluster: str, namespace: str, group: str, size: int, room: int, after: str) -> GroupPage:
        """A bounded scan, in slices."""
        prefix = pack_names(cluster, namespace, group)
        start = pack_names(cluster, namespace, group, after) + b"\0" if after else prefix
        rows = rocks.scan(self._data, start, prefix_end(prefix))
        entries: list[tuple[OffsetKey, OffsetRecord]] = []
        while room > 0 and (found := list(islice(rows, min(READ_SLICE, size - len(entries))))):
            for key, value in found:
                entries.append(_entry(key, value))
                room -= row_bytes(key, value)
                if room <= 0:
                    break
            await others()
        await self.settle()
        return GroupPage(entries, more=room <= 0 or len(entries) == size)

    async def _get_group(self, cluster: str, namespace: str, group: str) -> list[tuple[OffsetKey, OffsetRecord]]:
        prefix = pack_names(cluster, namespace, group)
        rows = rocks.scan(self._data, prefix, prefix_end(prefix))
        found: list[tuple[OffsetKey, OffsetRecord]] = []
        while some := [_entry(key, value) for key, value in islice(rows, SLICE)]:
            found += some
            if len(some) == SLICE:
                await others()
        return found

    async def delete(self, cluster: str, namespace: str, group: str, shards: Sequence[str]) -> None:
        """Tombstones in one WriteBatch, synced."""
        async with self._saving:
            wanted = [OffsetKey(namespace, group, shard) for shard in shards]
            standing = await self._get(cluster, wanted) if shards else await self._get_group(cluster, namespace, group)
            now_ms = time.time_ns() // 1_000_000
            prefix = pack_names(cluster)
            await self._write_in_slices({prefix + pack_names(*key): record for key, record in buried(standing, now_ms).items()})
        await self._syncs.submit(None)

    async def expire(self, cluster: str, namespace: str, group: str, before_ms: int, now_ms: int) -> Expiry:
        """Read, decide and write under the lock; synced."""
        # First without the lock: most groups that are asked about, or all that an attacker asks about, are young.
        newest_ms = _newest_ms(await self._get_group(cluster, namespace, group))
        if newest_ms >= before_ms:
            return Expiry(0, newest_ms)
        async with self._saving:
            live = [(key, record) for key, record in await self._get_group(cluster, namespace, group) if record.live]
            newest_ms = _newest_ms(live)
            if newest_ms >= before_ms:
                return Expiry(0, newest_ms)
            prefix = pack_names(cluster)
            await self._write_in_slices({prefix + pack_names(*key): expired(record, now_ms) for key, record in live})
        await self._syncs.submit(None)
        return Expiry(len(live))

    async def drop_tombstones(self, before_ms: int) -> int:
        """A scan of everything in slices; each slice is decided again under the lock."""
        dropped = 0
        start = b"\1"
        while True:
            rows = list(islice(rocks.scan(self._data, start, b""), SLICE))
            old = [key for key, value in rows if _is_old(value, before_ms)]
            if old:
                dropped += await self._drop(old, before_ms)
            if len(rows) < SLICE:
                return dropped
            start = rows[-1][0] + b"\0"
            await anyio.lowlevel.checkpoint()

    async def list_page(self, cluster: str, names: Sequence[str], size: int, after: bytes) -> Page:
        """A bounded scan."""
        prefix = pack_names(cluster, *names)
        start = after + b"\0" if after else prefix
        rows = rocks.scan(self._data, start, prefix_end(prefix))
        listed: list[tuple[OffsetKey, OffsetRecord]] = []
        while some := [_entry(key, value) for key, value in islice(rows, min(SLICE, size - len(listed)))]:
            listed += some
            await others()
        await self.settle()
        return Page(listed, pack_names(cluster, *listed[-1][0]) if len(listed) == size else b"")

    async def scan_page(self, cluster: str, names: Sequence[str], size: int, after: bytes, until: bytes) -> RawPage:
        """A bounded scan, in slices. Ends before `size` when its records are large."""
        prefix = pack_names(cluster, *names)
        rows = rocks.scan(self._data, after + b"\0" if after else prefix, until + b"\0" if until else prefix_end(prefix))
        cut = len(pack_names(cluster))
        keys: list[bytes] = []
        records: list[bytes] = []
        last, room = b"", PAGE_BYTES
        while room > 0 and (found := list(islice(rows, min(SLICE, size - len(keys))))):
            keys += [key[cut:] for key, _ in found]
            records += [value for _, value in found]
            last = found[-1][0]
            room -= sum(map(len, records[-len(found) :]))
            await others()
        await self.settle()
        full = room <= 0 or len(keys) == size
        return RawPage(keys, records, last if full and last != until else b"")

    async def split(self, cluster: str, names: Sequence[str], parts: int) -> Parts:
        """A walk over everything, in slices."""
        prefix = pack_names(cluster, *names)
        rows = rocks.scan(self._data, prefix, prefix_end(prefix))
        cuts = Cuts(parts)
        while found := [key for key, _ in islice(rows, SLICE)]:
            cuts.add(found)
            await others()
        await self.settle()
        return cuts.parts()

    async def merge(self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes]) -> MergeCounts:
        """One WriteBatch for each slice, so that saves have their turns between them; synced at the end."""
        prefix = pack_names(cluster)
        merge = Merge()
        for at in range(0, len(keys), SLICE):
            where = [prefix + key for key in keys[at : at + SLICE]]
            async with self._saving:
                values = cast("list[bytes | None]", rocks.guarded(self._data.get, where))
                self._put(merge.changes(where, records[at : at + SLICE], values))
            await others()
        await self._syncs.submit(None)
        return merge.counts

    def get_meta(self, key: bytes) -> bytes | None:
        """A value in `meta`; `settle` makes sure of it. Raises StorageFailedError or StoreDamagedError."""
        value: bytes | None = rocks.guarded(self._meta.get, key)
        return value

    def scan_meta(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in `meta` from `start` up to, not including, `end`."""
        return rocks.scan(self._meta, start, end)

    def write_meta(self, changes: Mapping[bytes, bytes | None]) -> None:
        """One WriteBatch to `meta`; None deletes. Not synced before `settle`. Raises DiskFullError or StorageFailedError."""
        self._check()
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key, self._meta_handle)
            else:
                batch.put(key, value, self._meta_handle)
        self._write_batch(batch)

    async def settle(self) -> None:
        """Behind a read: what it shows survives a power cut. Otherwise an adapter takes for clean what can still go (3).

        Shares its sync with others; waits for none when everything is synced. Raises StorageFailedError.
        """
        if self._synced < self._written:
            await self._syncs.submit(None)

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
            del self._handle, self._meta_handle  # they hold the database, and so the lock
            self._data.close()
            self._meta.close()
            self._db.close()

    async def _drop(self, keys: Sequence[bytes], before_ms: int) -> int:
        async with self._saving:
            self._check()
            batch = WriteBatch(raw_mode=True)
            count = 0
            for key in keys:
                value = rocks.guarded(self._data.get, key)
                # A commit may have come over it since the scan.
                if value is not None and _is_old(value, before_ms):
                    batch.delete(key, self._handle)
                    count += 1
            self._write_batch(batch)
        await self._syncs.submit(None)
        return count

    def _decide(self, cluster: str, entries: Sequence[SaveEntry], staged: dict[bytes, OffsetRecord]) -> list[SaveOutcome]:
        keys = [pack_names(cluster, *entry.key) for entry in entries]
        values = cast("list[bytes | None]", rocks.guarded(self._data.get, keys))
        outcomes = []
        for entry, key, value in zip(entries, keys, values, strict=True):
            standing = staged.get(key) or (None if value is None else decode_record(value))
            outcome = settle(entry, standing)
            if outcome.standing is not None and outcome.standing != standing:
                staged[key] = outcome.standing
            outcomes.append(outcome)
        return outcomes

    def _standing(self, key: bytes) -> OffsetRecord | None:
        value: bytes | None = rocks.guarded(self._data.get, key)
        return None if value is None else decode_record(value)

    def _write(self, staged: dict[bytes, OffsetRecord]) -> None:
        self._put({key: encode_record(record) for key, record in staged.items()})

    async def _write_in_slices(self, staged: dict[bytes, OffsetRecord]) -> None:
        """The same, one WriteBatch, for what may be much. Nobody else writes under the lock meanwhile."""
        changes: dict[bytes, bytes] = {}
        for at, (key, record) in enumerate(staged.items(), start=1):
            changes[key] = encode_record(record)
            if at % SLICE == 0:
                await others()
        self._put(changes)

    def _put(self, changes: Mapping[bytes, bytes]) -> None:
        self._check()
        if not changes:
            return
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._handle)
        for key, value in changes.items():
            batch[key] = value
        self._write_batch(batch)

    def _write_batch(self, batch: WriteBatch) -> None:
        try:
            self._written += 1
            rocks.guarded(self._db.write, batch)
        except StorageFailedError as error:
            self._fail(str(error))
            raise

    async def _sync(self, callers: Sequence[None]) -> Sequence[None]:
        self._check()
        written = self._written
        try:
            await anyio.to_thread.run_sync(rocks.guarded, self._db.flush_wal, True, limiter=self._limiter)
        except Exception as error:
            self._fail(f"the sync of the store failed: {error}")
            raise StorageFailedError(str(error)) from error
        self._synced = written
        return callers

    def _check(self) -> None:
        if self._failure:
            raise StorageFailedError(self._failure)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self.failed.set()


def _is_old(value: bytes, before_ms: int) -> bool:
    record = decode_record(value)
    return not record.live and record.committed_at_ms < before_ms


def _newest_ms(found: Sequence[tuple[OffsetKey, OffsetRecord]]) -> int:
    return max((record.committed_at_ms for _, record in found if record.live), default=0)


def _entry(key: bytes, value: bytes) -> tuple[OffsetKey, OffsetRecord]:
    _, namespace, group, shard = unpack_names(key)
    return OffsetKey(namespace, group, shard), decode_record(value)
