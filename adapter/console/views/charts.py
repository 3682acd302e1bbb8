"""The chart of a group's offset against the end of its log, and the history that it needs.

The history is this process's own: it begins when a group is first looked at, or is among the worst. It has a bounded number of
groups and points. A group that was not looked at for the longest time is forgotten first.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

import anyio

from adapter.console.config import ChartSection
from adapter.errors import AdapterError
from adapter.fleet.fleet import FleetApi
from adapter.fleet.views import GroupShards, Key
from adapter.look.charts import Chart, chart
from adapter.rpc import lag_pb
from adapter.runtime.clocks import wall_ms

ROWS_SHOWN = 30  # of the table beside the chart
WORST_EVERY = 10  # intervals between two looks at which groups are worst
AT_ONCE = 4  # groups that are asked for at the same time


class Point(NamedTuple):
    """The sums over a group's shards that have a known end: the offset, and the end of the log. None: not all were told."""

    at_ms: int
    offset: int | None
    end: int | None


class Charts:
    """The histories of some groups."""

    def __init__(self, section: ChartSection, fleet: FleetApi) -> None:
        self._section = section
        self._fleet = fleet
        self._kept: OrderedDict[Key, deque[Point]] = OrderedDict()
        self._looked_at: set[Key] = set()

    def __len__(self) -> int:
        """The number of groups of which a history is kept."""
        return len(self._kept)

    def look(self, key: Key) -> Sequence[Point]:
        """The history of a group that somebody looks at, the oldest point first; it is kept from now on."""
        points = self._of(key)
        if self._section.groups:
            self._looked_at.add(key)
        return list(points)

    def note(self, key: Key, shards: GroupShards, at_ms: int | None = None) -> None:
        """Add a point, unless the last one is too new."""
        now = wall_ms() if at_ms is None else at_ms
        points = self._of(key)
        if points and now - points[-1].at_ms < self._section.interval_ms * 0.9:
            return
        points.append(point_of(shards, now))

    async def run(self) -> None:
        """Collect until cancelled."""
        turn = 0
        while True:
            await anyio.sleep(self._section.interval_ms / 1000)
            if turn % WORST_EVERY == 0:
                await self._take_worst()
            turn += 1
            await self._collect()

    async def _take_worst(self) -> None:
        """Keep a history of the groups that a person will look at next; half of the places are for them."""
        try:
            page = await self._fleet.groups(order=lag_pb.WORST, page_size=max(1, self._section.groups // 2))
        except AdapterError:
            return
        worst = [group.key for group in page.groups[: self._section.groups // 2]]
        for key in [key for key in self._kept if key not in self._looked_at and key not in worst]:
            del self._kept[key]
        for key in worst:
            if key not in self._kept and len(self._kept) < self._section.groups:
                self._kept[key] = deque(maxlen=self._section.points)
                self._kept.move_to_end(key, last=False)  # forgotten before those that somebody looks at

    async def _collect(self) -> None:
        limiter = anyio.CapacityLimiter(AT_ONCE)
        due = wall_ms() - self._section.interval_ms * 0.9

        async def one(key: Key) -> None:
            async with limiter:
                try:
                    found = await self._fleet.group(*key)
                except AdapterError:
                    return
            if found is not None and key in self._kept:
                self.note(key, found)

        async with anyio.create_task_group() as tasks:
            for key, points in list(self._kept.items()):
                if not points or points[-1].at_ms <= due:
                    tasks.start_soon(one, key)

    def _of(self, key: Key) -> deque[Point]:
        points = self._kept.get(key)
        if points is None:
            points = deque(maxlen=self._section.points)
            if self._section.groups:
                self._kept[key] = points
        elif key in self._kept:
            self._kept.move_to_end(key)
        self._forget()
        return points

    def _forget(self) -> None:
        while len(self._kept) > self._section.groups:
            key, _ = self._kept.popitem(last=False)
            self._looked_at.discard(key)


def point_of(shards: GroupShards, at_ms: int) -> Point:
    """The sums over the shards with a known end; none where an adapter did not tell, so that a part is not drawn as a fall."""
    known = [row.lag for row in shards.shards if row.lag.HasField("high_watermark")]
    if shards.missing or not known:
        return Point(at_ms, None, None)
    return Point(at_ms, sum(shard.offset for shard in known), sum(shard.high_watermark for shard in known))


class Drawing(NamedTuple):
    """The chart, with the paths of offset and end, and rows for the table."""

    chart: Chart
    rows: Sequence[Point]


def drawing(points: Sequence[Point], marks: Sequence[tuple[int, str]] = ()) -> Drawing | None:
    """Draw points; None for fewer than two known ones. `marks`: times in Unix milliseconds, with their texts."""
    made = chart([point.at_ms for point in points], [[point.offset for point in points], [point.end for point in points]], marks)
    if made is None:
        return None
    every = max(1, -(-len(points) // ROWS_SHOWN))
    return Drawing(made, list(points[::-1][::every]))
