"""The data source `offsets`, and snapshots, compared to Parquet, in one Spark session with two cores: rows/s, and CPU by process.

Both write the same cached rows and read all their columns. The Meta Service is a process on the same two cores, over its own
store; for `pipeline_etcd` over etcd. A fleet's rows are four times as many, and only read.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import grpc
import psutil
from pyspark.sql import DataFrame, SparkSession
from rich.progress import Progress

from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.rocksdb.reads import SCAN_SLICE
from adapter.metaservice.rocksdb.store import DATA, read_only
from adapter.model.codec import pack_names, prefix_end
from adapter.pipeline.session import spark_session
from adapter.rpc import etcd_grpc, etcd_pb
from adapter.runtime.durable import rocks
from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import ServiceProcess, ended, meta_process
from benchmarks import etcd_machine
from benchmarks.machine import cpu_s
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "the Spark data source against plain Parquet"
READ_LEAST, WRITE_LEAST, SNAPSHOT_LEAST = 0.27, 0.3, 0.4  # as shares of Parquet's rate
ROWS, FLEET_ROWS, SHORT_ROWS = 1_000_000, 4_000_000, 5_000
ETCD_ROWS, ETCD_PREFIX = 300_000, "bench/"
SHARDS = 100  # shards of a group
SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}

PARQUET_WRITE, WRITE, AGAIN = "write Parquet", "write offsets", "write the same offsets again"
PARQUET_READ, READ = "read Parquet", "read offsets"
TAKE, SNAPSHOT_READ, SNAPSHOT_PYTHON = "take a snapshot", "read the snapshot as Parquet", "read the snapshot as offsets"
EMPTY, ITERATED, ETCD_RANGES = "take a snapshot of nothing", "the store's rows, iterated alone", "range reads of etcd alone"

# The columns of rows that an adapter flushes, and of rows of an import.
FLEET = "a fleet's"
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
    counts = (SHORT_ROWS, SHORT_ROWS) if scale.short else (ROWS, FLEET_ROWS)
    rounds = 1 if scale.short else 5 if scale.full else 3
    meta = meta_process(directory)
    with ended(meta):
        meta.start()
        session = spark_session("bench", "local[2]", SETTINGS)
        try:
            for shape, columns in SHAPES.items():
                with _Bench.of(session, meta, directory / shape.replace(" ", "-"), counts[0], columns) as bench:
                    _tell(result, shape, counts[0], _rounds(bench.round, rounds, progress, f"pipeline_source: {shape}"))
            with _Bench.of(session, meta, directory / "fleet", counts[1], ()) as bench:
                bench.write()
                found = _rounds(lambda _: bench.read(), rounds, progress, f"pipeline_source: {FLEET}")
        finally:
            session.stop()
    for each in found:  # when no process has the store open
        each[ITERATED] = _iterated(directory / "meta" / "db", "fleet-0", counts[1])
    _tell(result, FLEET, counts[1], found)
    result.notes.append(
        f"{rounds} rounds after one of warm-up, medians. CPU is in seconds of one step: of the JVM, of Spark's "
        "Python workers and of `meta snapshot`, of the Meta Service. The settings of Spark are those of "
        f"adapter/pipeline/session.py for all steps. `{EMPTY}` is what the command takes however few records there are. "
        f"`{ITERATED}`: RocksDB's iterator called from Python, in this process; no snapshot of this store can be faster."
    )
    return result


async def run_etcd(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure reads through a Meta Service over etcd: one member for offsets, one for metadata."""
    result = Result("pipeline_etcd", "the Spark data source over etcd against plain Parquet")
    count, rounds = (SHORT_ROWS, 1) if scale.short else (ETCD_ROWS, 3)
    with (
        LocalCluster("metadata", 1, directory=directory / "m") as metadata,
        LocalCluster("o", 1, directory=directory / "o") as one,
    ):
        meta = etcd_machine.meta(directory, metadata, [one], top=f'prefix = "{ETCD_PREFIX}"')
        with ended(meta):
            meta.start()
            session = spark_session("bench", "local[2]", SETTINGS)
            try:
                with _Bench.of(session, meta, directory / "etcd", count, ()) as bench:
                    bench.write()
                    (member,) = one.endpoints

                    def measured(_: int) -> dict[str, Used]:
                        found = bench.read()
                        began = time.perf_counter()
                        assert _etcd_rows(member, "etcd-0") == count
                        return {**found, ETCD_RANGES: Used(time.perf_counter() - began, 0.0, 0.0, 0.0)}

                    found = _rounds(measured, rounds, progress, "pipeline_etcd")
            finally:
                session.stop()
    _tell(result, "over etcd", count, found)
    result.notes.append(
        f"{rounds} rounds after one of warm-up, medians. One member for each Raft group, on the same two cores; its CPU is not "
        f"in the table. `{ETCD_RANGES}`: the same keys and values, read by one client in pages of 10,000, and not looked at."
    )
    return result


