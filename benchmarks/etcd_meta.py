"""Offsets per second into etcd: plain puts, the merging transaction alone, and saves through a Meta Service.

Sender, Meta Service and all members share the cores of the machine. All kinds are measured in each round; results are medians.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import grpc
import grpc.aio
from rich.progress import Progress

from adapter.meta.wire import save_request
from adapter.model.records import SaveEntry
from adapter.rpc import etcd_grpc, etcd_pb, meta_grpc
from adapter.testing.processes import ended
from benchmarks.etcd_machine import CLUSTER, clusters, entries, merging_txn, meta, plain_txn, rate
from benchmarks.machine import cpu_s
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "Offsets per second through a Meta Service into etcd"
ROUNDS, SECONDS = 5, 3.0
SECONDS_SHORT = 0.3
SIZES = ((128, 8), (500, 4))  # (entries of a transaction or save, calls in flight)
META_LEAST = 0.6

Call = Callable[[int, int], Awaitable[int]]


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure all kinds in each round."""
    rounds, seconds = (1, SECONDS_SHORT) if scale.short else (ROUNDS, SECONDS)
    measured: dict[str, list[float]] = defaultdict(list)
    cpu: dict[str, list[float]] = defaultdict(list)
    with clusters(directory, "metadata", "offsets-1", "offsets-2") as (metadata, one, two):
        metas = {
            "1 Raft group": meta(directory / "one", metadata, [one], top='prefix = "one/"'),  # another layout: other keys
            "2 Raft groups": meta(directory / "two", metadata, [one, two]),
        }
        with ended(*metas.values()):
            for service in metas.values():
                service.start()
            kinds: dict[str, tuple[Call, int, int | None]] = {}
            async with grpc.aio.insecure_channel(one.leader().endpoint) as channel:
                for size, in_flight in SIZES:
                    kinds[f"plain puts, {size} x {in_flight}"] = (_bare(channel, plain_txn, size), in_flight, None)
                    kinds[f"merging, {size} x {in_flight}"] = (_bare(channel, merging_txn, size), in_flight, None)
                channels = []
                for name, service in metas.items():
                    channels.append(grpc.aio.insecure_channel(service.tcp_address))
                    for size, in_flight in SIZES:
                        kinds[f"Meta Service, {name}, {size} x {in_flight}"] = (_meta(channels[-1], size), in_flight, service.pid)
                task = progress.add_task("etcd_meta", total=rounds * len(kinds))
                for _ in range(rounds):
                    for name, (call, in_flight, pid) in kinds.items():
                        before = cpu_s(pid) if pid else 0.0
                        found = await rate(call, in_flight, seconds)
                        measured[name].append(found)
                        if pid:
                            cpu[name].append((cpu_s(pid) - before) / (found * seconds) * 1e6)
                        progress.advance(task)
                for each in channels:
                    await each.close()
    return _result(_medians(measured), _medians(cpu))


def _bare(channel: grpc.aio.Channel, make: Callable[[Sequence[SaveEntry]], etcd_pb.TxnRequest], size: int) -> Call:
    stub = etcd_grpc.KVStub(channel)

    async def call(number: int, turn: int) -> int:
        await stub.Txn(make(entries(number * size, size, turn + 1)), timeout=30)
        return size

    return call


def _meta(channel: grpc.aio.Channel, size: int) -> Call:
    stub = meta_grpc.MetaServiceServiceStub(channel)

    async def call(number: int, turn: int) -> int:
        request = await save_request(CLUSTER, entries(number * size, size, turn + 1))
        try:
            reply = await stub.SaveOffsetData(request, timeout=30)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return 0  # lost because of a slow disk; an adapter would send it again
        return size if reply.committed else 0

    return call


def _result(measured: dict[str, float], cpu: dict[str, float]) -> Result:
    result = Result("etcd_meta", TITLE)
    rows: list[list[str | float]] = []
    for name, found in measured.items():
        size = name.rpartition(", ")[2]
        bare = measured[f"merging, {size}"]
        rows.append([name, found, f"{found / bare:.2f}", f"{cpu[name]:.1f}" if name in cpu else ""])
    result.tables.append(
        Table("Offsets per second", ("kind, entries x in flight", "offsets/s", "of merging", "Meta Service's CPU us each"), rows)
    )
    best = _best(measured, "Meta Service, 1 Raft group") / _best(measured, "merging")
    result.bars.append(Bar("offsets/s through a Meta Service, of the bare merging loop", best, META_LEAST, least=True))
    result.notes.append(f"Medians of {ROUNDS} rounds of {SECONDS:g} s. Three members each; everything shares the cores.")
    return result


def _best(measured: Mapping[str, float], kind: str) -> float:
    return max(found for name, found in measured.items() if name.startswith(kind))


def _medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(each) for name, each in found.items()}
