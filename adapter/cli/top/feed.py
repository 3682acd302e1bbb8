"""What `top` is told: follows an adapter's WatchGroupLag for as long as somebody watches, and asks it whether it is still there.

A stream that ended, or an adapter that answers no more, is followed anew until it answers; meanwhile it is said why.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeAlias

import grpc
import grpc.aio

from adapter.cli.top.listing import told_of_all
from adapter.client.client import OffsetClient
from adapter.rpc import lag_pb

ASK_EVERY_S = 3.0  # whether the adapter is there: a stream without changes is silent, and so is a machine that is gone
ANSWER_S = 5.0
_RETRY_S = (0.25, 2.0)  # the first pause and the longest one
_QUEUED = 64  # replies that wait for the screen; the stream waits then


class Lost(NamedTuple):
    """The adapter does not answer; it is asked again and again."""

    why: str


class State(NamedTuple):
    """Somebody answers. `notes`: what is to be known of all groups, in sentences."""

    notes: Sequence[str] = ()


class Shards(NamedTuple):
    """A group with its shards. `adapters` is empty, or says of each shard which adapter has its newest offset."""

    sums: lag_pb.GroupLag
    shards: Sequence[lag_pb.ShardLag]
    evaluated_at_ms: int
    note: str = ""
    adapters: Mapping[str, str] = MappingProxyType({})


Event: TypeAlias = lag_pb.WatchGroupLagReply | State | Lost


class Feed(Protocol):
    """Where a live table has its groups from."""

    name: str
    many: bool  # several adapters

    def events(self) -> AsyncGenerator[Event, None]:
        """Everything that is told, without an end. After a Lost the next reply has `resync`."""

    async def group(self, namespace: str, group: str) -> Shards | None:
        """The shards of a group; None: no lag of it is kept. Raises AioRpcError."""


class AdapterFeed:
    """The feed of one adapter."""

    many = False

    def __init__(self, client: OffsetClient, name: str, lag_filter: lag_pb.LagFilter) -> None:
        self.name = name
        self._client = client
        self._filter = lag_filter

    async def check(self) -> State:
        """Ask for as little as possible. Raises AioRpcError."""
        request = lag_pb.ListGroupLagRequest(filter=self._filter, order=lag_pb.NAME, page_size=1)
        reply = await self._client.lag.ListGroupLag(request, timeout=ANSWER_S)
        return State(told_of_all(reply.bounds_error, reply.shards_forgotten))

    async def events(self) -> AsyncGenerator[Event, None]:
        """Everything that is told. After an error it pauses, longer from time to time, and follows anew."""
        pause_s, longest_s = _RETRY_S
        while True:
            told: asyncio.Queue[Event | None] = asyncio.Queue(_QUEUED)
            following = asyncio.create_task(self._follow(told), name="top.follow")
            try:
                while (event := await told.get()) is not None:
                    yield event
                    pause_s = _RETRY_S[0]
                yield Lost(await following)
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            pause_s = min(pause_s * 2, longest_s)

    async def group(self, namespace: str, group: str) -> Shards | None:
        """The shards of a group; None: no lag of it is kept. Raises AioRpcError."""
        request = lag_pb.GetGroupLagRequest(namespace=namespace, group=group)
        try:
            reply = await self._client.lag.GetGroupLag(request, timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        return Shards(reply.sums, reply.shards, reply.evaluated_at_ms, "; ".join(told_of_all(reply.bounds_error, 0)))

    async def _follow(self, told: asyncio.Queue[Event | None]) -> str:
        """Put everything that one stream tells into the queue, then None; returns why it ended."""
        watching = self._client.lag.WatchGroupLag(lag_pb.WatchGroupLagRequest(filter=self._filter))

        async def ask() -> None:
            while True:
                await told.put(await self.check())
                await asyncio.sleep(ASK_EVERY_S)

        asking = asyncio.create_task(ask(), name="top.ask")
        reading = asyncio.create_task(self._read(watching, told), name="top.read")
        try:
            await asyncio.wait((asking, reading), return_when=asyncio.FIRST_COMPLETED)
            ended = why((reading if reading.done() else asking).exception())
        finally:
            watching.cancel()
            for task in (asking, reading):
                task.cancel()
            await asyncio.gather(asking, reading, return_exceptions=True)
        await told.put(None)
        return ended

    @staticmethod
    async def _read(
        watching: "AsyncIterable[lag_pb.WatchGroupLagReply]",
        told: asyncio.Queue[Event | None],
    ) -> None:
        async for reply in watching:
            await told.put(reply)


def why(error: BaseException | None) -> str:
    """An error of a call in words; None is a stream that the adapter ended."""
    if error is None:
        return "the adapter ended the stream"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"


def monotonic_ms() -> int:
    """A clock that only goes forward, in milliseconds."""
    return time.monotonic_ns() // 1_000_000
