"""Copies consumer groups to their new Raft groups while the layout changes: a group is copied before it is used.

In the old Raft group the fences keep everything unchanged, so one copy is enough, and a second one is harmless. Nothing is
deleted here: `rebalancing` does that when all is copied.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import anyio
import anyio.abc

from adapter.errors import AdapterError, MetaUnavailableError, NotReadyError
from adapter.metaservice.etcd.fences import Fences, LayoutChangedError
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.reads import Row, read_all
from adapter.metaservice.etcd.sharding import Layout
from adapter.metaservice.etcd.txn_batcher import Item, TxnBatcher
from adapter.model.records import SaveEntry
from adapter.runtime.coalescing import Coalescer

MAX_GROUPS = 64  # copied concurrently between two Raft groups

# A request to copy: the layout, and the packed consumer group.
Asked = tuple[Layout, bytes]


class Migration:
    """Copies groups on demand, and remembers which are done. `run` must be running."""

    def __init__(self, batchers: Mapping[str, TxnBatcher], fences: Fences, keys: Keys) -> None:
        self._batchers = batchers
        self._fences = fences
        self._keys = keys
        self._layout: Layout | None = None
        self._copied: set[bytes] = set()
        self._tasks: anyio.abc.TaskGroup | None = None
        # By (source, target). A caller that gives up does not stop a copy: the next one finds it done.
        self._copies: dict[tuple[str, str], Coalescer[Asked, None]] = {}

    async def run(self) -> None:
        """Run the copies that calls request."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def ensure_copied(self, groups: Collection[bytes], layout: Layout) -> None:
        """Copy these consumer groups (packed) unless done. Raises MetaUnavailableError, LayoutChangedError."""
        for error in (await self.failed_copies(groups, layout)).values():
            raise error

    async def failed_copies(self, groups: Collection[bytes], layout: Layout) -> dict[bytes, AdapterError]:
        """As `ensure_copied`, but returns the groups that cannot be copied now, with the error.

        Raises LayoutChangedError.
        """
        if not layout.moving_from:
            self._copied.clear()  # left from the last move
            return {}
        if self._layout is not layout:
            self._layout = layout
            self._copied.clear()
        uncopied = [group for group in groups if group not in self._copied and layout.former(group)]
        results = await asyncio.gather(*(self._request_copy(layout, group) for group in uncopied), return_exceptions=True)
        failed = {}
        for group, result in zip(uncopied, results, strict=True):
            if isinstance(result, BaseException):
                if isinstance(result, LayoutChangedError) or not isinstance(result, AdapterError):
                    raise result
                failed[group] = result
        return failed

    async def copy(self, rows: Sequence[Row], layout: Layout) -> None:
        """Merge rows into their new Raft groups. Raises MetaUnavailableError, LayoutChangedError."""
        by_home: dict[str, list[Item]] = {}
        for row in rows:
            home = layout.home(self._keys.group_of(row.where))
            by_home.setdefault(home, []).append(self._item(row))
        guards = {name: self._fences.guard(layout, name) for name in by_home}
        await asyncio.gather(*(self._batchers[name].merge(guards[name], items) for name, items in by_home.items()))
        for item in (item for items in by_home.values() for item in items):
            if item.error:
                raise MetaUnavailableError(str(item.error))
            if item.outcome is None:
                raise LayoutChangedError("the layout of the offsets has changed")

    def _item(self, row: Row) -> Item:
        return Item(SaveEntry(self._keys.offset_key(row.where), row.record), row.where)

    async def _request_copy(self, layout: Layout, group: bytes) -> None:
        if self._tasks is None:
            raise NotReadyError("stopped before this was taken; send it again")
        route = (layout.former(group) or "", layout.home(group))
        if route not in self._copies:
            # One for each route: a Raft group that does not answer delays only its own copies.
            self._copies[route] = Coalescer(self._copy_all, max_items=MAX_GROUPS)
            self._tasks.start_soon(self._copies[route].run, name=f"etcd.moves.{route[0]}-{route[1]}")
        await self._copies[route].submit((layout, group))

    async def _copy_all(self, asked: Sequence[Asked]) -> list[None]:
        await asyncio.gather(*(self._copy(*each) for each in dict.fromkeys(asked)))
        return [None] * len(asked)

    async def _copy(self, layout: Layout, group: bytes) -> None:
        source = layout.former(group)
        if source is None or (self._layout is layout and group in self._copied):
            return
        found = await read_all(self._batchers[source], layout, self._fences, self._keys.offsets + group)
        await self.copy(found.rows, layout)
        if self._layout is layout:
            self._copied.add(group)
