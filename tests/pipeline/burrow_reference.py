"""Both evaluations in plain Python, written from their rules and not from the columns in adapter/pipeline/burrow.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise


@dataclass(frozen=True)
class History:
    """What is known of a shard: commits (milliseconds, offset, lag at that time), heads (milliseconds, head); oldest first."""

    commits: Sequence[tuple[int, int, int | None]]
    heads: Sequence[tuple[int, int]]
    now_ms: int
    settled_ms: int

    @property
    def lag(self) -> int | None:
        """Newest head minus newest offset."""
        if not self.heads or not self.commits:
            return None
        return max(0, self.heads[-1][1] - self.commits[-1][1])


def burrow(history: History, minimum: int, allowed: int, recent_heads: int) -> str:
    """Burrow's status, by caching.go, calculatePartitionStatus."""
    offsets = [commit[1] for commit in history.commits]
    if history.lag is None or history.lag <= allowed or len(offsets) < minimum:
        return "OK"
    first_ms, last_ms = history.commits[0][0], history.commits[-1][0]
    now_ms = history.now_ms // 1_000 * 1_000
    recent = [head for _, head in history.heads][-recent_heads:]
    if now_ms - last_ms > last_ms - first_ms and not any(head <= offsets[-1] for head in recent):
        return "STOP"
    for at in range(1, len(offsets)):
        if offsets[at] < offsets[at - 1]:
            if not any(later >= offsets[at - 1] for later in offsets[at:]):
                return "REWIND"
            break
    lags = [commit[2] for commit in history.commits]
    if any(lag is not None and lag <= allowed for lag in lags):
        return "OK"
    if all(offset == offsets[0] for offset in offsets):
        return "STALL"
    known = [lag for lag in lags if lag is not None]
    return "OK" if any(after < before for before, after in pairwise(known)) else "WARN"


def status(history: History, minimum: int, allowed: int, least_ms: int) -> str:
    """Our own status; its rules are in adapter/pipeline/burrow.py."""
    offsets = [commit[1] for commit in history.commits]
    lag = history.lag
    if (lag is not None and lag <= allowed) or len(offsets) < minimum:
        return "OK"
    first_ms, last_ms = history.commits[0][0], history.commits[-1][0]
    if lag is not None and history.settled_ms - _unread_since(history, allowed) > max(last_ms - first_ms, least_ms):
        return "STOP"
    if any(offset > offsets[-1] for offset in offsets):
        return "REWIND"
    known = [commit[2] for commit in history.commits if commit[2] is not None]
    if lag is None or len(known) < 2 or min(known) <= allowed:
        return "OK"
    if len(set(offsets)) == 1:
        return "STALL"
    falls = any(after < before for before, after in pairwise(known))
    return "WARN" if not falls or _fitted_rise(known) >= Fraction(sum(known), len(known) * 10) else "OK"


def risen(heads: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The look-up table of kafka-lag-exporter: heads never decrease, and only the ends of a flat part are kept."""
    table: list[tuple[int, int]] = []
    for time, head in heads:
        if table and head < table[-1][1]:
            continue
        if len(table) > 1 and table[-1][1] == table[-2][1] == head:
            table[-1] = (time, head)
        else:
            table.append((time, head))
    return table


def lag_seconds(history: History) -> float | None:
    """Lag in seconds as kafka-lag-exporter's MemoryTable.lookup computes it; 0 when there is nothing to read."""
    if history.lag is None:
        return None
    if history.lag == 0:
        return 0.0
    table = risen(history.heads)
    offset = history.commits[-1][1]
    if len(table) < 2:
        return None
    left, right = table[0], table[-1]
    for before, after in reversed(list(pairwise(table))):
        if before[1] <= offset <= after[1]:
            left, right = before, after
            break
    if left[1] == right[1]:
        return None
    then = right[0] - (right[1] - offset) * (right[0] - left[0]) / (right[1] - left[1])
    return (history.now_ms - then) / 1_000


def _unread_since(history: History, allowed: int) -> int:
    last_ms, offset, _ = history.commits[-1]
    table = risen(history.heads)
    if table[0][1] > offset + allowed:  # the heads do not reach back to when it began
        return last_ms
    return max(last_ms, next(time for time, head in table if head > offset + allowed))


def _fitted_rise(lags: Sequence[int]) -> Fraction:
    """How much the least-squares line through equally spaced values rises from the first to the last."""
    n = len(lags)
    middle, mean = Fraction(n - 1, 2), Fraction(sum(lags), n)
    products = sum(((at - middle) * (lag - mean) for at, lag in enumerate(lags)), Fraction(0))
    return products / sum((at - middle) ** 2 for at in range(n)) * (n - 1)
