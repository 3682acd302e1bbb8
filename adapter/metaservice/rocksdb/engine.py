"""The engine over an embedded RocksDB: offsets in the column family `data`, everything else in `meta`.

A save is one WriteBatch, synced before the reply; concurrent saves share a sync (group commit). Each row has a sequence number,
and each batch updates the bookkeeping by which a start detects missing writes.
"""

import os
import struct
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from operator import lt
from pathlib import Path
from typing import Self, cast

import anyio
import structlog
from rocksdict import WriteBatch

from adapter.errors import AdapterError, DiskFullError, StorageFailedError
from adapter.metaservice.bulk import Cuts, Merge, stamped
from adapter.metaservice.engine import (
    EXACT,
    Differing,
    Expiry,
    GroupPage,
    MergeCounts,
    PackedGroups,
    Page,
    Parts,
    RawPage,
    decide_report,
    decide_save,
    deleted_unless_late,
    to_delete,
)
from adapter.metaservice.rocksdb import change_notes, reads
from adapter.metaservice.rocksdb.change_notes import ChangeNotes
from adapter.metaservice.rocksdb.store import DATA, META, STATE, Opened, State, open_store
from adapter.metaservice.rocksdb.syncs import Syncs
from adapter.model.codec import decode_record, decode_seq, encode_record, pack_names, prefix_end
from adapter.model.records import (
    STORE_ID_BYTES,
    ChangedGroups,
    GroupKey,
    KnownStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    StoreMark,
    StoreReport,
    deleted,
    expired,
    is_old_tombstone,
)
from adapter.runtime.clocks import wall_ms
from adapter.runtime.durable import rocks
from adapter.runtime.durable.checkpoint import Checkpoints
from adapter.runtime.durable.watermark import Loss
from adapter.runtime.serving.large_calls import LargeCalls
from adapter.runtime.slices import in_slices, others

log = structlog.get_logger(__name__)

_STORES = b"s/"  # prefix in `meta` of the reported local stores; then cluster, broker and path
_STORE = struct.Struct(f">{STORE_ID_BYTES}sQQ")
_SEQ = struct.Struct(">Q")
_NO_SEQ = bytes(_SEQ.size)
SLICE = 500  # entries decided before the event loop runs other tasks
MERGE_SLICE = 1_000  # entries merged before the event loop runs other tasks: 0.5 ms where all keys are new


