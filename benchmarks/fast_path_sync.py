"""The cost of each wal_sync for 64 consumers in latency, CPU and memory, and the CPU that the Meta Service saves."""

from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

from rich.progress import Progress

from benchmarks.fast_path import SAVES_LIMIT
from benchmarks.load import Load
from benchmarks.machine import memory_mib
from benchmarks.processes import Measured, Stack, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "wal_sync, and the Meta Service's share"
META_LIMIT = 0.05
SAME_LOAD = 1_000  # commits per second that all modes reach, so that they do the same work

COLUMNS = (
    "64 consumers",
    "commits/s",
    "p50 ms",
    "p99 ms",
    "saves/s seen by Meta",
    "adapter CPU s per million",
    "Meta CPU s per million",
)
MEMORY_COLUMNS = ("after it all", "commits", "adapter MiB", "adapter peak MiB", "Meta MiB", "Meta peak MiB")


@dataclass(frozen=True)
class Way:
    """A kind of client and the stack that it commits to."""

    name: str
    stack: str
    via: str = "store"

    def __str__(self) -> str:
        """The name in the progress display."""
        return self.name


CACHED = Way("cached, interval", "interval")
WRITE_THROUGH = Way("write_through", "write_through")
STRAIGHT = Way("straight into the Meta Service", "write_through", via="meta")
WAL_SYNCS = ("never", "interval", "always")
CLOSED = (
    Way("cached, never", "never"),
    CACHED,
    Way("cached, always", "always"),
    Way("cached, never, OffsetClient", "never", via="client"),
    Way("cached, interval, OffsetClient", "interval", via="client"),
    Way("cached, always, OffsetClient", "always", via="client"),
    WRITE_THROUGH,
    STRAIGHT,
)
LOADS = ((0, CLOSED), (SAME_LOAD, (CACHED, WRITE_THROUGH, STRAIGHT)))


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure an adapter with its own Meta Service for each wal_sync and for write-through, in turn."""
    result = Result("wal_sync", TITLE)
    with ExitStack() as running:
        names = (CACHED.stack,) if scale.short else WAL_SYNCS
        stacks = {name: running.enter_context(running_stack(directory / name, wal_sync=name)) for name in names}
        stacks["write_through"] = running.enter_context(running_stack(directory / "through", top='mode = "write_through"'))
        before = {name: await stack.counters() for name, stack in stacks.items()}
        for rate, ways in LOADS[1:] if scale.short else LOADS:
            task = progress.add_task("wal_sync", total=scale.fast_rounds * len(ways))
            found: dict[Way, list[Measured]] = {way: [] for way in ways}
            for number in range(scale.fast_rounds):
                for way in ways:
                    progress.update(task, description=f"wal_sync: {way}")
                    found[way].append(await stacks[way.stack].under(_load(way, stacks[way.stack], scale, rate, number)))
                    progress.advance(task)
            middles = {way: _middle(windows) for way, windows in found.items()}
            result.tables.append(Table(_title(rate), COLUMNS, [_row(way, middle) for way, middle in middles.items()]))
        passed = {name: (await stack.counters()).since(before[name]) for name, stack in stacks.items()}
        memory = [await _memory(name, stack) for name, stack in stacks.items()]
    result.tables.append(Table("Memory", MEMORY_COLUMNS, memory))
    saves = max(passed[name].saves_seen / passed[name].at for name in names)
    result.bars.append(Bar("save calls/s seen by the Meta Service, throughout, at most", saves, SAVES_LIMIT))
    _judge(result, middles)
    result.notes.append(
        f"Medians of {scale.fast_rounds} windows of {scale.fast_s:g} s, in turns. `Straight` is what there is without an "
        "adapter: each commit a save call of its own. It uses the Meta Service of the write_through row."
    )
    return result


def _load(way: Way, stack: Stack, scale: Scale, rate: int, number: int) -> Load:
    address = stack.meta.address if way.via == "meta" else stack.adapter.tcp_address
    return Load(address, f"{way.via}-{rate}-{number}", scale.fast_s, rate, warm_up_s=scale.warm_up_s, via=way.via)


def _title(rate: int) -> str:
    return f"{rate:,} commits/s together" if rate else "Each as fast as it is answered"


def _middle(windows: list[Measured]) -> Measured:
    return Measured(*(median(values) for values in zip(*map(astuple, windows), strict=True)))


def _row(way: Way, measured: Measured) -> list[Cell]:
    row: list[Cell] = [way.name, measured.commits, measured.p50_ms, measured.p99_ms, measured.saves_seen]
    if not measured.commits:  # possible in a very short window on a busy machine
        return [*row, "-", "-"]
    adapter = "-" if way is STRAIGHT else measured.adapter_cpu / measured.commits * 1e6
    return [*row, adapter, measured.meta_cpu / measured.commits * 1e6]


async def _memory(name: str, stack: Stack) -> list[Cell]:
    return [name, await stack.commits(), *memory_mib(stack.adapter.pid), *memory_mib(stack.meta.pid)]


def _judge(result: Result, found: dict[Way, Measured]) -> None:
    """The bar for the Meta Service's CPU at the same number of commits."""
    for other in (STRAIGHT, WRITE_THROUGH):
        spent = found[other].meta_cpu
        share = found[CACHED].meta_cpu / spent if spent else 0.0
        result.bars.append(Bar(f"Meta Service CPU to that of `{other.name}`, {SAME_LOAD:,} commits/s", share, META_LIMIT))
