"""The engine over etcd: offsets in any number of Raft groups, the layout in the metadata Raft group. It has no state of its own.

Any number of processes may run next to each other. What is acknowledged is in etcd's quorum; reads are linearizable. A process
with an outdated layout is refused by the fences, reloads the layout and repeats the call.
"""

import asyncio
import contextlib
import math
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from itertools import groupby
from typing import TypeVar

import anyio
import anyio.abc
import structlog

from adapter.errors import AdapterError, MetaUnavailableError
from adapter.metaservice.bulk import Cuts, RangeSample
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.engine import (
    EXACT,
    Columns,
    Differing,
    Expiry,
    GroupPage,
    MergeCounts,
    Page,
    Parts,
    RawPage,
    deleted_unless_late,
    differing,
    group_pages,
    is_told,
    row_bytes,
    to_delete,
)
from adapter.metaservice.etcd.broker_stores import EtcdStores
from adapter.metaservice.etcd.change_notes import ChangeNotes
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.expiry import Expirer
from adapter.metaservice.etcd.fences import Fences, LayoutChangedError
from adapter.metaservice.etcd.keys import Keys, as_record
from adapter.metaservice.etcd.migration import Migration
from adapter.metaservice.etcd.reads import COUNTED, ROWS, Row, Widths, batchers_of, count_ranges, read, walk
from adapter.metaservice.etcd.sharding import Layout
from adapter.metaservice.etcd.txn_batcher import MAX_TXN_ENTRIES, Item, TxnBatcher
from adapter.model.codec import decode_key, decode_record, pack_names, prefix_end, unpack_names
from adapter.model.records import (
    ChangedGroups,
    KnownStore,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    StoreMark,
    StoreReport,
)
from adapter.rpc import etcd_pb
from adapter.runtime.clocks import REAL, Clocks
from adapter.runtime.durable.watermark import Loss
from adapter.runtime.slices import others

log = structlog.get_logger(__name__)

R = TypeVar("R")

SLICE = 500  # entries prepared before the event loop runs other tasks
LAYOUT_CHANGES = 5  # a call fails after so many changes of the layout
REPORT_S = 1.0  # minimum interval of reports from the saves of one store
SAMPLE_S = 600.0  # a sample of keys is used for so long
MAX_SAMPLES = 16  # of listings
MAX_REPORT_TIMES = 10_000  # stores whose last report time is kept
PAGE_BYTES = 16 * 2**20  # records of a page; it fits into a reply
LAYOUT_KEEPS_CHANGING = "the layout of the offsets keeps changing"


# The marks of the Raft groups that have answered the call of the current task.
_call_marks: ContextVar[dict[str, StoreMark] | None] = ContextVar("_touched", default=None)


