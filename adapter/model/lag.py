"""The rules of lag: how far a consumer is behind, in messages and seconds, and whether it is in trouble. Pure; whole columns.

The live lag of an adapter and the Spark job `lag` judge by this module. Its input is in `lag_rows`. Everything is evaluated by
the commits of the window, oldest first, of the current era of epochs only: a reset, delete, clone or expiry begins a new one.

**Lag** is what can still be read: the end - max(offset, low), at least 0; unknown without a head, and when the offset is beyond
the end (BEYOND). `lost`: low - offset, at least 0: messages that were gone before they were read.

**The end** is the largest head of the newest log. An end only grows, so one that falls is that of a log that was made anew, or
lost what it had: heads, and all that is computed of them, begin with it. Consumers tell what they saw last, though, and some saw
it a while ago: a head that is below an earlier one, but not below what the end was LATE_SLOTS slots before, is a late one, and
counts for nothing. Where logs have an identity, another one tells the same, whatever the end is (`Heads.anew`); commits to
the log before are not compared with it.

**Two evaluations.** `burrow` is Burrow's (linkedin/Burrow ced55ba, core/internal/evaluator/caching.go, calculatePartitionStatus).
OK when the lag (of the last commit of the window) is unknown or at most the allowed one, or with fewer commits than the minimum.
Otherwise the first rule that holds:

1. STOP: now (in whole seconds) - last commit > last commit - first one, and no recent head is at or below the last offset.
2. REWIND: the first offset that is below its predecessor, and none from there on reaches that predecessor again.
3. OK: a recorded lag is at most the allowed one.
4. STALL: all offsets are equal.
5. WARN: each known lag is at least the known one before it.

`status` is our own, and never takes an unknown value for 0. OK when the lag is at most the allowed one. Otherwise the first rule
that holds; with fewer commits than the minimum, only the first two:

0. BEYOND: the offset is beyond the end of its log, by a head that was told LATE_MS after the commit or later, or of a log that
   began after it; or it was committed to a log that was replaced by another one. All commits of the consumer are below it, and
   change nothing. It comes before all others, also without lag.
1. STOP: nothing was committed for longer than the window spans (at least window_points * point_distance_ms) *while there was
   something to read*: this time begins with the first head that is more than the allowed lag beyond the offset, if the heads
   reach back to before it, otherwise with the last commit; but not before `watched`, from which on all commits are known: while
   an adapter is away, nobody can commit to it. It ends at `settled`, up to which all commits are known: the journal of a broker
   may be late. A topic with one message a day is therefore not stopped. One commit is enough: the offset that is stored.
2. REWIND: the last offset is below another one of the window. This rule also applies if the lag is unknown.
3. STALL: at least two recorded lags are known, none is at most the allowed one, and all offsets are equal.
4. WARN: at least two recorded lags are known, none is at most the allowed one, and they never decrease, or have grown: the mean
   of their later half is above that of their earlier half by GREW times the standard error of the two or more. A shard that was
   WARN before stays so while the later mean is above the earlier one at all: a lag that grows unevenly, as in steps or between
   two looks at the log's end, does not alternate between WARN and OK. A single threshold alternates; one that is a part of the
   lags' mean does not see a large lag grow.

**Lag in seconds** is how long ago the head was at the offset, by the rules of kafka-lag-exporter (LookupTable.scala,
MemoryTable): heads below an earlier one are left out, of equal ones in a row only the first and the last count; linear between
two heads. Before the first head it is extrapolated by the line through the first and the last, by at most EXTRAPOLATED times
the span of the two: then it means "at least". What was seen for some minutes
says nothing of the day before, and a topic that got a single message in that time would put a lag of months into sums, charts and
thresholds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from adapter.model.bounds import LATE_MS
from adapter.model.lag_rows import UNKNOWN, US_OF_MS, Bools, Commits, Floats, Heads, Ints, LagSettings
from adapter.model.lag_status import BY_SEVERITY, Status, severity
from adapter.model.records import ERA_BITS, LONG_MAX

US_OF_SECOND = 1_000_000
# Lag in seconds is extrapolated beyond the first head by at most so many times the span of the heads.
EXTRAPOLATED = 10
# Rows that are judged at a time, so that their matrices stay in the processor's cache.
_BLOCK = 4_096
_KNOWN_LEAST = 2
LATE_SLOTS = 3
GREW = 2
# How bad each status is, by its number.
SEVERITIES = np.array([severity(status) for status in Status])
_BY_SEVERITY = np.array(BY_SEVERITY)


# Burrow's status of a group: ERR for each of the last three.
BURROW_GROUP = {Status.OK: "OK", Status.WARN: "WARN", Status.REWIND: "ERR", Status.STALL: "ERR", Status.STOP: "ERR"}


@dataclass(frozen=True)
class Past:
    """What is known of rows beside their commits: `watched` (see STOP), in microseconds, and whether each was WARN before."""

    watched: Ints
    warned: Bools


@dataclass(frozen=True)
class Judgement:
    """What `judge` finds, an array of each, in the order of the rows. An unknown integer is -1, an unknown float NaN.

    `end`: of the log, by which lag is counted. `lag`: messages that can still be read. `lost`: messages that were gone before
    they were read; 0 if that is unknown.
    `lag_seconds`: see the module; 0 without lag. `commit_rate`, `produce_rate`: messages per second over the window, and over the
    heads; what is committed twice counts twice; the commit rate of a shard that is STOP is 0. `drain_seconds`: until the lag is 0
    at these rates; 0 without lag, NaN also if it never will be. `trend`: messages per second by which the lag grows: the slope
    of the line (least squares) through the lags at the commits; of a shard that is STOP, also through the lag now, at the time of
    the newest head.
    `status`, `burrow`: a Status, never UNKNOWN. `judged`: False if `status` is OK only because nothing is known that it could be
    judged by: without a head, or with lag but fewer commits than the minimum, the last not long ago. `points`:
    commits of the window.
    """

    end: Ints
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
        return np.where(self.judged, self.status, Status.UNKNOWN)


@dataclass(frozen=True)
class Sums:
    """What `summed` finds, an array of each, by group. An unknown integer is -1, an unknown float NaN.

    `shards` of the group, and how many have a `known` lag. `lag` and `lost`: sums over what is known, at most 2**63 - 1.
    `lag_seconds`: the largest known. `commit_rate`, `produce_rate`, `trend`: sums over what is known. `drain_seconds`: of the
    slowest shard; NaN if one never drains or is unknown. `moving_lag`: the lag of the shards that are neither STALL nor STOP;
    unknown if none of them has a known one. `status`: the worst of its shards (`shown`); `burrow`: the same of Burrow's. `worst`:
    the row of the worst shard, which is the first of those with the worst status and the largest lag; -1 for a group without
    shards. `warn`, `rewind`, `stall`, `stop`, `beyond`: shards with this status. `last_commit`: the newest time of the shards'
    largest records, in microseconds.
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
    beyond: Ints
    last_commit: Ints


