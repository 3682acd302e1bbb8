"""Fifty adapters that flush every 100 ms to one and to two Meta Services on etcd: the duration of a flush, and the CPU."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from rich.progress import Progress

from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry
from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import ServiceProcess, ended
from benchmarks.etcd_machine import clusters, meta, percentile
from benchmarks.machine import cpu_s, memory_mib
from benchmarks.report import Result, Table
from benchmarks.scale import Scale

TITLE = "50 adapters that flush every 100 ms"
ADAPTERS = 50
INTERVAL_S = 0.1
SECONDS, SECONDS_SHORT = 10.0, 1.0
DIRTY = (2, 20, 100)  # keys in each flush


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure one Meta Service, then two, with increasing numbers of dirty keys."""
    seconds = SECONDS_SHORT if scale.short else SECONDS
    result = Result("etcd_fleet", TITLE)
    rows: list[list[str | float]] = []
    with clusters(directory, "metadata", "offsets-1") as (metadata, offsets):
        metas = [meta(directory / str(number), metadata, [offsets]) for number in range(2)]
        with ended(*metas):
            for service in metas:
                service.start()
            task = progress.add_task("etcd_fleet", total=2 * len(DIRTY))
            for used in (metas[:1], metas):
                for dirty in DIRTY:
                    load = f"{len(used)} Meta Service{'s' * (len(used) > 1)}, {dirty} keys a flush"
                    rows.append([load, *await _measure(used, offsets, dirty, seconds)])
                    progress.advance(task)
        sizes = [member.status() for member in offsets.members]
        in_use = max((status.dbSizeInUse for status in sizes if status), default=0)
        result.notes.append(f"etcd's store at the end: {in_use / 2**20:.0f} MiB in use, for {ADAPTERS * DIRTY[-1]:,} keys.")
    columns = (
        "load",
        "saves/s",
        "offsets/s",
        "flush p50 ms",
        "p99 ms",
        "late %",
        "Meta Service CPU %",
        "etcd CPU %",
        "Meta Service MiB",
    )
    result.tables.append(Table(f"{ADAPTERS} adapters", columns, rows))
    result.notes.append(
        "CPU in percent of one core: all Meta Services; the three members of the offsets together. Late: began an interval late."
    )
    return result


async def _measure(metas: Sequence[ServiceProcess], offsets: LocalCluster, dirty: int, seconds: float) -> list[str | float]:
    took: list[float] = []
    late = 0
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(GrpcMetaClient.open(MetaSection(endpoints=(metas[number % len(metas)].tcp_address,))))
            for number in range(ADAPTERS)
        ]
        pids = [[service.pid for service in metas], [member.pid for member in offsets.members]]
        before = [sum(map(cpu_s, group)) for group in pids]
        started = time.perf_counter()

        async def flush(number: int, client: GrpcMetaClient) -> None:
            nonlocal late
            begin = started + INTERVAL_S * number / ADAPTERS
            for turn in range(int(seconds / INTERVAL_S)):
                due = begin + turn * INTERVAL_S
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                at = time.perf_counter()
                late += at - due > INTERVAL_S
                outcomes = await client.save(_entries(number, turn, dirty))
                took.append(time.perf_counter() - at)
                assert all(outcome.status.acknowledged for outcome in outcomes)

        await asyncio.gather(*(flush(number, client) for number, client in enumerate(clients)))
        lasted = time.perf_counter() - started
        used = [100 * (sum(map(cpu_s, group)) - start) / lasted for group, start in zip(pids, before, strict=True)]
    memory = median(memory_mib(service.pid)[0] for service in metas)
    p50, p99 = (percentile(took, share) * 1000 for share in (0.5, 0.99))
    return [len(took) / lasted, len(took) * dirty / lasted, p50, p99, 100 * late / len(took), *used, memory]


def _entries(number: int, turn: int, dirty: int) -> list[SaveEntry]:
    """The keys of an adapter, in groups of ten."""
    now_ms = time.time_ns() // 1_000_000
    return [
        SaveEntry(
            OffsetKey("default", f"broker-{number:03}-group-{at // 10}", f"queue-{at % 10}"),
            OffsetRecord(1, now_ms * 1_000 + turn, committed_at_ms=now_ms),
        )
        for at in range(dirty)
    ]
