"""The rules of lag: how far a consumer is behind, in messages and seconds, and whether it is in trouble. Pure; whole columns.

The live lag of an adapter and the Spark job `lag` judge by this module. Its input is in `lag_rows`. Everything is evaluated by
the commits of the window, oldest first, of the current era of epochs only: a reset, delete, clone or expiry begins a new one.

**Lag** is what can still be read: newest head - max(offset, low), at least 0; unknown without a head. `lost`: low - offset, at
least 0: messages that were gone before they were read.

**Two evaluations.** `burrow` is Burrow's (linkedin/Burrow ced55ba, core/internal/evaluator/caching.go, calculatePartitionStatus).
OK when the lag (of the last commit of the window) is unknown or at most the allowed one, or with fewer commits than the minimum.
Otherwise the first rule that holds:

1. STOP: now (in whole seconds) - last commit > last commit - first one, and no recent head is at or below the last offset.
2. REWIND: the first offset that is below its predecessor, and none from there on reaches that predecessor again.
3. OK: a recorded lag is at most the allowed one.
4. STALL: all offsets are equal.
5. WARN: each known lag is at least the known one before it.

`status` is our own, and never takes an unknown value for 0. OK when the lag is at most the allowed one, or with fewer commits
than the minimum. Otherwise the first rule that holds:

1. STOP: nothing was committed for longer than the window spans (at least window_points * point_distance_ms) *while there was
   something to read*: this time begins with the first head that is more than the allowed lag beyond the offset, if the heads
   reach back to before it, otherwise with the last commit. It ends at `settled`, up to which all commits are known: the journal
   of a broker may be late. A topic with one message a day is therefore not stopped.
2. REWIND: the last offset is below another one of the window. This rule also applies if the lag is unknown.
3. STALL: at least two recorded lags are known, none is at most the allowed one, and all offsets are equal.
4. WARN: at least two recorded lags are known, none is at most the allowed one, and they never decrease, or their trend rises: the
   line through them (least squares) rises over the window by a tenth of their mean or more. One decrease does not clear it.

**Lag in seconds** is how long ago the head was at the offset, by the rules of kafka-lag-exporter (LookupTable.scala,
MemoryTable): heads below an earlier one are left out, of equal ones in a row only the first and the last count; linear between
two heads. Before the first head it is extrapolated by the line through the first and the last, by at most EXTRAPOLATED_S: then
it means "at least". A rate of half an hour says nothing of more than a day, and a topic that got a single message in that time
would put a lag of months into sums, charts and thresholds; an objective for lag is shorter than a day.
"""

from dataclasses import dataclass
from enum import IntEnum

from adapter.model.lag_rows import Bools, Commits, Floats, Heads, Ints, LagSettings

# The farthest that lag in seconds is extrapolated beyond the first head.
EXTRAPOLATED_S = 86_400


class Status(IntEnum):
    """The state of a shard or group, from good to bad; the numbers of offsets.v1.LagStatus.

    The worst shard gives the group's state. REWIND is better than STALL: the consumer still works.
    """

    UNKNOWN = 0
    OK = 1
    WARN = 2
    REWIND = 3
    STALL = 4
    STOP = 5


# Burrow's status of a group: ERR for each of the last three.
BURROW_GROUP = {Status.OK: "OK", Status.WARN: "WARN", Status.REWIND: "ERR", Status.STALL: "ERR", Status.STOP: "ERR"}


@dataclass(frozen=True)
class Judgement:
    """What `judge` finds, an array of each, in the order of the rows. An unknown integer is -1, an unknown float NaN.

    `lag`: messages that can still be read. `lost`: messages that were gone before they were read; 0 if that is unknown.
    `lag_seconds`: see the module; 0 without lag. `commit_rate`, `produce_rate`: messages per second over the window, and over the
    heads; what is committed twice counts twice; the commit rate of a shard that is STOP is 0. `drain_seconds`: until the lag is 0
    at these rates; 0 without lag, NaN also if it never will be. `trend`: messages per second by which the lag grows: the line
    (least squares) through the lags at the commits, and the lag now at the time of the newest head if that is later.
    `status`, `burrow`: a Status, never UNKNOWN. `judged`: False if `status` is OK only because nothing is known that it could be
    judged by: without a head, or with lag but fewer commits than the minimum. `points`: commits of the window.
    """

    lag: Ints
    lost: Ints
    lag_seconds: Floats
    commit_rate: Floats
    produce_rate: Floats
    drain_seconds: Floats
    trend: Floats
    status: Ints
    burrow: Ints
    judged: Bools
    points: Ints

    @property
    def shown(self) -> Ints:
        """The `status`, but UNKNOWN where it is not judged: what a person is shown."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sums:
    """What `summed` finds, an array of each, by group. An unknown integer is -1, an unknown float NaN.

    `shards` of the group, and how many have a `known` lag. `lag` and `lost`: sums over what is known, at most 2**63 - 1.
    `lag_seconds`: the largest known. `commit_rate`, `produce_rate`, `trend`: sums over what is known. `drain_seconds`: of the
    slowest shard; NaN if one never drains or is unknown. `moving_lag`: the lag of the shards that are neither STALL nor STOP;
    unknown if none of them has a known one. `status`: the worst of its shards (`shown`: UNKNOWN only if all are); `burrow`: the
    same of Burrow's. `worst`: the row of the worst shard, which is the first of those with the worst status and the largest lag;
    -1 for a group without shards. `warn`, `rewind`, `stall`, `stop`: shards with this status. `last_commit`: the newest time of
    the shards' largest records, in microseconds.
    """

    shards: Ints
    known: Ints
    lag: Ints
    lost: Ints
    lag_seconds: Floats
    commit_rate: Floats
    produce_rate: Floats
    drain_seconds: Floats
    trend: Floats
    moving_lag: Ints
    status: Ints
    burrow: Ints
    worst: Ints
    warn: Ints
    rewind: Ints
    stall: Ints
    stop: Ints
    last_commit: Ints


def lag_now(offsets: Ints, highs: Ints, lows: Ints) -> Ints:
    """Messages that can still be read: high - max(offset, low), at least 0; -1 if `high` is -1. A low of -1 is unknown."""
    raise NotImplementedError


def judge(commits: Commits, heads: Heads, shards: Ints, now: int, settled: int, settings: LagSettings) -> Judgement:
    """Judge all rows of `commits`.

    `shards`: for each of them the row of its shard in `heads`; -1 if nothing is known of it. `now` and `settled` (see STOP) are
    microseconds; with all commits at hand, both are the same. Use `take` to judge some rows only. The duration is proportional to
    the rows; `python -m benchmarks lag_rules` measures it.
    """
    raise NotImplementedError


def summed(judged: Judgement, commits: Commits, groups: Ints, count: int) -> Sums:
    """The sums and the worst of each of `count` groups; `groups`: for each row the number of its group, 0 <= number < count."""
    raise NotImplementedError