def lag_now(offsets: Ints, highs: Ints, lows: Ints) -> Ints:
    """Messages that can still be read: high - max(offset, low), at least 0; -1 if `high` or `offset` is -1, unknown."""
    known = (highs >= 0) & (offsets >= 0)
    return np.where(known, np.maximum(highs - np.maximum(offsets, lows), 0), UNKNOWN)


def judge(
    commits: Commits, heads: Heads, shards: Ints, now: int, settled: int, settings: LagSettings, past: Past | None = None
) -> Judgement:
    """Judge all rows of `commits`.

    `shards`: for each of them the row of its shard in `heads`; -1 if nothing is known of it. `now` and `settled` (see STOP) are
    microseconds; with all commits at hand, both are the same. `past`: what is known of the rows beside their commits. Use `take`
    to judge some rows only. The duration is proportional to the rows; `python -m benchmarks lag_rules` measures it.
    """
    rows = len(commits.counts)
    past = past or Past(np.zeros(rows, np.int64), np.zeros(rows, np.bool_))
    if rows <= _BLOCK:
        return _judged(commits, heads, shards, past, now, settled, settings)
    parts = []
    for begin in range(0, rows, _BLOCK):
        some = np.arange(begin, min(begin + _BLOCK, rows))
        some_past = Past(past.watched[some], past.warned[some])
        parts.append(_judged(commits.take(some), heads, shards[some], some_past, now, settled, settings))
    return Judgement(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Judgement)))


