"""What an evaluation of the live lag found, as an immutable value that any task or thread may read; and its messages.

Groups have numbers, which are places in the arrays. A number may be another group's in a later view.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from adapter.model.bounds import ShardKey
from adapter.model.lag import SEVERITIES, Judgement, Sums
from adapter.model.lag_order import DECIDING
from adapter.model.lag_rows import UNKNOWN, US_OF_MS, Bools, Floats, Ints, largest_first
from adapter.model.records import LONG_MAX, GroupKey
from adapter.rpc import lag_pb
from adapter.runtime.serving.large_calls import SLICE_ROWS

N_co = TypeVar("N_co", covariant=True)
Numbers = npt.NDArray[np.int32]  # of groups, or of logs

_FLOATS = {"lag_seconds", "commit_rate", "produce_rate", "drain_seconds", "trend"}
_ORDERS = frozenset(lag_pb.LagOrder.values())


class Removed(NamedTuple):
    """A group that was not kept any more from a view on, and the number that it had."""

    version: int
    key: GroupKey
    group: int


@dataclass(frozen=True)
class Rows(Judgement):
    """What is shown of each row, as of when it was judged. Times in microseconds; -1 is unknown."""

    epochs: Ints
    offsets: Ints
    times: Ints
    head_times: Ints
    lows: Ints

    @classmethod
    def empty(cls, size: int) -> Self:
        """Rows that were not judged yet."""
        judged = (_unknown(one.name, size) for one in fields(Judgement))
        return cls(*judged, *(np.full(size, UNKNOWN) for _ in range(5)))


class Table(Protocol):
    """Rows that do not change: `packed.Packed`."""

    def take(self, rows: Ints) -> Rows:
        """A copy of some rows, in the given order."""


class ByNumber(Protocol[N_co]):
    """Names by their numbers: a tuple, or `ids.Names`."""

    def __len__(self) -> int:
        """How many numbers there are."""

    def __getitem__(self, number: int, /) -> N_co:
        """The name of a number. Raises IndexError."""


class _NoRows:
    def take(self, rows: Ints) -> Rows:
        return Rows.empty(len(rows))


def _unknown(name: str, size: int) -> Any:  # noqa: ANN401 - an array
    if name in _FLOATS:
        return np.full(size, np.nan)
    return np.zeros(size, np.bool_) if name == "judged" else np.full(size, UNKNOWN * (name in {"end", "lag"}))


@dataclass(frozen=True)
class View:
    """An evaluation.

    By row: `group_of`, -1 for a free one, and `log_of`, its place in `logs`. By group: its name, `sums`, since when it has its
    status, the version in which it `changed` last, its rank in key order. `names_version` is another one when groups came or
    left.
    `removed`: the last of all `removals` of groups, the oldest first.
    """

    version: int
    evaluated_at_ms: int
    rows: Table
    group_of: Numbers
    log_of: Numbers
    groups: ByNumber[GroupKey]
    logs: ByNumber[ShardKey]
    sums: Sums
    since_ms: Ints
    changed: Ints
    ranks: Ints
    shards_kept: int
    groups_kept: int
    forgotten: int
    names_version: int = 0
    removed: Sequence[Removed] = ()
    removals: int = 0
    _orders: dict[int, Ints] = field(default_factory=dict)
    _by_group: list[tuple[Ints, Numbers]] = field(default_factory=list)  # all rows by their groups, and these; at most once

    @classmethod
    def nothing(cls) -> Self:
        """Before the first evaluation."""
        none, numbers = np.zeros(0, np.int64), np.zeros(0, np.int32)
        sums = {one.name: _unknown(one.name, 0) for one in fields(Sums)}
        return cls(0, 0, _NoRows(), numbers, numbers, (), (), Sums(**sums), none, none, none, 0, 0, 0)

    @property
    def kept(self) -> Bools:
        """Which numbers are those of a group."""
        kept: Bools = self.sums.shards > 0
        return kept

    def order(self, kind: int) -> Ints:
        """The numbers of all groups in an order of `lag_pb.LagOrder`. Takes some ms for 100,000 groups: call it in a thread."""
        found = self._orders.get(kind)
        if found is None:
            groups = np.flatnonzero(self.kept)
            deciding = [self._column(name)[groups] for name in DECIDING[kind]]
            found = self._orders[kind] = groups[largest_first(deciding, self.ranks[groups])]
        return found

    def _column(self, name: str) -> Ints | Floats:
        """One of DECIDING."""
        sums = self.sums
        if name == "severity":
            return SEVERITIES[sums.status]
        if name == "idle":
            return np.where(sums.last_commit > 0, -sums.last_commit, -LONG_MAX)
        column: Ints | Floats = getattr(sums, name)
        return column

    def messages(self, groups: Ints) -> Iterator[lag_pb.GroupLag]:
        """The messages of some groups."""
        sums = self.sums
        known = sums.known[groups] > 0
        optional = [
            _optional(sums.lag[groups], known),
            *(_optional(column[groups], ~np.isnan(column[groups])) for column in self._floats()),
            _optional(sums.moving_lag[groups], sums.moving_lag[groups] >= 0),
        ]
        plain = [column[groups].tolist() for column in (sums.shards, sums.known, sums.lost, sums.status, sums.burrow, sums.worst)]
        counts = [column[groups].tolist() for column in (sums.warn, sums.rewind, sums.stall, sums.stop, sums.beyond)]
        times = (np.maximum(sums.last_commit[groups], 0) // US_OF_MS).tolist(), self.since_ms[groups].tolist()
        rows = zip(
            groups.tolist(), zip(*optional, strict=True), zip(*plain, strict=True), zip(*counts, strict=True), *times, strict=True
        )
        for group, (lag, seconds, commits, produces, trend, moving), (
            shards,
            count,
            lost,
            status,
            burrow,
            worst,
        ), at, last, since in rows:
            key = self.groups[group]
            warn, rewind, stall, stop, beyond = at
            yield lag_pb.GroupLag(
                namespace=key.namespace,
                group=key.group,
                shards=shards,
                known=count,
                lag=lag,
                lag_seconds=seconds,
                commit_rate=commits,
                produce_rate=produces,
                trend=trend,
                lost=lost,
                last_commit_at_ms=last,
                status=status,
                burrow=burrow,
                worst_shard=self.shard(worst),
                warn=warn,
                rewind=rewind,
                stall=stall,
                stop=stop,
                beyond=beyond,
                status_since_ms=since,
                moving_lag=moving,
            )

    def _floats(self) -> tuple[Floats, ...]:
        sums = self.sums
        return sums.lag_seconds, sums.commit_rate, sums.produce_rate, sums.trend

    def shard(self, row: int) -> str:
        """The shard of a row."""
        return self.logs[int(self.log_of[row])].shard

    def rows_of(self, group: int) -> Ints:
        """The rows of a group, by the names of their shards."""
        if self._by_group:
            rows, groups = self._by_group[0]
            found = rows[np.searchsorted(groups, group) : np.searchsorted(groups, group, "right")]
        else:
            found = np.flatnonzero(self.group_of == group)
        return np.array(sorted(found.tolist(), key=self.shard), np.int64)

    def index(self) -> None:
        """Make `rows_of` fast for many groups. Takes some ms for 100,000 rows: call it in a thread."""
        if not self._by_group:
            rows = np.argsort(self.group_of, kind="stable")
            self._by_group.append((rows, self.group_of[rows]))

    def shards(self, rows: Ints) -> Iterator[lag_pb.ShardLag]:
        """The messages of some rows, without labels. No more than SLICE_ROWS rows are made ready at a time."""
        for at in range(0, len(rows), SLICE_ROWS):
            yield from self._slice(rows[at : at + SLICE_ROWS])

    def _slice(self, rows: Ints) -> Iterator[lag_pb.ShardLag]:
        shown = self.rows.take(rows)
        optional = [_optional(column, column >= 0) for column in (shown.lows, shown.end, shown.lag)] + [
            _optional(column, ~np.isnan(column))
            for column in (shown.lag_seconds, shown.commit_rate, shown.produce_rate, shown.trend)
        ]
        times = [(np.maximum(column, 0) // US_OF_MS).tolist() for column in (shown.times, shown.head_times)]
        plain = [column.tolist() for column in (shown.epochs, shown.offsets, shown.lost, shown.shown, shown.burrow, shown.points)]
        everything = zip(rows.tolist(), zip(*optional, strict=True), zip(*plain, strict=True), *times, strict=True)
        for row, (low, high, lag, seconds, commits, produces, trend), (
            epoch,
            offset,
            lost,
            status,
            burrow,
            points,
        ), at, seen in everything:
            yield lag_pb.ShardLag(
                shard=self.shard(row),
                epoch=epoch,
                offset=offset,
                committed_at_ms=at,
                low_watermark=low,
                high_watermark=high,
                bounds_at_ms=seen,
                lag=lag,
                lost=lost,
                lag_seconds=seconds,
                commit_rate=commits,
                produce_rate=produces,
                trend=trend,
                status=status,
                burrow=burrow,
                points=points,
            )


def _optional(values: Ints | Floats, known: Bools) -> list[Any]:
    found: list[Any] = values.tolist()
    if not known.all():
        for place in np.flatnonzero(~known).tolist():
            found[place] = None
    return found
