"""What lag is judged by: the last commits of each key, and the last heads (log end offsets) of each shard, as numpy matrices.

A row is a key (namespace, group, shard) in `Commits`, a shard (namespace, shard) in `Heads`; which one is which is the caller's
business. Rows are left-aligned, oldest first, and only their first `counts` columns have a meaning. Both keep time slots: a slot
begins at a multiple of its distance, and keeps the largest of what falls into it, so that late, repeated and reordered values
give the same rows. A row that is full loses its oldest slot.

All integers are int64. Times are Unix times in microseconds, 0 <= time < 2**62. Offsets and epochs are at least 0; the caller
clamps those above 2**63 - 1 to it. -1 is an unknown value. Nothing here checks this, and nothing locks: a caller with several
threads takes care that only one of them uses a table.
"""

from dataclasses import dataclass
from typing import Self

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
        raise NotImplementedError

    def take(self, rows: Ints) -> Self:
        """A copy of some rows, in the given order; a row may occur more than once."""
        raise NotImplementedError

    def clear(self, rows: Ints) -> None:
        """Forget all of these rows, as if they had never had a commit: of a deleted key, or before a row is used for another."""
        raise NotImplementedError

    def add(self, rows: Ints, times: Ints, epochs: Ints, offsets: Ints, lags: Ints, settings: LagSettings) -> None:
        """Merge commits into the slots of their rows, in place. The arrays are of equal length; a row may occur more than once.

        A slot keeps the largest (epoch, offset, time); of equal ones the one with the smaller known lag. A commit that is older
        than all slots of a full row only counts for the row's largest record.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Heads:
    """The last heads of each shard: matrices of rows x slots, and the newest low of each row. The arrays may be changed.

    `times`, `highs`, `counts` of them in each row. `lows`: the first offset that can still be read, as seen at `low_times`; -1 if
    nobody told it.
    """

    times: Ints
    highs: Ints
    counts: Ints
    lows: Ints
    low_times: Ints

    @classmethod
    def empty(cls, rows: int, settings: LagSettings) -> Self:
        """Rows without a head. A row takes 16 * head_points + 24 bytes."""
        raise NotImplementedError

    def take(self, rows: Ints) -> Self:
        """A copy of some rows, in the given order; a row may occur more than once."""
        raise NotImplementedError

    def clear(self, rows: Ints) -> None:
        """Forget all of these rows, before they are used for other shards."""
        raise NotImplementedError

    def add(self, rows: Ints, times: Ints, highs: Ints, lows: Ints, settings: LagSettings) -> None:
        """Merge bounds into the slots of their rows, in place. The arrays are of equal length; a row may occur more than once.

        A slot keeps the newest head, of equally old ones the largest; a row the newest known low, of equally old ones the
        largest. A low of -1 is unknown. A head that is older than all slots of a full row does not count.
        """
        raise NotImplementedError
