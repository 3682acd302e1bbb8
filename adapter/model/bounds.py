"""Where shards begin and end, as brokers told with their commits. In memory and bounded: a hint that ages, not a record."""

from typing import NamedTuple


class ShardKey(NamedTuple):
    """A shard in its namespace, whoever reads it."""

    namespace: str
    shard: str


class Bounds(NamedTuple):
    """`low` is the first offset that can be read, `high` the one that the next message will get. `seen_at_ms` is Unix time."""

    low: int
    high: int
    seen_at_ms: int

    def lag(self, offset: int) -> int:
        """Messages between the next offset to read and the end."""
        return max(self.high - offset, 0)
