"""What lag is judged by: the last commits of each key, and the last heads (log end offsets) of each shard, as numpy matrices.

A row is a key (namespace, group, shard) in `Commits`, a shard (namespace, shard) in `Heads`; which one is which is the caller's
business. Matrices have at least two columns. Rows are left-aligned, oldest first, and only their first `counts` columns have a
meaning. Both keep time slots: a slot begins at a multiple of its distance, and keeps the largest of what falls into it, so that
late, repeated and reordered values give the same rows. A row that is full loses its oldest slot.

All integers are int64. Times are Unix times in microseconds, 0 <= time < 2**62. Offsets and epochs are at least 0; the caller
clamps those above 2**63 - 1 to it. -1 is an unknown value. Nothing here checks this, and nothing locks: a caller with several
threads takes care that only one of them uses a table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from adapter.errors import InvalidInputError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

UNKNOWN = -1
US_OF_MS = 1_000


@dataclass(frozen=True)
class LagSettings:
    """How much is kept, and what counts as lag. Raises InvalidInputError that names the field.

    `window_points` slots of commits, each `point_distance_ms` long; fewer than `minimum_points` commits are not judged.
    `allowed_lag`: a lag up to this many messages is none. `head_points` slots of heads, each `head_distance_ms` long.
    """

    window_points: int = 10
    minimum_points: int = 3
    point_distance_ms: int = 1_000
    allowed_lag: int = 0
    head_points: int = 60
    head_distance_ms: int = 30_000

    def __post_init__(self) -> None:
        """Check the limits."""
        for name, least, most in (
            ("window_points", 2, 1_000),
            ("minimum_points", 2, self.window_points),
            ("point_distance_ms", 1, 3_600_000),
            ("allowed_lag", 0, 2**53),
            ("head_points", 2, 1_000),
            ("head_distance_ms", 1, 3_600_000),
        ):
            if not least <= getattr(self, name) <= most:
                raise InvalidInputError(f"{name} = {getattr(self, name)} is not between {least} and {most}")


@dataclass(frozen=True)
class Commits:
    """The last commits of each key: matrices of rows x window, and the largest record of each row. The arrays may be changed.

    `times`, `epochs`, `offsets`, `lags` (the lag at the time of the commit; -1 unknown), `counts` of them in each row. An offset
    of -1 is a slot that is no commit (a tombstone). `top_epochs`, `top_offsets`, `top_times`: the record with the largest (epoch,
    offset, time) that the row ever had, also if its slot is gone; -1 if it had none.
    """

    times: Ints
    epochs: Ints
    offsets: Ints
    lags: Ints
    counts: Ints
    top_epochs: Ints
    top_offsets: Ints
    top_times: Ints

    @classmethod
    def empty(cls, rows: int, settings: LagSettings) -> Self:
        """Rows without a commit. A row takes 32 * window_points + 32 bytes."""
        shape = rows, settings.window_points
        times, epochs, offsets, lags = (np.zeros(shape, np.int64) for _ in range(4))
        tops = (np.full(rows, UNKNOWN, np.int64) for _ in range(3))
        return cls(times, epochs, offsets, lags, np.zeros(rows, np.int64), *tops)

    def take(self, rows: Ints) -> Self:
        """A copy of some rows, in the given order; a row may occur more than once."""
        return type(self)(*(array.take(rows, 0) for array in _arrays(self)))

    def clear(self, rows: Ints) -> None:
        """Forget all of these rows, as if they had never had a commit: of a deleted key, or before a row is used for another."""
        self.counts[rows] = 0
        for array in (self.top_epochs, self.top_offsets, self.top_times):
            array[rows] = UNKNOWN

    def add(self, rows: Ints, times: Ints, epochs: Ints, offsets: Ints, lags: Ints, settings: LagSettings) -> None:
        """Merge commits into the slots of their rows, in place. The arrays are of equal length; a row may occur more than once.

        A slot keeps the largest (epoch, offset, time); of equal ones the one with the smaller known lag. A commit that is older
        than all slots of a full row only counts for the row's largest record.
        """
        commits = rows, times, epochs, offsets, lags
        self._raise_tops(rows, epochs, offsets, times)
        distance = settings.point_distance_ms * US_OF_MS
        # Of equal commits, the smaller known lag: it belongs to the older head.
        ranks = (epochs, offsets, times, np.where(lags < 0, np.iinfo(np.int64).min, -lags))
        for turn in _turns(rows, times // distance, ranks):
            self._add([array[turn] for array in commits], distance)

    def _raise_tops(self, rows: Ints, epochs: Ints, offsets: Ints, times: Ints) -> None:
        at = _largest_of_each(rows, (epochs, offsets, times))
        rows = rows[at]
        tops, new = (self.top_epochs, self.top_offsets, self.top_times), (epochs[at], offsets[at], times[at])
        above = _above(new, [top[rows] for top in tops])
        for top, values in zip(tops, new, strict=True):
            top[rows[above]] = values[above]

    def _add(self, commits: Sequence[Ints], distance: int) -> None:
        """Merge commits of different rows."""
        rows, times, epochs, offsets, lags = commits
        place, same = _places(self.times, self.counts, rows, times, distance)
        held = rows, place - 1
        known, before = lags >= 0, self.lags[held]
        better = _above((epochs, offsets, times), (self.epochs[held], self.offsets[held], self.times[held]))
        equal = (epochs == self.epochs[held]) & (offsets == self.offsets[held]) & (times == self.times[held])
        replaces = same & (better | (equal & known & ((before < 0) | (lags < before))))
        matrices = self.times, self.epochs, self.offsets, self.lags
        columns, at = _room(matrices, self.counts, rows, place, same)
        columns[replaces] = place[replaces] - 1
        written = np.flatnonzero(at | replaces)
        for matrix, values in zip(matrices, (times, epochs, offsets, lags), strict=True):
            matrix[rows[written], columns[written]] = values[written]


@dataclass(frozen=True)
class Heads:
    """The last heads of each shard: matrices of rows x slots, and the newest low of each row. The arrays may be changed.

    `times`, `highs`, `counts` of them in each row. `lows`: the first offset that can still be read, as seen at `low_times`; -1 if
    nobody told it. `anew`: when another log was told last, which this one has replaced, by their identities; -1: none.
    """

    times: Ints
    highs: Ints
    counts: Ints
    lows: Ints
    low_times: Ints
    anew: Ints

    @classmethod
    def empty(cls, rows: int, settings: LagSettings) -> Self:
        """Rows without a head. A row takes 16 * head_points + 32 bytes."""
        shape = rows, settings.head_points
        unknown = (np.full(rows, UNKNOWN, np.int64) for _ in range(3))
        return cls(np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(rows, np.int64), *unknown)

    def take(self, rows: Ints) -> Self:
        """A copy of some rows, in the given order; a row may occur more than once."""
        return type(self)(*(array.take(rows, 0) for array in _arrays(self)))

    def clear(self, rows: Ints) -> None:
        """Forget all of these rows, before they are used for other shards."""
        self.counts[rows] = 0
        self.lows[rows] = self.low_times[rows] = self.anew[rows] = UNKNOWN

    def begin_anew(self, rows: Ints) -> None:
        """Forget the heads of these rows, whose logs were replaced by others since the last head was told."""
        told = self.times[rows, np.maximum(self.counts[rows], 1) - 1]
        self.anew[rows] = np.where(self.counts[rows] > 0, told, self.anew[rows])
        self.counts[rows] = 0
        self.lows[rows] = self.low_times[rows] = UNKNOWN

    def add(self, rows: Ints, times: Ints, highs: Ints, lows: Ints, settings: LagSettings) -> None:
        """Merge bounds into the slots of their rows, in place. The arrays are of equal length; a row may occur more than once.

        A slot keeps the newest head, of equally old ones the largest; a row the newest known low, of equally old ones the
        largest. A low of -1 is unknown. A head that is older than all slots of a full row does not count.
        """
        self._raise_lows(rows, times, lows)
        distance = settings.head_distance_ms * US_OF_MS
        for turn in _turns(rows, times // distance, (times, highs)):
            self._add(rows[turn], times[turn], highs[turn], distance)

    def _raise_lows(self, rows: Ints, times: Ints, lows: Ints) -> None:
        known = np.flatnonzero(lows >= 0)
        at = known[_largest_of_each(rows[known], (times[known], lows[known]))]
        above = at[_above((times[at], lows[at]), (self.low_times[rows[at]], self.lows[rows[at]]))]
        self.low_times[rows[above]], self.lows[rows[above]] = times[above], lows[above]

    def _add(self, rows: Ints, times: Ints, highs: Ints, distance: int) -> None:
        """Merge heads of different rows."""
        place, same = _places(self.times, self.counts, rows, times, distance)
        held = rows, place - 1
        replaces = same & _above((times, highs), (self.times[held], self.highs[held]))
        matrices = self.times, self.highs
        columns, at = _room(matrices, self.counts, rows, place, same)
        columns[replaces] = place[replaces] - 1
        written = np.flatnonzero(at | replaces)
        for matrix, values in zip(matrices, (times, highs), strict=True):
            matrix[rows[written], columns[written]] = values[written]


def _arrays(table: Commits | Heads) -> list[Ints]:
    return [getattr(table, field.name) for field in fields(table)]


def largest_first(columns: Sequence[npt.NDArray[Any]], ranks: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """The places of rows: by the first column, then the next, at last by their ranks. What is unknown, -1 or NaN, comes last."""
    falling = (np.where(np.isnan(column), np.inf, -column) if column.dtype.kind == "f" else -column for column in columns)
    return np.lexsort((ranks, *reversed([*falling])))


def _above(new: Sequence[Ints], old: Sequence[Ints]) -> Bools:
    """Whether the first values, compared as tuples, are the larger ones."""
    above = new[-1] > old[-1]
    for one, other in zip(reversed(new[:-1]), reversed(old[:-1]), strict=True):
        above = (one > other) | ((one == other) & above)
    return above


def _largest_of_each(rows: Ints, ranks: Sequence[Ints]) -> Ints:
    """Where the largest tuple of each row is."""
    order: Ints = np.argsort(rows, kind="stable")
    if not _repeats(rows[order]).any():
        return order
    order = np.lexsort((*reversed(ranks), rows))
    largest: Ints = order[np.append(~_repeats(rows[order]), True)]
    return largest


def _turns(rows: Ints, slots: Ints, ranks: Sequence[Ints]) -> Iterator[Ints]:
    """Where the largest values of all rows' slots are, in turns: each has a row at most once. Older slots come first."""
    if not _repeats(np.sort(rows)).any():
        yield np.arange(len(rows))
        return
    order = np.lexsort((*reversed(ranks), slots, rows))
    order = order[np.append(~(_repeats(rows[order]) & _repeats(slots[order])), True)]
    first = np.flatnonzero(np.append(True, ~_repeats(rows[order])))
    turn = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    by_turn = np.argsort(turn, kind="stable")
    yield from np.split(order[by_turn], np.cumsum(np.bincount(turn))[:-1])


