"""The Meta Service on etcd for the fault tests: two Raft groups, two fronts, an adapter; what is saved and read there meanwhile.

What was sent, answered and read is in a history, which decides whether anything acknowledged is missing (2, 3).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path

from adapter.config import MetaSection
from adapter.errors import MetaUnavailableError
from adapter.etcd.cluster import EtcdCluster
from adapter.history import META, History
from adapter.local_etcd import EtcdMissingError, LocalCluster, LocalMember, etcd_binary
from adapter.meta_client import GrpcMetaClient
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd_engine import EtcdEngine
from adapter.model import DEFAULT_NAMESPACE, FIRST_EPOCH, OffsetKey, OffsetRecord, SaveEntry, Status
from adapter.testing import ServiceProcess, adapter_process, ended, eventually, free_port
from tests.durability.etcd_network import PeerNetwork

WAIT_S = 30.0  # for what comes within a few seconds on an idle machine
PAUSE_S = 0.02  # of a writer or reader, whatever became of its call
OFFSETS = "offsets-1"  # the Raft group
QUOTA_BYTES = 32 * 2**20  # of the store of a member of offsets: soon full


def etcd() -> str:
    """Why no etcd can be started; empty when one can. A need for `machine.require`."""
    try:
        etcd_binary()
    except EtcdMissingError as error:
        return str(error)
    return ""


def front_process(directory: Path, metadata: Sequence[str], offsets: Sequence[str]) -> ServiceProcess:
    """A front before a Raft group of metadata and one of offsets, given by the endpoints of their members."""
    port = free_port()
    settings = f"""engine = "etcd"
