"""An adapter's OffsetLag in memory, over a real socket: tests say what each group is, take it away, and bring it back."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from adapter.rpc import lag_grpc, lag_pb

NOW_MS = 1_800_000_000_000
PIECE = 1_000  # groups of one message of the stream


def group(
    name: str, status: "lag_pb.LagStatus.ValueType" = lag_pb.OK, namespace: str = "default", **fields: Any
) -> lag_pb.GroupLag:
    """A group that committed a second ago; what is not given is unknown."""
    given = {"shards": 1, "last_commit_at_ms": NOW_MS - 1_000, "status_since_ms": NOW_MS - 3_600_000, **fields}
    return lag_pb.GroupLag(namespace=namespace, group=name, status=status, **given)


def shard(name: str, status: "lag_pb.LagStatus.ValueType" = lag_pb.OK, **fields: Any) -> lag_pb.ShardLag:
    """A shard that was committed a second ago; what is not given is unknown."""
    return lag_pb.ShardLag(shard=name, status=status, committed_at_ms=NOW_MS - 1_000, **fields)


class FakeLag(lag_grpc.OffsetLagServicer):
    """Groups, which `tell` changes. Every watcher is told of what changes."""

    def __init__(self, groups: Iterable[lag_pb.GroupLag] = ()) -> None:
        self.groups = {(row.namespace, row.group): row for row in groups}
        self.shards: dict[tuple[str, str], list[lag_pb.ShardLag]] = {}
        self.now_ms = NOW_MS
        self.bounds_error = ""
        self.forgotten = 0
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.silent = False  # nothing is answered
        self.watchers: list[asyncio.Queue[lag_pb.WatchGroupLagReply]] = []
        self.asked: list[Any] = []

    def tell(self, *changed: lag_pb.GroupLag, gone: Iterable[tuple[str, str]] = ()) -> None:
        """The next evaluation: these groups changed, those are gone."""
        self.now_ms += 1_000
        self.groups.update({(row.namespace, row.group): row for row in changed})
        reply = lag_pb.WatchGroupLagReply(groups=changed, evaluated_at_ms=self.now_ms)
        for key in gone:
            self.groups.pop(key, None)
            reply.removed.add(namespace=key[0], group=key[1])
        for watcher in self.watchers:
            watcher.put_nowait(reply)

    def matching(self, wanted: lag_pb.LagFilter) -> list[lag_pb.GroupLag]:
        """Groups that a filter takes, by name."""
        return [
            row
            for key, row in sorted(self.groups.items())
            if (not wanted.namespace or row.namespace == wanted.namespace)
            and fnmatchcase(row.group, wanted.pattern or "*")
            and row.status >= wanted.at_least
        ]

    async def ListGroupLag(self, request: lag_pb.ListGroupLagRequest, context: Any) -> lag_pb.ListGroupLagReply:
        await self._arrived(request, context)
        rows = self.matching(request.filter)
        if request.order == lag_pb.WORST:
            rows.sort(key=lambda row: -row.status)
        elif request.order != lag_pb.NAME:
            rows.sort(key=lambda row: -row.lag)
        page = rows[request.offset : request.offset + (request.page_size or 1_000)]
        return lag_pb.ListGroupLagReply(
            groups=page,
            matching=len(rows),
            groups_kept=len(self.groups),
            evaluated_at_ms=self.now_ms,
            bounds_error=self.bounds_error,
            shards_forgotten=self.forgotten,
        )

    async def GetGroupLag(self, request: lag_pb.GetGroupLagRequest, context: Any) -> lag_pb.GetGroupLagReply:
        await self._arrived(request, context)
        key = (request.namespace or "default", request.group)
        if key not in self.groups:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no lag of {'/'.join(key)} is kept here")
        return lag_pb.GetGroupLagReply(
            sums=self.groups[key], shards=self.shards.get(key, []), evaluated_at_ms=self.now_ms, bounds_error=self.bounds_error
        )

    async def GetGroupLags(self, request: lag_pb.GetGroupLagsRequest, context: Any) -> AsyncIterator[lag_pb.GetGroupLagsReply]:
        await self._arrived(request, context)
        for group in request.groups:
            key = (request.namespace or "default", group)
            if key in self.groups:
                row = lag_pb.GetGroupLagReply(sums=self.groups[key], shards=self.shards.get(key, []), evaluated_at_ms=self.now_ms)
                yield lag_pb.GetGroupLagsReply(groups=[row])

    async def WatchGroupLag(self, request: lag_pb.WatchGroupLagRequest, context: Any) -> AsyncIterator[lag_pb.WatchGroupLagReply]:
        await self._arrived(request, context)
        rows = self.matching(request.filter)
        queue: asyncio.Queue[lag_pb.WatchGroupLagReply] = asyncio.Queue()
        for at in range(0, max(len(rows), 1), PIECE):
            yield lag_pb.WatchGroupLagReply(resync=at == 0, groups=rows[at : at + PIECE], evaluated_at_ms=self.now_ms)
        self.watchers.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self.watchers.remove(queue)

    async def _arrived(self, request: Any, context: Any) -> None:
        self.asked.append(request)
        if self.silent:
            await asyncio.Event().wait()
        if self.refusal:
            await context.abort(*self.refusal)


@asynccontextmanager
async def serving(lag: FakeLag, directory: Path, *others: Any) -> AsyncIterator[str]:
    """Serve it, and `others` (servicers as `(add, servicer)`); yields the address, a Unix socket that each start has again."""
    path = directory / "lag.sock"
    path.unlink(missing_ok=True)
    server = grpc.aio.server()
    lag_grpc.add_OffsetLagServicer_to_server(lag, server)
    for add, servicer in others:
        add(servicer, server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield f"unix:{path}"
    finally:
        await server.stop(None)
