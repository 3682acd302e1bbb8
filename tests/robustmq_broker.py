"""A double of a RobustMQ broker's offsets, as a process of its own: what it acknowledges, when it sends it, what it loses.

Written from what was read in RobustMQ at 8bd49dc5 (`src/common/group`, `src/grpc-clients/src/utils.rs`):

- a commit changes a map in memory, marks its group, and is acknowledged;
- every 20 ms a task sends all shards of the marked groups with SaveOffsetData. It clears the marks as soon as it has copied
  them; a save that fails is not marked again;
- a read is answered from the map if the group has any entry there, else by GetOffsetData, whose answer fills the map;
- `UpdateCache` with (GroupOffset, Delete) empties the map of a group;
- a call goes to the addresses in order, three times at least, with 100 ms between: on to the next one if the error is of
  transport, which the words of its text tell, or if there is no answer for five seconds; any other error is final, also that a
  connection was lost during the call (`Status::code_from_h2` of tonic: UNKNOWN);
- a delete removes shards from the map once it is acknowledged;
- a heartbeat goes to each address, one after the other, and is given up after three seconds in all.

    python -m tests.robustmq_broker GRPC_PORT CONTROL_PORT ADDRESS...

The control connection takes lines of JSON, each answered by one: {"commit": [group, shard, offset]}, {"read": group},
{"delete": [group, shard]}, {"heartbeat": true}; with the text of an error that was final. Whoever
sends {"flushed": true} gets a line [group, shard, offset] for all that a save has had acknowledged, from then on.
"""

import asyncio
import json
import struct
import sys
from typing import Any

import grpc
import grpc.aio

from adapter.rpc import robustmq_grpc, robustmq_pb
from tests.dialect import ROBUST

SERVICE = "/meta.service.common.MetaServiceService"
FLUSH_S, AGAIN_S, CALL_S, HEARTBEATS_S = 0.02, 0.1, 5.0, 3.0
TRANSPORT = (
    "tcp connect error",
    "Connection refused",
    "ConnectError",
    "The service is currently unavailable",
    "meta-service node is not currently the raft leader",
)
TENANT, TOPIC = "default", "orders"
UNAVAILABLE = "code: 'The service is currently unavailable'"  # how tonic begins the text of this code
NOT_CONNECTED = "failed to connect to all addresses"  # what grpcio says where tonic says "tcp connect error"
OPTIONS = [("grpc.enable_retries", 0), ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]