[server]
listen = "127.0.0.1:{port}"
[metrics]
listen = ""
[etcd]
max_txn_ops = 512
[etcd.metadata]
endpoints = {list(metadata)}
[[etcd.offsets]]
name = "{OFFSETS}"
endpoints = {list(offsets)}
"""
    return ServiceProcess("meta", directory, settings, port)


@dataclass
class Fleet:
    """One Raft group of metadata with one member, one of offsets with three; two fronts before them, and an adapter."""

    metadata: LocalCluster
    offsets: LocalCluster
    network: PeerNetwork
    fronts: tuple[ServiceProcess, ServiceProcess]
    adapter: ServiceProcess

    @classmethod
    @contextmanager
    def running(cls, directory: Path, *, fast: bool) -> Iterator["Fleet"]:
        """Start everything; kill it at the end."""
        metadata = LocalCluster("metadata", 1, directory=directory)
        offsets = LocalCluster("offsets", directory=directory, fast=fast, options={"quota-backend-bytes": str(QUOTA_BYTES)})
        network = PeerNetwork(offsets)
        # They do not call the same member, so that one of them can be told less than the other.
        first = front_process(directory / "front-1", metadata.endpoints, offsets.endpoints)
        second = front_process(directory / "front-2", metadata.endpoints, offsets.endpoints[::-1])
        adapter = adapter_process(directory, f"{first.address}', '{second.address}")
        with ExitStack() as stack:
            stack.enter_context(network.running())
            stack.callback(metadata.stop)
            stack.callback(offsets.stop)
            stack.enter_context(ended(first, second, adapter))
            fleet = cls(metadata, offsets, network, (first, second), adapter)
            fleet.mend()
            yield fleet

    def mend(self) -> None:
        """Undo every fault that can be undone: all processes run, reach each other, and are ready."""
        self.network.heal()
        for cluster in (self.metadata, self.offsets):
            for member in cluster.members:
                if member.process and member.process.poll() is None:
                    member.thaw()
            cluster.start()
        services = (*self.fronts, self.adapter)
        for service in services:
            if service.process is None or service.process.poll() is not None:
                service.launch()
        for service in services:
            service.wait_ready()


class Savers:
    """Savers, each of ever higher offsets to shards of its own, spread over the fronts; each front is asked for all the time."""

    def __init__(self, fronts: Sequence[ServiceProcess], group: str, *, savers: int = 4, shards: int = 5) -> None:
        self.history = History()
        self.acknowledged_at: list[float] = []  # seconds; when each save came back
        self.failures = 0  # saves of which at least one entry was not acknowledged
        self.reads = 0
        self._fronts = fronts
        self._keys = [
            [OffsetKey(DEFAULT_NAMESPACE, f"{group}-{saver}", f"s{shard}") for shard in range(shards)] for saver in range(savers)
        ]

    @property
    def keys(self) -> list[OffsetKey]:
        """All keys, sorted by group."""
        return [key for keys in self._keys for key in keys]

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two acknowledgements."""
        return max((after - before for before, after in pairwise(self.acknowledged_at)), default=0.0)

    async def acknowledged_more(self, more: int = 20) -> None:
        """Wait until so many more saves that were sent from now on are acknowledged."""
        enough = len(self.acknowledged_at) + len(self._keys) + more
        await eventually(lambda: len(self.acknowledged_at) >= enough, WAIT_S)

    async def failed_more(self, more: int = 3) -> None:
        """Wait until so many more saves failed."""
        enough = self.failures + more
        await eventually(lambda: self.failures >= enough, WAIT_S)

    async def check(self, *fronts: ServiceProcess) -> None:
        """Each of these fronts shows at least what was acknowledged, and so did every read before."""
        for front in fronts:
            async with _client(front) as meta:
                await self._read(meta)
        assert self.history.check() == []
        assert self.history.acknowledged > 0
        assert self.reads > len(fronts)

    async def run(self) -> None:
        """Save and read until cancelled."""
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client(front)) for front in self._fronts]
            savers = [self._save_on(clients[number % len(clients)], keys) for number, keys in enumerate(self._keys)]
            await asyncio.gather(*savers, *(self._read_on(client) for client in clients))

    async def _save_on(self, meta: GrpcMetaClient, keys: Sequence[OffsetKey]) -> None:
        for offset in count(1):
            record = OffsetRecord(FIRST_EPOCH, offset)
            writes = [self.history.begin(key, record.position, places=[META]) for key in keys]
            try:
                outcomes = await meta.save([SaveEntry(key, record) for key in keys])
            except MetaUnavailableError:
                self.failures += 1
                await asyncio.sleep(PAUSE_S)
                continue
            for write, outcome in zip(writes, outcomes, strict=True):
                assert outcome.status in {Status.APPLIED, Status.UNAVAILABLE}, f"{write.key}: {outcome}"
                if outcome.status is Status.APPLIED:
                    write.acknowledged()
            if all(outcome.status is Status.APPLIED for outcome in outcomes):
                self.acknowledged_at.append(time.monotonic())
            else:
                self.failures += 1
            await asyncio.sleep(PAUSE_S)

    async def _read_on(self, meta: GrpcMetaClient) -> None:
        while True:
            with contextlib.suppress(MetaUnavailableError):
                await self._read(meta)
            await asyncio.sleep(PAUSE_S)

    async def _read(self, meta: GrpcMetaClient) -> None:
        reading = self.history.reading(META, keys=self.keys)
        found = await meta.get(self.keys)
        reading.found({key: record.position for key, record in found.items()})
        self.reads += 1


@asynccontextmanager
async def saving(savers: Savers) -> AsyncIterator[Savers]:
    """Meanwhile they save, through all faults; and what they do not expect ends the test."""
    task = asyncio.create_task(savers.run(), name="savers")
    try:
        await savers.acknowledged_more()
        yield savers
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _client(front: ServiceProcess) -> AbstractAsyncContextManager[GrpcMetaClient]:
    return GrpcMetaClient.open(MetaSection(endpoints=(front.address,)))


@asynccontextmanager
async def engine_before(fleet: Fleet, member: LocalMember) -> AsyncIterator[EtcdEngine]:
    """The engine of a front that knows only one member of the offsets, to read with."""
    section = EtcdSection(max_txn_ops=512)
    async with AsyncExitStack() as stack:
        clusters = [
            await stack.enter_async_context(EtcdCluster.open(name, MembersSection(endpoints=endpoints), section))
            for name, endpoints in (("metadata", fleet.metadata.endpoints), (OFFSETS, (member.endpoint,)))
        ]
        engine = EtcdEngine(clusters[0], clusters[1:], section)
        await engine.open()
        yield engine
