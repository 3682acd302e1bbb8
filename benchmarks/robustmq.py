"""Dirty groups before three nodes of RobustMQ's own Meta Service, which makes one Raft write for each group.

In one run, in turns: the server alone, asked by a bare client in saves of a fixed size without a deadline; and an adapter that
drains as many dirty groups. Needs RobustMQ's executable, see `adapter.testing.robustmq`.
"""

import asyncio
import time
from pathlib import Path

import grpc.aio
from rich.progress import Progress, TaskID

from adapter.client.client import OffsetClient
from adapter.rpc import meta_grpc, meta_pb, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from adapter.testing.robustmq import RobustNode, missing, robust_cluster, wait_for_leader
from benchmarks.machine import cpu_s
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "dirty groups before RobustMQ's Meta Service, three nodes"
MOST_RATIO = 2.0  # oldest dirty offset to the server's own time for all of them
ROUNDS = 2
SAVE_GROUPS = 100  # of a save of the bare client
COMMIT_GROUPS = 500  # of a commit that makes groups dirty
PATIENCE_S = 1_800.0
POLL_S = 0.1

COLUMNS = ("what", "groups", "seconds", "ms/group", "oldest dirty s", "saves", "client us/group")


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure the server alone and the drain of an adapter, in turns."""
    result = Result("robustmq", TITLE)
    if reason := missing():
        result.tables.append(Table("Not measured", ("why",), [[reason]]))
        return result
    count = scale.robust_groups
    rows: list[list[Cell]] = []
    own: list[float] = []
    drains: list[float] = []
    with robust_cluster(directory, 3) as nodes:
        endpoints = "', '".join(node.address for node in nodes)
        adapter = adapter_process(directory / "adapter", endpoints, extra="[flush]\ninterval_ms = 100\n")
        with ended(adapter):
            adapter.start()
            for turn in range(1, ROUNDS + 1):
                task = progress.add_task(f"round {turn}: {count:,} groups", total=2 * count)
                own.append(await _alone(wait_for_leader(nodes), count, turn, progress, task))
                rows.append([f"{turn}: the server, asked directly", count, own[-1], own[-1] / count * 1e3, "-", "-", "-"])
                seconds, oldest_s, saves, cpu_us = await _drain(adapter, count, turn, progress, task)
                drains.append(oldest_s / own[-1])
                rows.append([f"{turn}: drained by an adapter", count, seconds, seconds / count * 1e3, oldest_s, saves, cpu_us])
    result.tables.append(Table("Drains", COLUMNS, rows))
    result.bars.append(Bar("oldest dirty offset, as a multiple of the server's own time", max(drains), MOST_RATIO))
    result.notes += [
        f"The bare client saves {SAVE_GROUPS} groups per call, one call after the other, without a deadline or a condition.",
        "The adapter's groups are new: each is committed for the first time, and compared with what stands before it is saved.",
    ]
    return result


async def _alone(leader: RobustNode, count: int, turn: int, progress: Progress, task: TaskID) -> float:
    """Seconds for saves of so many groups by a bare client."""
    async with grpc.aio.insecure_channel(leader.address) as channel:
        stub = meta_grpc.MetaServiceServiceStub(channel)
        began = time.perf_counter()
        for first in range(0, count, SAVE_GROUPS):
            request = meta_pb.SaveOffsetDataRequest()
            for at in range(first, min(first + SAVE_GROUPS, count)):
                group = request.offsets.add(group=f"alone-{turn}-{at}", tenant="default")
                group.offsets.add(shard_name="orders/0", offset=turn, topic="orders")
            await stub.SaveOffsetData(request, timeout=PATIENCE_S)
            progress.advance(task, len(request.offsets))
        return time.perf_counter() - began


async def _drain(
    adapter: ServiceProcess, count: int, turn: int, progress: Progress, task: TaskID
) -> tuple[float, float, int, float]:
    """Seconds until nothing is dirty, the age of the oldest dirty offset meanwhile, saves, CPU microseconds per group."""
    async with OffsetClient.connect(adapter.address, timeout_s=60.0) as client:
        before, cpu_before = await client.status(), cpu_s(adapter.pid)
        began = time.perf_counter()
        for first in range(0, count, COMMIT_GROUPS):
            names = [f"group-{turn}-{at}" for at in range(first, min(first + COMMIT_GROUPS, count))]
            groups = [offsets_pb.GroupCommits(group=name, shard_names=["orders/0"], offsets=[turn]) for name in names]
            await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=60.0)
        oldest_s, done = 0.0, 0
        async with asyncio.timeout(PATIENCE_S):
            while (status := await client.status()).dirty_keys:
                oldest_s = max(oldest_s, status.oldest_dirty_seconds)
                progress.advance(task, max(count - status.dirty_keys - done, 0))
                done = max(done, count - status.dirty_keys)
                await asyncio.sleep(POLL_S)
        seconds = time.perf_counter() - began
        cpu_us = (cpu_s(adapter.pid) - cpu_before) / count * 1e6
        return seconds, oldest_s, status.save_calls - before.save_calls, cpu_us
