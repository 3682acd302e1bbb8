"""Gathers the content of the report from the tables of the lag job, by its manifests and with Arrow alone: Spark is not needed.

Of the newest batch all groups are read, and of its shards one column. The history is that of up to STEPS batches, evenly over the
period: a batch has a row for each group, and there may be thousands of batches. An unknown value stays None. The tables are not
changed; the lag job may write and delete batches meanwhile.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from adapter.pipeline.lag.files import AT_ONCE, BatchInfo, LagFiles
from adapter.pipeline.lag.status import SEVERITY

STEPS = 240  # points of a line: about three pixels each
REWIND_STEPS = 48  # bars
TRIES = 3
BAD = ("STALL", "STOP", "BEYOND")
_US_OF_MS, _MS_OF_HOUR = 1_000, 3_600_000

GROUP_COLUMNS = (
    *("namespace", "group", "status", "burrow", "shards", "unknown_lag_shards", "total_lag", "max_lag_seconds", "drain_seconds"),
    "worst_shard",
)
_HISTORY = ("namespace", "group", "status", "total_lag", "max_lag_seconds")


class Count(NamedTuple):
    """The number of groups and shards with a status."""

    status: str
    groups: int
    shards: int


class Group(NamedTuple):
    """A group in the newest batch. `total_lag` is the sum over the shards whose lag is known; None if there is none."""

    namespace: str
    group: str
    status: str
    burrow: str
    shards: int
    unknown_lag_shards: int
    total_lag: int | None
    max_lag_seconds: float | None
    drain_seconds: float | None
    worst_shard: str | None


class Point(NamedTuple):
    """All groups in a batch: the sum of their lag as far as it is known (None: of none), and how many stall or have stopped."""

    at_ms: int
    total_lag: float | None
    bad: int


class GroupPoint(NamedTuple):
    """A group in a batch."""

    at_ms: int
    total_lag: int | None
    lag_seconds: float | None


class Rewind(NamedTuple):
    """An offset that was moved back or ahead. `duplicates`: messages that are read again; `skipped`: messages never read."""

    at_ms: int
    namespace: str
    group: str
    shard: str
    broker: str
    kind: str
    from_offset: int | None
    offset: int | None
    duplicates: int | None
    skipped: int | None


class Bar(NamedTuple):
    """The messages that are read again because of the rewinds within one time step."""

    at_ms: int
    duplicates: int


class Reject(NamedTuple):
    """A row or segment of a journal that was not counted, and the reason. None: unknown."""

    at_ms: int | None
    broker: str | None
    segment: str | None
    namespace: str | None
    group: str | None
    shard: str | None
    problem: str


class RewindTotals(NamedTuple):
    """The totals of all rewinds in the period. `unknown`: rewinds whose messages cannot be counted."""

    rewinds: int = 0
    duplicates: int = 0
    skipped: int = 0
    unknown: int = 0


NO_REWINDS = RewindTotals()
Key = tuple[str, str]


@dataclass(frozen=True)
class Report:
    """The content of a page. Times are Unix milliseconds; `at_ms` is None if the lag job has written no group yet.

    `from_ms`: of the oldest batch of the period. `lines`: the history of the groups in `worst`, in its order.
    """

    at_ms: int | None = None
    from_ms: int = 0
    groups: int = 0
    shards: int = 0
    unknown_lag_shards: int = 0
    counts: tuple[Count, ...] = ()
    worst: tuple[Group, ...] = ()
    history: tuple[Point, ...] = ()
    lines: tuple[tuple[GroupPoint, ...], ...] = ()
    rewinds: tuple[Rewind, ...] = ()
    rewind_totals: RewindTotals = NO_REWINDS
    bars: tuple[Bar, ...] = ()
    bar_ms: int = 1
    rejects: tuple[Reject, ...] = ()
    reject_count: int = 0


def gather(files: LagFiles, hours: int, worst: int) -> Report:
    """The report of the newest batch and of the hours before it, with up to `worst` rows in each list.

    Raises AdapterError for a damaged manifest or file, OSError.
    """
    for left in reversed(range(TRIES)):
        try:
            return _gather(files, hours, worst)
        except FileNotFoundError:
            # A newer batch is complete, and the shards of this one were deleted: a reader has a minute.
            if not left:
                raise
    raise AssertionError


def _gather(files: LagFiles, hours: int, worst: int) -> Report:
    infos = files.history(hours * _MS_OF_HOUR * _US_OF_MS)
    if not infos:
        return Report()
    newest, from_ms = infos[-1], infos[0].now // _US_OF_MS
    with ThreadPoolExecutor(AT_ONCE) as threads:
        rejects = _rows(files, threads, "rejects", (info for info in infos if info.rejects), Reject._fields)
        shown = _rejects(rejects, worst)
        groups = files.read_of(newest, "groups", GROUP_COLUMNS)
        if not groups.num_rows:
            return Report(rejects=shown, reject_count=rejects.num_rows)
        at_ms = newest.now // _US_OF_MS
        bar_ms = max((at_ms - from_ms) // REWIND_STEPS, 1)
        rewinds = _rows(files, threads, "rewinds", (info for info in infos if info.odd), Rewind._fields)
        rewinds = rewinds.filter(pc.greater_equal(rewinds["at_ms"], at_ms - hours * _MS_OF_HOUR))
        first = worst_first(groups).slice(0, worst)
        worst_groups = tuple(Group(**row) for row in first.to_pylist())
        history, lines = _history(files, threads, thinned(infos, STEPS), worst_groups)
        counts = _counts(groups["status"], files.read_of(newest, "shards", ["status"])["status"])
        return Report(
            at_ms,
            from_ms,
            groups=groups.num_rows,
            shards=sum(count.shards for count in counts),
            unknown_lag_shards=pc.sum(groups["unknown_lag_shards"]).as_py() or 0,
            counts=counts,
            worst=worst_groups,
            history=history,
            lines=lines,
            rewinds=tuple(Rewind(**row) for row in most_duplicates(rewinds).slice(0, worst).to_pylist()),
            rewind_totals=_totals(rewinds),
            bars=duplicates_over_time(rewinds, bar_ms),
            bar_ms=bar_ms,
            rejects=shown,
            reject_count=rejects.num_rows,
        )


def worst_first(groups: pa.Table) -> pa.Table:
    """Sort groups by status, then by lag (largest first, then unknown, then none), then by name."""
    lag = groups["total_lag"]
    known = pc.if_else(pc.is_null(lag), 1, pc.if_else(pc.greater(pc.fill_null(lag, 0), 0), 2, 0))
    severity = pc.index_in(groups["status"], value_set=pa.array(SEVERITY))
    order = [("severity", "descending"), ("known", "descending"), ("total_lag", "descending"), ("max_lag_seconds", "descending")]
    table = groups.append_column("severity", severity).append_column("known", known)
    return table.sort_by([*order, ("namespace", "ascending"), ("group", "ascending")]).select(groups.column_names)


def most_duplicates(rewinds: pa.Table) -> pa.Table:
    """Sort rewinds: most duplicates first, then the newest first."""
    names = [(name, "ascending") for name in ("namespace", "group", "shard", "broker")]
    return rewinds.sort_by([("duplicates", "descending"), ("at_ms", "descending"), *names])


def duplicates_over_time(rewinds: pa.Table, step_ms: int) -> tuple[Bar, ...]:
    """The messages that are read again by time step; only steps with some."""
    sums: dict[int, int] = {}
    for at_ms, duplicates in zip(rewinds["at_ms"].to_pylist(), rewinds["duplicates"].to_pylist(), strict=True):
        if duplicates:
            step = at_ms // step_ms * step_ms
            sums[step] = sums.get(step, 0) + duplicates
    return tuple(Bar(*both) for both in sorted(sums.items()))


def thinned(infos: Sequence[BatchInfo], steps: int) -> list[BatchInfo]:
    """The last batch of each of so many steps of time; the newest batch is one of them."""
    first, span = infos[0].now, infos[-1].now - infos[0].now + 1
    return list({(info.now - first) * steps // span: info for info in infos}.values())


def _history(
    files: LagFiles, threads: ThreadPoolExecutor, infos: Sequence[BatchInfo], worst: Sequence[Group]
) -> tuple[tuple[Point, ...], tuple[tuple[GroupPoint, ...], ...]]:
    """All groups over time, and each of the worst ones; a group without a row in a batch has unknown values there."""
    keys = [(row.namespace, row.group) for row in worst]
    names = pa.array({row.group for row in worst})

    def one(info: BatchInfo) -> tuple[Point, dict[Key, GroupPoint]] | None:
        try:
            table = files.read_of(info, "groups", _HISTORY)
        except FileNotFoundError:
            return None  # deleted meanwhile, as it is too old
        at_ms = info.now // _US_OF_MS
        total = pc.sum(table["total_lag"].cast(pa.float64(), safe=False)).as_py()
        bad = pc.sum(pc.is_in(table["status"], value_set=pa.array(BAD))).as_py() or 0
        rows = table.filter(pc.is_in(table["group"], value_set=names)).to_pylist()
        points = {(row["namespace"], row["group"]): GroupPoint(at_ms, row["total_lag"], row["max_lag_seconds"]) for row in rows}
        return Point(at_ms, total, bad), points

    found = [one_of for one_of in threads.map(one, infos) if one_of]
    lines = tuple(tuple(points.get(key) or GroupPoint(point.at_ms, None, None) for point, points in found) for key in keys)
    return tuple(point for point, _ in found), lines


def _counts(groups: pa.ChunkedArray, shards: pa.ChunkedArray) -> tuple[Count, ...]:
    """The counts by status, the worst first, zeros included."""
    found = [{row["values"]: row["counts"] for row in pc.value_counts(column).to_pylist()} for column in (groups, shards)]
    return tuple(Count(status, *(counts.get(status, 0) for counts in found)) for status in reversed(SEVERITY))


def _totals(rewinds: pa.Table) -> RewindTotals:
    unknown = pc.or_(pc.is_null(rewinds["duplicates"]), pc.is_null(rewinds["skipped"]))
    duplicates, skipped = (sum(filter(None, rewinds[name].to_pylist())) for name in ("duplicates", "skipped"))
    return RewindTotals(rewinds.num_rows, duplicates, skipped, pc.sum(unknown).as_py() or 0)


def _rejects(rejects: pa.Table, worst: int) -> tuple[Reject, ...]:
    """The newest rejects; first those without a time, which are segments that cannot be read."""
    is_known = pc.greater(rejects["at_ms"], 0)
    rows = rejects.set_column(0, "at_ms", pc.if_else(is_known, rejects["at_ms"], None)).append_column("is_known", is_known)
    names = [(name, "ascending") for name in ("segment", "broker", "problem")]
    ordered = rows.sort_by([("is_known", "ascending"), ("at_ms", "descending"), *names]).select(rejects.column_names)
    return tuple(Reject(**row) for row in ordered.slice(0, worst).to_pylist())


def _rows(
    files: LagFiles, threads: ThreadPoolExecutor, name: str, infos: Iterable[BatchInfo], columns: Sequence[str]
) -> pa.Table:
    """The rows of a table in some batches, those that are deleted meanwhile left out. The column `at` is read as `at_ms`."""

    def one(info: BatchInfo) -> pa.Table | None:
        try:
            return files.read_of(info, name, ["at", *columns[1:]])
        except FileNotFoundError:
            return None

    tables = [table for table in threads.map(one, infos) if table is not None]
    if not tables:
        return pa.table({column: pa.nulls(0, _TYPES.get(column, pa.string())) for column in columns})
    table = pa.concat_tables(tables)
    millis = pc.divide(table["at"].cast(pa.int64()), _US_OF_MS)
    return table.set_column(0, "at_ms", millis).select(columns)


_TYPES = {name: pa.int64() for name in ("at_ms", "from_offset", "offset", "duplicates", "skipped")}
