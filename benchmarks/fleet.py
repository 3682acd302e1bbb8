"""A fleet of 10 adapters with 100,000 groups: pages, memory, CPU while groups change; pages by plain Python beside it.

    python -m benchmarks.fleet 10 10000 1000

Run as a process, this serves so many fake adapters, each with so many groups, of which so many change in a second, all together.
It prints their addresses, and ends with its standard input.
"""

import asyncio
import gc
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from rich.progress import Progress

from adapter.fleet.fleet import MAX_PAGE, Fleet
from adapter.fleet.section import FleetSection
from adapter.rpc import lag_pb
from adapter.testing.lag_adapters import FakeLagAdapter, serving
from benchmarks.processes import ROOT
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "a fleet of many adapters as one"
ADAPTERS, GROUPS = 10, 100_000
CHANGES = 1_000  # groups a second
PAGES = 30
PAGE = 50
TICK_S = 0.001
PAUSE_S = 0.25  # between two pages: groups change meanwhile, so that each is sorted anew
COLUMNS = ("page of 50 out of all groups", "median ms", "worst ms", "longest hold of the event loop, ms")
COST_COLUMNS = ("fleet", "value")
PAGE_LIMIT_MS = 100.0


@dataclass
class Timed:
    """Milliseconds of each page, and the longest time for which the event loop did nothing else."""

    pages: list[float]
    held: float


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:  # noqa: ARG001 - as all benchmarks
    """Follow the adapters, and ask for pages by the fleet and by plain Python, in turn."""
    groups = GROUPS // (100 if scale.short else 1)
    async with AsyncExitStack() as stack:
        addresses = await stack.enter_async_context(_served(groups // ADAPTERS))
        before, began, cpu = _resident(), time.perf_counter(), time.process_time()
        section = FleetSection.model_validate({"adapters": addresses, "timeout_ms": 60_000, "max_groups": 2 * GROUPS})
        fleet = await stack.enter_async_context(Fleet.open(section))
        async for _ in fleet.changes(0.05):
            if all(view.lag_known for view in fleet.adapters):
                break
        filled_s, filled_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        gc.collect()
        memory = _resident() - before
        plain = {  # what a plain program keeps of each group
            view.key: view.lag
            for at in range(0, groups, MAX_PAGE)
            for view in (await fleet.groups(order=lag_pb.NAME, page_size=MAX_PAGE, offset=at)).groups
        }
        seconds = 2.0 if scale.short else 10.0
        cpu = time.process_time()
        await asyncio.sleep(seconds)
        changing_cpu = (time.process_time() - cpu) / seconds
        rounds = 3 if scale.short else PAGES
        task = progress.add_task("fleet: pages", total=2 * rounds)

        async def by_fleet() -> None:
            await fleet.groups(order=lag_pb.WORST, page_size=PAGE)

        async def by_plain() -> None:
            sorted(plain.values(), key=_worst)[:PAGE]

        timed = {"by the fleet": await _timed(by_fleet, rounds), "by plain Python": await _timed(by_plain, rounds)}
        progress.advance(task, 2 * rounds)
    ours, theirs = timed["by the fleet"], timed["by plain Python"]
    rows: list[list[Cell]] = [[name, median(found.pages), max(found.pages), found.held] for name, found in timed.items()]
    result = Result("fleet", TITLE)
    result.tables.append(Table(f"{groups:,} groups of {ADAPTERS} adapters, {CHANGES:,} changes/s", COLUMNS, rows))
    costs: list[list[Cell]] = [
        ["seconds until all groups are known", filled_s],
        ["CPU seconds for that", filled_cpu_s],
        ["resident memory, MB", memory / 1e6],
        ["bytes a group", memory / groups],
        [f"CPU seconds a second, {CHANGES:,} changes/s", changing_cpu],
    ]
    result.tables.append(Table("What it costs", COST_COLUMNS, costs))
    result.bars += [
        Bar("a page by the fleet, median ms", median(ours.pages), PAGE_LIMIT_MS),
        Bar("a page by plain Python to one by the fleet", median(theirs.pages) / median(ours.pages), 1.0, least=True),
        Bar("longest hold of the event loop: plain Python to the fleet", theirs.held / max(ours.held, 1e-9), 2.0, least=True),
    ]
    result.notes.append(
        "Fake adapters in another process, on the same cores. Groups change all the time, so each page is sorted anew. Plain "
        "Python sorts messages by a key function, in the event loop, and follows nothing."
    )
    return result


def _worst(group: lag_pb.GroupLag) -> tuple[float, ...]:
    return -group.status, -group.lag_seconds, -group.lag


async def _timed(page: Callable[[], Awaitable[None]], rounds: int) -> Timed:
    """Time pages, while something else wants to run every millisecond."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            worst = max(worst, (now - last - TICK_S) * 1e3)
            last = now

    ticking = asyncio.create_task(tick(), name="tick")
    pages = []
    for _ in range(rounds):
        began = time.perf_counter()
        await page()
        pages.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(PAUSE_S)
    ticking.cancel()
    return Timed(pages, worst)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4_096


@asynccontextmanager
async def _served(groups: int) -> AsyncIterator[list[str]]:
    """Fake adapters in another process."""
    command = [sys.executable, "-m", "benchmarks.fleet", str(ADAPTERS), str(groups), str(CHANGES)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdin
    assert process.stdout
    try:
        yield (await process.stdout.readline()).decode().split()
    finally:
        process.stdin.close()
        await process.wait()


def _group(random: Random, name: str) -> lag_pb.GroupLag:
    lag = random.randrange(100_000)
    return lag_pb.GroupLag(
        namespace="default",
        group=name,
        shards=8,
        known=8,
        lag=lag,
        lag_seconds=lag / 100,
        commit_rate=random.random(),
        produce_rate=random.random(),
        trend=random.random() - 0.5,
        last_commit_at_ms=random.randrange(2**41),
        status=random.choice([lag_pb.OK, lag_pb.OK, lag_pb.WARN, lag_pb.STOP]),
        burrow=lag_pb.OK,
        worst_shard="orders-0",
        moving_lag=lag,
    )


async def _serve(adapters: int, groups: int, changes: int) -> None:
    random = Random(1)
    fakes = [FakeLagAdapter(f"broker-{number}") for number in range(adapters)]
    names = [[f"team-{at % 97}.consumer-{number}-{at}" for at in range(groups)] for number in range(adapters)]
    async with AsyncExitStack() as stack:
        for number, fake in enumerate(fakes):
            fake.tell_all([_group(random, name) for name in names[number]])
        print(*[await stack.enter_async_context(serving(fake)) for fake in fakes], flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read), name="ended")
        while not ended.done():
            for number, fake in enumerate(fakes):  # one after the other: something changes between any two pages
                fake.tell_all([_group(random, name) for name in random.sample(names[number], min(changes // adapters, groups))])
                await asyncio.wait([ended], timeout=1.0 / adapters)


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:4])))
