"""Moves offsets to other Raft groups while they are in use: changes the layout, copies by merge, then deletes the old copies.

It may be killed at any point: layout and progress are in the metadata Raft group, and the next run continues there. Several runs
at once are harmless. Only copies that exist in their new Raft group are deleted.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

import anyio

from adapter.errors import AdapterError, ConfigError, ContendedError, InvalidInputError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd.broker_stores import add_copies
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.fences import Fences, LayoutChangedError
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.migration import Migration
from adapter.metaservice.etcd.reads import PAGE as COUNT_PAGE
from adapter.metaservice.etcd.reads import Row, Widths, read, walk
from adapter.metaservice.etcd.sharding import Layout
from adapter.metaservice.etcd.txn_batcher import MAX_TXN_ENTRIES, TxnBatcher
from adapter.model.codec import prefix_end
from adapter.rpc import etcd_pb
from adapter.runtime.retry import retrying

T = TypeVar("T")

PAGE = 2_000  # keys between two stored positions
IDLE_RATIO = 1.0  # idle time after a transaction, relative to its duration: a save waits for one at most
RETRY_LIMIT_S = 60.0  # for a Raft group that does not answer
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 2.0
WRITER = "rebalance"
_OTHER_OPERATIONS = 3  # operations of a transaction besides its entries; see `TxnBatcher`

_retrying = retrying("rebalance", first_s=FIRST_PAUSE_S, max_s=MAX_PAUSE_S, limit_s=RETRY_LIMIT_S)


class Plan(NamedTuple):
    """What there is to do: `layout` is current, `following` is the next one, and `moving` of `keys` keys have to be moved.

    When all offsets are moved, it counts the old copies that are left to delete.
    """

    layout: Layout
    following: Layout
    keys: int
    moving: int

    @property
    def needed(self) -> bool:
        """False if all offsets are where they should be, and nowhere else."""
        return not self.following.settled


class Watcher(Protocol):
    """Receives the progress of a rebalance."""

    def step(self, what: str, keys: int) -> None:
        """A step begins that will process this number of keys."""

    def looked(self, keys: int) -> None:
        """Progress: the number of further keys processed."""


class Rebalancer:
    """Moves offsets to the requested Raft groups. Made by `opened`."""

    def __init__(
        self,
        metadata: EtcdCluster,
        batchers: Mapping[str, TxnBatcher],
        fences: Fences,
        migration: Migration,
        section: EtcdSection,
    ) -> None:
        self._metadata = metadata
        self._batchers = batchers
        self._fences = fences
        self._migration = migration
        self._keys = Keys(section.prefix)
        self._batch = min(MAX_TXN_ENTRIES, section.max_txn_ops - _OTHER_OPERATIONS)
        self._widths: dict[str, Widths] = {}

    async def plan(self, groups: Iterable[str]) -> Plan:
        """What it takes to have the offsets in exactly these Raft groups. Changes nothing.

        Raises InvalidInputError if that takes more than one step, or another move is in progress; MetaUnavailableError.
        """
        while True:
            layout = self._fences.layout
            following = _following(layout, groups)
            try:
                keys, moving = await self._count(layout, following)
            except LayoutChangedError:
                await _retrying(self._fences.reload, layout)
            else:
                return Plan(layout, following, keys, moving)

    async def run(self, groups: Iterable[str], watcher: Watcher) -> None:
        """Move the offsets into exactly these Raft groups.

        Raises as `plan`; MetaUnavailableError after a minute without an answer; ConfigError if a new Raft group holds offsets.
        """
        wanted = tuple(groups)
        while not (following := _following(self._fences.layout, wanted)).settled:
            layout = self._fences.layout
            try:
                await self._step(layout, following, watcher)
            except LayoutChangedError:  # by another rebalance
                await _retrying(self._fences.reload, layout)

    async def _step(self, layout: Layout, following: Layout, watcher: Watcher) -> None:
        """Go from one layout to the next."""
        if layout.settled:
            await self._check_empty({*following.groups} - {*layout.groups}, layout)
            await _retrying(self._change, layout, following)
        elif layout.moving_from:
            watcher.step("copying", (await self._count(layout, layout))[0])
            for name in layout.losing:
                await self._copy_from(name, layout, watcher)
            await _retrying(self._change, layout, layout.moved())
        else:
            watcher.step("deleting old copies", (await self._count(layout, layout))[0])
            for name in layout.leftovers_in:
                await self._clean(name, layout, watcher)
            await _retrying(self._change, layout, layout.cleaned())

    async def _change(self, before: Layout, after: Layout) -> None:
        """Change the layout. Raises LayoutChangedError if another rebalance has done so: trying again would never help."""
        try:
            await self._fences.change(before, after)
        except ContendedError as error:
            raise LayoutChangedError(str(error)) from error

    async def _copy_from(self, name: str, layout: Layout, watcher: Watcher) -> None:
        position = await self._position(name, layout)
        async for rows in self._pages(name, layout, position, self._keys.offsets):
            for batch in _batches(self._rows_to_move(name, layout, rows), self._batch):
                async with _throttled():
                    await _retrying(self._migration.copy, batch, layout)
            await self._save_position(name, layout, rows[-1].where + b"\0")
            watcher.looked(len(rows))
        await self._move_reports(name, layout, position, delete=False)

    async def _clean(self, name: str, layout: Layout, watcher: Watcher) -> None:
        """Delete the old copies, those of the reports of stores, and the index entries of tombstones."""
        position = await self._position(name, layout)
        async for rows in self._pages(name, layout, position, self._keys.offsets):
            for batch in _batches(self._rows_to_move(name, layout, rows), self._batch):
                async with _throttled():
                    await self._copy_missing(batch, layout)
                    await self._delete(name, layout, self._spans(batch))
            await self._save_position(name, layout, rows[-1].where + b"\0")
            watcher.looked(len(rows))
        await self._move_reports(name, layout, position, delete=True)
        async for rows in self._pages(name, layout, position, self._keys.tombstones, keys_only=True):
            entries = [row for row in rows if self._home_of(layout, self._keys.buried(row.where)) != name]
            for some in _batches(entries, self._batch):
                async with _throttled():
                    await self._delete(name, layout, [etcd_pb.DeleteRangeRequest(key=entry.where) for entry in some])
            await self._save_position(name, layout, rows[-1].where + b"\0")

    async def _move_reports(self, name: str, layout: Layout, position: bytes, *, delete: bool) -> None:
        """Copy the reports of stores that belong into other Raft groups; with `delete`, delete them here then.

        Before they are deleted they are copied as well: an old snapshot of their new Raft group may have been restored.
        """
        async for rows in self._pages(name, layout, position, self._keys.stores):
            away = [row for row in rows if layout.home(self._keys.broker_of(row.where)) != name]
            for reports in _batches(away, self._batch):
                async with _throttled():
                    await self._copy_reports(reports, layout)
                    if delete:
                        await self._delete(name, layout, [etcd_pb.DeleteRangeRequest(key=report.where) for report in reports])
            await self._save_position(name, layout, rows[-1].where + b"\0")

    async def _copy_reports(self, reports: Sequence[Row], layout: Layout) -> None:
        """Write reports into their new Raft groups, unless their adapters have reported there meanwhile."""
        by_home: dict[str, list[Row]] = {}
        for report in reports:
            by_home.setdefault(layout.home(self._keys.broker_of(report.where)), []).append(report)
        for name, members in by_home.items():
            request = etcd_pb.TxnRequest(compare=[self._fences.guard(layout, name)])
            add_copies(request, members)
            await self._apply(name, request)

    async def _copy_missing(self, rows: Sequence[Row], layout: Layout) -> None:
        """Copy rows that are missing or older in their new Raft group: an old snapshot of it may have been restored."""
        by_home: dict[str, list[Row]] = {}
        for row in rows:
            by_home.setdefault(self._home_of(layout, row.where), []).append(row)
        for name, members in by_home.items():
            asked = [etcd_pb.RangeRequest(key=row.where) for row in members]
            standing = await _retrying(read, self._batchers[name], layout, self._fences, asked)
            missing = [
                row for row, found in zip(members, standing, strict=True) if not found.rows or found.rows[0].value < row.value
            ]
            if missing:
                await _retrying(self._migration.copy, missing, layout)

    def _spans(self, rows: Sequence[Row]) -> list[etcd_pb.DeleteRangeRequest]:
        """Ranges that contain exactly these rows: within a consumer group that has moved away, nothing is written."""
        spans = []
        for _, members in groupby(rows, lambda row: self._keys.group_of(row.where)):
            group = list(members)
            spans.append(etcd_pb.DeleteRangeRequest(key=group[0].where, range_end=group[-1].where + b"\0"))

        return spans

    async def _delete(self, name: str, layout: Layout, spans: Iterable[etcd_pb.DeleteRangeRequest]) -> None:
        request = etcd_pb.TxnRequest(compare=[self._fences.guard(layout, name)])
        for span in spans:
            request.success.add().request_delete_range.CopyFrom(span)
        await self._apply(name, request)

    async def _apply(self, name: str, request: etcd_pb.TxnRequest) -> None:
        """Run a guarded transaction. Raises LayoutChangedError if it was refused by the fence."""
        if not (await _retrying(self._batchers[name].cluster.txn, request)).succeeded:
            raise LayoutChangedError(f"{name}: the layout of the offsets has changed")

    async def _count(self, layout: Layout, following: Layout) -> tuple[int, int]:
        """How many keys have to be read, and how many of them belong into other Raft groups."""
        keys = moving = 0
        for name in following.losing or following.leftovers_in:
            position = await self._position(name, layout)
            async for rows in self._pages(name, layout, position, self._keys.offsets, keys_only=True, limit=COUNT_PAGE):
                keys += len(rows)
                moving += len(self._rows_to_move(name, following, rows))
        return keys, moving

    async def _pages(
        self, name: str, layout: Layout, position: bytes, prefix: bytes, *, keys_only: bool = False, limit: int | None = None
    ) -> AsyncIterator[list[Row]]:
        """Pages of a Raft group's rows below `prefix`, from a position on."""
        start = max(position, prefix)
        widths = self._widths.setdefault(name, Widths())

        async def page() -> list[Row]:
            end = prefix_end(prefix)
            batchers = [self._batchers[name]]
            walked = walk(batchers, layout, self._fences, start, end, widths, keys_only=keys_only, limit=limit or PAGE)
            return await anext(walked, [])

        while rows := await _retrying(page):
            yield rows
            start = rows[-1].where + b"\0"

    def _rows_to_move(self, name: str, layout: Layout, rows: Sequence[Row]) -> list[Row]:
        """The rows that belong into other Raft groups."""
        found: list[Row] = []
        for group, members in groupby(rows, lambda row: self._keys.group_of(row.where)):
            if layout.home(group) != name:
                found += members
        return found

    def _home_of(self, layout: Layout, where: bytes) -> str:
        return layout.home(self._keys.group_of(where))

    async def _check_empty(self, names: Iterable[str], layout: Layout) -> None:
        """Raise ConfigError if a new Raft group holds offsets: old ones would come back.

        Raises LayoutChangedError if another rebalance has begun, and its copies were found.
        """
        for name in sorted(names):
            asked = etcd_pb.RangeRequest(
                key=self._keys.offsets, range_end=prefix_end(self._keys.offsets), limit=1, keys_only=True
            )
            if (await _retrying(self._batchers[name].cluster.range, asked)).kvs:
                if await _retrying(self._fences.reload, layout) != layout:
                    raise LayoutChangedError("the layout of the offsets has changed")
                raise ConfigError(
                    f"etcd.offsets: {name} holds offsets already; when nobody uses them, delete them: "
                    f"etcdctl del --prefix '{self._keys.offsets.decode()}'"
                )

    async def _position(self, name: str, layout: Layout) -> bytes:
        """How far this layout's step is in a Raft group; empty: at the start."""
        reply = await _retrying(self._metadata.range, etcd_pb.RangeRequest(key=self._keys.moving + name.encode()))
        version, _, position = (reply.kvs[0].value if reply.kvs else b"").partition(b" ")
        return position if version == b"%d" % layout.version else b""

    async def _save_position(self, name: str, layout: Layout, position: bytes) -> None:
        """Store how far the step is. Raises LayoutChangedError if it has ended."""
        request = etcd_pb.TxnRequest(compare=[self._fences.stands(layout)])
        put = request.success.add().request_put
        put.key, put.value = self._keys.moving + name.encode(), b"%d %s" % (layout.version, position)
        if not (await _retrying(self._metadata.txn, request)).succeeded:
            raise LayoutChangedError("the layout of the offsets has changed")


