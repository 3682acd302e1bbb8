"""The comparison of `reconcile` compared to the plain join that it needs at least, on the same data in one Spark session.

Three adapters have every key, as after hand-overs. The Meta Service's records lack some keys and are behind for some. No Meta
Service runs.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it
from rich.progress import Progress

from adapter.pipeline.reconcile.compare import KEY, compare
from adapter.pipeline.session import spark_session
from benchmarks.machine import cpu_s
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "reconcile: local records against the Meta Service's"
LIMIT = 2.0  # times the duration of the plain join
REMOTE, REMOTE_SHORT = 1_000_000, 10_000
BROKERS = ["broker-0", "broker-1", "broker-2"]
GROUPS = 5_000
MISSING, BEHIND = 100, 50  # every 100th key is missing, every 50th is behind
PLAIN, RECONCILE = "plain join", "reconcile"
SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


class Took(NamedTuple):
    """The seconds of one run, and CPU seconds of the JVM."""

    wall: float
    cpu: float


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure the plain join and the comparison in turn."""
    keys = REMOTE_SHORT if scale.short else REMOTE
    rounds = 1 if scale.short else 5 if scale.full else 3
    session = spark_session("bench", "local[2]", SETTINGS)
    try:
        local, remote = frames(session, keys, directory)
        steps = {PLAIN: lambda: plain(local, remote), RECONCILE: lambda: compare(local, remote, BROKERS)}
        found: dict[str, list[Took]] = {name: [] for name in steps}
        task = progress.add_task("pipeline_reconcile", total=(rounds + 1) * len(steps))
        for _ in range(rounds + 1):  # the first one warms up
            for name, step in steps.items():
                found[name].append(_took(session, step))
                progress.advance(task)
        rows = compare(local, remote, BROKERS).groupBy("kind").count().collect()
    finally:
        session.stop()
    assert {row["kind"] for row in rows} == {"missing", "behind"}, "the comparison did not find what was put in"
    return _result({name: took[1:] for name, took in found.items()}, keys, rounds)


def frames(session: SparkSession, keys: int, directory: Path) -> tuple[DataFrame, DataFrame]:
    """Write local and remote records as Parquet, in different orders, like snapshots and scans."""
    id_ = F.col("id")
    for number, broker in enumerate(BROKERS):
        local = _rows(session, keys, -number).select("*", F.expr("false").alias("dirty"), F.lit(number).alias("broker"))
        local.orderBy("shard").write.parquet(str(directory / "local" / broker))
    behind = F.when(id_ % BEHIND == 1, -10).otherwise(0)
    remote = _rows(session, keys, behind).where(id_ % MISSING != 0)
    remote.orderBy(F.reverse("shard")).write.parquet(str(directory / "remote"))
    paths = [str(directory / "local" / broker) for broker in BROKERS]
    return session.read.parquet(*paths), session.read.parquet(str(directory / "remote"))


def plain(local: DataFrame, remote: DataFrame) -> DataFrame:
    """The plain join: the rows whose offset differs from the Meta Service's."""
    there = remote.select(*KEY, *(F.col(name).alias(f"remote_{name}") for name in ("epoch", "offset", "live", "committed_at")))
    return local.join(there, KEY, "left").where("remote_offset IS NULL OR remote_offset < offset")


def _rows(session: SparkSession, keys: int, more: Column | int) -> DataFrame:
    id_ = F.col("id")
    columns = {
        "namespace": F.lit("default"),
        "group": F.format_string("group-%05d", id_ % GROUPS),
        "shard": F.format_string("topic-%d/%d", id_ % 50, id_),
        "topic": F.format_string("topic-%d", id_ % 50),
        "partition": id_ % 1_000,
        "epoch": F.lit(1).cast("bigint"),
        "offset": F.lit(1_000_000) + id_ + more,
        "live": F.expr("true"),
        "committed_at": F.timestamp_millis(F.lit(1_700_000_000_000) + id_),
        "metadata": F.lit(""),
        "problem": F.lit(None).cast("string"),
    }
    return session.range(keys).withColumns(columns)


def _took(session: SparkSession, step: Callable[[], DataFrame]) -> Took:
    pid = session.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]  # noqa: SLF001
    began, before = time.monotonic(), cpu_s(pid)
    step().write.format("noop").mode("overwrite").save()
    return Took(time.monotonic() - began, cpu_s(pid) - before)


def _result(found: dict[str, list[Took]], keys: int, rounds: int) -> Result:
    middle = {name: Took(median(one.wall for one in took), median(one.cpu for one in took)) for name, took in found.items()}
    rows = [(name, took.wall, took.cpu, took.wall / middle[PLAIN].wall) for name, took in middle.items()]
    local = keys * len(BROKERS)
    result = Result("pipeline_reconcile", TITLE)
    result.tables.append(
        Table(f"{local:,} local against {keys:,} remote records", ["what", "seconds", "CPU s", "times the plain join"], rows)
    )
    result.bars.append(Bar("reconcile, times the plain join", middle[RECONCILE].wall / middle[PLAIN].wall, LIMIT))
    result.notes.append(
        f"{rounds} rounds after one of warm-up, medians; both read the same Parquet files and give their rows to nobody. "
        "The plain join gives every local record that is above the Meta Service's; reconcile one row for each key, with its kind."
    )
    return result
