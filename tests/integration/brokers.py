"""Brokers for the tests of BrokerLog, and an adapter that knows one."""

import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from adapter.client.broker_log import BrokerLogSection, GrpcBrokerLog
from adapter.client.client import OffsetClient
from adapter.meta.client import MetaClient
from adapter.model.bounds import ShardKey
from adapter.rpc import offsets_grpc
from adapter.testing.broker_log import MemoryLog
from tests.integration.helpers import serving


class ScriptedBroker(offsets_grpc.BrokerLogServicer):
    """A broker that keeps the requests and answers with whatever a test wants."""

    def __init__(self, script: Callable[[Any, Any], Any]) -> None:
        self.requests: list[Any] = []
        self.script = script

    async def _answer(self, request: Any, context: Any) -> Any:
        self.requests.append(request)
        reply = self.script(request, context)
        return await reply if inspect.isawaitable(reply) else reply

    GetBounds = _answer
    GetOffsetsForTime = _answer


def hanging_broker() -> ScriptedBroker:
    """It takes questions and never answers them."""
    return ScriptedBroker(lambda *_: anyio.sleep_forever())


def broker_without_methods() -> offsets_grpc.BrokerLogServicer:
    """The generated service, in which nobody has written anything: it answers UNIMPLEMENTED."""
    return offsets_grpc.BrokerLogServicer()  # type: ignore[abstract] # which is the point


def memory_log(**shards: Sequence[int]) -> MemoryLog:
    """A log in memory with these shards of the default namespace, and the times of their messages."""
    log = MemoryLog()
    for name, timestamps_ms in shards.items():
        log.append(ShardKey("default", name), *timestamps_ms)
    return log


@asynccontextmanager
async def adapter_at(
    directory: Path, broker: str, meta: MetaClient | None = None, **settings: Any
) -> AsyncIterator[OffsetClient]:
    """A client of an adapter that knows a broker at this address."""
    section = BrokerLogSection(address=broker, **settings)
    async with GrpcBrokerLog.open(section) as log, serving(directory, meta, broker_log=log) as (_, client):
        yield client
