"""A consumer of NATS JetStream that keeps its position in the adapter, after every message. The part to copy: see README.md.

Owns no state but the window: what it is not sure to have finished when it ends, however it ends, it reads again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Self

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from adapter.client import AckWindow, OffsetClient, ReadMode
from adapter.model.queues import MessageQueue, shard_of

FIRST = 1  # JetStream numbers the messages of a stream from 1
WORKERS = 8  # for each shard
MAX_SPAN = 400  # sequences of the stream, with gaps: of four shards in it, about 100 messages each
FETCH_S = 0.2  # how long a fetch waits for a full batch
FORGET_S = 300.0  # the server forgets a reader that has not fetched for so long: longer than a handler may take

Handle = Callable[[bytes, int], Awaitable[None]]  # what to do with a message; its number in the stream comes along


class MovedError(Exception):
    """Somebody reset the group, or another consumer has the shard. Begin again from the position that stands now."""


class MissedError(Exception):
    """The server sent messages that did not arrive, as when a connection breaks. Begin again from the position."""


class Position:
    """A shard's position, kept in the adapter: the number of the next message to read, below which everything is finished."""

    def __init__(self, offsets: OffsetClient, group: str, shard: str, window: AckWindow) -> None:
        self.window = window
        self._offsets = offsets
        self._group = group
        self._shard = shard

    @classmethod
    async def load(cls, offsets: OffsetClient, group: str, shard: str) -> Self:
        """Where the group stands. A new group is committed at once: its epoch is then known, and a reset will be noticed."""
        rows = await offsets.read(group, [shard], mode=ReadMode.STORE)
        if shard not in rows:
            await offsets.commit(group, {shard: FIRST})
            rows = await offsets.read(group, [shard], mode=ReadMode.STORE)
        return cls(offsets, group, shard, AckWindow(rows[shard].offset, MAX_SPAN, epoch=rows[shard].epoch))

    async def finish(self, sequence: int) -> None:
        """A message is finished. Commits when that moves the position on. Raises MovedError, and what `commit` raises."""
        window = self.window
        before = window.committable
        window.ack(sequence)
        committable = window.committable
        if committable == before:
            return  # an older message is still in work: its end moves the position past this one, too
        replies = await self._offsets.commit(self._group, {self._shard: committable}, epochs={self._shard: window.epoch})
        for standing in replies:
            # A colleague may have committed more meanwhile, but not more than the window has now.
            if (standing.epoch, standing.offset) > (window.epoch, window.committable):
                raise MovedError(f"{self._shard} stands at {standing.offset}, epoch {standing.epoch}")


async def consume(stream: JetStreamContext, offsets: OffsetClient, group: str, queue: MessageQueue, handle: Handle) -> None:
    """Read one shard for ever, with several workers. Raises what `handle`, JetStream and `Position` raise, in a group."""
    position = await Position.load(offsets, group, shard_of(queue))
    waiting: asyncio.Queue[Msg] = asyncio.Queue(WORKERS)

    async def read() -> None:
        async for message in messages(stream, queue, position.window.committable):
            await position.window.take(message.metadata.sequence.stream)
            await waiting.put(message)

    async def work() -> None:
        while True:
            message = await waiting.get()
            sequence = message.metadata.sequence.stream
            await handle(message.data, sequence)
            await position.finish(sequence)

    async with asyncio.TaskGroup() as tasks:
        for job in (read(), *(work() for _ in range(WORKERS))):
            tasks.create_task(job)


async def messages(stream: JetStreamContext, queue: MessageQueue, start: int) -> AsyncIterator[Msg]:
    """The messages of a queue, from this number in the stream on, for ever. The server keeps no position for this.

    It numbers what it sends, too: a number left out is a message lost on the way. To the window that would be one more gap.
    """
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=start,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=FORGET_S,
    )
    sent = 0
    async for message in fetched(await stream.pull_subscribe(subject_of(queue), config=config)):
        sent += 1
        if message.metadata.sequence.consumer != sent:
            raise MissedError(f"{subject_of(queue)}: {message.metadata.sequence.consumer} messages were sent, {sent} arrived")
        yield message


async def fetched(subscription: JetStreamContext.PullSubscription) -> AsyncIterator[Msg]:
    """What a subscription delivers, for ever. Raises NotFoundError when the server has forgotten its reader."""
    while True:
        try:
            batch = await subscription.fetch(WORKERS, FETCH_S)
        except TimeoutError:
            await subscription.consumer_info()  # nothing new, or nobody there: a fetch does not tell these apart
            continue
        for message in batch:
            yield message


def subject_of(queue: MessageQueue) -> str:
    """The subject that holds a queue's messages."""
    return f"{queue.topic}.{queue.queue_id}"
