"""Metadata under kill -9, of a Meta Service and of etcd's leader: what was acknowledged stands, and no revision is given twice.

Each key has one writer, so that a conflict can only be its own write, whose answer it did not get.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import grpc
import grpc.aio

from adapter.errors import MetaUnavailableError
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.metadata import EtcdMetadata
from adapter.metaservice.metadata import Entry, RevisionConflictError
from adapter.rpc import metadata_grpc, metadata_pb
from adapter.runtime.channels import open_channel
from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import ServiceProcess, ended, meta_process
from adapter.testing.waiting import PATIENCE_S, eventually
from tests.durability.etcd_cluster import etcd
from tests.durability.load import LIMIT_S, random_instants
from tests.durability.machine import require

KILLS = 2  # of a Meta Service
LEADER_KILLS = 2
WRITERS = 8
CALL_S = PATIENCE_S


class Remote:
    """The metadata of a Meta Service, with the errors of a store."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = metadata_grpc.MetadataStoreStub(channel)

    async def put(self, cluster: str, key: str, value: bytes, expected: int | None = None) -> int:
        request = metadata_pb.PutRequest(cluster_name=cluster, key=key, value=value, expected_revision=expected)
        try:
            return (await self._stub.Put(request, timeout=CALL_S)).revision
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise MetaUnavailableError(error.details() or "") from error
            raise

    async def get(self, cluster: str, key: str) -> Entry | None:
        reply = await self._stub.Get(metadata_pb.GetRequest(cluster_name=cluster, key=key), timeout=CALL_S)
        return Entry(key, reply.entry.value, reply.entry.revision) if reply.HasField("entry") else None


Store = Remote | EtcdMetadata


class Writer:
    """Writes 1, 2, 3, ... under one key, each by compare-and-set over the one before."""

    def __init__(self, key: str, given: dict[int, tuple[str, int]]) -> None:
        self.key = key
        self._tried = 0
        self._number = 0  # acknowledged
        self._revision = 0
        self._unsure = False  # since a write that nobody answered
        self._given = given  # revision -> the write that it was given to, of all writers

    async def write(self, store: Store) -> None:
        """The next number. Raises MetaUnavailableError."""
        self._tried = self._number + 1
        try:
            revision = await store.put("c", self.key, str(self._tried).encode(), self._revision)
        except MetaUnavailableError:
            self._unsure = True
            raise
        except RevisionConflictError:
            assert self._unsure
            await self.verify(store)
        else:
            self._acknowledged(self._tried, revision)

    async def verify(self, store: Store) -> None:
        """What was acknowledged stands, or the one write behind it that was not answered; with a revision of its own."""
        found = await store.get("c", self.key) or Entry(self.key, b"0", 0)
        number = int(found.value)
        assert number in {self._number, self._tried}
        if number == self._number:
            assert found.revision == self._revision
        else:
            self._acknowledged(number, found.revision)

    def _acknowledged(self, number: int, revision: int) -> None:
        assert revision > self._revision
        assert self._given.setdefault(revision, (self.key, number)) == (self.key, number)
        self._number, self._revision, self._unsure = number, revision, False


class Writers:
    """Some of them, and all that they were given."""

    def __init__(self) -> None:
        self.given: dict[int, tuple[str, int]] = {}
        self.all = [Writer(f"key-{number}", self.given) for number in range(WRITERS)]
        self._rng = random_instants()

    async def some_writes(self) -> None:
        """Wait for them."""
        enough = len(self.given) + self._rng.randint(1, 200)
        await eventually(lambda: len(self.given) >= enough, LIMIT_S)

    async def verify(self, store: Store) -> None:
        """Each key."""
        for writer in self.all:
            await writer.verify(store)
        revision = await store.put("c", "last", b"")
        assert revision > max(self.given, default=0)


async def test_acknowledged_metadata_survives_kills_of_a_meta_service(tmp_path: Path) -> None:
    """After each kill -9 a get shows it, with the revision that it was acknowledged with (1, 2)."""
    meta, writers = meta_process(tmp_path), Writers()

    async def write(writer: Writer, store: Store) -> None:
        with suppress(MetaUnavailableError):
            while True:
                await writer.write(store)

    with ended(meta):
        for _ in range(KILLS):
            async with running(meta) as store, anyio.create_task_group() as tasks:
                await writers.verify(store)
                for writer in writers.all:
                    tasks.start_soon(write, writer, store, name=writer.key)
                await writers.some_writes()
                meta.kill()
        async with running(meta) as store:
            await writers.verify(store)


async def test_acknowledged_metadata_survives_kills_of_the_leader_of_etcd(tmp_path: Path) -> None:
    """And a compare-and-set whose answer was lost is never told as a conflict that wrote nothing (1, 2)."""
    require("kills of the leader under metadata writes", etcd)
    writers, stopping = Writers(), anyio.Event()

    async def write(writer: Writer, store: Store) -> None:
        while not stopping.is_set():
            with suppress(MetaUnavailableError):
                await writer.write(store)
                continue
            with suppress(MetaUnavailableError):
                await writer.verify(store)

    with LocalCluster("metadata", directory=tmp_path, fast=True) as group:
        members = MembersSection(endpoints=group.endpoints)
        async with EtcdCluster.open("metadata", members, EtcdSection(metadata=members)) as cluster:
            store = EtcdMetadata(cluster, "test/")
            async with anyio.create_task_group() as tasks:
                for writer in writers.all:
                    tasks.start_soon(write, writer, store, name=writer.key)
                for _ in range(LEADER_KILLS):
                    await writers.some_writes()
                    leader = await anyio.to_thread.run_sync(group.leader)
                    leader.kill()
                    await writers.some_writes()
                    await anyio.to_thread.run_sync(leader.start)
                stopping.set()
            await writers.verify(store)


@asynccontextmanager
async def running(meta: ServiceProcess) -> AsyncIterator[Store]:
    """The service, started, and a way to it."""
    await anyio.to_thread.run_sync(meta.start)
    async with open_channel(meta.address, None, ()) as channel:
        yield Remote(channel)