class RocksDbEngine:
    """The offsets of clusters in one RocksDB. `run` must be running."""

    kind = "rocksdb"

    def __init__(self, opened: Opened, path: Path) -> None:
        self._database = opened.database
        self._db = db = opened.database.db
        self._state, self._sample, self._starts, notes_floor, self._loss, self._watermark, self._lock = opened[1:]
        self.syncs = Syncs(db, self._watermark, path, self._state.seq)
        self.checkpoints = Checkpoints(db, path)
        self._data = db.get_column_family(DATA)
        self._handle = db.get_column_family_handle(DATA)
        self._meta = db.get_column_family(META)
        self._meta_handle = db.get_column_family_handle(META)
        noted = (
            (key, decode_seq(row)) for key, row in rocks.scan(self._meta, change_notes.PREFIX, prefix_end(change_notes.PREFIX))
        )
        self._notes = ChangeNotes(noted, notes_floor)
        self._saving = anyio.Lock()
        self._large = LargeCalls("large saves", at_once=1)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open or create the store, and check it. Blocks. Raises the errors of `store.open_store`."""
        opened = open_store(path)
        state, loss = opened.state, opened.loss
        if len(opened.starts) == 1 and not state.records:
            log.info(
                "engine.created",
                path=str(path),
                help="a new store, without offsets; if there were some here, its directory was removed or is not mounted: "
                "stop this process, and put it back",
            )
        log.info("engine.opened", path=str(path), rows=state.records, seq=state.seq, incarnation=state.incarnation)
        if loss:
            log.error(
                "engine.acknowledged_writes_lost",
                writes=loss.writes,
                found_at_ms=loss.found_at_ms,
                why=loss.why or "found by a repair",
                help="adapters send their records again; what no adapter has is only in the store before, if that is kept",
            )
        return cls(opened, path)

    async def run(self) -> None:
        """Run the syncs. Raises StorageFailedError after a sync has failed."""
        await self.syncs.run()

    async def save(
        self, cluster: str, entries: Sequence[SaveEntry], reported: StoreReport | None = None, *, tell: bool = False
    ) -> list[SaveOutcome]:
        """Merge entries in one WriteBatch, synced."""
        outcomes: list[SaveOutcome] = []
        staged: dict[bytes, OffsetRecord] = {}
        standing: dict[bytes, bytes | None] = {}
        # Between decision and write no other task may decide on the same keys (invariant 2). Only one large save at a time
        # competes for the lock, so that a small one waits for at most one of them.
        line = self._large.one(patient=True) if len(entries) > SLICE else nullcontext()
        async with line, self._saving:
            for at in range(0, len(entries), SLICE):
                outcomes += self._decide(cluster, entries[at : at + SLICE], staged, standing)
                await others()
            self._put(await _encoded(staged), standing, cluster, reported, tell=tell)
        # Also if nothing was written: the stored values may come from a save that is not synced yet.
        await self.syncs.next()
        return outcomes

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """Read records by key."""
        found = await self._get(cluster, keys)
        await self.syncs.wait()
        return found

    async def _get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        prefix = pack_names(cluster)
        found = []
        for at in range(0, len(keys), SLICE):
            if at:
                await others()
            for key in keys[at : at + SLICE]:
                record = self._standing(prefix + pack_names(*key))
                if record is not None:
                    found.append((key, record))
        return found

    async def group_page(self, cluster: str, namespace: str, group: str, size: int, room: int, after: str) -> GroupPage:
        """Read a page of a group by a bounded scan. Yields to the event loop."""
        prefix = pack_names(cluster, namespace, group)
        start = pack_names(cluster, namespace, group, after) + b"\0" if after else prefix
        page = await reads.group_page(self._data, start, prefix_end(prefix), size, room)
        await self.syncs.wait()
        return page

    async def packed_groups(
        self, cluster: str, groups: Sequence[GroupKey], size: int, room: int, after: str
    ) -> PackedGroups | None:
        """Read them by one iterator, a slice at a time; None if they are not in key order. Yields to the event loop."""
        prefixes = [pack_names(cluster, *group) for group in groups]
        if not all(map(lt, prefixes, prefixes[1:])):
            return None
        behind = pack_names(cluster, *groups[0], after) if after else b""
        found = await reads.packed_groups(self._data, prefixes, size, room, behind)
        await self.syncs.wait()
        return found

    async def differing_rows(
        self, keys: Sequence[bytes], records: Sequence[bytes], room: int
    ) -> tuple[list[tuple[int, bytes]], int]:
        """Compare the bytes, a slice at a time. Yields to the event loop."""
        found: list[tuple[int, bytes]] = []
        end, size = 0, _SEQ.size
        while end < len(keys) and room > 0:
            at, end = end, min(end + MERGE_SLICE, len(keys))
            for place, (value, record) in enumerate(zip(self._values(keys[at:end]), records[at:end], strict=True), at):
                if value is not None and value[size:] == record[size:]:
                    continue
                found.append((place, value or b""))
                room -= len(value or b"")
                if room <= 0:
                    end = place + 1
                    break
            await others()
        await self.syncs.wait()
        return found, end

    async def delete(self, cluster: str, namespace: str, group: str, shards: Sequence[str]) -> None:
        """Put the tombstones of a delete, synced; over a whole group slice by slice, so that saves can run in between.

        A save in between meets the tombstone of a shard, as if it came later, or is deleted with the shard, as if it came before.
        So of two saves to different shards the earlier one may stand and the later one be deleted; the order of each shard holds.
        """
        if shards:
            wanted = [OffsetKey(namespace, group, shard) for shard in shards]
            async with self._saving:
                now_ms = wall_ms()
                await self._write(cluster, to_delete(await self._get(cluster, wanted)), lambda record: deleted(record, now_ms))
        else:
            prefix = pack_names(cluster, namespace, group)
            for rows in rocks.scan_slices(self._data, prefix, prefix_end(prefix), SLICE):
                to_delete(reads.entry_of(key, value) for key, value in rows)  # raises before anything is written
                await others()
            await self._bury(prefix, lambda value: deleted_unless_late(decode_record(value), wall_ms()))
        await self.syncs.next()

    async def expire(self, cluster: str, namespace: str, group: str, before_ms: int, now_ms: int) -> Expiry:
        """Decide by one instant of the group; then expire, slice by slice, what has stood unchanged since. Synced.

        What is saved meanwhile came after the expiry, and stands. To stop at it would leave a group that is neither expired nor
        kept, and an adapter that is told that it was kept sends nothing again.
        """
        prefix = pack_names(cluster, namespace, group)
        newest_ms, until = 0, self._state.seq  # no await up to the first row: the scan shows this instant
        for rows in rocks.scan_slices(self._data, prefix, prefix_end(prefix), SLICE):
            records = [decode_record(value) for _, value in rows]
            newest_ms = max([newest_ms, *(record.committed_at_ms for record in records if record.live)])
            await others()
        if newest_ms >= before_ms:
            return Expiry(0, newest_ms)

        def expired_then(value: bytes) -> OffsetRecord | None:
            record = decode_record(value)
            return expired(record, now_ms) if record.live and decode_seq(value) <= until else None

        count = await self._bury(prefix, expired_then)
        await self.syncs.next()
        return Expiry(count)

    async def _bury(self, prefix: bytes, tombstone: Callable[[bytes], OffsetRecord | None]) -> int:
        """Put tombstones over the values below `prefix` for which there is one; returns how many.

        A WriteBatch for each slice, and the lock only as long: a group may have any number of shards. What a kill or an error
        leaves out is not acknowledged: the next delete, or the next sweep, finds it.
        """
        count, start, end = 0, prefix, prefix_end(prefix)
        while True:
            async with self._saving:
                rows = dict(islice(rocks.scan(self._data, start, end), SLICE))
                found = {key: tombstone(value) for key, value in rows.items()}
                changes = {key: encode_record(record) for key, record in found.items() if record}
                self._put(changes, rows)
            count += len(changes)
            if len(rows) < SLICE:
                return count
            start = next(reversed(rows)) + b"\0"
            await others()

    async def drop_tombstones(self, before_ms: int) -> int:
        """Scan everything in slices; the old tombstones of each slice are checked again and removed under the lock."""
        dropped = 0
        start = b"\1"
        while True:
            rows = list(islice(rocks.scan(self._data, start, b""), SLICE))
            old = [key for key, value in rows if is_old_tombstone(decode_record(value), before_ms)]
            if old:
                dropped += await self._drop(old, before_ms)
            if len(rows) < SLICE:
                return dropped
            start = rows[-1][0] + b"\0"
            await others()

    async def list_page(self, cluster: str, names: Sequence[str], size: int, after: bytes) -> Page:
        """Read a page by a bounded scan. Yields to the event loop."""
        prefix = pack_names(cluster, *names)
        page = await reads.list_page(self._data, cluster, after + b"\0" if after else prefix, prefix_end(prefix), size)
        await self.syncs.wait()
        return page

    async def scan_page(self, cluster: str, names: Sequence[str], size: int, after: bytes, until: bytes) -> RawPage:
        """Read a packed page by a bounded scan. Ends before `size` if its records reach 16 MiB."""
        prefix = pack_names(cluster, *names)
        start, end = after + b"\0" if after else prefix, until + b"\0" if until else prefix_end(prefix)
        page = await reads.scan_page(self._data, start, end, size, until)
        await self.syncs.wait()
        return page

    async def snapshot(self, cluster: str, names: Sequence[str]) -> AsyncGenerator[RawPage, None]:
        """Read pages of up to 10,000 records with one iterator. Yields to the event loop."""
        async for page in reads.snapshot(self._data, pack_names(cluster, *names)):
            await self.syncs.wait()
            yield page
        await self.syncs.wait()  # also of what is not there

    async def split(self, cluster: str, names: Sequence[str], parts: int) -> Parts:
        """Divide a small listing by a walk over its keys, a large one by the sample of the store's keys."""
        prefix = pack_names(cluster, *names)
        cuts = Cuts(parts)
        for keys in rocks.key_slices(self._data, prefix, prefix_end(prefix), reads.SCAN_ROWS):
            cuts.add(keys)
            if cuts.count > EXACT:
                break
            await others()
        await self.syncs.wait()
        return cuts.parts() if cuts.count <= EXACT else self._sample.parts(prefix, parts)

    async def merge(
        self,
        cluster: str,
        keys: Sequence[bytes],
        records: Sequence[bytes],
        reported: StoreReport | None = None,
        *,
        tell: bool = False,
    ) -> MergeCounts:
        """Merge with one WriteBatch per slice, so that saves can run in between. Synced at the end."""
        return (await self._merge(cluster, keys, records, reported, Merge(), tell=tell)).counts

    async def save_packed(
        self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes], reported: StoreReport | None = None
    ) -> list[Differing]:
        """As `merge`; returns the entries that are not stored as offered."""
        return (await self._merge(cluster, keys, records, reported, Merge(collect_differing=True))).differing

    async def _merge(
        self,
        cluster: str,
        keys: Sequence[bytes],
        records: Sequence[bytes],
        reported: StoreReport | None,
        merge: Merge,
        *,
        tell: bool = False,
    ) -> Merge:
        prefix = pack_names(cluster)
        for at in range(0, len(keys), MERGE_SLICE):
            where = [prefix + key for key in keys[at : at + MERGE_SLICE]]
            async with self._saving:
                self._merge_slice(where, records[at : at + MERGE_SLICE], merge, tell=tell)
            await others()
        # Last: the report says that the Meta Service has the entries of all slices.
        self._put({}, {}, cluster, reported)
        await self.syncs.next()
        return merge

    def _merge_slice(self, where: Sequence[bytes], records: Sequence[bytes], merge: Merge, *, tell: bool) -> None:
        """Merge entries under these keys, and write what changes. The caller holds the lock."""
        values = self._values(where)
        if not any(values) and all(map(lt, where, where[1:])):
            added = merge.added(records)
            if added is not None:
                self._add(where, added)
                return
        bare = [value and _NO_SEQ + value[_SEQ.size :] for value in values]
        self._put(merge.changes(where, records, bare), dict(zip(where, values, strict=True)), tell=tell)

    def _values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What stands under some keys. Ascending ones, as bulk writers send them, are read with one seek where it can be done."""
        found = rocks.rows_between(self._data, keys) if all(map(lt, keys, keys[1:])) else None
        return cast("list[bytes | None]", rocks.guarded(self._data.get, list(keys))) if found is None else [*map(found.get, keys)]

    def _add(self, keys: Sequence[bytes], records: Sequence[bytes]) -> None:
        """Write packed records under distinct keys that are not there. The caller holds the lock since it found that."""
        self.syncs.check()
        batch = WriteBatch(raw_mode=True)
        put, handle = batch.put, self._handle
        seq, count = self._state.seq, len(keys)
        for key, value in zip(keys, stamped(records, seq + 1), strict=True):
            put(key, value, handle)
        digest = self._state.digest + sum(range(seq + 1, seq + count + 1))
        self._write_batch(batch, self._state._replace(seq=seq + count, records=self._state.records + count, digest=digest))
        self._sample.add(keys)

    async def report_store(self, cluster: str, store: StoreReport, replaces: bytes, now_ms: int) -> KnownStore | None:
        """Read the recorded store, and write the decision in one WriteBatch, synced."""
        known = self._known_store(cluster, store)
        kept = decide_report(store, known, replaces, now_ms)
        if kept:
            self.write_meta({_store_key(cluster, store): _packed_store(kept)})
        await self.syncs.wait()
        return known

    async def forget_stores(self, before_ms: int) -> int:
        """Remove old reports in one WriteBatch: there is one row for each broker and path."""
        old: dict[bytes, bytes | None] = {
            key: None for key, value in self.scan_meta(_STORES, prefix_end(_STORES)) if _STORE.unpack(value)[2] < before_ms
        }
        if old:
            self.write_meta(old)
            await self.syncs.wait()
        return len(old)

    async def changed_groups(self, cluster: str, after: Sequence[StoreMark]) -> ChangedGroups:
        """What is noted up to the newest synced write: a power cut could give the number of a later one to another."""
        await self.syncs.wait()
        now = StoreMark("", self._state.store_id, self._state.incarnation, self.syncs.seq)
        (before,) = after if len(after) == 1 else (None,)
        if before is None or before[:3] != now[:3] or not self._notes.floor <= before.revision <= now.revision:
            return ChangedGroups([], [now], gap=True)
        return ChangedGroups(self._notes.between(cluster, before.revision, now.revision), [now])

    def marks(self) -> list[StoreMark]:
        """One mark, at the sequence number of the newest synced write."""
        return [StoreMark("", self._state.store_id, self._state.incarnation, self.syncs.seq, self._starts)]

    def loss(self) -> Loss | None:
        """The loss that a repair found, or None."""
        return self._loss

    def get_meta(self, key: bytes) -> bytes | None:
        """Read a value in `meta`. It may not be synced before `syncs.wait`. Raises StorageFailedError or StoreDamagedError."""
        value: bytes | None = rocks.guarded(self._meta.get, key)
        return value and value[_SEQ.size :]

    def scan_meta(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in `meta` from `start` up to but excluding `end`."""
        return ((key, value[_SEQ.size :]) for key, value in rocks.scan(self._meta, start, end))

    def write_meta(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Write one WriteBatch to `meta`; None deletes. Not synced before `syncs.wait`.

        Raises DiskFullError or StorageFailedError.
        """
        self.syncs.check()
        batch, state = WriteBatch(raw_mode=True), self._state
        for key, value in changes.items():
            state = self._stage_meta(batch, state, key, value)
        self._write_batch(batch, state)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """The store's values for the metrics; without RocksDB's own once it is closed. Thread-safe."""
        own = {
            "lost_writes": (
                "Acknowledged writes that a repair found missing, or a restore left out, about.",
                float(self._loss.writes if self._loss else 0),
            ),
            "store_incarnation": ("The store's incarnation: a repair and a restore raise it.", float(self._state.incarnation)),
        }
        try:
            return own | {
                f"rocksdb_{ours}": (f"RocksDB: {ours}.", float(rocks.guarded(self._data.property_int_value, theirs) or 0))
                for theirs, ours in rocks.PROPERTIES.items()
            }
        except StorageFailedError:
            return own

    def close(self) -> None:
        """Sync, unless a sync has failed, and close. Blocks. Logs errors and never raises: the next open checks the store."""
        self.checkpoints.finish()
        del self._handle, self._meta_handle  # they keep the database, and so its lock, open
        # Run each step even if another fails: a part left open would continue while the process ends.
        for step in (self.syncs.finish, partial(rocks.close, self._data), partial(rocks.close, self._meta), self._database.close):
            try:
                step()
            except AdapterError as error:
                if not self.syncs.failure:  # otherwise it has been reported
                    log.error("engine.close", error=str(error))
        self._watermark.close()
        os.close(self._lock)

    async def _drop(self, keys: Sequence[bytes], before_ms: int) -> int:
        async with self._saving:
            self.syncs.check()
            batch, state, count = WriteBatch(raw_mode=True), self._state, 0
            for key in keys:
                value = rocks.guarded(self._data.get, key)
                # A commit may have replaced it since the scan.
                if value is not None and is_old_tombstone(decode_record(value), before_ms):
                    batch.delete(key, self._handle)
                    self._sample.remove(key)
                    state = state.without(decode_seq(value))
                    count += 1
            self._write_batch(batch, state)
        await self.syncs.next()
        return count

    def _decide(
        self,
        cluster: str,
        entries: Sequence[SaveEntry],
        staged: dict[bytes, OffsetRecord],
        found: dict[bytes, bytes | None],
    ) -> list[SaveOutcome]:
        keys = [pack_names(cluster, *entry.key) for entry in entries]
        values = cast("list[bytes | None]", rocks.guarded(self._data.get, keys))
        found.update(zip(keys, values, strict=True))
        outcomes = []
        for entry, key, value in zip(entries, keys, values, strict=True):
            standing = staged.get(key) or (None if value is None else decode_record(value))
            outcome = decide_save(entry, standing)
            if outcome.standing is not None and outcome.standing != standing:
                staged[key] = outcome.standing
            outcomes.append(outcome)
        return outcomes

    def _standing(self, key: bytes) -> OffsetRecord | None:
        value: bytes | None = rocks.guarded(self._data.get, key)
        return None if value is None else decode_record(value)

    async def _write(
        self, cluster: str, entries: Sequence[tuple[OffsetKey, OffsetRecord]], become: Callable[[OffsetRecord], OffsetRecord]
    ) -> None:
        """Write what records become, with a WriteBatch for each slice. The caller holds the lock."""
        prefix = pack_names(cluster)
        async for some in in_slices(entries):
            changes = {prefix + pack_names(*key): encode_record(become(record)) for key, record in some}
            keys = [*changes]
            values = cast("list[bytes | None]", rocks.guarded(self._data.get, keys))
            self._put(changes, dict(zip(keys, values, strict=True)))

    def _put(
        self,
        changes: Mapping[bytes, bytes],
        standing: Mapping[bytes, bytes | None],
        cluster: str = "",
        reported: StoreReport | None = None,
        *,
        tell: bool = False,
    ) -> None:
        """Write packed records over the values `standing`, each with a new sequence number, and the report of their store.

        Their groups are noted where a reset, delete, clone or expiry has replaced something; with `tell`, where anything has.
        """
        self.syncs.check()
        batch = WriteBatch(raw_mode=True)
        seq, records, digest = self._state.seq, self._state.records, self._state.digest
        put, pack, unpack, size, handle = batch.put, _SEQ.pack, _SEQ.unpack_from, _SEQ.size, self._handle
        added: list[bytes] = []
        told: set[bytes] = set()
        is_told, group_of = change_notes.is_told, change_notes.group_of
        for key, value in changes.items():
            seq += 1
            put(key, pack(seq) + value[size:], handle)
            replaced = standing[key]
            if replaced is None:
                records += 1
                digest += seq
                added.append(key)
            else:
                digest += seq - unpack(replaced)[0]
                if tell or is_told(value):
                    told.add(group_of(key))
        state = self._state._replace(seq=seq, records=records, digest=digest)
        if reported:
            kept = decide_report(reported, self._known_store(cluster, reported), b"", wall_ms())
            if kept:
                state = self._stage_meta(batch, state, _store_key(cluster, reported), _packed_store(kept))
        noted: dict[bytes, int | None] = {}
        for key, row in self._notes.rows_for(told).items() if told else ():
            state = self._stage_meta(batch, state, key, row)
            noted[key] = None if row is None else state.seq
        if state.seq != self._state.seq:
            self._write_batch(batch, state)
        self._sample.add(added)
        for key, number in noted.items():
            self._notes.take(key, number)

    def _stage_meta(self, batch: WriteBatch, state: State, key: bytes, value: bytes | None) -> State:
        """Add a write to (or delete from) `meta` to a batch; returns the bookkeeping after it."""
        standing = rocks.guarded(self._meta.get, key)
        if standing is not None:
            state = state.without(decode_seq(standing))
        if value is None:
            batch.delete(key, self._meta_handle)
            return state
        state = state.with_one()
        batch.put(key, _SEQ.pack(state.seq) + value, self._meta_handle)
        return state

    def _known_store(self, cluster: str, store: StoreReport) -> KnownStore | None:
        """The recorded report for the same broker and path; None if there is none."""
        value = self.get_meta(_store_key(cluster, store))
        if value is None:
            return None
        store_id, flushed_seq, reported_at_ms = _STORE.unpack(value)
        return KnownStore(store._replace(store_id=store_id, flushed_seq=flushed_seq), reported_at_ms)

    def _write_batch(self, batch: WriteBatch, state: State) -> None:
        """Write a batch together with the bookkeeping that is true after it. No await since `state` was read."""
        # A batch that only deletes takes a sequence number too; otherwise its loss could not be detected.
        state = state._replace(seq=max(state.seq, self._state.seq + 1), digest=state.digest % 2**64)
        batch.put(STATE, state.encode(), self._meta_handle)
        try:
            rocks.guarded(self._db.write, batch)
        except DiskFullError:
            raise
        except AdapterError as error:  # also of damage that a compaction has met: RocksDB takes no write behind it
            self.syncs.fail(str(error))
            raise StorageFailedError(str(error)) from error
        self._state = state
        self.syncs.wrote(state.seq)


async def _encoded(staged: Mapping[bytes, OffsetRecord]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    async for some in in_slices([*staged.items()]):
        found.update((key, encode_record(record)) for key, record in some)
    return found


def _store_key(cluster: str, store: StoreReport) -> bytes:
    return _STORES + pack_names(cluster, store.broker) + store.path.encode()


def _packed_store(known: KnownStore) -> bytes:
    return _STORE.pack(known.store.store_id, known.store.flushed_seq, known.reported_at_ms)
