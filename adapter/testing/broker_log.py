"""A broker's log in memory, for the demo and tests: when each message of a shard was written, and nothing else of it.

Serves `offsets.v1.BrokerLog` as a real broker would. Never durable; shards and messages are made by whoever holds it.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc.aio

from adapter.model.bounds import ShardKey
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.serving.statuses import Context


@dataclass
class _Messages:
    """The messages of one shard: `timestamps[0]` is that of the message at offset `low`."""

    low: int = 0
    timestamps: list[int] = field(default_factory=list)
    log_id: str = ""

    @property
    def high(self) -> int:
        return self.low + len(self.timestamps)

    def first_at_or_after(self, timestamp_ms: int) -> int | None:
        # Not a search by halves: producers set the times, so that they need not grow with the offsets.
        return next((self.low + at for at, time_ms in enumerate(self.timestamps) if time_ms >= timestamp_ms), None)


class MemoryLog(offsets_grpc.BrokerLogServicer):
    """Shards with messages. A shard begins with `create` or its first `append`. Times are Unix time in milliseconds."""

    def __init__(self) -> None:
        self._shards: dict[ShardKey, _Messages] = {}

    def create(self, shard: ShardKey, low: int = 0, log_id: str = "") -> None:
        """Create an empty shard that begins at offset `low`; an existing one is replaced, as after a delete."""
        self._shards[shard] = _Messages(low, log_id=log_id)

    def append(self, shard: ShardKey, *timestamps_ms: int) -> int:
        """Write a message for each time; returns the end of the log, which is the offset of the next message."""
        messages = self._shards.setdefault(shard, _Messages())
        messages.timestamps += timestamps_ms
        return messages.high

    def trim(self, shard: ShardKey, low: int) -> None:
        """Remove the messages before `low`, as retention does; a `low` below the present beginning changes nothing.

        Raises ValueError beyond the end of the log (Kafka's DeleteRecords: OFFSET_OUT_OF_RANGE), KeyError for an unknown shard.
        """
        messages = self._shards[shard]
        if low > messages.high:
            raise ValueError(f"{'/'.join(shard)}: cannot trim to {low}, the log ends at {messages.high}")
        del messages.timestamps[: max(low - messages.low, 0)]
        messages.low = max(low, messages.low)

    def bounds(self, shard: ShardKey) -> tuple[int, int]:
        """The first offset that can be read, and the one that the next message will get. Raises KeyError."""
        messages = self._shards[shard]
        return messages.low, messages.high

    def offset_for_time(self, shard: ShardKey, timestamp_ms: int) -> int | None:
        """The lowest offset whose message is of this time or a later one; None when there is none. Raises KeyError.

        Kafka's ListOffsets since KIP-79, `OffsetSpec.forTimestamp`: what comes behind it may be older.
        """
        return self._shards[shard].first_at_or_after(timestamp_ms)

    async def GetBounds(self, request: offsets_pb.GetBoundsRequest, context: Context) -> offsets_pb.GetBoundsReply:  # noqa: D102 - documented in the proto
        reply = offsets_pb.GetBoundsReply()
        for shard in self._known(request.namespace, request.shards):
            low, high = self.bounds(shard)
            reply.bounds.add(shard=shard.shard, low=low, high=high, log_id=self._shards[shard].log_id)
        return reply

    async def GetOffsetsForTime(  # noqa: D102
        self,
        request: offsets_pb.GetOffsetsForTimeRequest,
        context: Context,
    ) -> offsets_pb.GetOffsetsForTimeReply:
        reply = offsets_pb.GetOffsetsForTimeReply()
        for shard in self._known(request.namespace, request.shards):
            reply.found.add(shard=shard.shard, offset=self.offset_for_time(shard, request.timestamp_ms))
        return reply

    def _known(self, namespace: str, shards: Iterable[str]) -> Iterable[ShardKey]:
        return [shard for shard in (ShardKey(namespace, name) for name in shards) if shard in self._shards]


@asynccontextmanager
async def serving(log: offsets_grpc.BrokerLogServicer, port: int = 0) -> AsyncIterator[str]:
    """Serve a broker log on loopback; yields its address. Port 0 is any free one."""
    server = grpc.aio.server()
    offsets_grpc.add_BrokerLogServicer_to_server(log, server)
    address = f"127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)
