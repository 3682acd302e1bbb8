"""How much the next save carries, by the time that the server needed for the last ones: like a congestion window.

It doubles while saves are answered well before their deadline, shrinks to what the server manages in a fraction of it, and is
halved by a save without an answer. So a server that becomes slow gets smaller saves, and not the same one again and again.
"""

SHARE = 4  # a save is meant to take this fraction of its deadline
WEIGHT = 0.3  # of the newest save in the average time


class SaveWindow:
    """The number of units of the next save. A unit is what costs the server about the same each time: an offset, or a group."""

    def __init__(self, timeout_s: float, *, first: int, most: int, least: int = 1) -> None:
        """A window for saves with this deadline, in seconds. It starts with `first` units and stays within `least` and `most`."""
        self._timeout_s = timeout_s
        self._least, self._most = least, most
        self.size = first
        self.seconds_each = 0.0  # that the server needs for a unit, as an average over the last saves; 0 before the first

    def answered(self, carried: int, seconds: float) -> None:
        """A save of `carried` units was answered after so many seconds."""
        if carried < 1:
            return
        self._measured(seconds / carried)
        target_s = self._timeout_s / SHARE
        if seconds > target_s:
            self.size = max(self._least, min(self.size, int(carried * target_s / seconds)))
        elif carried >= self.size:
            self.size = min(self._most, 2 * self.size)

    def timed_out(self, carried: int, done: int = 0) -> None:
        """A save of `carried` units was not answered in time; `done` of them were found stored afterwards."""
        self._measured(self._timeout_s / (done or carried or 1))
        self.size = max(self._least, min(self.size, done // SHARE if done >= SHARE else carried // 2))

    def _measured(self, each_s: float) -> None:
        self.seconds_each = (1 - WEIGHT) * self.seconds_each + WEIGHT * each_s if self.seconds_each else each_s
