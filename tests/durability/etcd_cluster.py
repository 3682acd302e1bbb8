"""The Meta Service on etcd for the fault tests: two Raft groups, two Meta Services, and what is saved and read there meanwhile.

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

import anyio
import grpc

from adapter.errors import MetaUnavailableError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, OffsetKey, OffsetRecord, SaveEntry, Status
from adapter.rpc import etcd_grpc, etcd_pb
from adapter.testing.etcd import CHANNEL_OPTIONS, EtcdMissingError, LocalCluster, LocalMember, etcd_binary
from adapter.testing.history import META, History
from adapter.testing.processes import ServiceProcess, ended, free_port
from adapter.testing.waiting import PATIENCE_S, eventually
from tests.durability.etcd_network import PeerNetwork

WAIT_S = PATIENCE_S
PAUSE_S = 0.03  # of a writer or reader, whatever became of its call
OFFSETS = "offsets-1"  # the Raft group
QUOTA_BYTES = 32 * 2**20  # of the store of a member of offsets: soon full


def etcd() -> str:
    """Why no etcd can be started; empty when one can. A need for `machine.require`."""
    try:
        etcd_binary()
    except EtcdMissingError as error:
        return str(error)
    return ""


def meta_process(directory: Path, metadata: Sequence[str], offsets: Sequence[str], extra: str = "") -> ServiceProcess:
    """A Meta Service before a Raft group of metadata and one of offsets, given by the endpoints of their members.

    `extra`: further sections of its settings.
    """
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
{extra}"""
    return ServiceProcess("meta", directory, settings, port)


@dataclass
class Fleet:
    """One Raft group of metadata with one member, one of offsets with three; and two Meta Services before them."""

    metadata: LocalCluster
    offsets: LocalCluster
    network: PeerNetwork
    metas: tuple[ServiceProcess, ServiceProcess]

    @classmethod
    @contextmanager
    def running(cls, directory: Path, *, fast: bool = True, divisible: bool = False) -> Iterator["Fleet"]:
        """Start everything; kill it at the end. `divisible`: members of offsets can be cut off, and are slower for it."""
        metadata = LocalCluster("metadata", 1, directory=directory)
        offsets = LocalCluster("offsets", directory=directory, fast=fast, options={"quota-backend-bytes": str(QUOTA_BYTES)})
        network = PeerNetwork(offsets)
        # They do not call the same member, so that one of them can be told less than the other.
        first = meta_process(directory / "Meta Service-1", metadata.endpoints, offsets.endpoints)
        second = meta_process(directory / "Meta Service-2", metadata.endpoints, offsets.endpoints[::-1])
        with ExitStack() as stack:
            if divisible:
                stack.enter_context(network.running())
            stack.callback(metadata.stop)
            stack.callback(offsets.stop)
            stack.enter_context(ended(first, second))
            fleet = cls(metadata, offsets, network, (first, second))
            fleet.mend()
            yield fleet

    def mend(self) -> None:
        """Undo every fault that can be undone: all processes run and are ready."""
        for cluster in (self.metadata, self.offsets):
            for member in cluster.members:
                if member.process and member.process.poll() is None:
                    member.thaw()
            cluster.start()
        for meta in self.metas:
            if meta.process is None or meta.process.poll() is not None:
                meta.launch()
        for meta in self.metas:
            meta.wait_ready()


class Savers:
    """Savers, each of ever higher offsets to shards of its own, spread over the Meta Services; each is asked all the time."""

    def __init__(self, metas: Sequence[ServiceProcess], group: str, *, savers: int = 4, shards: int = 5) -> None:
        self.history = History()
        self.acknowledged_at: list[float] = []  # seconds; when each save came back
        self.failures = 0  # saves of which at least one entry was not acknowledged
        self.reads = 0
        self._metas = metas
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

    async def check(self, *metas: ServiceProcess) -> None:
        """Each of these Meta Services shows at least what was acknowledged, and so did every read before."""
        for meta in metas:
            async with _client(meta) as client:
                await self._read(client)
        assert self.history.check() == []
        assert self.history.acknowledged > 0
        assert self.reads > len(metas)

    async def run(self) -> None:
        """Save and read until cancelled."""
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client(meta)) for meta in self._metas]
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
    """Meanwhile they save, through all faults; an error that they do not expect ends the test."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(savers.run, name="savers")
        await savers.acknowledged_more()
        yield savers
        tasks.cancel_scope.cancel()


def revision(member: LocalMember, *, serializable: bool = False) -> int:
    """The newest revision, as a member answers a linearizable read once it can; or, serializable, the one that it holds."""
    request = etcd_pb.RangeRequest(key=b"any", serializable=serializable)
    until = time.monotonic() + WAIT_S
    with grpc.insecure_channel(member.endpoint, CHANNEL_OPTIONS) as channel:
        while True:
            try:
                return etcd_grpc.KVStub(channel).Range(request, timeout=WAIT_S).header.revision
            except grpc.RpcError:  # it saw a leader change meanwhile, say
                if time.monotonic() > until:
                    raise


def held_revision(member: LocalMember) -> int:
    """The revision that a member happens to hold."""
    return revision(member, serializable=True)


def _client(meta: ServiceProcess) -> AbstractAsyncContextManager[GrpcMetaClient]:
    return GrpcMetaClient.open(MetaSection(endpoints=(meta.address,)))


@asynccontextmanager
async def engine_before(fleet: Fleet, member: LocalMember) -> AsyncIterator[EtcdEngine]:
    """The engine of a Meta Service that knows only one member of the offsets, to read with."""
    section = EtcdSection(max_txn_ops=512)
    async with AsyncExitStack() as stack:
        clusters = [
            await stack.enter_async_context(EtcdCluster.open(name, MembersSection(endpoints=endpoints), section))
            for name, endpoints in (("metadata", fleet.metadata.endpoints), (OFFSETS, (member.endpoint,)))
        ]
        engine = EtcdEngine(clusters[0], clusters[1:], section)
        await engine.open()
        yield engine