def summed(judged: Judgement, commits: Commits, groups: Ints, count: int) -> Sums:
    """The sums and the worst of each of `count` groups; `groups`: for each row the number of its group, 0 <= number < count."""
    severities = SEVERITIES[judged.shown]
    order = np.lexsort((-judged.lag, -severities, groups))
    begins = np.searchsorted(groups[order], np.arange(count))
    found = np.diff(np.append(begins, len(order))) > 0
    worst = np.full(count, UNKNOWN)
    worst[found] = order[begins[found]]
    known = judged.lag >= 0
    moving = known & (judged.status < Status.STALL)

    def number(mask: Bools) -> Ints:
        return np.bincount(groups[mask], minlength=count)

    def total(values: Floats) -> Floats:
        some = ~np.isnan(values)
        return np.where(number(some) > 0, np.bincount(groups[some], values[some], count), np.nan)

    def longest(values: Floats) -> Floats:
        largest: Floats = np.full(count, np.nan)
        np.fmax.at(largest, groups, values)
        return largest

    def most(values: Ints, none: int) -> Ints:
        largest: Ints = np.full(count, none, np.int64)
        np.maximum.at(largest, groups, values)
        return largest

    def whole(values: Ints, mask: Bools) -> Ints:
        """The sum, at most LONG_MAX: of the upper and the lower halves, so that none of them overflows."""
        upper, lower = np.zeros(count, np.int64), np.zeros(count, np.int64)
        np.add.at(upper, groups[mask], values[mask] >> 32)
        np.add.at(lower, groups[mask], values[mask] & 0xFFFF_FFFF)
        upper += lower >> 32
        return np.where(upper >> 31 > 0, LONG_MAX, (np.minimum(upper, 2**31 - 1) << 32) | (lower & 0xFFFF_FFFF))

    of_all = number(np.ones(len(groups), np.bool_))
    return Sums(
        shards=of_all,
        known=number(known),
        lag=np.where(number(known) > 0, whole(judged.lag, known), UNKNOWN),
        lost=whole(judged.lost, judged.lost > 0),
        lag_seconds=longest(judged.lag_seconds),
        commit_rate=total(judged.commit_rate),
        produce_rate=total(judged.produce_rate),
        drain_seconds=np.where(number(~np.isnan(judged.drain_seconds)) == of_all, longest(judged.drain_seconds), np.nan),
        trend=total(judged.trend),
        moving_lag=np.where(number(moving) > 0, whole(judged.lag, moving), UNKNOWN),
        status=np.where(of_all > 0, _BY_SEVERITY[most(severities, 0)], Status.UNKNOWN),
        burrow=most(judged.burrow, Status.UNKNOWN),
        worst=worst,
        warn=number(judged.status == Status.WARN),
        rewind=number(judged.status == Status.REWIND),
        stall=number(judged.status == Status.STALL),
        stop=number(judged.status == Status.STOP),
        beyond=number(judged.status == Status.BEYOND),
        last_commit=most(commits.top_times, UNKNOWN),
    )


def _judged(commits: Commits, heads: Heads, shards: Ints, past: Past, now: int, settled: int, settings: LagSettings) -> Judgement:
    lines = _Lines(heads, shards, settings.window_points)
    window = _Window(commits, lines.anew)
    allowed = settings.allowed_lag
    place = np.maximum(commits.top_offsets, lines.lows)
    told_later = lines.newest_time - commits.top_times > LATE_MS * US_OF_MS
    beyond = (lines.newest >= 0) & (commits.top_offsets > lines.newest) & (told_later | (lines.began > commits.top_times))
    beyond |= (lines.anew >= 0) & (lines.anew >= commits.top_times)
    lag = np.where(beyond, UNKNOWN, lag_now(commits.top_offsets, lines.newest, lines.lows))
    lost = np.where((lines.lows >= 0) & (commits.top_offsets >= 0), np.maximum(lines.lows - commits.top_offsets, 0), 0)
    few = window.counts < settings.minimum_points
    stopped = _silent(window, lines, lag, settled, past.watched, settings)
    rules = [beyond, stopped, ((lag >= 0) & (lag <= allowed)) | few]
    status = np.select(rules, [Status.BEYOND, Status.STOP, Status.OK], _status(window, lag, allowed, past.warned))
    last_lag = lag_now(np.where(window.counts > 0, window.last_offset, UNKNOWN), lines.newest, lines.lows)
    burrow = np.where((last_lag <= allowed) | few, Status.OK, _burrow(window, lines, now, allowed))
    rate = window.rate()
    rate = np.where(stopped & ~np.isnan(rate), 0.0, rate)
    produced = lines.rate()
    with np.errstate(divide="ignore", invalid="ignore"):
        drain = np.where(rate > produced, lag / (rate - produced), np.nan)
    judged = ((lag >= 0) & ((lag <= allowed) | ~few)) | (status == Status.REWIND) | stopped | beyond
    return Judgement(
        end=lines.newest,
        lag=lag,
        lost=lost,
        lag_seconds=np.where(lag == 0, 0.0, np.where(lag > 0, lines.seconds_since(place, now), np.nan)),
        commit_rate=rate,
        produce_rate=produced,
        drain_seconds=np.where(lag == 0, 0.0, np.where(lag > 0, drain, np.nan)),
        trend=window.trend(np.where(stopped, lag, UNKNOWN), lines.newest_time),
        status=status,
        burrow=burrow,
        judged=judged,
        points=window.counts,
    )


