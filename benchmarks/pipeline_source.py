"""The data source `offsets`, and snapshots, compared to Parquet, in one Spark session with two cores: rows/s, and CPU by process.

Both write the same cached rows and read all their columns. The Meta Service is a process on the same two cores.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from pyspark.sql import DataFrame, SparkSession
from rich.progress import Progress

from adapter.pipeline.session import spark_session
from adapter.testing.processes import ServiceProcess, ended, meta_process
from benchmarks.machine import cpu_s
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "the Spark data source against plain Parquet"
READ_LEAST, WRITE_LEAST, SNAPSHOT_LEAST = 0.27, 0.3, 0.4  # as shares of Parquet's rate
ROWS, SHORT_ROWS = 1_000_000, 5_000
SHARDS = 100  # shards of a group
SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}

PARQUET_WRITE, WRITE, AGAIN = "write Parquet", "write offsets", "write the same offsets again"
PARQUET_READ, READ = "read Parquet", "read offsets"
TAKE, SNAPSHOT_READ, SNAPSHOT_PYTHON = "take a snapshot", "read the snapshot as Parquet", "read the snapshot as offsets"
STEPS = (PARQUET_WRITE, WRITE, AGAIN, PARQUET_READ, READ, TAKE, SNAPSHOT_READ, SNAPSHOT_PYTHON)

# The columns of rows that an adapter flushes, and of rows of an import.
SHAPES: dict[str, tuple[str, ...]] = {
    "offsets alone": (),
    "with topic and partition": ("concat('orders-', id % 50) as topic", "id % 100 as partition"),
}


@dataclass(frozen=True)
class Used:
    """The seconds of one step, and CPU seconds by process."""

    wall: float
    jvm: float
    workers: float
    meta: float

    def since(self, earlier: "Used") -> "Used":
        """The difference to an earlier instant."""
        return Used(self.wall - earlier.wall, self.jvm - earlier.jvm, self.workers - earlier.workers, self.meta - earlier.meta)


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure all steps in each round, with a new cluster in the Meta Service and a new Parquet directory."""
    result = Result("pipeline_source", TITLE)
    count = SHORT_ROWS if scale.short else ROWS
    rounds = 1 if scale.short else 5 if scale.full else 3
    meta = meta_process(directory)
    with ended(meta):
        meta.start()
        session = spark_session("bench", "local[2]", SETTINGS)
        try:
            for shape, columns in SHAPES.items():
                bench = _Bench(session, meta, directory / shape.replace(" ", "-"), rows_of(session, count, columns))
                task = progress.add_task(f"pipeline_source: {shape}", total=rounds + 1)
                found = []
                for number in range(rounds + 1):  # the first one warms up
                    found.append(bench.round(number))
                    progress.advance(task)
                _tell(result, shape, count, found[1:])
                bench.rows.unpersist()
        finally:
            session.stop()
    result.notes.append(
        f"{count:,} rows, {rounds} rounds after one of warm-up, medians. CPU is in seconds of one step: of the JVM, of Spark's "
        "Python workers and of `meta snapshot`, of the Meta Service. The settings of Spark are those of "
        "adapter/pipeline/session.py for all steps."
    )
    return result


def rows_of(session: SparkSession, count: int, columns: Sequence[str]) -> DataFrame:
    """Cached rows in two partitions; `columns` are additional columns."""
    rows = session.range(0, count, 1, 2).selectExpr(
        "'default' as namespace",
        f"concat('group-', div(id, {SHARDS})) as `group`",
        f"concat('orders/', id % {SHARDS}) as shard",
        *columns,
        "1L as epoch",
        "id * 7 as offset",
        "timestamp_millis(1700000000000 + id) as committed_at",
    )
    cached = rows.cache()
    assert cached.count() == count
    return cached


