"""The command `import` with a large CSV, merged and read back: seconds, rows per second, CPU.

The Meta Service is a real process on the same machine. The time includes Spark's start and the comparison before the merge.
"""

import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

import grpc
from rich.progress import Progress

from adapter.rpc import meta_grpc, meta_pb
from adapter.testing.processes import ServiceProcess, ended, meta_process
from benchmarks.machine import cpu_s
from benchmarks.report import Result, Table
from benchmarks.scale import Scale

TITLE = "an import of offsets from a CSV"
ROWS, ROWS_SHORT = 1_000_000, 5_000
GROUPS = 1_000
RUNS = ("all new", "all known")


class Took(NamedTuple):
    """The result of one run. `cpu_s` is Spark's CPU time: driver, JVM and workers."""

    seconds: float
    cpu_s: float
    meta_cpu_s: float


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Import the same file twice: first every offset is new, then the Meta Service has all."""
    rows = ROWS_SHORT if scale.short else ROWS
    file = directory / "offsets.csv"
    file.write_text("".join(f"group-{at % GROUPS},topic-{at // GROUPS // 16},{at // GROUPS % 16},{at}\n" for at in range(rows)))
    meta = meta_process(directory)
    task = progress.add_task(f"import of {rows:,} offsets", total=len(RUNS))
    took = []
    with ended(meta):
        meta.start()
        config = directory / "job.toml"
        config.write_text(
            f"[meta]\nendpoints = ['{meta.tcp_address}']\n"
            f"[import]\nformat = 'kafka-csv'\nfiles = ['{file}']\noutput = '{directory / 'import'}'\n[log]\nlevel = 'error'\n"
        )
        for _ in RUNS:
            took.append(await _import(config, meta))
            progress.advance(task)
        _check(meta, rows)
    cells = [(name, one.seconds, rows / one.seconds, one.cpu_s, one.meta_cpu_s) for name, one in zip(RUNS, took, strict=True)]
    columns = ["run", "seconds", "rows/s", "CPU s of Spark", "CPU s of the Meta Service"]
    result = Result("pipeline_import", TITLE, [Table(f"{rows:,} rows, preview, merge and reading back", columns, cells)])
    result.notes.append("From the start of the command to its end, with Spark's start; the Meta Service shares the machine.")
    return result


async def _import(config: Path, meta: ServiceProcess) -> Took:
    before, began = cpu_s(meta.pid), time.monotonic()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "adapter.pipeline", "import", "--config", str(config), "--apply"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the import ended with {process.returncode}:\n{said.decode(errors='replace')}")
    seconds, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, cpu_s(meta.pid) - before)


def _check(meta: ServiceProcess, rows: int) -> None:
    found, token = 0, b""
    with grpc.insecure_channel(meta.address, [("grpc.max_receive_message_length", -1)]) as channel:
        stub = meta_grpc.MetaServiceServiceStub(channel)
        while True:
            request = meta_pb.ScanOffsetDataRequest(cluster_name="default", page_token=token, as_packed=True)
            page = stub.ScanOffsetData(request)
            found += len(page.packed.key_sizes) // 2
            token = page.next_page_token
            if not token:
                break
    if found != rows:
        raise RuntimeError(f"the Meta Service holds {found:,} offsets, not {rows:,}")
