"""The peers of our own: the adapter, and the Meta Service without an adapter."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio

from adapter.client.client import OffsetClient
from adapter.rpc import meta_grpc, meta_pb, offsets_grpc, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, meta_process
from benchmarks.peers.peer import PAGE_CACHE, SYNCED, Batch, Facts

TIMEOUT_S = 30.0
PROMISES = {
    "interval": (PAGE_CACHE, "in the local store's WAL; fsync every 100 ms"),
    "never": (PAGE_CACHE, "in the local store's WAL; fsync when the OS likes"),
    "always": (SYNCED, "in the local store's WAL and synced, together with other commits of the moment"),
}


class Services:
    """A peer with processes of this project."""

    def __init__(self) -> None:
        self.services: list[ServiceProcess] = []

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [service.pid for service in self.services]

    @property
    def log(self) -> str:
        """The end of the logs."""
        return "".join(service.log[-4000:] for service in self.services)

    def missing(self) -> list[str]:
        """Nothing: our own processes need no other programs."""
        return []

    def stop(self) -> None:
        """Stop the server."""
        while self.services:
            self.services.pop().kill()

    def launch(self, service: ServiceProcess) -> str:
        """Start a process and wait for it; returns its address."""
        self.services.append(service)
        service.start()
        return service.tcp_address


class Adapter(Services):
    """An adapter with its Meta Service. The CPU and memory of both count."""

    def __init__(self, wal_sync: str) -> None:
        super().__init__()
        self._wal_sync = wal_sync
        durability, promise = PROMISES[wal_sync]
        how = "lone: OffsetClient.commit; together: one CommitOffsets with columns"
        self.facts = Facts(f"offset adapter, {wal_sync}", durability, promise, how, coalesces=True, ours=True)

    def start(self, directory: Path) -> str:
        """Start the server; returns its address."""
        return self.launch(adapter_process(directory, self.launch(meta_process(directory)), wal_sync=self._wal_sync))

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "AdapterConnection":
        """One OffsetClient for the consumers, one channel for batches."""
        del groups, consumers
        async with AsyncExitStack() as entered:
            client = await entered.enter_async_context(OffsetClient.connect(address, TIMEOUT_S))
            channel = await entered.enter_async_context(grpc.aio.insecure_channel(address))
            await channel.channel_ready()
            return AdapterConnection(client, channel, entered.pop_all())


class AdapterConnection:
    """A client of the adapter."""

    def __init__(self, client: OffsetClient, channel: grpc.aio.Channel, entered: AsyncExitStack) -> None:
        self._client = client
        self._store: offsets_grpc.OffsetStoreAsyncStub = offsets_grpc.OffsetStoreStub(channel)
        self._entered = entered

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Commit through OffsetClient."""
        await self._client.commit(group, {shard: offset})

    async def commit_many(self, batch: Batch) -> None:
        """One request with columns."""
        groups = [
            offsets_pb.GroupCommits(group=group, shard_names=list(offsets), offsets=list(offsets.values()))
            for group, offsets in batch.items()
        ]
        reply = await self._store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=TIMEOUT_S)
        if reply.superseded:
            raise RuntimeError(f"rising commits were superseded: {reply.superseded[:3]}")

    async def close(self) -> None:
        """Disconnect."""
        await self._entered.aclose()


class MetaService(Services):
    """The Meta Service without an adapter: each commit is a save call."""

    facts = Facts(
        "Meta Service, write-through",
        SYNCED,
        "in its store's WAL and synced, together with other saves of the moment",
        "lone: SaveOffsetData of one offset; together: one SaveOffsetData (grpc.aio, one channel)",
    )

    def start(self, directory: Path) -> str:
        """Start the server; returns its address."""
        return self.launch(meta_process(directory))

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "MetaConnection":
        """Open one channel for all consumers."""
        del groups, consumers
        channel = grpc.aio.insecure_channel(address)
        await channel.channel_ready()
        return MetaConnection(channel)


class MetaConnection:
    """A client of the Meta Service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub: meta_grpc.MetaServiceServiceAsyncStub = meta_grpc.MetaServiceServiceStub(channel)

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """One save of one offset."""
        await self.commit_many({group: {shard: offset}})

    async def commit_many(self, batch: Batch) -> None:
        """Commit the batch by one save call."""
        request = meta_pb.SaveOffsetDataRequest(cluster_name="default")
        for group, offsets in batch.items():
            entries = [
                meta_pb.SaveOffsetDataRequestOffset(namespace="default", shard_name=shard, offset=offset, topic=shard)
                for shard, offset in offsets.items()
            ]
            request.offsets.add(group=group, tenant="default", offsets=entries)
        reply = await self._stub.SaveOffsetData(request, timeout=TIMEOUT_S)
        if any(result.status != meta_pb.SaveOffsetResult.APPLIED for result in reply.results):
            raise RuntimeError("the Meta Service did not apply a rising offset")

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()
