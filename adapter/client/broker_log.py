"""The client of a broker's `offsets.v1.BrokerLog`: the bounds of its shards, and offsets by time.

A reply is checked completely before any of it is returned. Calls are not repeated; a failed one raises BrokerLogError, and the
caller decides what to do without the answer.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import NoReturn, Protocol, TypeVar

import anyio.lowlevel
import grpc
import grpc.aio
from pydantic import Field

from adapter.errors import BrokerLogError
from adapter.model.bounds import Bounds
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.channels import close_channels, open_channel
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.config import OptionalAddress, Section

R = TypeVar("R")

MAX_SHARDS = 1_000  # of one call: at most 256 KiB, far below gRPC's limit of 4 MiB
MAX_SHOWN = 200  # characters of a broker's message in an error, which travels in a header of limited size

# Statuses that mean that the broker cannot be reached.
_UNREACHABLE = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}

# Short backoff, so that a call is not refused by a channel that waits to reconnect. Messages: gRPC's default limit of 4 MiB.
_CHANNEL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1_000))


class BrokerLogSection(Section):
    """The address at which the broker serves `offsets.v1.BrokerLog`; empty if it does not."""

    address: OptionalAddress = ""
    timeout_ms: int = Field(default=2_000, ge=10, le=600_000)


class BrokerLog(Protocol):
    """The broker's logs, one for each shard. Methods raise BrokerLogError if the broker gives no valid answer."""

    @property
    def configured(self) -> bool:
        """False if no broker is configured."""

    async def bounds(self, namespace: str, shards: Iterable[str]) -> dict[str, Bounds]:
        """The bounds of these shards at this moment. A shard that the broker does not have is left out."""

    async def offsets_for_time(self, namespace: str, shards: Iterable[str], timestamp_ms: int) -> dict[str, int | None]:
        """The first offset at or after a Unix time for each shard; None if all messages are older.

        A shard that the broker does not have is left out.
        """


class NoBrokerLog:
    """The BrokerLog of an adapter without a configured broker: every call raises BrokerLogError."""

    configured = False

    async def bounds(self, namespace: str, shards: Iterable[str]) -> dict[str, Bounds]:  # noqa: ARG002 - as the Protocol says
        """Raise BrokerLogError."""
        self._refuse()

    async def offsets_for_time(
        self,
        namespace: str,  # noqa: ARG002 - as the Protocol says
        shards: Iterable[str],  # noqa: ARG002
        timestamp_ms: int,  # noqa: ARG002
    ) -> dict[str, int | None]:
        """Raise BrokerLogError."""
        self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise BrokerLogError(
            "no broker log is configured: set broker_log.address to where the broker serves offsets.v1.BrokerLog, "
            "and start the adapter again"
        )


class GrpcBrokerLog:
    """Calls the broker at one address. Without TLS, because it runs on the same machine."""

    configured = True

    def __init__(self, section: BrokerLogSection, channel: grpc.aio.Channel) -> None:
        self._address = section.address
        self._timeout_s = section.timeout_ms / 1000
        self._stub: offsets_grpc.BrokerLogAsyncStub = offsets_grpc.BrokerLogStub(channel)

    @classmethod
    @asynccontextmanager
    async def open(cls, section: BrokerLogSection) -> AsyncIterator["GrpcBrokerLog"]:
        """A client over a new channel. Connects on first use."""
        channel = open_channel(section.address, None, _CHANNEL_OPTIONS)
        try:
            yield cls(section, channel)
        finally:
            await close_channels([channel])

    async def bounds(self, namespace: str, shards: Iterable[str]) -> dict[str, Bounds]:
        """The bounds of these shards, in calls of up to MAX_SHARDS. Raises BrokerLogError."""
        found: dict[str, Bounds] = {}
        for chunk in _chunks(shards):
            request = offsets_pb.GetBoundsRequest(namespace=namespace, shards=chunk)
            reply = await self._call(self._stub.GetBounds, request)
            now_ms = wall_ms()
            self._check_names(chunk, (row.shard for row in reply.bounds))
            for row in reply.bounds:
                if row.low > row.high:
                    self._reject(f"the bounds of shard {row.shard!r} begin at {row.low} and end before, at {row.high}")
                found[row.shard] = Bounds(row.low, row.high, now_ms, row.log_id)
        return found

    async def offsets_for_time(self, namespace: str, shards: Iterable[str], timestamp_ms: int) -> dict[str, int | None]:
        """The first offset at or after a Unix time for each shard, in calls of up to MAX_SHARDS. Raises BrokerLogError."""
        found: dict[str, int | None] = {}
        for chunk in _chunks(shards):
            request = offsets_pb.GetOffsetsForTimeRequest(namespace=namespace, shards=chunk, timestamp_ms=timestamp_ms)
            reply = await self._call(self._stub.GetOffsetsForTime, request)
            self._check_names(chunk, (row.shard for row in reply.found))
            found |= {row.shard: row.offset if row.HasField("offset") else None for row in reply.found}
        return found

    async def _call(self, method: Callable[..., Awaitable[R | None]], request: object) -> R:
        try:
            reply = await method(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise BrokerLogError(self._explain(error)) from error
        except asyncio.CancelledError:
            # grpc.aio raises a new CancelledError, which anyio's cancel scope does not recognize as its own and would not stop.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise
        if reply is None:  # grpc.aio's result if the reply could not be parsed
            self._reject("it is not a message of offsets.v1.BrokerLog")
        return reply

    def _explain(self, error: grpc.aio.AioRpcError) -> str:
        code, said = error.code(), _shortened(error.details() or "no reason given")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return (
                f"the broker at {self._address} does not serve offsets.v1.BrokerLog: "
                "correct broker_log.address, or leave it empty if the broker has no such service"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return (
                f"the broker at {self._address} did not answer within {self._timeout_s:g} s: "
                "try again, or raise broker_log.timeout_ms"
            )
        if code in _UNREACHABLE:
            return f"the broker at {self._address} cannot be reached: {said}; is it running, and is broker_log.address right?"
        return f"the broker at {self._address} answered {code.name}: {said}; its own log should say more"

    def _check_names(self, asked: Sequence[str], answered: Iterable[str]) -> None:
        left = set(asked)
        for shard in answered:
            if not shard:
                self._reject("a row names no shard")
            if shard not in left:
                problem = "is in the answer twice" if shard in asked else "was not asked for"
                self._reject(f"shard {_shortened(repr(shard))} {problem}")
            left.remove(shard)

    def _reject(self, problem: str) -> NoReturn:
        raise BrokerLogError(
            f"the broker at {self._address} gave an answer that cannot be right: {problem}; nothing of it is used"
        )


def opened(section: BrokerLogSection) -> AbstractAsyncContextManager[BrokerLog]:
    """The configured broker as a context manager, or a NoBrokerLog."""
    return GrpcBrokerLog.open(section) if section.address else nullcontext(NoBrokerLog())


def _chunks(shards: Iterable[str]) -> Iterator[list[str]]:
    wanted = list(dict.fromkeys(shards))
    for start in range(0, len(wanted), MAX_SHARDS):
        yield wanted[start : start + MAX_SHARDS]


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
