"""The bounds of a stock broker's queues, and offsets by time, by RocketMQ's own calls: for lag and for resets by time.

An implementation of `adapter.client.broker_log.BrokerLog`. Each call makes a connection of its own, so that a slow answer to an
operator does not hold up the bridge.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from adapter.errors import BrokerLogError, ConfigError
from adapter.model.bounds import Bounds
from adapter.model.queues import MessageQueue, queue_of
from adapter.rocketmq.broker import Broker, connected
from adapter.rocketmq.config import RocketmqSection, signer_of
from adapter.rocketmq.signing import Signer
from adapter.runtime.clocks import wall_ms

R = TypeVar("R")

AT_ONCE = 32  # calls that overlap on one connection


class RocketmqLog:
    """The logs of the broker of a section."""

    configured = True

    def __init__(self, section: RocketmqSection) -> None:
        self._section = section
        signer_of(section)  # a bad file is told at the start

    async def bounds(self, namespace: str, shards: Iterable[str]) -> dict[str, Bounds]:
        """The bounds of these shards at this moment, without those that the broker does not have. Raises BrokerLogError."""
        there: dict[str, bool] = {}

        async def ask(broker: Broker, queue: MessageQueue) -> Bounds | None:
            found = await broker.bounds(queue.topic, queue.queue_id)
            if found.high == 0 and not await self._has(broker, queue.topic, there):
                return None  # a broker says 0 for what it does not have
            return Bounds(found.low, found.high, wall_ms())

        found = await self._each(namespace, shards, ask)
        return {shard: bounds for shard, bounds in found.items() if bounds is not None}

    async def offsets_for_time(self, namespace: str, shards: Iterable[str], timestamp_ms: int) -> dict[str, int | None]:
        """The first offset at or after a Unix time for each shard, as the broker finds it; None behind the last message."""
        there: dict[str, bool] = {}

        async def ask(broker: Broker, queue: MessageQueue) -> int | None:
            bounds = await broker.bounds(queue.topic, queue.queue_id)
            if bounds.high == 0 and not await self._has(broker, queue.topic, there):
                return -1
            offset = await broker.offset_for_time(queue.topic, queue.queue_id, timestamp_ms)
            return None if offset >= bounds.high else max(offset, bounds.low)

        found = await self._each(namespace, shards, ask)
        return {shard: offset for shard, offset in found.items() if offset != -1}

    def _signed(self) -> Signer | None:
        """The account as its file has it now. Raises BrokerLogError."""
        try:
            return signer_of(self._section)
        except ConfigError as error:
            raise BrokerLogError(str(error)) from error

    @staticmethod
    async def _has(broker: Broker, topic: str, there: dict[str, bool]) -> bool:
        """Ask once for each topic."""
        if topic not in there:
            there[topic] = await broker.has_topic(topic)
        return there[topic]

    async def _each(
        self, namespace: str, shards: Iterable[str], ask: Callable[[Broker, MessageQueue], Awaitable[R]]
    ) -> dict[str, R]:
        """What `ask` returns for each shard that is a queue of this broker. Raises BrokerLogError."""
        if namespace != self._section.namespace:
            return {}
        found: dict[str, R] = {}
        queues = {shard: queue for shard in shards if (queue := queue_of(shard))}
        left = list(queues)
        errors: list[BrokerLogError] = []

        async def work(broker: Broker, name: str) -> None:
            while left and not errors:
                shard = left.pop()
                if queues[shard].broker_name != name:
                    continue
                try:
                    found[shard] = await ask(broker, queues[shard])
                except BrokerLogError as error:
                    errors.append(error)

        async with connected(self._section, self._signed()) as broker:
            name = (await broker.identity()).name if self._section.name_in_shards else ""
            async with anyio.create_task_group() as tasks:
                for _ in range(min(AT_ONCE, len(left))):
                    tasks.start_soon(work, broker, name)
        if errors:
            raise errors[0]
        return found