def _burrow(window: "_Window", lines: "_Lines", now: int, allowed: int) -> Ints:
    now_ms = now // US_OF_SECOND * 1_000
    first_ms, last_ms = window.first_time // US_OF_MS, window.last_time // US_OF_MS
    silent = (now_ms - last_ms > last_ms - first_ms) & (lines.lowest_recent > window.last_offset)
    small = (window.lag_counts > 0) & (window.least_lag <= allowed)
    rules = [silent, window.went_back_for_good(), small, window.flat, window.lags_ascend]
    return np.select(rules, [Status.STOP, Status.REWIND, Status.OK, Status.STALL, Status.WARN], Status.OK)


def _silent(window: "_Window", lines: "_Lines", lag: Ints, settled: int, watched: Ints, settings: LagSettings) -> Bools:
    """The rule STOP of `status`."""
    least_us = settings.window_points * settings.point_distance_ms * US_OF_MS
    span = np.maximum(window.last_time - window.first_time, least_us)
    since = np.maximum(lines.unread_since(window.last_offset, window.last_time, settings.allowed_lag), watched)
    silent: Bools = (window.counts > 0) & (lag > settings.allowed_lag) & (settled - since > span)
    return silent


def _status(window: "_Window", lag: Ints, allowed: int, warned: Bools) -> Ints:
    """The rules of `status` behind STOP."""
    backlog = (lag >= 0) & (window.lag_counts >= _KNOWN_LEAST) & (window.least_lag > allowed)
    rules = [window.last_offset < window.largest_offset, ~backlog, window.flat, window.lags_ascend | window.lags_grew(warned)]
    return np.select(rules, [Status.REWIND, Status.OK, Status.STALL, Status.WARN], Status.OK)


