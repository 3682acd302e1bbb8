"""What an adapter holds in memory: empty, with many keys, when these are idle, and after a restart; and what an idle key costs.

    BENCH_BEFORE=/path/of/another/checkout BENCH_KEYS=100000 python -m benchmarks memory

Real processes: one with and one without the live lag, each before a Meta Service of its own, filled and left alone at the same
time; with BENCH_BEFORE those of the other checkout as well. Resident memory (VmRSS), of which some 40 MiB are code in files.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from adapter.client.client import OffsetClient
from adapter.sidecar.ledger.ledger import IDLE_S
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from benchmarks.machine import cpu_s
from benchmarks.processes import of_tree, trees
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.resident import memory
from benchmarks.scale import Scale

TITLE = "memory of an adapter, and what the first use of an idle key costs"
KEYS, KEYS_SHORT = 100_000, 200
SHARDS = 10  # of a group
AT_ONCE = 32  # commits
STARTED_S = 3.0  # after a start, until it holds what it needs
IDLE_MIB = 115.0
GROUPS_USED = 1_000
MIB = 2**20
COLUMNS = ("tree", "live lag", "empty, MiB", "with the keys", "bytes a key", "idle", "bytes a key", "restarted", "bytes a key")
USE_COLUMNS = (
    "call of one shard, one after the other",
    "idle key: p50 us",
    "adapter CPU us",
    "used key: p50 us",
    "adapter CPU us",
)


@dataclass
class Held:
    """An adapter, and what it held at each time, in bytes."""

    tree: str
    lag: bool
    adapter: ServiceProcess
    bytes: list[int] = field(default_factory=list)

    def note(self) -> None:
        """Note what it holds now."""
        self.bytes.append(memory(self.adapter.pid, "VmRSS"))

    def row(self, keys: int) -> list[Cell]:
        """The row of the table."""
        empty, *others = self.bytes
        cells: list[Cell] = [self.tree, "on" if self.lag else "off", round(empty / MIB)]
        for one in others:
            cells += [round(one / MIB), round((one - empty) / keys)]
        return cells


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Fill, wait until what nobody uses has left, use some of it, restart."""
    keys = int(os.environ.get("BENCH_KEYS") or (KEYS_SHORT if scale.short else KEYS))
    result = Result("memory", TITLE)
    with ExitStack() as running:
        found = [
            running.enter_context(_started(name, root, directory / f"{name.replace(' ', '-')}-{lag}", lag=lag))
            for name, root in trees().items()
            for lag in (False, True)
        ]
        task = progress.add_task("memory", total=len(found) + 3)
        await asyncio.sleep(STARTED_S)
        for one in found:
            one.note()
            await _fill(one.adapter, keys)
            progress.advance(task)
        await asyncio.sleep(STARTED_S)
        for one in found:
            one.note()
        await asyncio.sleep(0 if scale.short else 2 * IDLE_S + STARTED_S)
        progress.advance(task)
        for one in found:
            one.note()
        used = await _used(found[1].adapter, min(GROUPS_USED, keys // SHARDS))
        progress.advance(task)
        for one in found:
            one.adapter.stop()
            one.adapter.start()
        await asyncio.sleep(STARTED_S if scale.short else IDLE_S)
        for one in found:
            one.note()
        progress.advance(task)
    result.tables.append(
        Table(f"{keys:,} keys in groups of {SHARDS}, one commit each", COLUMNS, [one.row(keys) for one in found])
    )
    result.tables.append(Table("The first use of an idle key, and the second", USE_COLUMNS, used))
    result.bars.append(Bar("MiB of an adapter whose keys are idle, with the live lag", found[1].bytes[2] / MIB, IDLE_MIB))
    result.notes.append(
        f"idle: {2 * IDLE_S} s after the last commit, and no more, since what nobody used for {IDLE_S} s leaves; restarted: "
        f"{IDLE_S} s after the start"
    )
    return result


@contextmanager
def _started(tree: str, root: Path, directory: Path, *, lag: bool) -> Iterator[Held]:
    directory.mkdir()
    meta = meta_process(directory)
    with ended(meta):
        meta.start()
        adapter = of_tree(adapter_process(directory, meta.address, extra=f"[lag]\nshards = {100_000 if lag else 0}"), root)
        with ended(adapter):
            adapter.start()
            yield Held(tree, lag, adapter)


async def _fill(adapter: ServiceProcess, keys: int) -> None:
    async with OffsetClient.connect(adapter.address, 60.0) as client:
        for at in range(0, keys // SHARDS, AT_ONCE):
            some = range(at, min(at + AT_ONCE, keys // SHARDS))
            await asyncio.gather(*(client.commit(_group(one), {f"orders/{shard}": 5 for shard in range(SHARDS)}) for one in some))
        await client.flush()


async def _used(adapter: ServiceProcess, groups: int) -> list[list[Cell]]:
    """Commit to a shard of each group, and read one of each other group, twice: it is idle before the first time."""
    rows: list[list[Cell]] = []
    async with OffsetClient.connect(adapter.address, 60.0) as client:
        # What the process does for the first time at all.
        await client.commit("warm-up", {"orders/0": 1})
        await client.read("warm-up", ["orders/0"])

        async def commit(group: int, turn: int) -> None:
            await client.commit(_group(group), {"orders/0": 6 + turn})

        async def read(group: int, _: int) -> None:
            await client.read(_group(group), ["orders/0"])

        calls: dict[str, tuple[Callable[[int, int], Awaitable[None]], range]] = {
            "commit": (commit, range(0, groups, 2)),
            "read": (read, range(1, groups, 2)),
        }
        for name, (call, some) in calls.items():
            cells: list[Cell] = [name]
            for turn in range(2):
                waits, before = [], cpu_s(adapter.pid)
                for group in some:
                    began = time.perf_counter()
                    await call(group, turn)
                    waits.append(time.perf_counter() - began)
                cells += [statistics.median(waits) * 1e6, (cpu_s(adapter.pid) - before) / len(waits) * 1e6]
            rows.append(cells)
    return rows


def _group(number: int) -> str:
    return f"group-{number:07}"