class Broker:
    """The map, its task, and the calls."""

    def __init__(self, addresses: list[str]) -> None:
        self._channels = [grpc.aio.insecure_channel(address, OPTIONS) for address in addresses]
        self._map: dict[str, dict[str, int]] = {}
        self._marked: dict[str, None] = {}
        self.watchers: set[asyncio.StreamWriter] = set()

    def commit(self, group: str, shard: str, offset: int) -> None:
        """Acknowledge a commit."""
        self._map.setdefault(group, {})[shard] = offset
        self._marked[group] = None

    async def read(self, group: str) -> dict[str, int]:
        """The offsets of a group."""
        if group in self._map:
            return self._map[group]
        reply = await self._call("GetOffsetData", tenant=TENANT, group=group)
        found = {row.shard_name: row.offset for row in reply.offsets}
        if found:
            self._map[group] = found
        return found

    async def delete(self, group: str, shard: str) -> None:
        """Delete the offset of a shard."""
        await self._call("DeleteOffsetData", tenant=TENANT, group=group, shard_names=[shard])
        self._map.get(group, {}).pop(shard, None)

    async def heartbeat(self) -> list[str]:
        """The code of each address. Raises TimeoutError."""
        codes = []
        async with asyncio.timeout(HEARTBEATS_S):
            for channel in self._channels:
                call: Any = channel.unary_unary(f"{SERVICE}/Heartbeat")
                try:
                    await call(b"")
                    codes.append("OK")
                except grpc.aio.AioRpcError as error:
                    codes.append(error.code().name)
        return codes

    def forget(self, group: str) -> None:
        """Empty the map of a group."""
        self._map.pop(group, None)

    async def flush(self) -> None:
        """The task, for ever."""
        while True:
            await asyncio.sleep(FLUSH_S)
            marked = list(self._marked)
            self._marked.clear()
            copied = {group: dict(self._map[group]) for group in marked if group in self._map}
            if not copied:
                continue
            groups = [
                ROBUST["SaveOffsetData"](
                    tenant=TENANT,
                    group=group,
                    offsets=[
                        ROBUST["SaveOffsetDataRequestOffset"](shard_name=shard, offset=offset, topic=TOPIC, partition=0)
                        for shard, offset in shards.items()
                    ],
                )
                for group, shards in copied.items()
            ]
            try:
                await self._call("SaveOffsetData", offsets=groups)
            except FinalError as error:
                sys.stdout.write(f"a save failed: {error}\n")
            else:
                self._tell([(group, *row) for group, shards in copied.items() for row in shards.items()])

    def _tell(self, rows: list[tuple[str, str, int]]) -> None:
        for writer in self.watchers:
            writer.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    async def _call(self, name: str, **fields: Any) -> Any:
        for attempt in range(max(3, len(self._channels))):
            if attempt:
                await asyncio.sleep(AGAIN_S)
            channel = self._channels[attempt % len(self._channels)]
            call: Any = channel.unary_unary(
                f"{SERVICE}/{name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=ROBUST[f"{name}Reply"].FromString,
            )
            try:
                return await asyncio.wait_for(call(ROBUST[f"{name}Request"](**fields)), CALL_S)
            except TimeoutError:
                failed: Exception = FinalError("no address has answered in time")
            except grpc.aio.AioRpcError as error:
                failed = FinalError(f"{error.code().name}: {error.details()}")
                if not goes_on(error.code(), str(error.details())):
                    raise failed from error
        raise failed


class FinalError(Exception):
    """A call has failed for good."""


def goes_on(code: grpc.StatusCode, text: str) -> bool:
    """Whether a broker calls its next address after this error of a server, or of a connection."""
    if code is grpc.StatusCode.UNAVAILABLE:
        if NOT_CONNECTED in text:
            text = TRANSPORT[0]
        elif TRANSPORT[3] in text:
            text = f"{UNAVAILABLE}{text}"  # by a server; what else has this code is a connection that was lost
    return any(words in text for words in TRANSPORT)


class UpdateCache(robustmq_grpc.BrokerServiceServicer):
    """The broker's service."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def UpdateCache(self, request: robustmq_pb.UpdateCacheRequest, _: object) -> robustmq_pb.UpdateCacheReply:
        for record in request.records:
            if (record.resource_type, record.action_type) == (21, 2):
                self._broker.forget(group_of(record.data))
        return robustmq_pb.UpdateCacheReply()


def group_of(data: bytes) -> str:
    """The group's name in a `ShareGroup` as bincode writes it: behind two other texts. Raises AssertionError for another form."""
    texts, at = [], 0
    for _ in range(3):
        (size,) = struct.unpack_from("<Q", data, at)
        at += 8
        texts.append(data[at : at + size].decode())
        at += size
    assert struct.unpack_from("<QIQ", data, at) == (0, 0, 0)
    assert at + 20 == len(data)
    return texts[2]


async def _serve(broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        asked = json.loads(line)
        answer: object = None
        if "commit" in asked:
            broker.commit(*asked["commit"])
        elif "flushed" not in asked:
            try:
                if "read" in asked:
                    answer = await broker.read(asked["read"])
                elif "delete" in asked:
                    await broker.delete(*asked["delete"])
                else:
                    answer = await broker.heartbeat()
            except (FinalError, TimeoutError) as error:
                answer = str(error) or "no answer in time"
        else:
            broker.watchers.add(writer)
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()
    broker.watchers.discard(writer)


async def main(grpc_port: int, control_port: int, addresses: list[str]) -> None:
    """Run until it is killed."""
    broker = Broker(addresses)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    robustmq_grpc.add_BrokerServiceServicer_to_server(UpdateCache(broker), server)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    await asyncio.start_server(lambda *streams: _serve(broker, *streams), "127.0.0.1", control_port)
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await broker.flush()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
