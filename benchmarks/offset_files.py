"""Offset files of RocketMQ and Kafka: the speed and memory of reading and writing each format, and of a whole import.

Each read and each write runs in a new process, forked from one that has imported all modules. For comparison: `json.loads` and
Python's `csv` on the whole file, for the formats that they can parse.
"""

import asyncio
import csv
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, Self

from rich.progress import Progress

from adapter.formats import files
from adapter.formats.files import Format
from adapter.formats.rocketmq_rocksdb import Layout
from adapter.formats.rows import Naming, OffsetRow
from benchmarks.machine import cpu_s, memory_mib
from benchmarks.processes import running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "offset files"
GROUPS, GROUPS_SHORT = (10_000, 100_000), (20, 200)
QUEUES = 8
ROUNDS, ROUNDS_FULL = 1, 3
LEAST_PER_S = 200_000
GROWTH_MIB = 16.0  # allowed growth of memory for ten times as many groups
PLAIN = "json.loads or csv"
RUNS = ("all new", "all known")

READING = ("file", "groups", "MB", "offsets/s", "MiB", f"{PLAIN}: offsets/s", f"{PLAIN}: MiB", "offsets/s, of that")
WRITING = ("file", "groups", "offsets/s", "MiB")
IMPORTING = ("run", "seconds", "offsets/s", "CPU s of the command", "CPU s of the adapter", "CPU s of the Meta Service")


@dataclass(frozen=True)
class Way:
    """A kind of file. `make` writes it as RocketMQ does; without it, the file is written by our own export."""

    name: str
    file: str
    kind: Format
    layout: Layout = "v1"
    group: str = ""  # the group, if the file does not name it
    make: Callable[[IO[str], int], None] | None = None
    plain: Callable[[Path], object] | None = None


class Used(NamedTuple):
    """The CPU time of a process, and its peak memory above that at its start."""

    cpu_s: float
    mib: float


def row(group: int, queue: int, *, of_a_client: bool = False) -> OffsetRow:
    """One of the offsets. A client's file has one group, so the topic varies instead."""
    topic, name = (f"broker-a/orders-{group}", "billing") if of_a_client else (f"orders-{group % 1_000}", f"billing-{group}")
    return OffsetRow("default", name, f"{topic}/{queue}", offset(group, queue))


def offset(group: int, queue: int) -> int:
    """An offset of seven to nine digits, as in a broker that has run for a while."""
    return 1_000_000 + group * 1_009 + queue


def broker_4x(file: IO[str], groups: int) -> None:
    """Write the file of a 4.x broker as fastjson does: with numbers as keys, which is not valid JSON."""
    file.write('{\n\t"offsetTable":{\n')
    for group in range(groups):
        queues = ",".join(f"{queue}:{offset(group, queue)}" for queue in range(QUEUES))
        file.write(f'\t\t"orders-{group % 1_000}@billing-{group}":{{{queues}\n\t\t}}{"," if group < groups - 1 else ""}\n')
    file.write("\t}\n}")


def broker_5x(file: IO[str], groups: int) -> None:
    """Write the file of a 5.x broker: quoted keys, a version, and the topics of each group."""
    file.write('{\n\t"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},\n\t"groupTopicMap":{\n')
    file.write(",\n".join(f'\t\t"billing-{group}":["orders-{group % 1_000}"]' for group in range(groups)))
    file.write('\n\t},\n\t"offsetTable":{\n')
    for group in range(groups):
        queues = ",".join(f'"{queue}":{offset(group, queue)}' for queue in range(QUEUES))
        file.write(f'\t\t"orders-{group % 1_000}@billing-{group}":{{{queues}\n\t\t}}{"," if group < groups - 1 else ""}\n')
    file.write("\t}\n}")


def loaded(path: Path) -> object:
    """Parse the whole file with `json.loads`."""
    return json.loads(path.read_bytes())


