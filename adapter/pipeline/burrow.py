"""Two evaluations of a shard's last commits: `burrow` by Burrow's rules, `status` by our own. Pure Spark columns.

Both evaluate the commits of the window, oldest first, the known heads (log end offsets), and the current lag: the newest head
minus the offset, at least 0, null if no head is known. `status` never treats an unknown value as 0.

`burrow` (linkedin/Burrow ced55ba, core/internal/evaluator/caching.go, calculatePartitionStatus). OK when the lag is unknown or at
most the allowed one, or with fewer commits than the minimum. Otherwise the first rule that holds:

1. STOP: now (in whole seconds) - last commit > last commit - first one, and no recent head is at or below the last offset.
2. REWIND: the first offset that is below its predecessor, and none from there on reaches that predecessor again.
3. STALL: no recorded lag is at most the allowed one, and all offsets are equal.
4. WARN: no recorded lag is at most the allowed one, and each known one is at least the known one before it.

`status`. OK when the lag is at most the allowed one, or with fewer commits than the minimum. Otherwise the first rule that holds:

1. STOP: nothing was committed for longer than the window spans (at least window_points * point_distance_ms) *while there was
   something to read*: this time begins with the first head that is more than the allowed lag beyond the offset, if the heads
   reach back to before it, otherwise with the last commit. It ends at `settled`, up to which all live brokers' journals are read,
   so that a late journal does not count. A topic with one message a day is therefore not stopped.
2. REWIND: the last offset is below another one of the window. This rule also applies if the lag is unknown.
3. STALL: at least two recorded lags are known, none is at most the allowed one, and all offsets are equal.
4. WARN: at least two recorded lags are known, none is at most the allowed one, and they never decrease, or their trend rises: the
   line through them (least squares) rises over the window by a tenth of their mean or more. One decrease does not clear it.

A reset, delete, clone or expiry begins a new era of epochs; only commits of the current era are evaluated.
"""

from pyspark.sql import Column
from pyspark.sql import functions as sf

from adapter.pipeline.journal_rows import US_OF_MS, US_OF_SECOND

# From good to bad: the worst shard gives the group's status. REWIND is better than STOP: the consumer still works.
SEVERITY = ("OK", "WARN", "REWIND", "STALL", "STOP")
# Burrow's status of a group: ERR for each of the last three.
BURROW_GROUP = {"OK": "OK", "WARN": "WARN", "REWIND": "ERR", "STALL": "ERR", "STOP": "ERR"}

_KNOWN_LEAST = 2
_RISE_OF_MEAN = 10  # a tenth


def burrow(
    offsets: Column, times: Column, lags: Column, lag: Column, lowest_recent_head: Column, now: Column, minimum: int, allowed: int
) -> Column:
    """Burrow's status. `offsets`, `times` (microseconds) and `lags` (known ones) belong to the same commits, oldest first."""
    now_ms = sf.floor(now / US_OF_SECOND) * 1_000
    first_ms, last_ms = sf.floor(sf.get(times, sf.lit(0)) / US_OF_MS), sf.floor(last(times) / US_OF_MS)
    stopped = (now_ms - last_ms > last_ms - first_ms) & ~(lowest_recent_head <= last(offsets))
    return (
        sf.when(sf.coalesce(lag <= allowed, sf.lit(col=True)) | (sf.size(offsets) < minimum), "OK")
        .when(stopped, "STOP")
        .when(_first_rewind_persists(offsets), "REWIND")
        .when(sf.array_min(lags) <= allowed, "OK")
        .when(sf.array_min(offsets) == sf.array_max(offsets), "STALL")
        .when(ascends(lags), "WARN")
        .otherwise("OK")
    )


def status(
    offsets: Column,
    times: Column,
    lags: Column,
    lag: Column,
    unread_since: Column,
    settled: Column,
    minimum: int,
    allowed: int,
    least_us: int,
) -> Column:
    """Our status. `unread_since`: when messages were unread after the last commit; null if unknown. Times in microseconds."""
    span = sf.greatest(last(times) - sf.get(times, sf.lit(0)), sf.lit(least_us).cast("long"))
    backlog = (sf.size(lags) >= _KNOWN_LEAST) & (sf.array_min(lags) > allowed)
    return (
        sf.when((lag <= allowed) | (sf.size(offsets) < minimum), "OK")
        .when(lag.isNotNull() & (settled - unread_since > span), "STOP")
        .when(last(offsets) < sf.array_max(offsets), "REWIND")
        .when(lag.isNull() | ~backlog, "OK")
        .when(sf.array_min(offsets) == sf.array_max(offsets), "STALL")
        .when(ascends(lags), "WARN")
        .when(_rises(lags), "WARN")
        .otherwise("OK")
    )


def severity(name: Column) -> Column:
    """The index of a status in SEVERITY."""
    return sf.array_position(sf.array(*map(sf.lit, SEVERITY)), name).cast("int") - 1


def severity_name(level: Column) -> Column:
    """The status at an index in SEVERITY."""
    return sf.get(sf.array(*map(sf.lit, SEVERITY)), level)


def burrow_group_name(level: Column) -> Column:
    """Burrow's status of a group whose worst shard has the status at this index in SEVERITY."""
    return sf.get(sf.array(*(sf.lit(BURROW_GROUP[name]) for name in SEVERITY)), level)


def last(values: Column) -> Column:
    """The last element of an array; null if it is empty."""
    return sf.get(values, sf.size(values) - 1)


def ascends(values: Column) -> Column:
    """Whether an array is sorted in ascending order."""
    return values == sf.sort_array(values)


def _first_rewind_persists(offsets: Column) -> Column:
    places = sf.sequence(sf.lit(1), sf.size(offsets) - 1)
    descents = sf.filter(places, lambda i: sf.get(offsets, i) < sf.get(offsets, i - 1))
    at = sf.get(descents, sf.lit(0))
    recovered = sf.array_max(sf.slice(offsets, at + 1, sf.size(offsets))) >= sf.get(offsets, at - 1)
    return sf.when(ascends(offsets), sf.lit(col=False)).otherwise(~recovered)


def _rises(lags: Column) -> Column:
    """Whether the least squares line rises by a tenth of the mean: 6 * sum((2i - (n - 1)) * lag) / (n + 1) >= sum(lag) / 10."""
    n = sf.size(lags)
    zero = sf.lit(0.0)
    slopes = sf.transform(lags, lambda lag, i: lag.cast("double") * (2 * i - (n - 1)))
    rise = sf.aggregate(slopes, zero, lambda total, value: total + value)
    total = sf.aggregate(lags, zero, lambda total, lag: total + lag.cast("double"))
    return rise * (6 * _RISE_OF_MEAN) >= total * (n + 1)
