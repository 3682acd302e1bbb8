"""The processes of the demo on etcd: two Raft groups of three members, the Meta Service, and adapters.

All files are in one directory.

Member i of each Raft group runs on node i. Nodes are only names here: all processes run on one machine.
"""

import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from adapter.client import OffsetClient
from adapter.metaservice.config import EtcdSection, MetaConfig
from adapter.metaservice.etcd.leader_balancer import Leaders, opened
from adapter.metaservice.etcd.leader_placement import METADATA
from adapter.model.records import OffsetKey
from adapter.runtime.settings.config import parse
from adapter.testing.etcd import LocalCluster, LocalMember
from adapter.testing.processes import ServiceProcess, ended, free_port
from demo.cluster import stored_positions

OFFSETS = "offsets-1"
NODES = ("node-1", "node-2", "node-3")
METAS = 2
BROKERS = 3
RESEND_S = 30.0  # how long a broker's client sends again; an adapter returns within seconds


@dataclass(frozen=True)
class MetaProcess:
    """A process of the Meta Service."""

    name: str
    process: ServiceProcess
    metrics_port: int


@dataclass(frozen=True)
class Broker:
    """A broker's machine: its adapter and the broker's client."""

    name: str
    adapter: ServiceProcess
    store: Path
    client: OffsetClient


@dataclass(frozen=True)
class Fleet:
    """All processes, not started. `leaders` observes the Raft groups."""

    directory: Path
    metadata: LocalCluster
    offsets: LocalCluster
    metas: Sequence[MetaProcess]
    brokers: Sequence[Broker]
    leaders: Leaders

    @classmethod
    @asynccontextmanager
    async def open(cls, directory: Path) -> AsyncIterator["Fleet"]:
        """Prepare all; at the end kill the processes that still run."""
        async with AsyncExitStack() as stack:
            metadata, offsets = (LocalCluster(name, len(NODES), directory=directory / name) for name in (METADATA, OFFSETS))
            stack.callback(metadata.stop)
            stack.callback(offsets.stop)
            etcd = _etcd_settings(metadata, offsets)
            metas = [_meta(directory / name, etcd) for name in _names("meta", METAS)]
            stack.enter_context(ended(*(meta.process for meta in metas)))
            brokers = [await _broker(stack, directory / name, metas) for name in _names("broker", BROKERS)]
            leaders = await stack.enter_async_context(opened(_section(etcd)))
            yield cls(directory, metadata, offsets, metas, brokers, leaders)

    async def start_etcd(self) -> None:
        """Start both Raft groups and wait until each has a leader."""
        for group in (self.metadata, self.offsets):
            await anyio.to_thread.run_sync(group.launch)
        for member in (*self.metadata.members, *self.offsets.members):
            await anyio.to_thread.run_sync(member.wait_ready)

    async def stored(self) -> dict[OffsetKey, tuple[int, int]]:
        """All offsets in the stores of the adapters, which must have ended."""
        found: dict[OffsetKey, tuple[int, int]] = {}
        for broker in self.brokers:
            found |= await anyio.to_thread.run_sync(stored_positions, broker.store)
        return found

    def last_words(self, lines: int = 4) -> str:
        """The ends of the logs of Meta Service processes and adapters, for finding the cause of a failure."""
        logs = {meta.name: meta.process for meta in self.metas} | {broker.name: broker.adapter for broker in self.brokers}
        started = {name: process.log for name, process in logs.items() if process.process}
        return "\n".join(f"{name}:\n" + "\n".join(log.splitlines()[-lines:]) for name, log in started.items())


def node_of(member: LocalMember) -> str:
    """The node that a member runs on."""
    return NODES[int(member.name.rpartition("-")[2]) - 1]


async def start(*services: ServiceProcess) -> None:
    """Start processes concurrently, and wait until each serves."""
    for service in services:
        service.launch()
    await started(*services)


async def started(*services: ServiceProcess) -> None:
    """Wait until each serves."""
    for service in services:
        await anyio.to_thread.run_sync(service.wait_ready)


def _names(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(1, count + 1)]


def _etcd_settings(metadata: LocalCluster, offsets: LocalCluster) -> str:
    return f"""
engine = 'etcd'
[etcd]
max_txn_ops = 512
[etcd.metadata]
endpoints = {list(metadata.endpoints)}
nodes = {list(NODES)}
[[etcd.offsets]]
name = '{OFFSETS}'
endpoints = {list(offsets.endpoints)}
nodes = {list(NODES)}
[etcd.placement]
balance = true
# Much shorter than for a fleet: here a minute has to hold several faults.
interval_ms = 1000
cooldown_ms = 2000
"""


def _section(settings: str) -> EtcdSection:
    return parse(tomllib.loads(settings), MetaConfig, source="demo").etcd


def _meta(directory: Path, etcd: str) -> MetaProcess:
    port, metrics_port = free_port(), free_port()
    settings = f"{etcd}[server]\nlisten = '127.0.0.1:{port}'\n[metrics]\nlisten = '127.0.0.1:{metrics_port}'\n"
    return MetaProcess(directory.name, ServiceProcess("meta", directory, settings, port), metrics_port)


async def _broker(stack: AsyncExitStack, directory: Path, metas: Sequence[MetaProcess]) -> Broker:
    port, store, socket = free_port(), directory / "adapter", directory / "a.sock"
    settings = f"""
[server]
listen = '127.0.0.1:{port}'
unix_socket = '{socket}'
[metrics]
listen = ''
[store]
path = '{store}'
[meta]
endpoints = {[meta.process.address for meta in metas]}
[log]
level = 'warning'
"""
    adapter = ServiceProcess("serve", directory, settings, port, socket=socket)
    stack.enter_context(ended(adapter))
    client = await stack.enter_async_context(OffsetClient.connect(adapter.address, RESEND_S))
    return Broker(directory.name, adapter, store, client)
