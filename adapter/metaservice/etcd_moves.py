"""Offsets on their way to a new home, while the layout changes: a consumer group is copied there before it is used.

Where it comes from, the fences keep everything as it is, so a copy is done once, and copying twice is harmless. Never deletes:
`rebalancing` does, when all is copied.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import structlog

from adapter.codec import unpack_names
from adapter.combine import Combiner
from adapter.errors import MetaUnavailableError
from adapter.metaservice.etcd_lane import Item, Lane
from adapter.metaservice.etcd_reads import Row, read_all
from adapter.metaservice.etcd_values import Keys, decode_value
from adapter.metaservice.fences import Fences, LayoutChangedError
from adapter.metaservice.layout import Layout
from adapter.model import OffsetKey, SaveEntry

log = structlog.get_logger(__name__)

MAX_GROUPS = 64  # that are copied at once


class Moves:
    """What has been brought home. `run` must be running."""

    def __init__(self, lanes: Mapping[str, Lane], fences: Fences, keys: Keys) -> None:
        self._lanes = lanes
        self._fences = fences
        self._keys = keys
        self._layout: Layout | None = None
        self._home: set[bytes] = set()
        # A caller that gives up does not stop a copy: the next one finds it done.
        self._copies: Combiner[tuple[Layout, bytes], None] = Combiner(self._copy_all, max_items=MAX_GROUPS)

    async def run(self) -> None:
        """Copy what is asked for."""
        await self._copies.run()

    async def bring_home(self, groups: Collection[bytes], layout: Layout) -> None:
        """Copy these consumer groups (packed) home, unless that is done. Raises MetaUnavailableError, LayoutChangedError."""
        if not layout.moving_from:
            return
        if self._layout != layout:
            self._layout = layout
            self._home.clear()
        away = [group for group in groups if group not in self._home and layout.former(group)]
        await asyncio.gather(*(self._copies.submit((layout, group)) for group in away))

    async def copy(self, rows: Sequence[Row], layout: Layout) -> None:
        """Merge rows into their homes. Raises MetaUnavailableError, LayoutChangedError."""
        by_home: dict[str, list[Item]] = {}
        for row in rows:
            home = layout.home(self._keys.group_of(row.where))
            by_home.setdefault(home, []).append(self._item(row))
        guards = {name: self._fences.guard(layout, name) for name in by_home}
        await asyncio.gather(*(self._lanes[name].settle(guards[name], items) for name, items in by_home.items()))
        for item in (item for items in by_home.values() for item in items):
            if item.error:
                raise MetaUnavailableError(str(item.error))
            if item.outcome is None:
                raise LayoutChangedError("the layout of the offsets has changed")

    def _item(self, row: Row) -> Item:
        _, namespace, group, shard = unpack_names(row.where[len(self._keys.offsets) :])
        return Item(SaveEntry(OffsetKey(namespace, group, shard), decode_value(row.value)), row.where)

    async def _copy_all(self, asked: Sequence[tuple[Layout, bytes]]) -> Sequence[None]:
        layout = self._layout
        if layout is not None:
            # Who asked for another layout is refused by its guard.
            wanted = {group for found, group in asked if found is layout} - self._home
            await asyncio.gather(*(self._copy(layout, group) for group in wanted))
        return [None] * len(asked)

    async def _copy(self, layout: Layout, group: bytes) -> None:
        before = layout.former(group)
        if before is None:
            return
        found = await read_all(self._lanes[before], layout, self._fences, self._keys.offsets + group)
        await self.copy(found.rows, layout)
        if self._layout is layout:
            self._home.add(group)
