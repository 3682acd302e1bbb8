"""The same consumer with JetStream's own means: a durable consumer in the server, and an acknowledgement for every message.

For comparison. The server stores which messages are unfinished, and delivers each of them again after `ack_wait`.
"""

import asyncio

from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from adapter.client import MessageQueue
from examples.consumer import WORKERS, Handle, fetched, subject_of

ANSWER_S = 5.0  # timeout of the server's reply to an acknowledgement


def durable_of(group: str, queue: MessageQueue) -> str:
    """The name of the server's consumer for a queue."""
    return f"{group}-{queue.topic}-{queue.queue_id}"


async def consume(stream: JetStreamContext, group: str, queue: MessageQueue, handle: Handle, ack_wait_s: float) -> None:
    """Read one shard forever, with several workers. Raises the errors of `handle` and JetStream in an exception group.

    `ack_wait_s` has to be longer than a message may wait and be processed here; otherwise it is delivered again meanwhile.
    """
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait_s)
    subscription = await stream.pull_subscribe(subject_of(queue), durable=durable_of(group, queue), config=config)
    waiting: asyncio.Queue[Msg] = asyncio.Queue(WORKERS)

    async def read() -> None:
        async for message in fetched(subscription):
            await waiting.put(message)

    async def work() -> None:
        while True:
            message = await waiting.get()
            await handle(message.data, message.metadata.sequence.stream)
            await message.ack_sync(ANSWER_S)  # waits for the server, as a commit does; plain `ack` does not

    async with asyncio.TaskGroup() as tasks:
        for job in (read(), *(work() for _ in range(WORKERS))):
            tasks.create_task(job)
