"""A client of the adapter's local API, for Python brokers and tools."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Self

import grpc
import grpc.aio

from adapter.model import DEFAULT_NAMESPACE, CommitMode
from adapter.reads import ReadMode
from adapter.rpc import offsets_grpc, offsets_pb

DEFAULT_TIMEOUT_S = 5.0  # Kafka's commit timeout


class OffsetClient:
    """One channel to one adapter. Methods raise `grpc.aio.AioRpcError`."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.store = offsets_grpc.OffsetStoreStub(channel)
        self.admin = offsets_grpc.OffsetAdminStub(channel)
        self._timeout_s = timeout_s

    @classmethod
    @asynccontextmanager
    async def connect(cls, address: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> AsyncIterator[Self]:
        """A client of `host:port` or `unix:path`."""
        async with grpc.aio.insecure_channel(address) as channel:
            yield cls(channel, timeout_s)

    async def commit(
        self,
        group: str,
        offsets: dict[str, int],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: CommitMode = CommitMode.INCREASE_ONLY,
    ) -> list[offsets_pb.Superseded]:
        """Commit shard -> next offset to read; returns the shards above whose value a larger one stands."""
        shards = [offsets_pb.ShardCommit(shard=shard, offset=offset) for shard, offset in offsets.items()]
        request = offsets_pb.CommitOffsetsRequest(
            groups=[offsets_pb.GroupCommits(namespace=namespace, group=group, shards=shards)],
            mode=offsets_pb.CommitMode.ValueType(mode.value),
        )
        reply = await self.store.CommitOffsets(request, timeout=self._timeout_s)
        return list(reply.superseded)

    async def read(
        self,
        group: str,
        shards: Sequence[str] = (),
        *,
        namespace: str = DEFAULT_NAMESPACE,
        mode: ReadMode = ReadMode.MEMORY_FIRST_THEN_STORE,
    ) -> dict[str, offsets_pb.ShardOffset]:
        """The offsets of a group's shards (none named: of all); absent ones are left out."""
        request = offsets_pb.ReadOffsetsRequest(
            groups=[_shards(namespace, group, shards)], mode=offsets_pb.ReadMode.ValueType(mode.value)
        )
        reply = await self.store.ReadOffsets(request, timeout=self._timeout_s)
        return {offset.shard: offset for offset in reply.offsets}

    async def persist(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> None:
        """Return when the Meta Service holds at least the present values."""
        request = offsets_pb.PersistOffsetsRequest(groups=[_shards(namespace, group, shards)])
        await self.store.PersistOffsets(request, timeout=self._timeout_s)

    async def remove(self, group: str, shards: Sequence[str] = (), *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Persist, then forget locally; returns how many keys were removed."""
        request = offsets_pb.RemoveOffsetsRequest(groups=[_shards(namespace, group, shards)])
        reply = await self.store.RemoveOffsets(request, timeout=self._timeout_s)
        return reply.removed

    async def flush(self) -> int:
        """Send everything dirty to the Meta Service; returns how many keys it acknowledged."""
        reply = await self.admin.Flush(offsets_pb.FlushRequest(), timeout=self._timeout_s)
        return reply.flushed

    async def status(self) -> offsets_pb.StatusReply:
        """What the adapter does at the moment."""
        return await self.admin.Status(offsets_pb.StatusRequest(), timeout=self._timeout_s)

    async def list(self, namespace: str = "", group: str = "") -> AsyncIterator[offsets_pb.ShardOffset]:
        """All local offsets, or those of a namespace or group, in key order."""
        request = offsets_pb.ListOffsetsRequest(namespace=namespace, group=group)
        while True:
            reply = await self.admin.ListOffsets(request, timeout=self._timeout_s)
            for offset in reply.offsets:
                yield offset
            if not reply.next_page_token:
                return
            request.page_token = reply.next_page_token


def _shards(namespace: str, group: str, shards: Sequence[str]) -> offsets_pb.GroupShards:
    return offsets_pb.GroupShards(namespace=namespace, group=group, shards=shards)