class EtcdEngine:
    """The offsets of clusters in etcd. `run` must be running; call `open` first."""

    kind = "etcd"

    def __init__(
        self, metadata: EtcdCluster, offsets: Sequence[EtcdCluster], section: EtcdSection, clocks: Clocks = REAL
    ) -> None:
        self._keys = Keys(section.prefix)
        self._batchers = {
            group.name: TxnBatcher(group, self._keys, socket.gethostname(), section.max_txn_ops) for group in offsets
        }
        self.fences = Fences(metadata, {group.name: group for group in offsets}, self._keys)
        self._migration = Migration(self._batchers, self.fences, self._keys)
        self._expirer = Expirer(self.fences, self._keys, section.max_txn_ops, self._save_items)
        self._max_reads = min(MAX_TXN_ENTRIES, section.max_txn_ops)
        self._now_ms = clocks.now_ms
        self._widths = Widths()
        self._notes = ChangeNotes(self._batchers, self.fences, self._keys)
        self._stores = EtcdStores({group.name: group for group in offsets}, self._keys)
        self._reported_at: dict[bytes, float] = {}  # last report of each store by a save, in the event loop's time
        # Of large listings, with the time at which they were counted. Any key is a place to cut: an old sample cuts less evenly.
        self._samples: dict[bytes, tuple[float, RangeSample]] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    async def open(self) -> None:
        """Read the layout, or create it. Raises MetaUnavailableError (try again) or ConfigError."""
        layout = await self.fences.open()
        unused = {*self._batchers} - {*layout.groups}
        if unused:
            log.warning("layout.unused", raft_groups=sorted(unused), help="offset-adapter meta rebalance takes them into use")

    async def run(self) -> None:
        """Send the transactions and copies that calls submit."""
        async with anyio.create_task_group() as tasks:
            for name, batcher in self._batchers.items():
                tasks.start_soon(batcher.run, name=f"etcd.{name}")
            tasks.start_soon(self._migration.run, name="etcd.moves")
            self._tasks = tasks

    async def save(
        self,
        cluster: str,
        entries: Sequence[SaveEntry],
        reported: StoreReport | None = None,
        *,
        tell: bool = False,
    ) -> list[SaveOutcome]:
        """Merge in all Raft groups concurrently.

        Entries of a Raft group that fails get UNAVAILABLE. Raises only if all entries failed.
        """
        items: list[Item] = []
        for at in range(0, len(entries), SLICE):
            some = entries[at : at + SLICE]
            keys = self._keys.offsets_of(cluster, [entry.key for entry in some])
            items += (
                Item(entry, key, self._note(key) if tell or is_told(entry.record) else b"")
                for entry, key in zip(some, keys, strict=True)
            )
            if len(entries) > SLICE:
                await others()
        for wave in _waves(items):
            await self._save_items(wave)
        if reported:
            self._report_later(cluster, reported)
        errors = [item.error for item in items if item.error]
        if errors and len(errors) == len(items):
            raise errors[0]
        return [item.outcome for item in items if item.outcome]

    async def get(self, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """Read records by key, many in one transaction."""
        return await self._with_layout(lambda layout: self._get(layout, cluster, keys))

    async def group_page(self, cluster: str, namespace: str, group: str, size: int, room: int, after: str) -> GroupPage:
        """Read a page of a group from its Raft group."""
        packed = pack_names(cluster, namespace, group)
        prefix = self._keys.offsets + packed
        start = self._keys.offsets + pack_names(cluster, namespace, group, after) + b"\0" if after else prefix

        async def page(layout: Layout) -> GroupPage:
            await self._migration.ensure_copied([packed], layout)
            entries: list[tuple[OffsetKey, OffsetRecord]] = []
            left = room
            batchers, limit = [self._batchers[layout.home(packed)]], min(size, ROWS)
            async for found in walk(batchers, layout, self.fences, start, prefix_end(prefix), self._widths, limit=limit):
                for at, row in enumerate(found, 1):
                    entries.append(self._entry(row))
                    left -= row_bytes(row.where, row.value)
                    if len(entries) == size or left <= 0:
                        return GroupPage(entries, more=True)
                    if at % SLICE == 0:
                        await others()
            return GroupPage(entries, more=False)

        return await self._with_layout(page)

    async def packed_groups(self, *_: object) -> None:
        """Read one after the other: each needs a call of its own."""

    async def differing_rows(self, *_: object) -> None:
        """Read by their names."""

    async def delete(self, cluster: str, namespace: str, group: str, shards: Sequence[str]) -> None:
        """Merge tombstones like saves: an epoch raised meanwhile is later than the delete, and stays. A whole group by pages."""
        if shards:
            standing = await self.get(cluster, [OffsetKey(namespace, group, shard) for shard in shards])
            await self._bury(cluster, to_delete(standing))
            return
        async for entries in group_pages(self, cluster, namespace, group):
            to_delete(entries)  # raises before anything is written
        async for entries in group_pages(self, cluster, namespace, group):
            await self._bury(cluster, entries)

    async def _bury(self, cluster: str, entries: Sequence[tuple[OffsetKey, OffsetRecord]]) -> None:
        now_ms = self._now_ms()
        tombstones = [(key, deleted_unless_late(record, now_ms)) for key, record in entries]
        outcomes = await self.save(cluster, [SaveEntry(key, record) for key, record in tombstones if record])
        failed = next((outcome for outcome in outcomes if outcome.status is Status.UNAVAILABLE), None)
        if failed:
            raise MetaUnavailableError(failed.message)

    def _note(self, where: bytes) -> bytes:
        return self._keys.note(self._keys.group_of(where))

    async def changed_groups(self, cluster: str, after: Sequence[StoreMark]) -> ChangedGroups:
        """Read the notes of each Raft group."""
        return await self._with_layout(lambda layout: self._notes.read(layout, cluster, after))

    async def expire(self, cluster: str, namespace: str, group: str, before_ms: int, now_ms: int) -> Expiry:
        """Each write applies only if the whole group is unchanged since it was read. Does nothing while offsets are moved."""
        packed = pack_names(cluster, namespace, group)

        async def expire(layout: Layout) -> Expiry:
            if not await self._check_settled(layout):
                # A copy would merge the live record over its tombstone. Answer "too young": the next sweep asks again.
                return Expiry(0, before_ms)
            return await self._expirer.expire(self._batchers[layout.home(packed)], layout, packed, before_ms, now_ms)

        return await self._with_layout(expire)

    async def drop_tombstones(self, before_ms: int) -> int:
        """Remove old tombstones by their index. Does nothing while offsets are moved: an old copy could come back."""

        async def drop(layout: Layout) -> int:
            if not await self._check_settled(layout):
                return 0
            return sum([await self._expirer.drop(batcher, layout, before_ms) for batcher in batchers_of(self._batchers, layout)])

        return await self._with_layout(drop)

    async def list_page(self, cluster: str, names: Sequence[str], size: int, after: bytes) -> Page:
        """Read a range of each Raft group, and merge them in key order."""
        rows, token = await self._page(cluster, names, size, after, b"", PAGE_BYTES)
        return Page([self._entry(row) for row in rows], token)

    async def scan_page(self, cluster: str, names: Sequence[str], size: int, after: bytes, until: bytes) -> RawPage:
        """As `list_page`, packed. Ends before `size` if its records reach 16 MiB."""
        rows, token = await self._page(cluster, names, size, after, until, PAGE_BYTES)
        return (await self._columns(rows)).page(more=bool(token))

    async def snapshot(self, cluster: str, names: Sequence[str]) -> AsyncGenerator[RawPage, None]:
        """Read each Raft group at the revision of its first page. Raises MetaUnavailableError if offsets are moved meanwhile."""
        base = self._keys.offsets
        prefix = base + pack_names(cluster, *names)
        layout = self.fences.layout
        revisions: dict[str, int] = {}
        batchers = batchers_of(self._batchers, layout)
        try:
            async for rows in walk(
                batchers, layout, self.fences, prefix, prefix_end(prefix), self._widths, revisions=revisions, limit=ROWS
            ):
                yield (await self._columns(rows)).page()
        except LayoutChangedError as error:
            await self.fences.reload(layout)
            raise MetaUnavailableError("offsets were moved to other Raft groups meanwhile: take the snapshot again") from error

    async def split(self, cluster: str, names: Sequence[str], parts: int) -> Parts:
        """Divide a small listing by reading its keys, a large one by counting them; by the same counts for ten minutes."""
        packed = pack_names(cluster, *names)
        counted_at, sample = self._samples.get(packed, (-math.inf, RangeSample()))
        if anyio.current_time() < counted_at + SAMPLE_S:
            return sample.parts(parts)
        base = self._keys.offsets
        start, end = base + packed, prefix_end(base + packed)

        async def split(layout: Layout) -> Parts:
            batchers = batchers_of(self._batchers, layout)
            sample = RangeSample()
            async for first, count in count_ranges(
                batchers, layout, self.fences, start, end, self._widths, min(COUNTED, self._max_reads)
            ):
                sample.add(first[len(base) :], count)
            if sample.count > EXACT:
                if len(self._samples) >= MAX_SAMPLES:
                    self._samples.clear()
                self._samples[packed] = anyio.current_time(), sample
                return sample.parts(parts)
            cuts = Cuts(parts)
            async for rows in walk(batchers, layout, self.fences, start, end, self._widths, keys_only=True):
                cuts.add([row.where[len(base) :] for row in rows])
            return cuts.parts()

        return await self._with_layout(split)

    async def report_store(self, cluster: str, store: StoreReport, replaces: bytes, now_ms: int) -> KnownStore | None:
        """Store the report in one Raft group; read from all of them, for their marks."""

        async def report(layout: Layout) -> KnownStore | None:
            packed = pack_names(cluster, store.broker)
            home, former = layout.home(packed), layout.former(packed)
            answered: set[str] = set()
            guards = {name: self.fences.guard(layout, name) for name in (home, former) if name}
            known = await self._stores.report(home, guards, cluster, store, replaces, now_ms, answered)
            self._note_marks(answered)
            return known

        return await self._with_layout(report)

    async def forget_stores(self, before_ms: int) -> int:
        """Remove old reports by reading all of them."""
        return await self._stores.forget(before_ms)

    def marks(self) -> list[StoreMark]:
        """The marks of the Raft groups that answered the current task's call; outside of a call, of all."""
        marks = _call_marks.get()
        if marks is not None:
            return list(marks.values())
        return [mark for batcher in self._batchers.values() if (mark := batcher.cluster.mark)]

    def _note_marks(self, names: Iterable[str]) -> None:
        """Record the marks of Raft groups that have just answered, for the reply to the current call.

        Only those: another process may have seen later revisions of the others.
        """
        marks = _call_marks.get()
        if marks is None:
            marks = {}
            _call_marks.set(marks)
        marks.update((name, mark) for name in names if (mark := self._batchers[name].cluster.mark))

    def _report_later(self, cluster: str, store: StoreReport) -> None:
        """Record the report in a save in the background, at most once a second: it is not worth a transaction per save."""
        now = anyio.current_time()
        where = self._keys.store(cluster, store.broker, store.path)
        if now < self._reported_at.get(where, 0.0) + REPORT_S or self._tasks is None:
            return
        if len(self._reported_at) >= MAX_REPORT_TIMES:
            self._reported_at.clear()
        self._reported_at[where] = now
        self._tasks.start_soon(self._report, cluster, store, name="etcd.report")

    async def _report(self, cluster: str, store: StoreReport) -> None:
        with contextlib.suppress(AdapterError):
            await self.report_store(cluster, store, b"", self._now_ms())

    def loss(self) -> Loss | None:
        """Always None: a loss in an etcd cluster is not recorded here."""
        return None

    async def merge(
        self,
        cluster: str,
        keys: Sequence[bytes],
        records: Sequence[bytes],
        reported: StoreReport | None = None,
        *,
        tell: bool = False,
    ) -> MergeCounts:
        """Merge as saves, in slices, so that other saves can run in between."""
        applied = superseded = 0
        rejected: list[tuple[int, str]] = []
        for at in range(0, len(keys), SLICE):
            pairs = zip(keys[at : at + SLICE], records[at : at + SLICE], strict=True)
            outcomes = await self.save(
                cluster,
                [SaveEntry(OffsetKey(*unpack_names(key)), decode_record(record)) for key, record in pairs],
                reported,
                tell=tell,
            )
            failed = next((outcome for outcome in outcomes if outcome.status is Status.UNAVAILABLE), None)
            if failed:
                raise MetaUnavailableError(failed.message)
            applied += sum(outcome.status is Status.APPLIED for outcome in outcomes)
            superseded += sum(outcome.status is Status.SUPERSEDED for outcome in outcomes)
            refused = ((index, outcome) for index, outcome in enumerate(outcomes, at) if outcome.status is Status.INVALID)
            rejected += [(index, outcome.message) for index, outcome in refused]
        return MergeCounts(applied, superseded, tuple(rejected))

    async def save_packed(
        self, cluster: str, keys: Sequence[bytes], records: Sequence[bytes], reported: StoreReport | None = None
    ) -> list[Differing]:
        """As `save`: a Raft group that does not answer fails only its own entries."""
        entries: list[SaveEntry] = []
        for at in range(0, len(keys), SLICE):
            pairs = zip(keys[at : at + SLICE], records[at : at + SLICE], strict=True)
            entries += [SaveEntry(decode_key(key), decode_record(record)) for key, record in pairs]
            await others()
        outcomes = await self.save(cluster, entries, reported)
        found: list[Differing] = []
        for at in range(0, len(entries), SLICE):
            found += differing(entries[at : at + SLICE], outcomes[at : at + SLICE], at)
            await others()
        return found

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Values for the metrics. Thread-safe."""
        layout = self.fences.known
        return {
            "etcd_waiting_entries": (
                "Entries that wait for a transaction.",
                sum(one.waiting for one in self._batchers.values()),
            ),
            "etcd_raft_groups": ("Raft groups that hold offsets.", len(layout.groups) if layout else 0),
            "etcd_raft_groups_unavailable": (
                "Raft groups of offsets whose last call failed.",
                sum(not batcher.cluster.available for batcher in self._batchers.values()),
            ),
            "etcd_layout_version": ("The version of the layout of the offsets.", layout.version if layout else 0),
            "etcd_losses": (
                "Times that a Raft group of offsets held less than it had acknowledged.",
                sum(batcher.cluster.losses for batcher in self._batchers.values()),
            ),
            "etcd_moving": ("1 while offsets are moved between Raft groups.", bool(layout and not layout.settled)),
        }

    async def _save_items(self, items: Sequence[Item]) -> None:
        """Merge items with different keys until each has an outcome, following changes of the layout."""
        left = items
        for _ in range(LAYOUT_CHANGES):
            layout = self.fences.layout
            try:
                await self._save_once(layout, left)
                left = [item for item in left if item.outcome is None]
                if not left:
                    return
                await self.fences.reload(layout)
            except LayoutChangedError:
                with contextlib.suppress(MetaUnavailableError):
                    await self.fences.reload(layout)
            except MetaUnavailableError as error:
                for item in left:
                    item.fail(error)
                return
        for item in left:
            item.fail(MetaUnavailableError(LAYOUT_KEEPS_CHANGING))

    async def _save_once(self, layout: Layout, items: Sequence[Item]) -> None:
        by_home: dict[str, list[Item]] = {}
        groups: dict[bytes, list[Item]] = {}
        for group, members in groupby(items, lambda item: self._keys.group_of(item.where)):
            groups.setdefault(group, []).extend(members)
        away = await self._migration.failed_copies(groups, layout)
        for group, found in groups.items():
            if group in away:
                for item in found:
                    item.fail(away[group])
            else:
                by_home.setdefault(layout.home(group), []).extend(found)
        guards = {name: self.fences.guard(layout, name) for name in by_home}
        await asyncio.gather(*(self._batchers[name].merge(guards[name], found) for name, found in by_home.items()))
        self._note_marks(name for name, found in by_home.items() if any(item.outcome and not item.error for item in found))

    async def _check_settled(self, layout: Layout) -> bool:
        """Whether no offsets are being moved. Reloads the layout, so that a process without other calls learns of the end."""
        if not layout.settled and (await self.fences.reload(layout)).settled:
            raise LayoutChangedError("the layout of the offsets has changed")
        return layout.settled

    async def _get(self, layout: Layout, cluster: str, keys: Sequence[OffsetKey]) -> list[tuple[OffsetKey, OffsetRecord]]:
        by_home: dict[str, list[OffsetKey]] = {}
        groups = {key[:2]: pack_names(cluster, key.namespace, key.group) for key in keys}
        await self._migration.ensure_copied(groups.values(), layout)
        for key in keys:
            by_home.setdefault(layout.home(groups[key[:2]]), []).append(key)
        found = await asyncio.gather(*(self._get_in(layout, name, cluster, wanted) for name, wanted in by_home.items()))
        records = {key: record for part in found for key, record in part}
        return [(key, records[key]) for key in keys if key in records]

    async def _get_in(
        self, layout: Layout, name: str, cluster: str, keys: Sequence[OffsetKey]
    ) -> list[tuple[OffsetKey, OffsetRecord]]:
        records = []
        for at in range(0, len(keys), self._max_reads):
            wanted = keys[at : at + self._max_reads]
            asked = [etcd_pb.RangeRequest(key=self._keys.offset(cluster, key)) for key in wanted]
            for key, found in zip(wanted, await read(self._batchers[name], layout, self.fences, asked), strict=True):
                records += [(key, row.record) for row in found.rows]
        return records

    async def _page(
        self, cluster: str, names: Sequence[str], size: int, after: bytes, until: bytes, room: int
    ) -> tuple[list[Row], bytes]:
        """Rows after the token `after`, up to and including `until` if it is not empty; and the next page's token."""
        base = self._keys.offsets
        prefix = base + pack_names(cluster, *names)
        start = base + after + b"\0" if after else prefix
        end = base + until + b"\0" if until else prefix_end(prefix)

        async def page(layout: Layout) -> tuple[list[Row], bytes]:
            rows: list[Row] = []
            left = room
            batchers = batchers_of(self._batchers, layout)
            async for found in walk(batchers, layout, self.fences, start, end, self._widths, limit=min(size, ROWS)):
                for row in found:
                    rows.append(row)
                    left -= len(row.value)
                    if len(rows) == size or left <= 0:
                        token = row.where[len(base) :]
                        return rows, b"" if token == until else token
            return rows, b""

        return await self._with_layout(page)

    async def _with_layout(self, work: Callable[[Layout], Awaitable[R]]) -> R:
        """Run `work` with the current layout; again if the layout has changed."""
        for _ in range(LAYOUT_CHANGES):
            layout = self.fences.layout
            try:
                return await work(layout)
            except LayoutChangedError:
                await self.fences.reload(layout)
        raise MetaUnavailableError(LAYOUT_KEEPS_CHANGING)

    async def _columns(self, rows: Sequence[Row]) -> Columns:
        columns, cut = Columns(), len(self._keys.offsets)
        for at in range(0, len(rows), SLICE):
            found = rows[at : at + SLICE]
            columns.add([row.where[cut:] for row in found], [as_record(row.where, row.value) for row in found])
            await others()
        return columns

    def _entry(self, row: Row) -> tuple[OffsetKey, OffsetRecord]:
        return self._keys.offset_key(row.where), row.record


def _waves(items: list[Item]) -> list[list[Item]]:
    """Split items into lists without duplicate keys: entries of the same key are applied one after the other."""
    if len({item.where for item in items}) == len(items):
        return [items]
    waves: list[dict[bytes, Item]] = [{}]
    seen: Counter[bytes] = Counter()
    for item in items:
        number = seen[item.where]
        seen[item.where] += 1
        if number == len(waves):
            waves.append({})
        waves[number][item.where] = item
    return [list(wave.values()) for wave in waves]
