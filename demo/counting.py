"""Counters of others, as they show them: sums over their restarts, and rates."""

from collections import deque

WINDOW_S = 2.0  # over which rates are taken; save calls come in steps of ten a second


class Total:
    """A counter that begins anew whenever its process does: the sum over all of them."""

    def __init__(self) -> None:
        self._before = self._last = 0

    def shown(self, count: int) -> int:
        """It shows this now; returns the sum. A smaller count than before is that of a new process."""
        if count < self._last:
            self._before += self._last
        self._last = count
        return self._before + count


class Rate:
    """How fast a number has grown lately."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def of(self, now_s: float, count: int) -> float:
        """It is this now; returns how much it grew in a second of the last two."""
        self._samples.append((now_s, count))
        while now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return (count - first) / (now_s - first_s) if now_s > first_s else 0.0
