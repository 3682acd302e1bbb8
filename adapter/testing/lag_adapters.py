"""Fake adapters for a fleet: servers of lag, health and status, over groups that a test sets. They can hang, or refuse."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.rpc import lag_grpc, lag_pb, offsets_grpc, offsets_pb
from adapter.runtime.serving.http2.server import Http2Server
from adapter.runtime.serving.statuses import Context
from adapter.runtime.settings.addresses import split_address

_State = offsets_pb.StatusReply
_PART = 1_000  # groups in one reply
Key = tuple[str, str]


class FakeLagAdapter(lag_grpc.OffsetLagServicer, offsets_grpc.OffsetAdminServicer, health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Groups by key, with their shards. `hanging`: it answers nothing. `token`: Status needs it. `calls` counts by name."""

    def __init__(self, broker: str = "") -> None:
        self.broker = broker
        self.address = ""
        self.state: offsets_pb.StatusReply.State.ValueType = _State.SERVING
        self.token = ""
        self.hanging = False
        self.lag_off = False
        self.forgotten = 0
        self.evaluated_at_ms = 1_000
        self.sums: dict[Key, lag_pb.GroupLag] = {}
        self.shards: dict[Key, list[lag_pb.ShardLag]] = {}
        self.calls: dict[str, int] = {}
        self._watchers: set[asyncio.Queue[lag_pb.WatchGroupLagReply | None]] = set()

    def set_group(self, group: str, shards: Iterable[lag_pb.ShardLag], namespace: str = "default") -> None:
        """Set the shards of a group, and its sums by them."""
        rows = list(shards)
        self.put(sums_of(namespace, group, rows), rows)

    def put(self, group: lag_pb.GroupLag, shards: Sequence[lag_pb.ShardLag] = ()) -> None:
        """Set a group as it is; those who watch are told."""
        key = group.namespace, group.group
        self.sums[key], self.shards[key] = group, list(shards)
        self._tell(lag_pb.WatchGroupLagReply(groups=[group]))

    def remove(self, group: str, namespace: str = "default") -> None:
        """Keep a group no more; those who watch are told."""
        del self.sums[namespace, group], self.shards[namespace, group]
        removed = lag_pb.WatchGroupLagReply.RemovedGroup(namespace=namespace, group=group)
        self._tell(lag_pb.WatchGroupLagReply(removed=[removed]))

    def end_streams(self) -> None:
        """End the streams of those who watch."""
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def tell_all(self, groups: Sequence[lag_pb.GroupLag]) -> None:
        """Set many groups at once."""
        self.sums.update({(group.namespace, group.group): group for group in groups})
        for at in range(0, len(groups), _PART):
            self._tell(lag_pb.WatchGroupLagReply(groups=groups[at : at + _PART]))

    def _tell(self, reply: lag_pb.WatchGroupLagReply) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(reply)

    async def _called(self, name: str, context: Context) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.hanging:
            await asyncio.Event().wait()
        if self.lag_off and name.endswith("Lag"):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "[lag] shards = 0")

    async def ListGroupLag(self, request: lag_pb.ListGroupLagRequest, context: Context) -> lag_pb.ListGroupLagReply:  # noqa: D102
        await self._called("ListGroupLag", context)
        return lag_pb.ListGroupLagReply(
            matching=len(self.sums), groups_kept=len(self.sums), shards_kept=len(self.sums), shards_forgotten=self.forgotten
        )

    async def GetGroupLag(self, request: lag_pb.GetGroupLagRequest, context: Context) -> lag_pb.GetGroupLagReply:  # noqa: D102
        await self._called("GetGroupLag", context)
        key = request.namespace, request.group
        if key not in self.sums:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no lag is kept of this group")
        return lag_pb.GetGroupLagReply(sums=self.sums[key], shards=self.shards.get(key, ()), evaluated_at_ms=self.evaluated_at_ms)

    async def WatchGroupLag(  # noqa: D102
        self, request: lag_pb.WatchGroupLagRequest, context: Context
    ) -> AsyncIterator[lag_pb.WatchGroupLagReply]:
        await self._called("WatchGroupLag", context)
        queue: asyncio.Queue[lag_pb.WatchGroupLagReply | None] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            groups = list(self.sums.values())
            for at in range(0, max(len(groups), 1), _PART):
                yield lag_pb.WatchGroupLagReply(resync=at == 0, groups=groups[at : at + _PART])
            while (reply := await queue.get()) is not None:
                yield reply
        finally:
            self._watchers.discard(queue)

    async def Status(self, request: offsets_pb.StatusRequest, context: Context) -> offsets_pb.StatusReply:  # noqa: D102
        await self._called("Status", context)
        shown = dict(context.invocation_metadata() or ()).get("authorization")
        if self.token and shown != f"Bearer {self.token}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
        return offsets_pb.StatusReply(
            state=self.state, version="1.2.3", store=offsets_pb.StoreStatus(broker=self.broker), dirty_keys=len(self.sums)
        )

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:  # noqa: D102
        await self._called("Check", context)
        serving = {_State.SERVING, _State.DEGRADED, *({_State.RECOVERING} if request.service == "commits" else ())}
        status = health_pb2.HealthCheckResponse
        return health_pb2.HealthCheckResponse(status=status.SERVING if self.state in serving else status.NOT_SERVING)


@asynccontextmanager
async def serving(adapter: FakeLagAdapter, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve a fake adapter; gives its address."""
    server, host = Http2Server(), address.rpartition(":")[0]
    target = cast("grpc.aio.Server", server)
    lag_grpc.add_OffsetLagServicer_to_server(adapter, target)
    offsets_grpc.add_OffsetAdminServicer_to_server(adapter, target)
    health_pb2_grpc.add_HealthServicer_to_server(adapter, target)
    listener = socket.create_server(split_address(address))
    await server.listen(listener)
    adapter.address = f"{host}:{listener.getsockname()[1]}"
    try:
        yield adapter.address
    finally:
        adapter.end_streams()
        await server.stop(0)


def shard_lag(shard: str, offset: int, high: int | None, **fields: object) -> lag_pb.ShardLag:
    """The lag of a shard: of epoch 1, committed at its offset as the time, OK, unless `fields` say otherwise."""
    values: dict[str, object] = {"epoch": 1, "topic": "orders", "committed_at_ms": offset, "status": lag_pb.OK, **fields}
    if high is not None:
        lag = max(high - offset, 0)
        values = {"high_watermark": high, "lag": lag, "lag_seconds": float(lag), "bounds_at_ms": 1_000, **values}
    return lag_pb.ShardLag(shard=shard, offset=offset, **values)  # type: ignore[arg-type]


def sums_of(namespace: str, group: str, shards: Sequence[lag_pb.ShardLag]) -> lag_pb.GroupLag:
    """The sums of an adapter over the shards of a group."""
    known = [shard for shard in shards if shard.HasField("lag")]
    total = lag_pb.GroupLag(namespace=namespace, group=group, shards=len(shards), known=len(known))
    if known:
        total.lag = sum(shard.lag for shard in known)
        total.lag_seconds = max(shard.lag_seconds for shard in known)
        total.moving_lag = sum(shard.lag for shard in known if shard.status not in {lag_pb.STALL, lag_pb.STOP})
    worst = max(shards, key=lambda shard: shard.status, default=None)
    if worst:
        total.status, total.worst_shard = worst.status, worst.shard
    total.last_commit_at_ms = max((shard.committed_at_ms for shard in shards), default=0)
    total.stall = sum(shard.status == lag_pb.STALL for shard in shards)
    total.stop = sum(shard.status == lag_pb.STOP for shard in shards)
    return total
