"""A start with many keys: when the first commit and the first read are answered, when the recovery is finished, all meanwhile.

    BENCH_BEFORE=/path/of/another/checkout BENCH_KEYS=1000000 [BENCH_DIRTY=1] python -m benchmarks start

The adapter is a real process. With BENCH_BEFORE the other checkout is started over copies of the same stores, in turns with this
one. Every start finds the same keys here and in the Meta Service, and no difference; with BENCH_DIRTY all keys are larger here,
and the Meta Service has to take them, as after a kill behind an outage.
"""

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
from rich.progress import Progress

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.rpc import offsets_pb
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from benchmarks.keyspace import Pair, fill_local, fill_meta, key_of, pairs
from benchmarks.machine import cpu_s
from benchmarks.processes import THIS, of_tree, trees
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "a start with many keys: the first commit, the first read, and the end of the recovery"
FIRST_LIMIT_S, FIRST_READ_LIMIT_S = 3.0, 2.0
LATE_READ_LIMIT_MS = 50.0
PAUSE_S = 0.01  # between two commits, and between two tries while commits are refused
CALL_S, READY_S = 30.0, 600.0
STATUS_EVERY_S = 0.2


@dataclass
class Uses:
    """When the first call was answered, in seconds from the launch of the process; its CPU seconds until then; all waits."""

    first_s: float = 0.0
    cpu_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    @property
    def late_s(self) -> float:
        """The 99th percentile of the waits."""
        return sorted(self.waits_s)[int(len(self.waits_s) * 0.99)]


@dataclass
class Started:
    """Commits and reads until the recovery was done, when that was, and the CPU seconds of the adapter until then."""

    commits: Uses = field(default_factory=Uses)
    reads: Uses = field(default_factory=Uses)
    recovered_s: float = 0.0
    cpu_s: float = 0.0


