"""Lag in seconds by interpolation between heads (log end offsets), rates, and time to drain. Pure columns; null if unknown.

The rules for lag in seconds are those of kafka-lag-exporter (LookupTable.scala, MemoryTable). An unknown value is null, not NaN
or 0.
"""

from pyspark.sql import Column
from pyspark.sql import functions as sf

from adapter.pipeline.burrow import ascends, last
from adapter.pipeline.journal_rows import US_OF_SECOND


def rising(heads: Column) -> Column:
    """Heads (an array of (slot, t, high) in order of time) without those that are below an earlier one."""
    highs = heads["high"]
    return sf.when(ascends(highs), heads).otherwise(
        sf.filter(heads, lambda head, i: head["high"] >= sf.array_max(sf.slice(highs, sf.lit(1), i + 1)))
    )


def without_flat_runs(heads: Column) -> Column:
    """Rising heads; of consecutive equal ones only the first and the last."""
    highs = heads["high"]

    def is_end(head: Column, i: Column) -> Column:
        before = sf.get(highs, i - 1) == head["high"]
        after = sf.get(highs, i + 1) == head["high"]
        return ~sf.coalesce(before & after, sf.lit(col=False))

    return sf.filter(heads, is_end)


def lag_seconds(heads: Column, offset: Column, lag: Column, now: Column) -> Column:
    """How many seconds ago the head was at the offset. `heads`: a struct of the arrays `high` and `t`.

    0 if there is no lag; null if the lag is unknown, there are fewer than two heads, or all heads are equal. Interpolated
    linearly between two heads; before the first head extrapolated by the line through the first and the last. `now` in
    microseconds.
    """
    highs, times = heads["high"], heads["t"]
    count = sf.size(highs)
    below = sf.size(sf.filter(highs, lambda high: high <= offset))
    inside = (below > 0) & (below < count)
    left = sf.when(inside, below - 1).otherwise(0)
    right = sf.when(inside, below).otherwise(count - 1)
    ahead, behind = sf.get(highs, right), sf.get(highs, left)
    seconds = (sf.get(times, right) - sf.get(times, left)) / US_OF_SECOND
    back = (ahead - offset).cast("double") * seconds / sf.nullif((ahead - behind).cast("double"), sf.lit(0.0))
    since = (now - sf.get(times, right)) / US_OF_SECOND
    return sf.when(lag == 0, sf.lit(0.0)).when(lag.isNotNull() & (count > 1), since + back)


def unread_since(heads: Column, offset: Column, committed: Column, allowed: int) -> Column:
    """When more than the allowed lag was unread after the commit (at `committed`), in microseconds: rule STOP of `burrow`."""
    highs, times = heads["high"], heads["t"]
    read = sf.size(sf.filter(highs, lambda high: high - allowed <= offset))
    return sf.greatest(committed, sf.when(read > 0, sf.get(times, read)))


def consume_rate(offsets: Column, times: Column) -> Column:
    """Messages per second consumed from the first to the last commit, repeated ones included; null with a single commit."""
    places = sf.sequence(sf.lit(1), sf.size(offsets) - 1)

    def add(total: Column, i: Column) -> Column:
        return total + sf.greatest((sf.get(offsets, i) - sf.get(offsets, i - 1)).cast("double"), sf.lit(0.0))

    forward = (last(offsets) - sf.get(offsets, sf.lit(0))).cast("double")
    consumed = sf.when(ascends(offsets), forward).otherwise(sf.aggregate(places, sf.lit(0.0), add))
    return sf.when(sf.size(offsets) > 1, consumed / _span(times))


def produce_rate(heads: Column) -> Column:
    """Messages per second written between the first and the last head; null with a single head."""
    highs = heads["high"]
    produced = (last(highs) - sf.get(highs, sf.lit(0))).cast("double")
    return sf.when(sf.size(highs) > 1, produced / _span(heads["t"]))


def drain_seconds(lag: Column, consume: Column, produce: Column) -> Column:
    """Seconds until the lag is 0 at these rates: 0 without lag; null if it never will be, or a value is unknown."""
    return sf.when(lag == 0, sf.lit(0.0)).when(consume > produce, lag / (consume - produce))


def _span(times: Column) -> Column:
    return sf.nullif((last(times) - sf.get(times, sf.lit(0))) / US_OF_SECOND, sf.lit(0.0))
