"""The load of the pipeline's demo: producers, and groups with different ways to consume. Every adapter has its own shards.

It records what the tables have to show: acknowledged offsets, the end of each shard's log, and every rewind.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import anyio
import grpc
import grpc.aio

from adapter.client import OffsetClient
from adapter.model.records import DEFAULT_NAMESPACE, OffsetKey
from adapter.rpc import offsets_pb
from demo.table import QueueOffset

TICK_S = 0.05
COMMIT_TIMEOUT_S = 5.0
CATCH_UP = 6  # times the rate of new messages
REWINDS_BY = 250  # messages


class Way(Enum):
    """The way in which a group consumes."""

    STEADY = "keeps up"
    SLOW = "reads too slowly"
    STOPS = "stops"
    REWINDS = f"goes back {REWINDS_BY} messages"


class Rewind(NamedTuple):
    """An acknowledged commit of a lower offset."""

    key: OffsetKey
    before: int
    after: int


@dataclass
class Consumer:
    """A group's consumer of one shard, and its position."""

    start: QueueOffset
    way: Way
    turns_after: int  # ticks until it stops or rewinds
    offset: float
    ticks: int = 0

    @property
    def key(self) -> OffsetKey:
        """The key that it commits."""
        return OffsetKey(DEFAULT_NAMESPACE, self.start.group, self.start.key.shard)

    def step(self, head: int, rate: int) -> bool | None:
        """Consume for a tick. Returns True for a rewind, None if there is nothing to commit."""
        self.ticks += 1
        if self.way is Way.STOPS and self.ticks > self.turns_after:
            return None
        if self.way is Way.REWINDS and self.ticks == self.turns_after:
            self.offset -= REWINDS_BY
            return True
        tired = self.way is Way.SLOW or (self.way is Way.REWINDS and self.ticks > self.turns_after)
        self.offset = min(head, self.offset + rate * (0.4 if tired else CATCH_UP))
        return False


@dataclass
class _Shard:
    head: int
    rate: int  # messages per tick
    consumers: list[Consumer] = field(default_factory=list)


class Load:
    """The load on all adapters. `starts`: where groups begin to read; the largest of a shard is the first end of its log.

    `stops_after` and `rewinds_after`: ticks until groups of these ways stop or rewind.
    """

    def __init__(self, starts: Iterable[tuple[QueueOffset, Way]], brokers: int, *, stops_after: int, rewinds_after: int) -> None:
        self.acknowledged: dict[OffsetKey, int] = {}
        self.sent: dict[OffsetKey, int] = {}
        self.rewinds: list[Rewind] = []
        self.commits = 0
        shards: dict[str, _Shard] = {}
        for start, way in starts:
            shard = shards.setdefault(start.key.shard, _Shard(start.offset, 3 + start.queue_id))
            shard.head = max(shard.head, start.offset)
            shard.consumers.append(Consumer(start, way, rewinds_after if way is Way.REWINDS else stops_after, start.offset))
        self._shards = shards
        names = sorted(shards)
        self._of_broker = [names[number::brokers] for number in range(brokers)]

    @property
    def ways(self) -> dict[str, Way]:
        """Group -> its way to consume."""
        return {consumer.start.group: consumer.way for shard in self._shards.values() for consumer in shard.consumers}

    @property
    def heads(self) -> dict[str, int]:
        """Shard -> the end of its log: the offset of the next message."""
        return {name: shard.head for name, shard in self._shards.items()}

    def keys_of(self, broker: int) -> set[OffsetKey]:
        """The acknowledged offsets of this adapter."""
        return {consumer.key for name in self._of_broker[broker] for consumer in self._shards[name].consumers}

    async def run(self, clients: Sequence[OffsetClient], ticks: int) -> None:
        """Produce, consume and commit for some ticks. An adapter that has ended gets no more commits."""
        async with anyio.create_task_group() as tasks:
            for names, client in zip(self._of_broker, clients, strict=True):
                tasks.start_soon(self._through, client, names, ticks)

    async def _through(self, client: OffsetClient, names: Sequence[str], ticks: int) -> None:
        try:
            for _ in range(ticks):
                await anyio.sleep(TICK_S)
                await self._tick(client, names)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise

    async def _tick(self, client: OffsetClient, names: Sequence[str]) -> None:
        forward: list[tuple[Consumer, int]] = []
        back: list[tuple[Consumer, int]] = []
        for name in names:
            shard = self._shards[name]
            shard.head += shard.rate
            for consumer in shard.consumers:
                went_back = consumer.step(shard.head, shard.rate)
                if went_back is not None:
                    (back if went_back else forward).append((consumer, shard.head))
        await self._commit(client, forward, offsets_pb.INCREASE_ONLY)
        await self._commit(client, back, offsets_pb.OVERWRITE)

    async def _commit(
        self, client: OffsetClient, consumers: Sequence[tuple[Consumer, int]], mode: offsets_pb.CommitMode.ValueType
    ) -> None:
        if not consumers:
            return
        request = offsets_pb.CommitOffsetsRequest(mode=mode)
        for consumer, head in consumers:
            start, offset = consumer.start, int(consumer.offset)
            item = request.groups.add(group=start.group).shards.add(shard=consumer.key.shard, offset=offset, high_watermark=head)
            item.topic, item.partition = start.topic, start.queue_id
            self.sent[consumer.key] = offset
        await client.store.CommitOffsets(request, timeout=COMMIT_TIMEOUT_S)
        for consumer, _ in consumers:
            key, offset = consumer.key, self.sent[consumer.key]
            if mode == offsets_pb.OVERWRITE:
                self.rewinds.append(Rewind(key, self.acknowledged[key], offset))
            self.acknowledged[key] = offset
        self.commits += len(consumers)