RATIOS: dict[str, Callable[[Started], float]] = {
    "first commit, s": lambda one: one.commits.first_s,
    "first read, s": lambda one: one.reads.first_s,
    "recovery's end, s": lambda one: one.recovered_s,
    "CPU until then, s": lambda one: one.cpu_s,
}


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Start each tree in turns."""
    keys = int(os.environ.get("BENCH_KEYS") or scale.start_keys)
    meta = meta_process(directory)
    sides = trees()
    found: dict[str, list[Started]] = {name: [] for name in sides}
    with ended(meta):
        meta.start()
        await _fill(keys, directory / "filled", meta.address, progress, dirty=bool(os.environ.get("BENCH_DIRTY")))
        meta.stop()
        stored = directory / "meta"
        shutil.copytree(stored, directory / "meta-filled")
        task = progress.add_task("start: runs", total=scale.start_rounds * len(sides))
        for number in range(scale.start_rounds):
            for name in sides if number % 2 else reversed(sides):
                # Each under a path of its own: in the place of another one it would be taken for an older copy.
                path = directory / f"{name.replace(' ', '-')}-{number}"
                meta.stop()
                shutil.rmtree(stored)
                shutil.copytree(directory / "meta-filled", stored)
                meta.start()
                found[name].append(await _start(sides[name], directory, path, meta.address, keys))
                progress.advance(task)
    return _told(keys, found)


async def _fill(keys: int, path: Path, endpoint: str, progress: Progress, *, dirty: bool) -> None:
    task = progress.add_task(f"start: write {keys:,} keys, here and there", total=2 * keys)
    store = LocalStore.open(path, "never")
    fill_local(pairs(keys), store, lambda done: progress.advance(task, done))
    if not dirty:
        store.advance_flushed(store.seq)
    store.close()
    async with GrpcMetaClient.open(MetaSection(endpoints=(endpoint,))) as client:
        await fill_meta(_lower(pairs(keys)) if dirty else pairs(keys), client, lambda done: progress.advance(task, done))


def _lower(filled: Iterable[Pair]) -> Iterator[Pair]:
    return ((key, record._replace(offset=record.offset - 1)) for key, record in filled)


async def _start(tree: Path, directory: Path, path: Path, endpoint: str, keys: int) -> Started:
    """Start a tree over a copy of the filled store, and commit one offset after the other until it has recovered."""
    shutil.copytree(directory / "filled", path)
    adapter = of_tree(adapter_process(directory / "process", endpoint, store=path), tree)
    try:
        with ended(adapter):
            launched = time.monotonic()
            adapter.launch()
            async with asyncio.timeout(READY_S), OffsetClient.connect(adapter.address) as client:
                return await _use_until_recovered(client, adapter, launched, keys)
    finally:
        shutil.rmtree(path)


async def _use_until_recovered(client: OffsetClient, adapter: ServiceProcess, launched: float, keys: int) -> Started:
    """Commit, and read a group with STORE that was not read before, one after the other each."""
    found = Started()
    recovered = asyncio.Event()

    async def calls(of: Uses, call: Callable[[OffsetClient, int, int], Awaitable[None]]) -> None:
        number = 0
        while not (recovered.is_set() and of.waits_s):
            began = time.monotonic()
            with suppress(grpc.aio.AioRpcError):
                await call(client, number, keys)
                number += 1
                if not of.waits_s:
                    of.first_s, of.cpu_s = time.monotonic() - launched, cpu_s(adapter.pid)
                of.waits_s.append(time.monotonic() - began)
            await asyncio.sleep(PAUSE_S)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(calls(found.commits, _commit))
        tasks.create_task(calls(found.reads, _read))
        await _recovered(client, adapter)
        found.recovered_s, found.cpu_s = time.monotonic() - launched, cpu_s(adapter.pid)
        recovered.set()
    return found


async def _commit(client: OffsetClient, number: int, keys: int) -> None:
    key = key_of(number * 7_919 % keys)
    shard = offsets_pb.ShardCommit(shard=key.shard, offset=10_000_000 + number)
    request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=key.group, shards=[shard])])
    await client.store.CommitOffsets(request, timeout=CALL_S)


async def _read(client: OffsetClient, number: int, keys: int) -> None:
    wanted = [offsets_pb.GroupShards(group=key_of((number * 104_729 + keys // 2) % keys).group)]
    request = offsets_pb.ReadOffsetsRequest(groups=wanted, mode=offsets_pb.STORE)
    if not (await client.store.ReadOffsets(request, timeout=CALL_S)).offsets:
        raise RuntimeError(f"{wanted}: nothing is answered")


async def _recovered(client: OffsetClient, adapter: ServiceProcess) -> None:
    while True:
        await asyncio.sleep(STATUS_EVERY_S)
        if adapter.process is None or adapter.process.poll() is not None:
            raise RuntimeError(f"the adapter ended:\n{adapter.log[-4000:]}")
        with suppress(grpc.aio.AioRpcError):
            if (await client.admin.Status(offsets_pb.StatusRequest(), timeout=CALL_S)).recovery.done:
                return


def _told(keys: int, found: dict[str, list[Started]]) -> Result:
    result = Result("start", TITLE)
    named = [(f"{name}, run {at}", one) for name, runs in found.items() for at, one in enumerate(runs, start=1)]
    whole: list[list[str | float]] = [[name, one.recovered_s, one.cpu_s] for name, one in named]
    result.tables.append(Table("From the launch of the process to the recovery's end", (f"{keys:,} keys", "s", "CPU s"), whole))
    for what, uses in (
        ("commits", [(name, one.commits) for name, one in named]),
        ("first reads of groups", [(name, one.reads) for name, one in named]),
    ):
        rows: list[list[str | float]] = [[name, *_numbers(of)] for name, of in uses]
        result.tables.append(
            Table(f"The {what} until then", (what, "first s", "CPU s", "many", "p50 ms", "p99 ms", "max ms"), rows)
        )
    first_s, read_s, late_ms = (
        statistics.median(map(one, found[THIS]))
        for one in (lambda one: one.commits.first_s, lambda one: one.reads.first_s, lambda one: one.reads.late_s * 1e3)
    )
    result.bars.append(Bar(f"seconds to the first acknowledged commit with {keys:,} keys", first_s, FIRST_LIMIT_S))
    result.bars.append(Bar(f"seconds to the first read with STORE with {keys:,} keys", read_s, FIRST_READ_LIMIT_S))
    result.bars.append(Bar("p99 of first reads of groups during the recovery, in ms", late_ms, LATE_READ_LIMIT_MS))
    if "before" in found:
        for what, of_one in RATIOS.items():
            ours, theirs = (statistics.median(map(of_one, found[name])) for name in (THIS, "before"))
            result.notes.append(f"{what}: {ours:.2f}, before {theirs:.2f}; ratio {ours / theirs:.2f}")
    return result


def _numbers(uses: Uses) -> tuple[float, ...]:
    return (
        uses.first_s,
        uses.cpu_s,
        len(uses.waits_s),
        statistics.median(uses.waits_s) * 1e3,
        uses.late_s * 1e3,
        max(uses.waits_s) * 1e3,
    )
