"""Gathers the content of the report from the tables of the lag job: the newest batch, and the 24 hours before it.

The aggregation runs in Spark; only the rows that the page shows are collected, however large the fleet is. An unknown value stays
None. The tables are not changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from adapter.pipeline.lag.files import BatchInfo, LagFiles
from adapter.pipeline.lag.status import SEVERITY
from adapter.pipeline.places import Place

HISTORY_MS = 24 * 3_600_000  # the time range of lag, rewinds and rejects, back from the newest data
LAG_STEPS = 240  # points of a line: about two pixels each
REWIND_STEPS = 48  # bars

# The columns that are read; the lag job writes more.
_SCHEMAS = {
    "groups": "batch LONG, evaluated_at TIMESTAMP, namespace STRING, `group` STRING, status STRING, burrow STRING, shards INT, "
    "unknown_lag_shards INT, total_lag LONG, max_lag_seconds DOUBLE, drain_seconds DOUBLE, worst_shard STRING",
    "shards": "batch LONG, namespace STRING, `group` STRING, shard STRING, status STRING, lag LONG",
    "rewinds": "batch LONG, at TIMESTAMP, namespace STRING, `group` STRING, shard STRING, broker STRING, kind STRING, "
    "from_offset LONG, offset LONG, duplicates LONG, skipped LONG",
    "rejects": "batch LONG, at TIMESTAMP, broker STRING, segment STRING, namespace STRING, `group` STRING, shard STRING, "
    "kind STRING, problem STRING",
}


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
    """The lag of a group at a time."""

    namespace: str
    group: str
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
    """The totals of all rewinds in the time range. `unknown`: rewinds whose messages cannot be counted."""

    rewinds: int = 0
    duplicates: int = 0
    skipped: int = 0
    unknown: int = 0


NO_REWINDS = RewindTotals()


@dataclass(frozen=True)
class Report:
    """The content of a page. Times are Unix milliseconds; `at_ms` is None if the lag job has written nothing yet."""

    at_ms: int | None = None
    from_ms: int = 0
    groups: int = 0
    shards: int = 0
    unknown_lag_shards: int = 0
    counts: tuple[Count, ...] = ()
    worst: tuple[Group, ...] = ()
    lag: tuple[Point, ...] = ()
    lag_step_ms: int = 1
    rewinds: tuple[Rewind, ...] = ()
    rewind_totals: RewindTotals = NO_REWINDS
    bars: tuple[Bar, ...] = ()
    bar_ms: int = 1
    rejects: tuple[Reject, ...] = ()
    reject_count: int = 0


def gather(spark: SparkSession, tables: Path, worst: int) -> Report:
    """The report of the tables in a directory, with up to `worst` rows in each list. A missing table counts as empty."""
    files = LagFiles(Place.of(tables))
    history = files.history(HISTORY_MS * 1_000)
    # The shards of one batch are as many as the fleet has.
    infos = {name: history[-1:] if name == "shards" else history for name in _SCHEMAS}
    groups, shards, rewinds, rejects = (_table(spark, files, name, infos[name]) for name in _SCHEMAS)
    rejected, reject_count = _rejects(rejects, worst)
    newest = _newest(groups, shards)
    if newest is None:
        return Report(rejects=rejected, reject_count=reject_count)
    batch, at_ms = newest
    now = groups.where(sf.col("batch") == batch)
    counts = _counts(now, shards.where(sf.col("batch") == batch))
    worst_now = worst_first(now).limit(worst)
    recent = groups.where(_millis("evaluated_at").between(at_ms - HISTORY_MS, at_ms))
    from_ms, unknown_lag_shards = _only(
        recent.agg(
            sf.min(_millis("evaluated_at")),
            sf.coalesce(sf.sum(sf.when(sf.col("batch") == batch, sf.col("unknown_lag_shards"))), sf.lit(0)),
        )
    )
    lag_step_ms = _step(from_ms, at_ms, LAG_STEPS)
    lag = over_time(recent.join(sf.broadcast(worst_now.select("namespace", "group")), ["namespace", "group"]), lag_step_ms)
    back = rewinds.where(_millis("at") >= at_ms - HISTORY_MS)
    bar_ms = _step(from_ms, at_ms, REWIND_STEPS)
    return Report(
        at_ms,
        from_ms,
        groups=sum(count.groups for count in counts),
        shards=sum(count.shards for count in counts),
        unknown_lag_shards=unknown_lag_shards,
        counts=counts,
        worst=tuple(Group(*row) for row in worst_now.select(*Group._fields).collect()),
        lag=tuple(Point(*row) for row in lag.select(*Point._fields).collect()),
        lag_step_ms=lag_step_ms,
        rewinds=tuple(Rewind(*row) for row in most_duplicates(back).select(*Rewind._fields).limit(worst).collect()),
        rewind_totals=RewindTotals(*(value or 0 for value in _only(_totals(back)))),
        bars=tuple(Bar(*row) for row in duplicates_over_time(back, bar_ms).select(*Bar._fields).collect()),
        bar_ms=bar_ms,
        rejects=rejected,
        reject_count=reject_count,
    )


def worst_first(groups: DataFrame) -> DataFrame:
    """Sort groups by status, then by lag (largest first, then unknown, then none), then by name."""
    lag = sf.col("total_lag")
    known = sf.when(lag > 0, 2).when(lag.isNull(), 1).otherwise(0)
    order = (severity(sf.col("status")).desc(), known.desc(), lag.desc(), sf.col("max_lag_seconds").desc_nulls_last())
    return groups.orderBy(*order, "namespace", "group")


def severity(name: Column) -> Column:
    """The number of a status: the larger, the worse."""
    return sf.array_position(sf.array(*map(sf.lit, SEVERITY)), name).cast("int")


def over_time(groups: DataFrame, step_ms: int) -> DataFrame:
    """For each group and time step the largest lag, in messages and in seconds; null if it was never known."""
    at = _millis("evaluated_at")
    return (
        groups.groupBy("namespace", "group", _floor(at, step_ms).alias("step"))
        .agg(sf.max(at).alias("at_ms"), sf.max("total_lag").alias("total_lag"), sf.max("max_lag_seconds").alias("lag_seconds"))
        .orderBy("namespace", "group", "at_ms")
    )


def most_duplicates(rewinds: DataFrame) -> DataFrame:
    """Sort rewinds: most duplicates first, then the newest first."""
    return rewinds.withColumn("at_ms", _millis("at")).orderBy(
        sf.col("duplicates").desc_nulls_last(), sf.col("at_ms").desc(), "namespace", "group", "shard", "broker"
    )


def duplicates_over_time(rewinds: DataFrame, step_ms: int) -> DataFrame:
    """The messages that are read again by time step; only steps with some."""
    return (
        rewinds.where(sf.col("duplicates") > 0)
        .groupBy(_floor(_millis("at"), step_ms).alias("at_ms"))
        .agg(sf.sum("duplicates").alias("duplicates"))
        .orderBy("at_ms")
    )


def _table(spark: SparkSession, files: LagFiles, name: str, infos: Sequence[BatchInfo]) -> DataFrame:
    """A table in some complete batches."""
    urls = [place.url for info in infos for place in files.places(info, name)]
    if not urls:
        return spark.createDataFrame([], _SCHEMAS[name])
    # The base gives the column `batch`. A batch that the lag job deletes meanwhile is too old to matter.
    reader = spark.read.schema(_SCHEMAS[name]).option("basePath", (files.output / name).url)
    return reader.option("ignoreMissingFiles", value=True).parquet(*urls)


def _newest(groups: DataFrame, shards: DataFrame) -> tuple[int, int] | None:
    """The newest batch in both tables, and its time. The lag job may be writing the next one."""
    last_of_both = sf.least(groups.agg(sf.max("batch")).scalar(), shards.agg(sf.max("batch")).scalar())
    batch, at_ms = _only(groups.where(sf.col("batch") == last_of_both).agg(sf.max("batch"), sf.max(_millis("evaluated_at"))))
    return None if batch is None else (batch, at_ms)


def _counts(groups: DataFrame, shards: DataFrame) -> tuple[Count, ...]:
    """The counts by status, the worst first, zeros included."""
    rows = (
        groups.select("status", sf.lit(1).alias("groups"), sf.lit(0).alias("shards"))
        .unionAll(shards.select("status", sf.lit(0).alias("groups"), sf.lit(1).alias("shards")))
        .groupBy("status")
        .agg(sf.sum("groups"), sf.sum("shards"))
        .collect()
    )
    found = {row[0]: Count(*row) for row in rows}
    return tuple(found.get(status, Count(status, 0, 0)) for status in reversed(SEVERITY))


def _totals(rewinds: DataFrame) -> DataFrame:
    unknown = sf.col("duplicates").isNull() | sf.col("skipped").isNull()
    return rewinds.agg(sf.count("*"), sf.sum("duplicates"), sf.sum("skipped"), sf.count_if(unknown))


def _rejects(rejects: DataFrame, worst: int) -> tuple[tuple[Reject, ...], int]:
    """The newest rejects, and how many there are. An unreadable segment has no time: 0."""
    at = _millis("at")
    rows = rejects.withColumn("at_ms", sf.when(at > 0, at))
    shown = rows.orderBy(sf.col("at_ms").desc_nulls_first(), "segment", "broker", "problem").select(*Reject._fields).limit(worst)
    return tuple(Reject(*row) for row in shown.collect()), rejects.count()


def _only(aggregate: DataFrame) -> Row:
    """The single row of an aggregate over all rows."""
    (row,) = aggregate.collect()
    return row


def _millis(column: str) -> Column:
    """A timestamp as Unix milliseconds: a Python datetime would be in the driver's time zone."""
    return sf.unix_millis(sf.col(column))


def _floor(at_ms: Column, step_ms: int) -> Column:
    return (sf.floor(at_ms / step_ms) * step_ms).cast("long")


def _step(from_ms: int, to_ms: int, steps: int) -> int:
    return max((to_ms - from_ms) // steps, 1)
