"""The servicer of `offsets.v1.OffsetLag` that is there from the start: the rest, with numpy, is loaded when commits are served.

With `lag.shards` = 0 it is never loaded, and every call says which setting to change.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Protocol

import anyio

from adapter.errors import SwitchedOffError
from adapter.rpc import lag_grpc, lag_pb
from adapter.runtime.serving.statuses import Context

OFF = "this adapter keeps no lag: lag.shards = 0 in its configuration; set it to the number of shards to keep, and start it again"


class Service(Protocol):
    """What calls are handed on to: `service.OffsetLag`."""

    def ListGroupLag(self, request: lag_pb.ListGroupLagRequest, context: Context, /) -> Awaitable[lag_pb.ListGroupLagReply]:
        """Documented in the proto, as all RPCs."""

    def GetGroupLag(self, request: lag_pb.GetGroupLagRequest, context: Context, /) -> Awaitable[lag_pb.GetGroupLagReply]:
        """Likewise."""

    def GetGroupLags(
        self, request: lag_pb.GetGroupLagsRequest, context: Context, /
    ) -> AsyncGenerator[lag_pb.GetGroupLagsReply, None]:
        """Likewise."""

    def WatchGroupLag(
        self, request: lag_pb.WatchGroupLagRequest, context: Context, /
    ) -> AsyncGenerator[lag_pb.WatchGroupLagReply, None]:
        """Likewise."""


class LagEntry(lag_grpc.OffsetLagServicer):
    """Hands calls on to the service, which they wait for. `ready` raises NotReadyError while nothing is to be read."""

    def __init__(self, ready: Callable[[], object], *, kept: bool) -> None:
        self._ready = ready
        self._kept = kept
        self._service: Service | None = None
        self._loaded = anyio.Event()

    def open(self, service: Service) -> None:
        """Hand calls on to this service from now on."""
        self._service = service
        self._loaded.set()

    async def _opened(self) -> Service:
        """The service. Raises SwitchedOffError if there is none, and what `ready` does; the server ends the call with it."""
        if not self._kept:
            raise SwitchedOffError(OFF)
        self._ready()
        while self._service is None:
            await self._loaded.wait()
        return self._service

    async def ListGroupLag(  # noqa: D102 - documented in the proto, as all RPCs
        self, request: lag_pb.ListGroupLagRequest, context: Context
    ) -> lag_pb.ListGroupLagReply:
        return await (await self._opened()).ListGroupLag(request, context)

    async def GetGroupLag(self, request: lag_pb.GetGroupLagRequest, context: Context) -> lag_pb.GetGroupLagReply:  # noqa: D102
        return await (await self._opened()).GetGroupLag(request, context)

    async def GetGroupLags(  # noqa: D102
        self, request: lag_pb.GetGroupLagsRequest, context: Context
    ) -> AsyncGenerator[lag_pb.GetGroupLagsReply, None]:
        service = await self._opened()
        async with aclosing(service.GetGroupLags(request, context)) as replies:
            async for reply in replies:
                yield reply

    async def WatchGroupLag(  # noqa: D102
        self, request: lag_pb.WatchGroupLagRequest, context: Context
    ) -> AsyncGenerator[lag_pb.WatchGroupLagReply, None]:
        service = await self._opened()
        async with aclosing(service.WatchGroupLag(request, context)) as replies:
            async for reply in replies:
                yield reply