def _rounds(measure: Callable[[int], dict[str, Used]], rounds: int, progress: Progress, title: str) -> list[dict[str, Used]]:
    """What each round but the first measures: that one warms up."""
    task = progress.add_task(title, total=rounds + 1)
    found = []
    for number in range(rounds + 1):
        found.append(measure(number))
        progress.advance(task)
    return found[1:]


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
        self._rows = rows
        self._snapshots = 0

    @classmethod
    @contextmanager
    def of(
        cls, session: SparkSession, meta: ServiceProcess, directory: Path, count: int, columns: Sequence[str]
    ) -> "Iterator[_Bench]":
        """Cache the rows for the time of the context."""
        rows = rows_of(session, count, columns)
        try:
            yield cls(session, meta, directory, rows)
        finally:
            rows.unpersist()

    def round(self, number: int) -> dict[str, Used]:
        """Write and read everything once, with destinations of this number."""
        return {**self.write(number), **self.read(number)}

    def write(self, number: int = 0) -> dict[str, Used]:
        """Write the rows; as offsets twice."""

        def write() -> None:
            self._rows.write.format("offsets").options(**self._options(number)).mode("append").save()

        steps = {PARQUET_WRITE: lambda: self._rows.write.parquet(self._parquet(number)), WRITE: write, AGAIN: write}
        return {name: self._measured(step) for name, step in steps.items()}

    def read(self, number: int = 0) -> dict[str, Used]:
        """Read what was written under this number."""
        self._snapshots += 1
        options, snapshot = self._options(number), str(self._directory / f"{self._snapshots}.snapshot")
        offsets = self._session.read.format("offsets").options(**options)
        steps: dict[str, Callable[[], None]] = {
            PARQUET_READ: lambda: _read(self._session.read.parquet(self._parquet(number))),
            READ: lambda: _read(offsets.load()),
            EMPTY: lambda: _take_snapshot(f"{snapshot}.empty", options["endpoints"], "nothing"),
            TAKE: lambda: _take_snapshot(snapshot, **options),
            SNAPSHOT_READ: lambda: _read(self._session.read.parquet(snapshot)),
            SNAPSHOT_PYTHON: lambda: _read(self._session.read.format("offsets").option("snapshot", snapshot).load()),
        }
        found = {name: self._measured(step) for name, step in steps.items()}
        assert offsets.load().count() == self._rows.count()
        return found

    def _options(self, number: int) -> dict[str, str]:
        return {"endpoints": self._meta.address, "cluster": f"{self._directory.name}-{number}"}

    def _parquet(self, number: int) -> str:
        return str(self._directory / f"{number}.parquet")

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


def _iterated(database: Path, cluster: str, count: int) -> Used:
    """Iterate the rows of a store that no process has open."""
    with closing(read_only(database)) as store:
        began, prefix, rows = time.perf_counter(), pack_names(cluster), 0
        for some in rocks.scan_slices(store.get_column_family(DATA), prefix, prefix_end(prefix), SCAN_SLICE):
            rows += len(some)
        assert rows == count
        return Used(time.perf_counter() - began, 0.0, 0.0, 0.0)


def _etcd_rows(member: str, cluster: str) -> int:
    """Read all keys and values of a cluster from etcd; returns their number."""
    start = Keys(ETCD_PREFIX).offsets + pack_names(cluster)
    end, rows = prefix_end(start), 0
    with grpc.insecure_channel(member, (("grpc.max_receive_message_length", -1),)) as channel:
        while True:
            found = etcd_grpc.KVStub(channel).Range(etcd_pb.RangeRequest(key=start, range_end=end, limit=10_000))
            rows += len(found.kvs)
            if not found.more:
                return rows
            start = found.kvs[-1].key + b"\0"


def _tell(result: Result, kind: str, count: int, found: Sequence[dict[str, Used]]) -> None:
    """Add the table of a kind of rows, and its bars. `found`: what each round measured."""
    seconds = {step: median(one[step].wall for one in found) for step in found[0]}
    rows: list[list[str | float]] = []
    for step, wall in seconds.items():
        cpu = [median(getattr(one[step], name) for one in found) for name in ("jvm", "workers", "meta")]
        base = seconds[PARQUET_WRITE if "write" in step else PARQUET_READ]
        rate: list[str | float] = ["", ""] if step == EMPTY else [count / wall, base / wall]
        rows.append([step, *rate, wall, *cpu])
    columns = ("step", "rows/s", "of Parquet", "seconds", "JVM CPU s", "Python CPU s", "Meta CPU s")
    result.tables.append(Table(f"{count:,} rows, {kind}", columns, rows))
    whole = seconds[TAKE] + seconds[SNAPSHOT_READ]
    result.bars += [
        Bar(f"reading, {kind}, to Parquet", seconds[PARQUET_READ] / seconds[READ], READ_LEAST, least=True),
        Bar(f"taking a snapshot and reading it, {kind}, to Parquet", seconds[PARQUET_READ] / whole, SNAPSHOT_LEAST, least=True),
    ]
    if WRITE in seconds:
        result.bars.append(Bar(f"writing, {kind}, to Parquet", seconds[PARQUET_WRITE] / seconds[WRITE], WRITE_LEAST, least=True))
