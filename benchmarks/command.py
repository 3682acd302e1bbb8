"""The startup cost of commands, and the cost of a table row: CPU and memory of whole processes.

For comparison: Python alone, Python with gRPC, the imports of the adapter's process, and rich's tables.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

from adapter.cli.table import LEFT, Side, print_table
from adapter.client.client import OffsetClient
from benchmarks.processes import running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "the command"
ROWS, ROWS_SHORT = 30_000, 300
BATCH = 1_000
RICH_ROWS = 1_000  # rows of one table; a row of a larger table costs more
ROUNDS, ROUNDS_SHORT = 5, 1
START_CPU_S = 0.2
LIST_CPU_S = 2.0
COLUMNS: dict[str, Side] = {"namespace": LEFT, "group": LEFT, "shard": LEFT, "offset": LEFT, "state": LEFT, "metadata": LEFT}
# Started by a small process, because memory that is shared with the parent counts too.
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
HEAD = ("process", "CPU s", "MiB")

BESIDE = {
    "Python": ("-c", "pass"),
    "Python with gRPC": ("-c", "import grpc"),
    "the adapter's process, imported": ("-c", "import adapter.cli.process.serve, rich.table"),
}


class Cost(NamedTuple):
    """CPU time and peak memory of an ended process."""

    cpu_s: float
    mib: float


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure each process alone, the cheapest of some rounds; then table rows."""
    rounds, count = (ROUNDS_SHORT, ROWS_SHORT) if scale.short else (ROUNDS, ROWS)
    with running_stack(directory) as stack:
        async with OffsetClient.connect(stack.adapter.address) as client:
            for at in range(0, count, BATCH):
                await client.commit("group", {f"orders/{number}": 1 for number in range(at, min(at + BATCH, count))})
        where = ("--address", stack.adapter.address)
        commands = {
            "--help": ("--help",),
            "--version": ("--version",),
            "health": ("health", *where),
            "get, one offset": ("get", "group", "orders/1", *where),
            "status": ("status", *where),
            f"list, {count:,} offsets": ("list", *where),
            f"list --json, {count:,} offsets": ("list", "--json", *where),
        }
        processes = {**BESIDE, **{name: ("-m", "adapter", *given) for name, given in commands.items()}}
        task = progress.add_task("the command", total=len(processes) * rounds)
        costs: dict[str, Cost] = {}
        for name, arguments in processes.items():
            found = []
            for _ in range(rounds):
                found.append(await asyncio.to_thread(cost_of, arguments))
                progress.advance(task)
            costs[name] = min(found)
    rows: list[list[Cell]] = [[name, cost.cpu_s, cost.mib] for name, cost in costs.items()]
    ours, theirs = us_a_row(_ours, count), us_a_row(_rich, min(count, RICH_ROWS))
    lists = [cost.cpu_s for name, cost in costs.items() if name.startswith("list")]
    return Result(
        "command",
        TITLE,
        [
            Table("whole processes", HEAD, rows),
            Table("a row of a table, into a pipe", ("written by", "us"), [["adapter.cli.table", ours], ["rich.table", theirs]]),
        ],
        [
            Bar("CPU s of a health check", costs["health"].cpu_s, START_CPU_S),
            Bar(f"CPU s of a list of {count:,} offsets", max(lists), LIST_CPU_S),
        ],
    )


def cost_of(arguments: Sequence[str]) -> Cost:
    """Run a Python process to its end."""
    ran = subprocess.run([sys.executable, "-c", MEASURED, sys.executable, *arguments], check=True, capture_output=True, text=True)
    cpu_s, kib = ran.stdout.split()
    return Cost(float(cpu_s), int(kib) / 1024)


def us_a_row(write: Callable[[Iterator[Sequence[str]]], None], count: int) -> float:
    """The CPU microseconds of one row of a table."""
    rows = (("default", "group", f"orders/{number}", str(number), "clean", "m" * 20) for number in range(count))
    began = time.process_time()
    with redirect_stdout(StringIO()):
        write(rows)
    return (time.process_time() - began) / count * 1e6


def _ours(rows: Iterator[Sequence[str]]) -> None:
    print_table(COLUMNS, rows)


def _rich(rows: Iterator[Sequence[str]]) -> None:
    table = RichTable(*COLUMNS)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
