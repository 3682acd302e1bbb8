"""The lag job over a fleet's journals, as a stream with two cores: journal rows per second, and the time of a small batch.

All keys commit in each large batch, so that every state is read, merged, evaluated and written. The first batch has no state
before it and starts Python workers: it is shown, but not counted. The same rows are then read and reduced by Spark alone, in the
same session: the newest commit of each key from Parquet, written nowhere. A small batch has 100 rows, on the state of all keys,
while the stream goes on: it counts from its trigger to its entry in Spark's log, with the listing of segments.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from rich.progress import Progress

from adapter.pipeline.config import LagSection
from adapter.pipeline.lag.batch import process
from adapter.pipeline.lag.files import LagFiles
from adapter.pipeline.lag.job import checkpoint_of, stream
from adapter.pipeline.lag.publisher import Publisher
from adapter.pipeline.places import Place
from adapter.pipeline.session import spark_session
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale
from tests.pipeline.segments import commits, write_segment

TITLE = "the lag job"
LEAST_ROWS_S = 600_000
MOST_SMALL_S = 1.0
BROKERS = 4
SHARDS = 1_000  # shards of a group
CYCLES = 10  # commits of each key in a batch, as in 20 s of such a fleet
INTERVAL_S = 2.0
SMALL_ROWS = 100
SMALL_BATCHES = 6  # the first one is not counted
PATIENCE_S = 120.0
SESSION = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}


@dataclass(frozen=True)
class Batch:
    """The seconds of one batch, from the end of the previous one, and its CPU seconds, Python's workers included."""

    rows: int
    wall: float
    cpu: float


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure batches of two million rows over 200,000 keys, and small ones."""
    groups = 1 if scale.short else 50
    count = 2 if scale.short else 8 if scale.full else 5
    shards = 100 if scale.short else SHARDS
    keys = BROKERS * groups * shards
    task = progress.add_task(f"lag of {keys:,} keys", total=count + SMALL_BATCHES)
    _journals(directory / "journal", groups, shards, count)
    spark = spark_session("bench lag", "local[2]", SESSION)
    try:
        job = _Job(spark, directory, lambda: progress.advance(task))
        batches = job.large()
        plain = [_plain_s(spark, directory / "journal", batch) for batch in range(count)]
        small = job.small(count * CYCLES)
    finally:
        spark.stop()
    result = Result("pipeline_lag", TITLE, [_rates(batches, plain), _small(small)])
    counted, counted_plain = batches[1:], plain[1:]
    rate = median(batch.rows / batch.wall for batch in counted)
    plain_rate = median(batch.rows / took for batch, took in zip(counted, counted_plain, strict=True))
    result.bars += [
        Bar("lag job, journal rows/s on two cores", rate, LEAST_ROWS_S, least=True),
        Bar(f"lag job, seconds of a batch of {SMALL_ROWS} rows", median(batch.wall for batch in small[1:]), MOST_SMALL_S),
    ]
    cpu_us = median(1e6 * one.cpu / one.rows for one in counted)
    alone = f"Spark alone, the newest commit of each key from the same segments: {plain_rate:,.0f} rows/s"
    result.notes += [
        f"{keys:,} keys, {BROKERS * shards:,} shards, {BROKERS} brokers; every key commits {CYCLES} times in a large batch.",
        "A large batch counts from the end of the one before: with the listing of segments and Spark's own log of the stream.",
        f"{alone}; the lag job has {rate / plain_rate:.2f} of that. CPU of the job: {cpu_us:.1f} us a row.",
    ]
    return result


def _journals(root: Path, groups: int, shards: int, batches: int) -> None:
    """Write one segment for each broker and cycle."""
    for broker in range(BROKERS):
        for cycle in range(batches * CYCLES):
            table = commits(
                1, groups, shards, interval_s=INTERVAL_S, namespace=f"team-{broker}", first_cycle=cycle, consume_rate=90.0
            )
            write_segment(root, table, cycle, broker=f"broker-{broker}")


class _Job:
    """The stream of the lag job."""

    def __init__(self, spark: SparkSession, directory: Path, advance: Callable[[], None]) -> None:
        self._spark, self._advance, self._journal = spark, advance, directory / "journal"
        self._section = LagSection(
            journals=(Place.of(self._journal),), output=Place.of(directory / "lag"), max_files=BROKERS * CYCLES
        )
        self._files = LagFiles(Place.of(self._section.output))
        self._publisher = Publisher(self._files, self._section.keep_hours)
        self._batches: list[Batch] = []
        self._last = 0.0, 0.0

    def large(self) -> list[Batch]:
        """Read all that there is."""
        self._last = time.perf_counter(), _cpu_s()
        self._start(available_now=True).awaitTermination()
        return list(self._batches)

    def small(self, cycle: int) -> list[Batch]:
        """Small batches, each of a segment that comes while the stream waits for one."""
        query = self._start(available_now=False)
        found = []
        try:
            for number in range(SMALL_BATCHES):
                rows = commits(1, 1, SMALL_ROWS, interval_s=INTERVAL_S, namespace="team-0", first_cycle=cycle + number)
                began = _cpu_s()
                write_segment(self._journal, rows, cycle + number, broker="broker-0")
                seconds = _seconds_of(query, len(self._batches) + 1, lambda: len(self._batches))
                found.append(Batch(SMALL_ROWS, seconds, _cpu_s() - began))
        finally:
            query.stop()
        return found

    def _start(self, *, available_now: bool) -> StreamingQuery:
        writer = stream(self._spark, self._section).writeStream.foreachBatch(self._batch)
        placed = writer.option("checkpointLocation", checkpoint_of(self._section).url)
        return (placed.trigger(availableNow=True) if available_now else placed.trigger(processingTime="100 milliseconds")).start()

    def _batch(self, segments: DataFrame, number: int) -> None:
        told = process(segments, number, "", self._section, self._publisher)
        now = time.perf_counter(), _cpu_s()
        self._batches.append(Batch(told.rows, now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now
        self._advance()


def _seconds_of(query: StreamingQuery, count: int, done: Callable[[], int]) -> float:
    """The seconds of the next batch, as Spark tells them."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and query.isActive:
        progress = query.lastProgress
        if done() >= count and progress and progress["numInputRows"] and progress["batchId"] == count - 1:
            return float(progress["durationMs"]["triggerExecution"]) / 1_000
        time.sleep(0.01)
    raise RuntimeError(f"batch {count - 1} did not end: {query.exception()}")