class _Window:
    """The commits of the current era to the log as it is now, left-aligned. Values of empty rows have no meaning."""

    def __init__(self, commits: Commits, anew: Ints) -> None:
        era = commits.top_epochs >> ERA_BITS
        current = _filled(commits.counts, commits.times.shape[1])
        current &= (commits.offsets >= 0) & (commits.epochs >> ERA_BITS == era[:, None])
        current &= commits.times > anew[:, None]
        self.counts, (self.times, self.offsets, lags) = _left_aligned(current, (commits.times, commits.offsets, commits.lags))
        self._there = _filled(self.counts, self.times.shape[1])
        known = self._there & (lags >= 0)
        self.lag_counts, (self.lags, self._lag_times) = _left_aligned(known, (lags, self.times))
        self._known = _filled(self.lag_counts, self.lags.shape[1])
        self.first_time, self.last_time = self.times[:, 0], _at(self.times, self.counts - 1)
        self.last_offset = _at(self.offsets, self.counts - 1)
        self.largest_offset = np.where(self._there, self.offsets, UNKNOWN).max(1)
        self.flat = np.where(self._there, self.offsets, LONG_MAX).min(1) == self.largest_offset
        self.least_lag = np.where(self._known, self.lags, LONG_MAX).min(1)
        self.lags_ascend = ~_descents(self.lags, self._known).any(1)

    def went_back_for_good(self) -> Bools:
        """Burrow's REWIND."""
        descents = _descents(self.offsets, self._there)
        at = descents.argmax(1) + 1
        columns = np.arange(self.offsets.shape[1])
        after = np.where(self._there & (columns >= at[:, None]), self.offsets, UNKNOWN).max(1)
        back: Bools = descents.any(1) & (after < _at(self.offsets, at - 1))
        return back

    def lags_grew(self, before: Bools) -> Bools:
        """Whether the later half of the known lags is above the earlier half: clearly, or at all where it grew before."""
        counts, columns = self.lag_counts[:, None], np.arange(self.lags.shape[1])
        half = counts // 2
        # What all lags have in common is left out, so that large ones lose no digits.
        above = np.where(self._known, self.lags - self.least_lag[:, None], 0).astype(np.float64)
        n, spread, sums = half[:, 0], np.zeros(len(half)), []
        for mask in (columns < half, (columns >= counts - half) & (columns < counts)):
            total = (above * mask).sum(1)
            sums.append(total)
            spread += n * (above * above * mask).sum(1) - total * total
        rise = sums[1] - sums[0]
        # With the means' difference rise / n, and its squared error spread / n**3.
        grew: Bools = (n >= _KNOWN_LEAST) & (rise > 0) & (before | (rise * rise * n >= GREW * GREW * spread))
        return grew

    def rate(self) -> Floats:
        """Messages per second from the first to the last commit, repeated ones included; NaN with a single time."""
        steps = np.where(self._there[:, 1:], np.maximum(np.diff(self.offsets, axis=1), 0), 0).astype(np.float64)
        return _per_second(steps.sum(1), self.first_time, self.last_time, self.counts)

    def trend(self, lag: Ints, time: Ints) -> Floats:
        """The slope of the line through the known lags, and through `lag` at `time` where it is known and later."""
        also = (lag >= 0) & (time > self.last_time)
        lags = np.column_stack((np.where(self._known, self.lags, 0), lag))
        times = np.column_stack((np.where(self._known, self._lag_times, 0), time))
        there = np.column_stack((self._known, also))
        n = np.maximum(there.sum(1), 1)
        # From the first one on, as integers: so large values lose no digits.
        first = there.argmax(1)
        rises = np.where(there, lags - _at(lags, first)[:, None], 0).astype(np.float64)
        seconds = np.where(there, times - _at(times, first)[:, None], 0) / US_OF_SECOND
        late = np.where(there, seconds - (seconds.sum(1) / n)[:, None], 0.0)
        several = there.any(1) & (seconds.max(1) > seconds.min(1))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(several, (late * rises).sum(1) / (late * late).sum(1), np.nan)


