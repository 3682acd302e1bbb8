"""The newest bounds (low and high watermark) of each shard, as commits reported them. Bounded; kept in memory only."""

from collections import OrderedDict
from collections.abc import Mapping

from adapter.model.bounds import Bounds, ShardKey

MAX_SHARDS = 100_000  # about 40 MB; a broker with more should serve BrokerLog
_MARK = ShardKey("", "")  # among the shards, behind those that were reported before the last `news`; no name is empty
_NOTHING = Bounds(0, 0, 0)


class ReportedBounds:
    """The newest bounds of each shard, up to `max_shards`; the shard that was reported longest ago leaves first."""

    def __init__(self, max_shards: int = MAX_SHARDS) -> None:
        self._max_shards = max_shards
        self._bounds: OrderedDict[ShardKey, Bounds] = OrderedDict()

    def note(self, found: Mapping[ShardKey, Bounds]) -> None:
        """Record bounds from a commit."""
        for shard, bounds in found.items():
            self._bounds[shard] = bounds
            self._bounds.move_to_end(shard)
        while len(self._bounds) > self._max_shards + (_MARK in self._bounds):
            self._bounds.popitem(last=False)

    def news(self) -> list[tuple[ShardKey, Bounds]]:
        """What was reported since the last call, the newest first. For one caller."""
        found = list(iter(reversed(self._bounds.items()).__next__, (_MARK, _NOTHING)))
        self._bounds[_MARK] = _NOTHING
        self._bounds.move_to_end(_MARK)
        return found

    def get(self, shard: ShardKey) -> Bounds | None:
        """The bounds that were reported last; None if there are none."""
        return self._bounds.get(shard)