def _repeats(values: Ints) -> Bools:
    """Whether a value equals the next one."""
    repeats: Bools = values[1:] == values[:-1]
    return repeats


def _places(matrix: Ints, counts: Ints, rows: Ints, times: Ints, distance: int) -> tuple[Ints, Bools]:
    """How many of each row's slots are not after the time's, and whether the last of these is the time's own."""
    held = np.arange(matrix.shape[1]) < counts[rows, None]
    begin = times - times % distance
    place = ((matrix[rows] < (begin + distance)[:, None]) & held).sum(1)
    return place, (place > 0) & (matrix[rows, place - 1] >= begin)


def _room(matrices: Sequence[Ints], counts: Ints, rows: Ints, place: Ints, same: Bools) -> tuple[Ints, Bools]:
    """Make room for the rows that have no such slot yet: its column, and whether there is one."""
    width = matrices[0].shape[1]
    full = counts[rows] == width
    column = place - full
    new = ~same & (column >= 0)
    appended = full & (place == width)
    # Nearly always the newest slot of a full row: all others move by one.
    shifted = rows[new & appended]
    for matrix in matrices:
        matrix[shifted, :-1] = matrix[shifted, 1:]
    moved = np.flatnonzero(new & ~appended & (full | (place < counts[rows])))
    columns = np.arange(width)
    at, whole = column[moved, None], full[moved, None]
    source = np.where(whole, columns + (columns < at), columns - (columns > at))
    for matrix in matrices:
        matrix[rows[moved]] = np.take_along_axis(matrix[rows[moved]], source, 1)
    counts[rows[new & ~full]] += 1
    return column, new