class _Lines:
    """The heads of each row's newest log: those that never fall, of equal ones in a row only the first and the last.

    `newest`: the largest of them; `newest_time`: when the last head was told, a late one too. `began`: when the log was seen
    first, if it came after another one by its end; else -1. `anew`: as of the heads.
    """

    def __init__(self, heads: Heads, shards: Ints, recent: int) -> None:
        if not len(heads.counts):
            heads = Heads.empty(1, LagSettings())
        used, which = np.unique(np.maximum(shards, 0), return_inverse=True)
        heads = heads.take(used)
        some = (heads.counts[which] > 0) & (shards >= 0)
        first, there = _newest_log(heads)
        self.began = np.where(some & (first > 0)[which], _at(heads.times, first)[which], UNKNOWN)
        self.anew = np.where(shards >= 0, heads.anew[which], UNKNOWN)
        self.newest_time = np.where(some, _at(heads.times, heads.counts - 1)[which], UNKNOWN)
        self.lows = np.where(shards >= 0, heads.lows[which], UNKNOWN)
        late = there & (np.arange(heads.times.shape[1]) >= heads.counts[:, None] - recent)
        self.lowest_recent = np.where(some, np.where(late, heads.highs, LONG_MAX).min(1)[which], LONG_MAX)
        rising = there & (heads.highs >= np.maximum.accumulate(np.where(there, heads.highs, UNKNOWN), 1))
        counts, (highs, times) = _left_aligned(rising, (heads.highs, heads.times))
        self.newest = np.where(some, _at(highs, counts - 1)[which], UNKNOWN)
        there = _filled(counts, highs.shape[1])
        inner = there[:, 2:] & (highs[:, 2:] == highs[:, 1:-1]) & (highs[:, 1:-1] == highs[:, :-2])
        there[:, 1:-1] &= ~inner
        counts, (highs, times) = _left_aligned(there, (highs, times))
        produced = (_at(highs, counts - 1) - highs[:, 0]).astype(np.float64)
        self._rate = np.where(some, _per_second(produced, times[:, 0], _at(times, counts - 1), counts)[which], np.nan)
        self._counts, self._highs, self._times = np.where(some, counts[which], 0), highs[which], times[which]
        self._there = _filled(self._counts, highs.shape[1])

    def rate(self) -> Floats:
        """Messages per second written between the first and the last head; NaN with a single time."""
        return self._rate

    def seconds_since(self, place: Ints, now: int) -> Floats:
        """How many seconds ago the head was at an offset; NaN with fewer than two heads, or if all are equal."""
        below = ((self._highs <= place[:, None]) & self._there).sum(1)
        inside = (below > 0) & (below < self._counts)
        left, right = np.where(inside, below - 1, 0), np.where(inside, below, self._counts - 1)
        ahead, until = _at(self._highs, right), _at(self._times, right)
        gap = ahead - _at(self._highs, left)
        took = (until - _at(self._times, left)) / US_OF_SECOND
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds = (now - until) / US_OF_SECOND + (ahead - place) * took / gap
        first, span = self._times[:, 0], _at(self._times, self._counts - 1) - self._times[:, 0]
        most = np.where(below == 0, (now - first + EXTRAPOLATED * span) / US_OF_SECOND, np.inf)
        return np.where((self._counts > 1) & (gap > 0), np.clip(seconds, 0.0, most), np.nan)

    def unread_since(self, offsets: Ints, committed: Ints, allowed: int) -> Ints:
        """When more than the allowed lag was unread after the commit: rule STOP of `status`."""
        read = ((self._highs - allowed <= offsets[:, None]) & self._there).sum(1)
        began = (read > 0) & (read < self._counts)
        return np.where(began, np.maximum(_at(self._times, read), committed), committed)


def _newest_log(heads: Heads) -> tuple[Ints, Bools]:
    """Where the newest log of each row begins, and which heads are of it."""
    highs, columns = heads.highs, np.arange(heads.highs.shape[1])
    there = _filled(heads.counts, len(columns))
    first = np.zeros(len(highs), np.int64)
    fallen = np.flatnonzero((_descents(highs, there)).any(1))
    if not len(fallen):
        return first, there
    begins, peaks, rows = first[fallen], highs[fallen], np.arange(len(fallen))
    for at in range(1, len(columns)):
        before = peaks[rows, np.maximum(at - LATE_SLOTS, begins)]
        new = there[fallen, at] & (peaks[:, at] < before)
        begins[new] = at
        peaks[:, at] = np.where(new, peaks[:, at], np.maximum(peaks[:, at], peaks[:, at - 1]))
    first[fallen] = begins
    return first, there & (columns >= first[:, None])


def _filled(counts: Ints, width: int) -> Bools:
    """Which places of left-aligned rows are in use."""
    filled: Bools = np.arange(width) < counts[:, None]
    return filled


def _at(matrix: Ints, places: Ints) -> Ints:
    """The value at a place of each row; of an empty row any."""
    return matrix[np.arange(len(matrix)), np.clip(places, 0, matrix.shape[1] - 1)]


def _left_aligned(mask: Bools, matrices: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """What is in the mask, left-aligned and in order, and its counts. The matrices are as wide as the longest row, at least 2."""
    counts: Ints = mask.sum(1)
    width = max(int(counts.max(initial=0)), 2)
    if (mask == _filled(counts, mask.shape[1])).all():
        return counts, [matrix[:, :width] for matrix in matrices]
    order = np.argsort(~mask, axis=1, kind="stable")[:, :width]
    return counts, [np.take_along_axis(matrix, order, 1) for matrix in matrices]


def _descents(matrix: Ints, there: Bools) -> Bools:
    """For each place but the last: whether the value after it is smaller."""
    descents: Bools = (matrix[:, 1:] < matrix[:, :-1]) & there[:, 1:]
    return descents


def _per_second(amount: Floats, begin: Ints, end: Ints, counts: Ints) -> Floats:
    several = (counts > 1) & (end > begin)
    return np.where(several, amount * US_OF_SECOND / np.where(several, end - begin, 1), np.nan)
