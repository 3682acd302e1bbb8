"""The first and end offset of a shard's log, as brokers report them with commits. Values only."""

from typing import NamedTuple

# An end that was told within this time after a commit may still be from before it.
LATE_MS = 1_000


class ShardKey(NamedTuple):
    """A shard in its namespace, independent of any consumer group."""

    namespace: str
    shard: str


class Bounds(NamedTuple):
    """`low`: first readable offset. `high`: offset of the next message. `seen_at_ms`: Unix time of the report.

    `log_id`: another text when the log was made anew; empty if nobody tells it.
    """

    low: int
    high: int
    seen_at_ms: int
    log_id: str = ""

    def end_before(self, offset: int, committed_at_ms: int) -> bool:
        """Whether an offset is beyond the end of its log: the rule BEYOND of `adapter.model.lag`, with these bounds alone."""
        return offset > self.high and self.seen_at_ms - committed_at_ms > LATE_MS

    def lag(self, offset: int) -> int:
        """The messages that can still be read from `offset` (the next to read) on; never negative.

        What lies between `offset` and `low` is gone, and no lag: the rule of `adapter.model.lag`.
        """
        return max(self.high - max(offset, self.low), 0)
