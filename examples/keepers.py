"""The two position stores that a run compares: the adapter, and NATS itself. How to use, query and crash each of them."""

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
    """The interface of a position store."""

    @property
    def name(self) -> str:
        """The name for the display."""
        ...

    @property
    def arguments(self) -> Sequence[str]:
        """The argument for a worker."""
        ...

    async def finished(self) -> bool:
        """True if all messages are finished, by the stored positions."""
        ...

    async def crash(self) -> str:
        """Kill it and start it again; returns a description. Empty: it cannot be crashed alone."""
        ...


class AdapterKeeper:
    """The adapter: one position for each shard; all messages below it are finished."""

    name = "the adapter"

    def __init__(self, adapter: ServiceProcess, ends: Mapping[str, int]) -> None:
        self._adapter = adapter
        self._ends = ends  # shard -> the position after its last message
        self.arguments = ("adapter", "--adapter", adapter.address)

    async def finished(self) -> bool:
        """True if the position of every shard is at its end, in the Meta Service too."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with OffsetClient.connect(self._adapter.address) as offsets:
                rows = await offsets.read(GROUP, mode=ReadMode.MEMORY)
                if {shard: row.offset for shard, row in rows.items()} == self._ends:
                    await offsets.persist(GROUP)
                    return True
        return False

    async def crash(self) -> str:
        """Kill the adapter and start it again."""
        self._adapter.kill()
        self._adapter.launch()  # in this thread: the process is ended with the thread that started it
        await anyio.to_thread.run_sync(self._adapter.wait_ready)
        return "kill -9 of the adapter, which is back: the consumers sent their commits again"


class AcksKeeper:
    """NATS itself: it stores which messages are acknowledged."""

    name = "NATS's acks"

    def __init__(self, broker: Broker, ack_wait_s: float) -> None:
        self._broker = broker
        self.arguments = ("acks", "--ack-wait", str(ack_wait_s))

    async def finished(self) -> bool:
        """True if all messages are acknowledged."""
        return await self._broker.acknowledged(GROUP, QUEUES)

    async def crash(self) -> str:
        """Do nothing: without the broker there would be no messages either."""
        return ""


def ends_of(shards: Sequence[int]) -> dict[str, int]:
    """Shard -> the position after its last message. `shards` has the shard of each message, which are numbered from 1."""
    return {shard_of(QUEUES[number]): sequence + 1 for sequence, number in enumerate(shards, 1)}