@asynccontextmanager
async def opened(section: EtcdSection) -> AsyncIterator[Rebalancer]:
    """Open a rebalancer over new connections, and read the layout. Raises ConfigError, MetaUnavailableError."""
    if section.metadata is None or not section.offsets:
        raise ConfigError(
            "etcd: there are no [etcd.metadata] and [[etcd.offsets]] here: is it the configuration of a Meta Service on etcd?"
        )
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(EtcdCluster.open("metadata", section.metadata, section))
        groups = [await stack.enter_async_context(EtcdCluster.open(group.name, group, section)) for group in section.offsets]
        yield await stack.enter_async_context(running(metadata, groups, section))


@asynccontextmanager
async def running(metadata: EtcdCluster, groups: Sequence[EtcdCluster], section: EtcdSection) -> AsyncIterator[Rebalancer]:
    """Read the layout, and run a rebalancer. Raises as `opened`."""
    keys = Keys(section.prefix)
    batchers = {group.name: TxnBatcher(group, keys, WRITER, section.max_txn_ops) for group in groups}
    fences = Fences(metadata, {group.name: group for group in groups}, keys)
    await _retrying(fences.open)
    failure: AdapterError | None = None
    async with anyio.create_task_group() as tasks:
        for name, batcher in batchers.items():
            tasks.start_soon(batcher.run, name=f"etcd.{name}")
        try:
            yield Rebalancer(metadata, batchers, fences, Migration(batchers, fences, keys), section)
        except AdapterError as error:  # raise it outside of the task group
            failure = error
        tasks.cancel_scope.cancel()
    if failure:
        raise failure


def _following(layout: Layout, groups: Iterable[str]) -> Layout:
    """The next layout on the way to these groups; a settled one if there is nothing to do. Raises InvalidInputError."""
    wanted = tuple(sorted({*groups}))
    if not wanted:
        raise InvalidInputError("no Raft group would be left for the offsets")
    if layout.groups == wanted:
        return layout
    if not layout.settled:
        raise InvalidInputError(
            f"a move to {', '.join(layout.groups)} is under way, not to {', '.join(wanted)}; finish that one first: "
            f"with the same [[etcd.offsets]], and --without for each that is not among {', '.join(layout.groups)}"
        )
    return layout.move_to(wanted)


@asynccontextmanager
async def _throttled() -> AsyncIterator[None]:
    """Sleep afterwards in proportion to the time taken, so that saves are not delayed much."""
    began = anyio.current_time()
    yield
    await anyio.sleep((anyio.current_time() - began) * IDLE_RATIO)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))