def split(path: Path) -> object:
    """Parse the whole file with `csv`."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


WAYS = (
    Way("consumerOffset.json, 4.x", "4x/consumerOffset.json", Format.ROCKETMQ_BROKER, make=broker_4x),
    Way("consumerOffset.json, 5.x", "5x/consumerOffset.json", Format.ROCKETMQ_BROKER, make=broker_5x, plain=loaded),
    Way("consumerOffset.json, ours", "consumerOffset.json", Format.ROCKETMQ_BROKER, plain=loaded),
    Way("offsets.json of a client", "offsets.json", Format.ROCKETMQ_CLIENT, group="billing"),
    Way("RocksDB V1", "v1", Format.ROCKETMQ_ROCKSDB),
    Way("RocksDB V2", "v2", Format.ROCKETMQ_ROCKSDB, layout="v2"),
    Way("kafka-csv", "offsets.csv", Format.KAFKA_CSV, plain=split),
    Way("json", "all.json", Format.JSON, plain=loaded),
)
IMPORTED = WAYS[1]


def rows(way: Way, groups: int) -> Iterator[OffsetRow]:
    """Generate the rows while they are written."""
    of_a_client = way.kind is Format.ROCKETMQ_CLIENT
    return (row(group, queue, of_a_client=of_a_client) for group in range(groups) for queue in range(QUEUES))


def read(way: Way, path: Path, groups: int) -> Used:
    """Read a file. Raises RuntimeError if an offset is missing."""
    found = 0

    def whole() -> None:
        nonlocal found
        found = sum(type(each) is OffsetRow for each in files.read(path, way.kind, Naming(group=way.group)))

    used = _used(whole)
    if found != groups * QUEUES:
        raise RuntimeError(f"{path}: {found} offsets came, not {groups * QUEUES}")
    return used


def write(way: Way, path: Path, groups: int) -> Used:
    """Write a file. The cost of generating the rows is included."""
    return _used(lambda: files.write(path, way.kind, rows(way, groups), Naming(group=way.group), way.layout))


def plainly(way: Way, path: Path) -> Used:
    """Parse a whole file without making rows."""
    assert way.plain
    return _used(partial(way.plain, path))


def _used(call: Callable[[], object]) -> Used:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak, see proc(5)
    before, _ = memory_mib(os.getpid())
    began = time.process_time()
    call()
    return Used(time.process_time() - began, memory_mib(os.getpid())[1] - before)


class Machine:
    """Runs each call in a new process, so that memory of earlier calls does not count."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._pool = ProcessPoolExecutor(1, context, max_tasks_per_child=1)

    def __enter__(self) -> Self:
        """Return the runner."""
        return self

    def __exit__(self, *_: object) -> None:
        """End its processes."""
        self._pool.shutdown()

    async def run(self, rounds: int, call: Callable[..., Used], *arguments: object) -> Used:
        """Run a call several times; returns the least CPU time and the most memory."""
        used = [await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments) for _ in range(rounds)]
        return Used(min(each.cpu_s for each in used), max(each.mib for each in used))


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure every format in both sizes, then an import of the larger 5.x file into an adapter and a Meta Service."""
    sizes = GROUPS_SHORT if scale.short else GROUPS
    rounds = 1 if scale.short else ROUNDS_FULL if scale.full else ROUNDS
    task = progress.add_task("offset files", total=len(WAYS) * len(sizes))
    reading: list[list[Cell]] = []
    writing: list[list[Cell]] = []
    with Machine() as machine:
        for way in WAYS:
            for groups in sizes:
                progress.update(task, description=f"{way.name}, {groups:,} groups")
                path = directory / str(groups) / way.file
                path.parent.mkdir(parents=True, exist_ok=True)
                if way.make:
                    with path.open("w", encoding="utf-8") as file:
                        way.make(file, groups)
                else:
                    wrote = await machine.run(1, write, way, path, groups)
                    writing.append([way.name, groups, _per_s(wrote, groups), wrote.mib])
                reading.append(await _reading(machine, rounds, way, path, groups))
                progress.advance(task)
    importing = await _imports(directory, directory / str(sizes[-1]) / IMPORTED.file, sizes[-1], progress)
    result = Result("offset_files", TITLE, bars=_bars(reading, sizes))
    title = f"offset-adapter import --execute, {sizes[-1] * QUEUES:,} offsets of {IMPORTED.name}"
    result.tables += [Table("Reading, a process each", READING, reading), Table("Writing, a process each", WRITING, writing)]
    result.tables.append(Table(title, IMPORTING, importing))
    result.notes += [
        f"{QUEUES} queues in each group. Offsets/s of CPU time, best of {rounds}; MiB: the peak above what the process had.",
        f"{PLAIN}: the whole file at once, no row is made of it.",
        "The command from start to end, its preview and reading back included; adapter and Meta Service share the machine.",
    ]
    return result


async def _reading(machine: Machine, rounds: int, way: Way, path: Path, groups: int) -> list[Cell]:
    used = await machine.run(rounds, read, way, path, groups)
    cells: list[Cell] = [way.name, groups, _bytes(path) / 1e6, _per_s(used, groups), used.mib]
    if not way.plain:
        return [*cells, "-", "-", "-"]
    plain = await machine.run(rounds, plainly, way, path)
    return [*cells, _per_s(plain, groups), plain.mib, _per_s(used, groups) / _per_s(plain, groups)]


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))


def _per_s(used: Used, groups: int) -> float:
    return groups * QUEUES / max(used.cpu_s, 1e-9)


def _bars(reading: list[list[Cell]], sizes: Sequence[int]) -> list[Bar]:
    """For each format: the result of the larger file, and the memory that it needs in addition to the smaller one."""
    per_s, mib = ({(each[0], each[1]): float(each[at]) for each in reading} for at in (3, 4))
    few, many = sizes
    bars = [Bar(f"offsets/s read, {way.name}", per_s[way.name, many], LEAST_PER_S, least=True) for way in WAYS]
    growth = max(mib[way.name, many] - mib[way.name, few] for way in WAYS)
    return [*bars, Bar(f"MiB more for {many:,} groups than for {few:,}, in any format", growth, GROWTH_MIB)]


async def _imports(directory: Path, path: Path, groups: int, progress: Progress) -> list[list[Cell]]:
    """Import the same file twice: first every offset is new, then all are known."""
    cells: list[list[Cell]] = []
    with running_stack(directory / "stack") as stack:
        task = progress.add_task(f"import of {groups * QUEUES:,} offsets", total=len(RUNS))
        for name in RUNS:
            before = [cpu_s(process.pid) for process in (stack.adapter, stack.meta)]
            own = resource.getrusage(resource.RUSAGE_CHILDREN)
            began = time.monotonic()
            await _command("import", str(path), "--execute", "--address", stack.adapter.address)
            seconds, now = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            command_s = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
            after = [cpu_s(process.pid) for process in (stack.adapter, stack.meta)]
            services = [now_s - before_s for now_s, before_s in zip(after, before, strict=True)]
            cells.append([name, seconds, groups * QUEUES / seconds, command_s, *services])
            progress.advance(task)
    return cells


async def _command(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "adapter", *arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the import ended with {process.returncode}:\n{said.decode(errors='replace')[-4_000:]}")
