"""Totals and rates of counters that other processes report and that restart at 0 with the process."""

from collections import deque

WINDOW_S = 2.0  # over which rates are taken; save calls come in steps of ten a second


class Total:
    """The total of a counter over all restarts of its process."""

    def __init__(self) -> None:
        self._before = self._last = 0

    def shown(self, count: int) -> int:
        """Add a reading; returns the total. A smaller reading than before means that the process was restarted."""
        if count < self._last:
            self._before += self._last
        self._last = count
        return self._before + count


class Rate:
    """The recent rate of a growing number."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def of(self, now_s: float, count: int) -> float:
        """Add a reading; returns the growth per second over the last WINDOW_S seconds."""
        self._samples.append((now_s, count))
        while now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        first_s, first = self._samples[0]
        return (count - first) / (now_s - first_s) if now_s > first_s else 0.0
