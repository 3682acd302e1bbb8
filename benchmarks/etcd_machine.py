"""What the benchmarks over etcd share: clusters and fronts on this machine, and loads that keep so many calls in flight."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from adapter.metaservice.etcd.keys import Keys, encode_value
from adapter.model.records import SaveEntry
from adapter.rpc import etcd_pb
from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import ServiceProcess, free_port
from benchmarks.keyspace import key_of, record_of

MAX_TXN_OPS = 512
CLUSTER = "default"
KEYS = Keys("bench/")


@contextmanager
def clusters(directory: Path, *names: str, fast: bool = False) -> Iterator[list[LocalCluster]]:
    """Raft groups of three members each."""
    made = [LocalCluster(name, 3, directory=directory / name, fast=fast) for name in names]
    try:
        for cluster in made:
            cluster.start()
        yield made
    finally:
        for cluster in made:
            cluster.stop()


def front(
    directory: Path, metadata: LocalCluster, offsets: Sequence[LocalCluster], *, serve: str = "", top: str = "", extra: str = ""
) -> ServiceProcess:
    """A front over Raft groups, not started. `serve`: only `offsets` or `metadata`. `top` goes into [etcd], `extra` behind."""
    port = free_port()
    groups = "".join(
        f'[[etcd.offsets]]\nname = "{group.name}"\nendpoints = {list(group.endpoints)}\nnodes = {nodes(group)}\n'
        for group in offsets
    )
    settings = f"""engine = "etcd"
{f'serve = ["{serve}"]' if serve else ""}
[server]
listen = "127.0.0.1:{port}"
[metrics]
listen = ""
[etcd]
max_txn_ops = {MAX_TXN_OPS}
{top}
[etcd.metadata]
endpoints = {list(metadata.endpoints)}
nodes = {nodes(metadata)}
{groups}
{extra}"""
    return ServiceProcess("meta", directory, settings, port)


def nodes(cluster: LocalCluster) -> list[str]:
    """The machines on which its members would be."""
    return [f"node-{number}" for number, _ in enumerate(cluster.members, start=1)]


def entries(first: int, count: int, more: int) -> list[SaveEntry]:
    """So many keys from a number on, with offsets higher by `more`."""
    return [SaveEntry(key_of(number), record_of(number, more)) for number in range(first, first + count)]


def plain_txn(found: Sequence[SaveEntry]) -> etcd_pb.TxnRequest:
    """Puts without a merge: what etcd does at best."""
    request = etcd_pb.TxnRequest()
    for entry in found:
        put = request.success.add().request_put
        put.key, put.value = KEYS.offset(CLUSTER, entry.key), encode_value(entry.record)
    return request


def merging_txn(found: Sequence[SaveEntry]) -> etcd_pb.TxnRequest:
    """The merge that the engine sends, and nothing else of it."""
    request = etcd_pb.TxnRequest()
    put = request.success.add().request_put
    put.key, put.value = KEYS.writers, b"1"
    for entry in found:
        where, value = KEYS.offset(CLUSTER, entry.key), encode_value(entry.record)
        inner = request.success.add().request_txn
        inner.compare.add(result=etcd_pb.Compare.GREATER, target=etcd_pb.Compare.VALUE, key=where, value=value)
        inner.success.add().request_range.key = where
        put = inner.failure.add().request_put
        put.key, put.value = where, value
    return request


async def rate(call: Callable[[int, int], Awaitable[int]], in_flight: int, seconds: float) -> float:
    """Units per second of a call that is made by so many at once, each with its number and its turn; it returns its units."""
    done = 0
    started = time.perf_counter()
    until = started + seconds

    async def work(number: int) -> None:
        nonlocal done
        turn = 0
        while time.perf_counter() < until:
            units = await call(number, turn)
            done += units  # not in one line: it would add to what it was before
            turn += 1

    await asyncio.gather(*(work(number) for number in range(in_flight)))
    return done / (time.perf_counter() - started)


def percentile(samples: Sequence[float], share: float) -> float:
    """Of samples, in their unit."""
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