class _Bench:
    """A kind of rows, and the destinations of a round."""

    def __init__(self, session: SparkSession, meta: ServiceProcess, directory: Path, rows: DataFrame) -> None:
        self._session = session
        self._meta = meta
        self._directory = directory
        self.rows = rows

    def round(self, number: int) -> dict[str, Used]:
        """Run every step once."""
        parquet, snapshot = (str(self._directory / f"{number}.{kind}") for kind in ("parquet", "snapshot"))
        options = {"endpoints": self._meta.address, "cluster": f"{self._directory.name}-{number}"}
        offsets = self._session.read.format("offsets").options(**options)

        def write() -> None:
            self.rows.write.format("offsets").options(**options).mode("append").save()

        steps: dict[str, Callable[[], None]] = {
            PARQUET_WRITE: lambda: self.rows.write.parquet(parquet),
            WRITE: write,
            AGAIN: write,
            PARQUET_READ: lambda: _read(self._session.read.parquet(parquet)),
            READ: lambda: _read(offsets.load()),
            TAKE: lambda: _take_snapshot(snapshot, **options),
            SNAPSHOT_READ: lambda: _read(self._session.read.parquet(snapshot)),
            SNAPSHOT_PYTHON: lambda: _read(self._session.read.format("offsets").option("snapshot", snapshot).load()),
        }
        found = {name: self._measured(step) for name, step in steps.items()}
        assert offsets.load().count() == self.rows.count()
        return found

    def _measured(self, step: Callable[[], None]) -> Used:
        before = self._used()
        step()
        return self._used().since(before)

    def _used(self) -> Used:
        below = psutil.Process().children(recursive=True)
        jvm = next(process for process in below if process.name() == "java")
        # Idle workers have ended; their CPU time is included in that of their parents.
        workers = sum(_with_ended(process) for process in jvm.children(recursive=True)) + _with_ended(jvm) - cpu_s(jvm.pid)
        commands = resource.getrusage(resource.RUSAGE_CHILDREN)
        workers += commands.ru_utime + commands.ru_stime
        return Used(time.perf_counter(), cpu_s(jvm.pid), workers, cpu_s(self._meta.pid))


def _read(frame: DataFrame) -> None:
    """Read all columns of all rows, and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def _take_snapshot(directory: str, endpoints: str, cluster: str) -> None:
    command = [sys.executable, "-m", "adapter", "meta", "snapshot", "--output", directory]
    subprocess.run([*command, "--address", endpoints, "--cluster", cluster], check=True, stdout=subprocess.DEVNULL)


def _with_ended(process: psutil.Process) -> float:
    """CPU seconds of a process and of its ended children."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _tell(result: Result, shape: str, count: int, found: Sequence[dict[str, Used]]) -> None:
    rows: list[list[str | float]] = []
    rates = {}
    for step in STEPS:
        used = [one[step] for one in found]
        rates[step] = count / median(one.wall for one in used)
        cpu = [median(getattr(one, name) for one in used) for name in ("jvm", "workers", "meta")]
        base = PARQUET_WRITE if "write" in step else PARQUET_READ
        rows.append([step, rates[step], rates[step] / rates[base], median(one.wall for one in used), *cpu])
    whole = median(one[TAKE].wall + one[SNAPSHOT_READ].wall for one in found)
    share = count / whole / rates[PARQUET_READ]
    columns = ("step", "rows/s", "of Parquet", "seconds", "JVM CPU s", "Python CPU s", "Meta CPU s")
    result.tables.append(Table(f"{count:,} rows, {shape}", columns, rows))
    result.bars.append(Bar(f"reading, {shape}, to Parquet", rates[READ] / rates[PARQUET_READ], READ_LEAST, least=True))
    result.bars.append(Bar(f"taking a snapshot and reading it, {shape}, to Parquet", share, SNAPSHOT_LEAST, least=True))
    result.bars.append(Bar(f"writing, {shape}, to Parquet", rates[WRITE] / rates[PARQUET_WRITE], WRITE_LEAST, least=True))
