"""The command `import` with a large CSV, merged and read back, against a plain bulk merge of the same offsets through the client.

The Meta Service is a real process on the same machine. The plain merge gets its rows from memory: it reads, checks and compares
nothing, and is the least that the Meta Service and its client need.
"""

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
import psutil
import pyarrow as pa
from rich.progress import Progress

from adapter.pipeline.offsets.options import WriteOptions, parse_options
from adapter.pipeline.offsets.writer import OffsetsWriter
from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ServiceProcess, ended, meta_process
from benchmarks.machine import cpu_s
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "an import of offsets from a CSV"
ROWS, ROWS_SHORT = 1_000_000, 5_000
GROUPS = 1_000
RATE_LEAST = 60_000  # rows/s of an import after Spark's start
PLAIN, NEW, KNOWN = "plain bulk merge", "import, all new", "import, all known"
BATCH = 100_000  # rows

START, READ, MERGE, BACK = STEPS = ("starting Spark", "reading the files", "merging", "reading back")
_STEP = re.compile(r"^(.+): ([0-9.]+) s$", re.MULTILINE)
SAMPLE_S = 0.2  # a process that ended since the last sample has its CPU time of then


class Took(NamedTuple):
    """The result of one run: seconds in all and by step, CPU seconds of the caller with all of Spark, and of the Meta Service."""

    seconds: float
    steps: Mapping[str, float]
    cpu_s: float
    meta_cpu_s: float

    @property
    def work_s(self) -> float:
        """Seconds without Spark's start."""
        return self.seconds - self.steps.get(START, 0.0)


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Merge plainly into a cluster of its own; import the same offsets twice: first all are new, then all are known."""
    rows = ROWS_SHORT if scale.short else ROWS
    names = [(f"group-{at % GROUPS}", f"topic-{at // GROUPS // 16}", at // GROUPS % 16, at) for at in range(rows)]
    file = directory / "offsets.csv"
    file.write_text("".join(f"{group},{topic},{partition},{offset}\n" for group, topic, partition, offset in names))
    meta = meta_process(directory)
    task = progress.add_task(f"import of {rows:,} offsets", total=3)
    with ended(meta):
        meta.start()
        config = directory / "job.toml"
        config.write_text(
            f"[meta]\nendpoints = ['{meta.tcp_address}']\n"
            f"[import]\nformat = 'kafka-csv'\nfiles = ['{file}']\noutput = '{directory / 'import'}'\n[log]\nlevel = 'error'\n"
        )
        took = {PLAIN: _plain(names, meta)}
        progress.advance(task)
        for name in (NEW, KNOWN):
            took[name] = await _import(config, meta)
            progress.advance(task)
        for cluster in ("default", "plain"):
            _check(meta, cluster, rows)
    return _result(rows, took)


def _result(rows: int, took: Mapping[str, Took]) -> Result:
    cells = [
        (name, one.seconds, *(one.steps.get(step, "") for step in STEPS), rows / one.work_s, one.cpu_s, one.meta_cpu_s)
        for name, one in took.items()
    ]
    columns = ["run", "seconds", *STEPS, "rows/s after the start", "CPU s", "CPU s of the Meta Service"]
    result = Result("pipeline_import", TITLE, [Table(f"{rows:,} rows", columns, cells)])
    result.bars.append(Bar("rows/s of an import after Spark's start", rows / took[NEW].work_s, RATE_LEAST, least=True))
    ratio = took[NEW].work_s / took[PLAIN].seconds
    result.notes.append(f"All new, after Spark's start, the import takes {ratio:.2f} times as long as the plain merge.")
    result.notes.append(
        "An import is the whole command with preview, merge and reading back; the Meta Service and the import share the machine."
    )
    return result


def _plain(names: Sequence[tuple[str, str, int, int]], meta: ServiceProcess) -> Took:
    schema = ("group", "shard", "topic", "partition", "offset")
    rows = [(group, f"{topic}/{partition}", topic, partition, offset) for group, topic, partition, offset in names]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    table = pa.table([pa.repeat("default", len(rows)), *columns], ["namespace", *schema])
    writer = OffsetsWriter(parse_options(WriteOptions, {"endpoints": meta.tcp_address, "cluster": "plain"}))
    before, own, began = cpu_s(meta.pid), time.process_time(), time.monotonic()
    writer.write(iter(table.to_batches(max_chunksize=BATCH)))
    return Took(time.monotonic() - began, {}, time.process_time() - own, cpu_s(meta.pid) - before)


async def _import(config: Path, meta: ServiceProcess) -> Took:
    before, began = cpu_s(meta.pid), time.monotonic()
    command = [sys.executable, "-m", "adapter.pipeline", "import", "--config", str(config), "--apply"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    used: dict[int, float] = {}
    sampling = asyncio.create_task(_sample(process.pid, used))
    _, said = await process.communicate()
    sampling.cancel()
    text = said.decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"the import ended with {process.returncode}:\n{text}")
    seconds = time.monotonic() - began
    found = {step: float(took) for line, took in _STEP.findall(text) for step in STEPS if line.startswith(step)}
    return Took(seconds, found, sum(used.values()), cpu_s(meta.pid) - before)


async def _sample(pid: int, used: dict[int, float]) -> None:
    """Keep the CPU seconds of each process of a tree. What a JVM started is not waited for by its parent, and counted nowhere."""
    while True:
        try:
            for process in (root := psutil.Process(pid), *root.children(recursive=True)):
                used[process.pid] = cpu_s(process.pid)
        except psutil.Error:
            pass
        await asyncio.sleep(SAMPLE_S)


def _check(meta: ServiceProcess, cluster: str, rows: int) -> None:
    found, token = 0, b""
    with grpc.insecure_channel(meta.address, [("grpc.max_receive_message_length", -1)]) as channel:
        stub = meta_grpc.MetaServiceServiceStub(channel)
        while True:
            request = meta_pb.ScanOffsetDataRequest(cluster_name=cluster, page_token=token, as_packed=True)
            page = stub.ScanOffsetData(request)
            found += len(page.packed.key_sizes) // 2
            token = page.next_page_token
            if not token:
                break
    if found != rows:
        raise RuntimeError(f"the Meta Service holds {found:,} offsets in {cluster}, not {rows:,}")
