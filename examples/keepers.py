"""The two that keep positions, as a run sees them: what a consumer is told, whether all is finished, and how to crash it."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import anyio.to_thread
import grpc.aio

from adapter.client import OffsetClient, ReadMode
from adapter.model.queues import shard_of
from adapter.testing.processes import ServiceProcess
from examples.broker import Broker
from examples.flights import QUEUES
from examples.worker import GROUP


class Keeper(Protocol):
    """Who keeps the position of the consumers."""

    @property
    def name(self) -> str:
        """For a person."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """What tells a worker."""
        ...

    async def finished(self) -> bool:
        """True when, by what it keeps, no message is left."""
        ...

    async def crash(self) -> str:
        """Kill it and bring it back; returns what was done, in words. Empty: it is not a process of its own."""
        ...


class AdapterKeeper:
    """The adapter: one position for each shard, below which everything is finished."""

    name = "the adapter"

    def __init__(self, adapter: ServiceProcess, ends: Mapping[str, int]) -> None:
        self._adapter = adapter
        self._ends = ends  # shard -> after its last message
        self.arguments = ("adapter", "--adapter", adapter.address)

    async def finished(self) -> bool:
        """See `Keeper`. The Meta Service has it then, too."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with OffsetClient.connect(self._adapter.address) as offsets:
                rows = await offsets.read(GROUP, mode=ReadMode.MEMORY)
                if {shard: row.offset for shard, row in rows.items()} == self._ends:
                    await offsets.persist(GROUP)
                    return True
        return False

    async def crash(self) -> str:
        """See `Keeper`."""
        self._adapter.kill()
        self._adapter.launch()  # in this thread: the process is bound to it
        await anyio.to_thread.run_sync(self._adapter.wait_ready)
        return "kill -9 of the adapter, which is back: the consumers sent their commits again"


class AcksKeeper:
    """The broker itself: which messages are acknowledged."""

    name = "NATS's acks"

    def __init__(self, broker: Broker, ack_wait_s: float) -> None:
        self._broker = broker
        self.arguments = ("acks", "--ack-wait", str(ack_wait_s))

    async def finished(self) -> bool:
        """See `Keeper`."""
        return await self._broker.acknowledged(GROUP, QUEUES)

    async def crash(self) -> str:
        """See `Keeper`. Without the broker there are no messages either."""
        return ""


def ends_of(shards: Sequence[int]) -> dict[str, int]:
    """Shard -> the position after its last message, for the shard of each message in turn. Message 1 is the first."""
    return {shard_of(QUEUES[number]): sequence + 1 for sequence, number in enumerate(shards, 1)}