def _plain_s(spark: SparkSession, journal: Path, batch: int) -> float:
    """The seconds in which Spark finds the newest commit of each key in the segments of a batch."""
    paths = [
        str(path)
        for cycle in range(batch * CYCLES, (batch + 1) * CYCLES)
        for path in sorted(journal.glob(f"date=*/broker=*/*-{cycle:08}.parquet"))
    ]
    began = time.perf_counter()
    rows = spark.read.parquet(*paths).groupBy("namespace", "group", "shard")
    newest = rows.agg(sf.max("epoch"), sf.max("offset"), sf.max("at"), sf.max("high_watermark"), sf.max("low_watermark"))
    newest.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _rates(batches: list[Batch], plain: list[float]) -> Table:
    cells = [
        (at, batch.rows, batch.wall, batch.rows / batch.wall, batch.cpu, took, took / batch.wall)
        for at, (batch, took) in enumerate(zip(batches, plain, strict=True))
    ]
    columns = ["batch", "journal rows", "seconds", "rows/s", "CPU s", "Spark alone, s", "of that"]
    return Table("Large batches", columns, cells)


def _small(batches: list[Batch]) -> Table:
    cells = [(at, batch.wall, batch.cpu) for at, batch in enumerate(batches)]
    return Table(f"Batches of {SMALL_ROWS} rows", ["batch", "seconds", "CPU s"], cells)


def _cpu_s() -> float:
    """CPU seconds of this process and all its descendants."""
    total = 0.0
    for process_ in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            used = process_.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return total
