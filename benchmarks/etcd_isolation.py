"""The effect of commits on the control plane: the latency of metadata puts while offsets are merged.

Metadata is put through a Meta Service that serves only metadata. A separate process sends offsets directly to etcd, as fast as
possible or at a fixed rate.
"""

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc.aio
from rich.progress import Progress

from adapter.rpc import metadata_grpc, metadata_pb
from adapter.testing.processes import ended
from benchmarks.etcd_machine import clusters, meta, percentile
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "Metadata puts beside offsets"
ROUNDS, SECONDS, SECONDS_SHORT = 5, 4.0, 0.5
WARM_UP_S = 0.5
PAUSE_S = 0.01  # between two puts
LOADS = {"as fast as it goes": 0, "10,000 offsets/s": 10_000}
APART_OF_SAME, APART_OF_IDLE = 0.35, 3.0


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure rounds without offsets, with offsets in the same Raft group, and in another one."""
    rounds, seconds = (1, SECONDS_SHORT) if scale.short else (ROUNDS, SECONDS)
    loads = dict(list(LOADS.items())[:1]) if scale.short else LOADS
    samples: dict[str, list[float]] = defaultdict(list)
    offered: dict[str, list[float]] = defaultdict(list)
    with clusters(directory, "metadata", "offsets-1") as (metadata, offsets):
        service = meta(directory / "Meta Service", metadata, [offsets], serve="metadata")
        with ended(service):
            service.start()
            task = progress.add_task("etcd_isolation", total=rounds * (1 + 2 * len(loads)))
            async with grpc.aio.insecure_channel(service.tcp_address) as channel:
                stub = metadata_grpc.MetadataStoreStub(channel)
                for _ in range(rounds):
                    samples["idle"] += await _puts(stub, seconds)
                    progress.advance(task)
                    for load, per_second in loads.items():
                        for kind, cluster in (("same Raft group", metadata), ("another Raft group", offsets)):
                            leader = await asyncio.to_thread(cluster.leader)
                            with _load(leader.endpoint, per_second) as sender:
                                await asyncio.sleep(WARM_UP_S)
                                samples[f"{kind}, {load}"] += await _puts(stub, seconds)
                                offered[f"{kind}, {load}"].append(_stopped(sender))
                            progress.advance(task)
    return _result(samples, offered)


async def _puts(stub: "metadata_grpc.MetadataStoreAsyncStub", seconds: float) -> list[float]:
    """The latencies of puts, in seconds."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        started = time.perf_counter()
        await stub.Put(metadata_pb.PutRequest(key=f"topic-{len(took) % 100}", value=b"x" * 200), timeout=30)
        took.append(time.perf_counter() - started)
        await asyncio.sleep(PAUSE_S)
    return took


def _load(endpoint: str, per_second: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.etcd_load", endpoint, str(per_second)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _stopped(sender: "subprocess.Popen[str]") -> float:
    """Stop the load; returns its offsets per second."""
    said, _ = sender.communicate("stop\n", timeout=60)
    return float(said)


def _result(samples: Mapping[str, Sequence[float]], offered: Mapping[str, Sequence[float]]) -> Result:
    result = Result("etcd_isolation", TITLE)
    rows: list[list[str | float | int]] = []
    for name, found in samples.items():
        sent = sum(offered[name]) / len(offered[name]) if name in offered else 0.0
        p50, p99 = (percentile(found, share) * 1000 for share in (0.5, 0.99))
        rows.append([name, len(found), p50, p99, f"{sent:,.0f}" if sent else ""])
    result.tables.append(Table("Metadata puts", ("offsets go to", "puts", "p50 ms", "p99 ms", "offsets/s"), rows))
    worst = {name: percentile(found, 0.99) for name, found in samples.items()}
    for load in LOADS:
        apart, same = worst.get(f"another Raft group, {load}"), worst.get(f"same Raft group, {load}")
        if apart and same:
            result.bars.append(Bar(f"metadata p99 apart, of the same Raft group; offsets {load}", apart / same, APART_OF_SAME))
            result.bars.append(Bar(f"metadata p99 apart, of idle; offsets {load}", apart / worst["idle"], APART_OF_IDLE))
    result.notes.append(
        "All members, the Meta Service, the sender and this process share the cores; alone on a machine, apart is nearer to idle."
    )
    return result
