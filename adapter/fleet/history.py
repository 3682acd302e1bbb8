"""The lag of groups over the last minutes, for sparklines: a ring of samples in one matrix.

Groups whose lag changed get a place; the one that has not changed for longest gives its place up. Memory: 8 bytes for each sample
of `groups`, nothing else; with the defaults (20,000 groups, 60 samples) 9.6 MB.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

POINTS = 60
UNKNOWN = -1
_FREE = -1


class History:
    """Samples of at most `groups` groups, by the row of a group in its table."""

    def __init__(self, groups: int) -> None:
        self._samples = np.full((POINTS, groups), UNKNOWN, np.int64)
        self._row = np.full(groups, _FREE, np.int64)  # place -> row
        self._changed = np.zeros(groups, np.int64)  # place -> the number of the sample in which it changed last
        self._began = np.zeros(groups, np.int64)  # place -> its first sample
        self._place = np.full(0, _FREE, np.int64)  # row -> place
        self._last = np.zeros(0, np.int64)  # row -> lag at the last sample
        self._count = 0  # of samples

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(array.nbytes for array in (self._samples, self._row, self._changed, self._began, self._place, self._last))

    def sample(self, changed: npt.NDArray[np.intp], lag: npt.NDArray[np.int64], gone: npt.NDArray[np.intp]) -> None:
        """Take a sample: the rows that may have changed, the lag of all rows (-1: unknown), and rows that are free or new."""
        self._grow(len(lag))
        self._give_up(gone)
        moved = changed[lag[changed] != self._last[changed]]
        if len(self._row):
            self._find_places(moved)
        head = self._count % POINTS
        used = self._row != _FREE
        self._samples[head, used] = lag[self._row[used]]
        self._count += 1
        self._last[:] = lag

    def of(self, row: int) -> Sequence[int | None]:
        """The samples of a row, the oldest first; empty if it has no place: its lag has not changed for long."""
        if row >= len(self._place) or self._place[row] == _FREE:
            return ()
        place = int(self._place[row])
        kept = min(self._count - int(self._began[place]), POINTS)
        numbers = np.arange(self._count - kept, self._count) % POINTS
        return [None if value == UNKNOWN else value for value in self._samples[numbers, place].tolist()]

    def _grow(self, rows: int) -> None:
        more = rows - len(self._place)
        if more > 0:
            self._place = np.concatenate([self._place, np.full(more, _FREE, np.int64)])
            self._last = np.concatenate([self._last, np.full(more, UNKNOWN, np.int64)])

    def _give_up(self, gone: npt.NDArray[np.intp]) -> None:
        places = self._place[gone]
        held = places[places != _FREE]
        self._row[held] = _FREE
        self._changed[held] = 0
        self._place[gone] = _FREE
        self._last[gone] = UNKNOWN

    def _find_places(self, moved: npt.NDArray[np.intp]) -> None:
        """Give a place to the rows that moved, of those that have not for longest."""
        has = self._place[moved]
        self._changed[has[has != _FREE]] = self._count
        new = moved[has == _FREE][: len(self._row)]
        if not len(new):
            return
        age = np.where(self._row == _FREE, -1, self._changed)
        places = np.argpartition(age, len(new) - 1)[: len(new)]
        places = places[age[places] < self._count]  # not of those that moved now
        new = new[: len(places)]
        before = self._row[places]
        self._place[before[before != _FREE]] = _FREE
        self._row[places], self._place[new] = new, places
        self._changed[places] = self._began[places] = self._count
        # What they were before is known, too: unchanged, at the last sample.
        if self._count:
            self._samples[(self._count - 1) % POINTS, places] = self._last[new]
            self._began[places] = self._count - 1
