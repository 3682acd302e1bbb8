"""A start with many keys: when the first commit is acknowledged, when the recovery is finished, and commits meanwhile.

    BENCH_BEFORE=/path/of/another/checkout BENCH_KEYS=1000000 python -m benchmarks start

The adapter is a real process. With BENCH_BEFORE the other checkout is started over copies of the same stores, in turns with this
one. Every start finds the same keys here and in the Meta Service, and no difference.
"""

import asyncio
import os
import shutil
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from rich.progress import Progress

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.rpc import offsets_pb
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from benchmarks.keyspace import fill_local, fill_meta, key_of, pairs
from benchmarks.machine import cpu_s
from benchmarks.processes import ROOT
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "a start with many keys: the first commit, and the end of the recovery"
FIRST_LIMIT_S = 3.0
PAUSE_S = 0.01  # between two commits, and between two tries while commits are refused
CALL_S, READY_S = 30.0, 600.0
STATUS_EVERY_S = 0.2
THIS = "this tree"


@dataclass(frozen=True)
class Started:
    """Seconds from the launch of the process, and CPU seconds until then; `waits_s` of each commit during the recovery."""

    first_s: float
    first_cpu_s: float
    recovered_s: float
    waits_s: list[float]


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Start each tree in turns."""
    keys = int(os.environ.get("BENCH_KEYS") or scale.start_keys)
    meta = meta_process(directory)
    trees = _trees()
    found: dict[str, list[Started]] = {name: [] for name in trees}
    with ended(meta):
        meta.start()
        await _fill(keys, directory / "filled", meta.address, progress)
        task = progress.add_task("start: runs", total=scale.start_rounds * len(trees))
        for number in range(scale.start_rounds):
            for name in trees if number % 2 else reversed(trees):
                # Each under a path of its own: in the place of another one it would be taken for an older copy.
                path = directory / f"{name.replace(' ', '-')}-{number}"
                found[name].append(await _start(trees[name], directory, path, meta.address, keys))
                progress.advance(task)
    return _told(keys, found)


def _trees() -> dict[str, Path]:
    before = os.environ.get("BENCH_BEFORE")
    return {THIS: ROOT, "before": Path(before).resolve(strict=True)} if before else {THIS: ROOT}


async def _fill(keys: int, path: Path, endpoint: str, progress: Progress) -> None:
    task = progress.add_task(f"start: write {keys:,} keys, here and there", total=2 * keys)
    store = LocalStore.open(path, "never")
    fill_local(pairs(keys), store, lambda done: progress.advance(task, done))
    store.advance_flushed(store.seq)
    store.close()
    async with GrpcMetaClient.open(MetaSection(endpoints=(endpoint,))) as client:
        await fill_meta(pairs(keys), client, lambda done: progress.advance(task, done))


async def _start(tree: Path, directory: Path, path: Path, endpoint: str, keys: int) -> Started:
    """Start a tree over a copy of the filled store, and commit one offset after the other until it has recovered."""
    shutil.copytree(directory / "filled", path)
    adapter = adapter_process(directory / "process", endpoint, store=path)
    # Not the directory of this tree: Python would import from there.
    adapter.prefix, adapter.environment = ("env", "-C", str(tree)), {"PYTHONPATH": str(tree)}
    try:
        with ended(adapter):
            launched = time.monotonic()
            adapter.launch()
            async with asyncio.timeout(READY_S), OffsetClient.connect(adapter.address) as client:
                return await _commit_until_recovered(client, adapter, launched, keys)
    finally:
        shutil.rmtree(path)


async def _commit_until_recovered(client: OffsetClient, adapter: ServiceProcess, launched: float, keys: int) -> Started:
    first_s = first_cpu_s = asked = 0.0
    waits_s: list[float] = []
    number = 0
    while True:
        key = key_of(number * 7_919 % keys)
        shard = offsets_pb.ShardCommit(shard=key.shard, offset=10_000_000 + number)
        request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=key.group, shards=[shard])])
        began = time.monotonic()
        if adapter.process is None or adapter.process.poll() is not None:
            raise RuntimeError(f"the adapter ended:\n{adapter.log[-4000:]}")
        with suppress(grpc.aio.AioRpcError):
            await client.store.CommitOffsets(request, timeout=CALL_S)
            number += 1
            first_s, first_cpu_s = first_s or time.monotonic() - launched, first_cpu_s or cpu_s(adapter.pid)
            waits_s.append(time.monotonic() - began)
        if first_s and time.monotonic() - asked > STATUS_EVERY_S:
            asked = time.monotonic()
            status = await client.admin.Status(offsets_pb.StatusRequest(), timeout=CALL_S)
            if status.recovery.done:
                return Started(first_s, first_cpu_s, time.monotonic() - launched, waits_s)
        await asyncio.sleep(PAUSE_S)


def _told(keys: int, found: dict[str, list[Started]]) -> Result:
    result = Result("start", TITLE)
    rows: list[list[str | float]] = []
    for name, runs in found.items():
        for at, one in enumerate(runs, start=1):
            waits = sorted(one.waits_s)
            middle, late = statistics.median(waits), waits[int(len(waits) * 0.99)]
            numbers = (one.first_s, one.first_cpu_s, one.recovered_s, len(waits), middle * 1e3, late * 1e3, waits[-1] * 1e3)
            rows.append([f"{name}, run {at}", *numbers])
    columns = (f"{keys:,} keys", "first commit s", "its CPU s", "recovered s", "commits meanwhile", "p50 ms", "p99 ms", "max ms")
    result.tables.append(Table("From the launch of the process", columns, rows))
    first_s = statistics.median(one.first_s for one in found[THIS])
    result.bars.append(Bar(f"seconds to the first acknowledged commit with {keys:,} keys", first_s, FIRST_LIMIT_S))
    if "before" in found:
        for what, of in (("first commit", lambda one: one.first_s), ("recovery's end", lambda one: one.recovered_s)):
            ours, theirs = (statistics.median(map(of, found[name])) for name in (THIS, "before"))
            result.notes.append(f"{what}: {ours:.2f} s, before {theirs:.2f} s; ratio {ours / theirs:.2f}")
    return result
