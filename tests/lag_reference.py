"""The rules of lag in plain Python, exact, one shard at a time; written from the text in adapter/model/lag.py, not its code."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

SECOND = 1_000_000  # microseconds
EXTRAPOLATED = 10
GREW = 2
LATE = SECOND  # after a commit, an end may still be from before it
LATE_SLOTS = 3


class Commit(NamedTuple):
    """A commit. `lag`: at its time, None if unknown. `offset` -1: a tombstone."""

    time: int
    offset: int
    lag: int | None
    epoch: int = 0


class Head(NamedTuple):
    """The end of a shard's log, at a time."""

    time: int
    high: int


@dataclass(frozen=True)
class Rules:
    """The settings that the rules depend on. `least`: the least span of the window, in microseconds."""

    minimum: int
    allowed: int
    least: int
    recent_heads: int


@dataclass(frozen=True)
class History:
    """What is known of a shard, oldest first; times in microseconds. `top`: the epoch and offset of its largest record."""

    commits: Sequence[Commit]
    heads: Sequence[Head]
    now: int
    settled: int
    top: tuple[int, int]
    low: int | None = None
    watched: int = 0
    warned: bool = False
    anew: int = -1

    @property
    def window(self) -> list[Commit]:
        """The commits of the current era."""
        era = self.top[0] // 2**32
        return [one for one in self.commits if one.offset >= 0 and one.epoch // 2**32 == era and one.time > self.anew]

    @property
    def log(self) -> list[Head]:
        """The heads of the newest log."""
        log: list[Head] = []
        for head in self.heads:
            earlier = log[: max(len(log) - LATE_SLOTS + 1, 1)]
            if log and head.high < max(one.high for one in earlier):
                log = []
            log.append(head)
        return log

    @property
    def end(self) -> int | None:
        """Where the log ends."""
        return max(head.high for head in self.log) if self.heads else None

    @property
    def top_time(self) -> int:
        """When the largest record was committed."""
        return max((one.time for one in self.commits), default=-1)

    @property
    def beyond(self) -> bool:
        """Whether its offset is beyond the end of its log."""
        if self.anew >= max(self.top_time, 0):
            return True
        if self.end is None or self.top[1] <= self.end:
            return False
        began = self.log[0].time if len(self.log) < len(self.heads) else -1
        return self.heads[-1].time - self.top_time > LATE or began > self.top_time

    @property
    def lag(self) -> int | None:
        """What can still be read."""
        return None if self.beyond else self.lag_of(self.top[1])

    @property
    def place(self) -> int:
        """The first offset that will be read."""
        return max(self.top[1], self.low or 0)

    @property
    def lost(self) -> int:
        """What was gone before it was read."""
        return max((self.low or 0) - self.top[1], 0) if self.top[1] >= 0 else 0

    def lag_of(self, offset: int) -> int | None:
        """What could still be read from an offset on."""
        if self.end is None or offset < 0:
            return None
        return max(0, self.end - max(offset, self.low or 0))


def burrow(history: History, rules: Rules) -> str:
    """Burrow's status, by caching.go, calculatePartitionStatus."""
    window = history.window
    offsets = [commit.offset for commit in window]
    lag = history.lag_of(offsets[-1]) if offsets else None
    if lag is None or lag <= rules.allowed or len(offsets) < rules.minimum:
        return "OK"
    first_ms, last_ms = window[0].time // 1_000, window[-1].time // 1_000
    now_ms = history.now // SECOND * 1_000
    recent = [head.high for head in history.heads[-rules.recent_heads :] if head in history.log]
    if now_ms - last_ms > last_ms - first_ms and not any(head <= offsets[-1] for head in recent):
        return "STOP"
    for at in range(1, len(offsets)):
        if offsets[at] < offsets[at - 1]:
            if not any(later >= offsets[at - 1] for later in offsets[at:]):
                return "REWIND"
            break
    lags = [commit.lag for commit in window]
    if any(lag is not None and lag <= rules.allowed for lag in lags):
        return "OK"
    if all(offset == offsets[0] for offset in offsets):
        return "STALL"
    known = [lag for lag in lags if lag is not None]
    return "OK" if any(after < before for before, after in pairwise(known)) else "WARN"


def status(history: History, rules: Rules) -> str:
    """Our own status."""
    window = history.window
    lag = history.lag
    if history.beyond:
        return "BEYOND"
    if lag is not None and lag <= rules.allowed:
        return "OK"
    if window and lag is not None:
        span = max(window[-1].time - window[0].time, rules.least)
        if history.settled - max(_unread_since(history, rules.allowed), history.watched) > span:
            return "STOP"
    return "OK" if len(window) < rules.minimum else _of_window(window, lag, rules, warned=history.warned)


def _of_window(window: Sequence[Commit], lag: int | None, rules: Rules, *, warned: bool) -> str:
    offsets = [commit.offset for commit in window]
    if max(offsets) > offsets[-1]:
        return "REWIND"
    known = [commit.lag for commit in window if commit.lag is not None]
    if lag is None or len(known) < 2 or min(known) <= rules.allowed:
        return "OK"
    if len(set(offsets)) == 1:
        return "STALL"
    falls = any(after < before for before, after in pairwise(known))
    return "WARN" if not falls or _grew(known, GREW if not warned else 0) else "OK"


def _grew(lags: Sequence[int], times: int) -> bool:
    """Whether the later half is above the earlier one by so many times the standard error of the difference of their means."""
    half = len(lags) // 2
    if half < 2:
        return False
    means, errors = zip(*((Fraction(sum(some), half), _squared_error(some)) for some in (lags[:half], lags[-half:])), strict=True)
    rise = means[1] - means[0]
    return bool(rise > 0 and rise**2 >= times**2 * sum(errors))


def _squared_error(values: Sequence[int]) -> Fraction:
    mean = Fraction(sum(values), len(values))
    return sum(((value - mean) ** 2 for value in values), Fraction(0)) / len(values) ** 2


def judged(history: History, rules: Rules) -> bool:
    """Whether the status is more than a lack of facts."""
    if status(history, rules) in {"REWIND", "STOP", "BEYOND"}:
        return True
    return history.lag is not None and (history.lag <= rules.allowed or len(history.window) >= rules.minimum)


def risen(heads: Sequence[Head]) -> list[Head]:
    """The look-up table of kafka-lag-exporter: heads never decrease, and only the ends of a flat part are kept."""
    table: list[Head] = []
    for head in heads:
        if table and head.high < table[-1].high:
            continue
        if len(table) > 1 and table[-1].high == table[-2].high == head.high:
            table[-1] = head
        else:
            table.append(head)
    return table


def lag_seconds(history: History) -> Fraction | None:
    """Lag in seconds as kafka-lag-exporter's MemoryTable.lookup computes it; 0 when there is nothing to read."""
    if history.lag is None:
        return None
    if history.lag == 0:
        return Fraction(0)
    table = risen(history.log)
    if len(table) < 2:
        return None
    left, right = table[0], table[-1]
    for before, after in reversed(list(pairwise(table))):
        if before.high <= history.place <= after.high:
            left, right = before, after
            break
    if left.high == right.high:
        return None
    then = right.time - Fraction((right.high - history.place) * (right.time - left.time), right.high - left.high)
    if history.place < table[0].high:
        then = max(then, Fraction(table[0].time - EXTRAPOLATED * (table[-1].time - table[0].time)))
    return max((history.now - then) / SECOND, Fraction(0))


def commit_rate(history: History, rules: Rules) -> Fraction | None:
    """Messages per second that were committed, again ones included; 0 of a stopped consumer."""
    window = history.window
    if len(window) < 2 or window[0].time >= window[-1].time:
        return None
    if status(history, rules) == "STOP":
        return Fraction(0)
    read = sum(max(after.offset - before.offset, 0) for before, after in pairwise(window))
    return Fraction(read * SECOND, window[-1].time - window[0].time)


def produce_rate(history: History) -> Fraction | None:
    """Messages per second that were written."""
    table = risen(history.log)
    if len(table) < 2 or table[0].time >= table[-1].time:
        return None
    return Fraction((table[-1].high - table[0].high) * SECOND, table[-1].time - table[0].time)


def drain_seconds(history: History, rules: Rules) -> Fraction | None:
    """Seconds until there is nothing to read."""
    if history.lag in {0, None}:
        return None if history.lag is None else Fraction(0)
    consumed, produced = commit_rate(history, rules), produce_rate(history)
    if consumed is None or produced is None or consumed <= produced:
        return None
    return history.lag / (consumed - produced)


def trend(history: History, rules: Rules) -> Fraction | None:
    """The slope of the line through the lags; also through that of now if nothing is committed any more."""
    found = [(commit.time, commit.lag) for commit in history.window if commit.lag is not None]
    if status(history, rules) == "STOP" and history.lag is not None and history.heads[-1].time > history.window[-1].time:
        found.append((history.heads[-1].time, history.lag))
    return _slope([(Fraction(time, SECOND), lag) for time, lag in found])


def slots(commits: Iterable[Commit], distance: int, window: int) -> list[Commit]:
    """The largest commit of each slot; the newest slots. Of equal ones, that with the smaller lag that is known."""
    kept: dict[int, Commit] = {}
    for one in commits:
        before = kept.setdefault(one.time // distance, one)
        kept[one.time // distance] = max(before, one, key=_rank)
    return [kept[slot] for slot in sorted(kept)[-window:]]


def head_slots(heads: Iterable[Head], distance: int, count: int) -> list[Head]:
    """The newest head of each slot; the newest slots."""
    kept: dict[int, Head] = {}
    for one in heads:
        kept[one.time // distance] = max(one, kept.get(one.time // distance, one))
    return [kept[slot] for slot in sorted(kept)[-count:]]


def _rank(commit: Commit) -> tuple[int, int, int, bool, int]:
    return commit.epoch, commit.offset, commit.time, commit.lag is not None, -(commit.lag or 0)


def _unread_since(history: History, allowed: int) -> int:
    last = history.window[-1]
    table = risen(history.log)
    if table[0].high > last.offset + allowed:  # the heads do not reach back to when it began
        return last.time
    return max(last.time, next((head.time for head in table if head.high > last.offset + allowed), last.time))


def _slope(points: Sequence[tuple[Fraction, int]]) -> Fraction | None:
    if len({at for at, _ in points}) < 2:
        return None
    count = len(points)
    middle, mean = sum((at for at, _ in points), Fraction(0)) / count, Fraction(sum(lag for _, lag in points), count)
    products = sum(((at - middle) * (lag - mean) for at, lag in points), Fraction(0))
    return products / sum(((at - middle) ** 2 for at, _ in points), Fraction(0))
