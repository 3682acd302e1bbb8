"""Shared by the etcd benchmarks: clusters and Meta Services on this machine, and loads with a fixed number of calls in flight."""

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


def meta(
    directory: Path, metadata: LocalCluster, offsets: Sequence[LocalCluster], *, serve: str = "", top: str = "", extra: str = ""
) -> ServiceProcess:
    """A Meta Service over Raft groups, not started. `serve`: only `offsets` or `metadata`.

    `top`: settings of [etcd]; `extra`: others.
    """
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
    """The names of the nodes of its members."""
    return [f"node-{number}" for number, _ in enumerate(cluster.members, start=1)]


def entries(first: int, count: int, more: int) -> list[SaveEntry]:
    """Numbered keys with offsets raised by `more`."""
    return [SaveEntry(key_of(number), record_of(number, more)) for number in range(first, first + count)]


def plain_txn(found: Sequence[SaveEntry]) -> etcd_pb.TxnRequest:
    """Plain puts without a merge, the fastest write of etcd."""
    request = etcd_pb.TxnRequest()
    for entry in found:
        put = request.success.add().request_put
        put.key, put.value = KEYS.offset(CLUSTER, entry.key), encode_value(entry.record)
    return request


def merging_txn(found: Sequence[SaveEntry]) -> etcd_pb.TxnRequest:
    """The engine's merging transaction alone."""
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
    """Units per second of `call(worker, turn)`, which returns its units, with `in_flight` concurrent workers."""
    done = 0
    started = time.perf_counter()
    until = started + seconds

    async def work(number: int) -> None:
        nonlocal done
        turn = 0
        while time.perf_counter() < until:
            units = await call(number, turn)
            done += units  # after the await: `done += await ...` would use the old value of `done`
            turn += 1

    await asyncio.gather(*(work(number) for number in range(in_flight)))
    return done / (time.perf_counter() - started)


def percentile(samples: Sequence[float], share: float) -> float:
    """A percentile of samples, in their unit."""
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
