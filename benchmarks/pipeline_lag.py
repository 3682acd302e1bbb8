"""The lag job over a fleet's journals, as a stream with two cores: journal rows per second, and the time of each step.

All keys commit in each batch, so that every state is read, merged, evaluated and written. The first batch has no previous state
and includes compilation: it is shown, but not counted.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from pyspark.sql import DataFrame
from rich.progress import Progress, TaskID

from adapter.pipeline.config import LagSection
from adapter.pipeline.lag.batch import Steps, process
from adapter.pipeline.lag.files import LagFiles
from adapter.pipeline.lag.job import SETTINGS, stream
from adapter.pipeline.places import Place
from adapter.pipeline.session import spark_session
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale
from tests.pipeline.segments import commits, write_segment

TITLE = "the lag job"
LEAST_ROWS_S = 250_000
BROKERS = 4
SHARDS = 1_000  # shards of a group
CYCLES = 10  # commits of each key in a batch, as in 20 s of such a fleet
INTERVAL_S = 2.0
SESSION = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", **SETTINGS}


@dataclass(frozen=True)
class Batch:
    """The seconds of one batch, from the end of the previous one, and its CPU seconds, Python's workers included."""

    rows: int
    wall: float
    cpu: float
    steps: dict[str, float]


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure batches of two million rows over 200,000 keys."""
    groups = 1 if scale.short else 50
    count = 2 if scale.short else 8 if scale.full else 5
    shards = 100 if scale.short else SHARDS
    task = progress.add_task(f"lag of {BROKERS * groups * shards:,} keys", total=count)
    _journals(directory / "journal", groups, shards, count)
    batches = _stream(directory, progress, task)
    counted = batches[1:]
    rate = median(batch.rows / batch.wall for batch in counted)
    result = Result("pipeline_lag", TITLE, [_rates(batches), _shares(counted)])
    result.bars.append(Bar("lag job, journal rows/s on two cores", rate, LEAST_ROWS_S, least=True))
    keys = BROKERS * groups * shards
    result.notes.append(
        f"{keys:,} keys, {BROKERS * shards:,} shards, {BROKERS} brokers; every key commits {CYCLES} times in a batch."
    )
    result.notes.append(
        "A batch counts from the end of the one before: with the listing of segments and Spark's own log of the stream."
    )
    return result


def _journals(root: Path, groups: int, shards: int, batches: int) -> None:
    """Write one segment for each broker and cycle."""
    for broker in range(BROKERS):
        for cycle in range(batches * CYCLES):
            table = commits(
                1, groups, shards, interval_s=INTERVAL_S, namespace=f"team-{broker}", first_cycle=cycle, consume_rate=90.0
            )
            write_segment(root, table, cycle, broker=f"broker-{broker}")


def _stream(directory: Path, progress: Progress, task: TaskID) -> list[Batch]:
    section = LagSection(
        journals=(Place.of(directory / "journal"),), output=Place.of(directory / "lag"), max_files=BROKERS * CYCLES
    )
    spark = spark_session("bench lag", "local[2]", SESSION)
    files = LagFiles(section.output.path, section.keep_hours)
    batches: list[Batch] = []
    last = [time.perf_counter(), _cpu_s()]

    def batch(rows: DataFrame, number: int) -> None:
        steps = Steps()
        told = process(rows, number, section, files, steps)
        now = [time.perf_counter(), _cpu_s()]
        batches.append(Batch(told.rows, now[0] - last[0], now[1] - last[1], steps.seconds))
        last[:] = now
        progress.advance(task)

    try:
        writer = stream(spark, section).writeStream.foreachBatch(batch).trigger(availableNow=True)
        writer.option("checkpointLocation", str(files.checkpoint)).start().awaitTermination()
    finally:
        spark.stop()
    return batches


def _rates(batches: list[Batch]) -> Table:
    cells = [(at, batch.rows, batch.wall, batch.rows / batch.wall, batch.cpu) for at, batch in enumerate(batches)]
    return Table("Batches", ["batch", "journal rows", "seconds", "rows/s", "CPU s"], cells)


def _shares(batches: list[Batch]) -> Table:
    """The median of each step, and the rest."""
    names = batches[0].steps
    seconds = {name: median(batch.steps[name] for batch in batches) for name in names}
    whole = median(batch.wall for batch in batches)
    seconds["Spark's stream, plans"] = whole - sum(seconds.values())
    cells = [(name, took, f"{took / whole:.0%}") for name, took in seconds.items()]
    return Table("Steps of a batch", ["step", "seconds", "share"], cells)


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
