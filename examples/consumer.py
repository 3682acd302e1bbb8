"""A consumer of NATS JetStream that commits its position to the adapter after every message. The part to copy: see README.md.

Its only state is the window. After a crash it reads again every message that is not below the committed position.
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
MAX_SPAN = 400  # in sequence numbers of the stream, which has four shards: about 100 messages of each
FETCH_S = 0.2  # the longest wait for a full batch
FORGET_S = 300.0  # the server drops a reader that does not fetch for this long; a handler must be faster

Handle = Callable[[bytes, int], Awaitable[None]]  # processes a message; gets its content and its sequence number


class MovedError(Exception):
    """The group was reset, or another consumer has the shard. Begin again from the position that is stored now."""


class MissedError(Exception):
    """Messages from the server were lost on the way, as when a connection breaks. Begin again from the stored position."""


class BeyondEndError(Exception):
    """The position is beyond the end of the stream: the stream lost messages or was made anew. A person has to decide."""


class Position:
    """A shard's position in the adapter: the sequence number of the next message to read. All messages below it are finished."""

    def __init__(self, offsets: OffsetClient, group: str, shard: str, window: AckWindow) -> None:
        self.window = window
        self._offsets = offsets
        self._group = group
        self._shard = shard

    @classmethod
    async def load(cls, offsets: OffsetClient, group: str, shard: str) -> Self:
        """Read the group's position. A new group is committed at once, so that its epoch is known and a reset will be noticed."""
        rows = await offsets.read(group, [shard], mode=ReadMode.STORE)
        if shard not in rows:
            await offsets.commit(group, {shard: FIRST})
            rows = await offsets.read(group, [shard], mode=ReadMode.STORE)
        return cls(offsets, group, shard, AckWindow(rows[shard].offset, MAX_SPAN, epoch=rows[shard].epoch))

    async def finish(self, sequence: int) -> None:
        """Mark a message as finished, and commit if that advances the position. Raises MovedError and the errors of `commit`."""
        window = self.window
        before = window.committable
        window.ack(sequence)
        committable = window.committable
        if committable == before:
            return  # an older message is unfinished; when it is finished, the position passes this one too
        epochs = {self._shard: window.epoch}
        for standing in await self._offsets.commit(self._group, {self._shard: committable}, epochs=epochs, check=False):
            # A larger offset of another worker may have been committed meanwhile, but none above the window's.
            if (standing.epoch, standing.offset) > (window.epoch, window.committable):
                raise MovedError(f"{self._shard} stands at {standing.offset}, epoch {standing.epoch}")


async def consume(stream: JetStreamContext, offsets: OffsetClient, group: str, queue: MessageQueue, handle: Handle) -> None:
    """Read one shard forever, with several workers. Raises the errors of `handle`, JetStream and `Position` in a group."""
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
    """Yield the messages of a queue from a sequence number on, forever. The server keeps no position for this reader.

    The server also numbers its deliveries. A missing number is a lost message, which the window would take for a gap in the log.
    It also takes a start beyond the stream's end, and sends nothing until the stream has grown that far: without a word, all that
    is written until then would be skipped.
    """
    subject = subject_of(queue)
    name = await stream.find_stream_name_by_subject(subject)
    last = (await stream.stream_info(name)).state.last_seq
    if start > last + 1:
        raise BeyondEndError(f"{subject}: the position is {start:,}, but the last message of stream {name} is {last:,}: reset it")
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=start,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=FORGET_S,
    )
    sent = 0
    async for message in fetched(await stream.pull_subscribe(subject, stream=name, config=config)):
        sent += 1
        if message.metadata.sequence.consumer != sent:
            raise MissedError(f"{subject}: {message.metadata.sequence.consumer} messages were sent, {sent} arrived")
        yield message


async def fetched(subscription: JetStreamContext.PullSubscription) -> AsyncIterator[Msg]:
    """Yield the messages of a subscription, forever. Raises an APIError if the server has dropped its reader."""
    while True:
        try:
            batch = await subscription.fetch(WORKERS, FETCH_S)
        except TimeoutError:
            await subscription.consumer_info()  # fails without a reader; a fetch only times out
            continue
        for message in batch:
            yield message


def subject_of(queue: MessageQueue) -> str:
    """The subject that holds a queue's messages."""
    return f"{queue.topic}.{queue.queue_id}"
