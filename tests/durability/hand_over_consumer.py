"""A consumer as a process: `python -m tests.durability.hand_over_consumer ADAPTER LEDGER HIGH`.

Takes assignments as JSON lines on stdin, answers on stdout, and writes every message that it has processed into the ledger, in
one system call each: what a kill -9 leaves there is what was processed. The log is in memory: offsets 0 to HIGH - 1.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from adapter.client.ack_window import AckWindow
from adapter.client.client import OffsetClient
from adapter.client.offset_store.rebalance import Rebalance
from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.start import ConsumeFromWhere, QueueBounds, StartPositions
from adapter.client.offset_store.store import OffsetStore
from adapter.model.queues import MessageQueue, queue_of, shard_of
from adapter.testing.waiting import PATIENCE_S

GROUP = "g"
SPAN = 8  # messages of a queue that are worked on at a time
PERSIST_EVERY = 16  # messages of a queue that are at most processed, and not in the adapter
FORCE_EVERY = 48  # ... and not in the Meta Service
WORK_S = 0.004  # at most, of one message


class Reader:
    """Reads one queue from where it was told; its messages finish out of order."""

    def __init__(self, store: OffsetStore, queue: MessageQueue, start: int, high: int, ledger: int) -> None:
        self._store = store
        self._queue = queue
        self._high = high
        self._ledger = ledger
        self._window = AckWindow(start, SPAN)
        self._stopping = False
        self.task = asyncio.create_task(self._run(), name=shard_of(queue))

    async def stop(self) -> None:
        """Take no more messages, finish those under way, and leave the last offset in the store."""
        self._stopping = True
        await self.task
        self._window.close()
        self._store.update_offset(self._queue, self._window.committable, increase_only=True)

    async def _run(self) -> None:
        persisted = forced = self._window.committable
        async with asyncio.TaskGroup() as workers:
            for offset in range(persisted, self._high):
                if offset >= forced + FORCE_EVERY:
                    forced = persisted = self._window.committable
                    await self._store.force_persist([self._queue])
                elif offset >= persisted + PERSIST_EVERY:
                    persisted = self._window.committable
                    await self._store.persist(self._queue)
                await self._window.take(offset)
                if self._stopping:
                    break
                workers.create_task(self._work(offset))

    async def _work(self, offset: int) -> None:
        await asyncio.sleep(random.uniform(0, WORK_S))
        os.write(self._ledger, f"{shard_of(self._queue)} {offset}\n".encode())
        self._window.ack(offset)
        self._store.update_offset(self._queue, self._window.committable, increase_only=True)


class Consumer:
    """Its queues, and the log behind them."""

    def __init__(self, client: OffsetClient, ledger: int, high: int) -> None:
        self._ledger = ledger
        self._high = high
        self._readers: dict[MessageQueue, Reader] = {}
        self._store = RemoteOffsetStore(client, GROUP)
        self._rebalance = Rebalance(self._store, StartPositions(self._store, self, ConsumeFromWhere.FIRST), self._stop)

    async def bounds(self, queues: Iterable[MessageQueue]) -> Mapping[MessageQueue, QueueBounds]:
        return dict.fromkeys(queues, QueueBounds(0, self._high))

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int | None:
        raise NotImplementedError

    async def obey(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """`to`: an assignment. `finish`: answer when everything that is read has been read to its end."""
        if "finish" in command:
            await asyncio.gather(*(reader.task for reader in self._readers.values()))
            return {}
        done = await self._rebalance.to([queue for shard in command["to"] if (queue := queue_of(shard))])
        for queue, start in done.starts.items():
            self._readers[queue] = Reader(self._store, queue, start.offset, self._high, self._ledger)
        return {
            "starts": {shard_of(queue): start.offset for queue, start in done.starts.items()},
            "errors": {shard_of(queue): repr(error) for queue, error in (*done.held.items(), *done.failed.items())},
        }

    async def _stop(self, queue: MessageQueue) -> None:
        reader = self._readers.pop(queue, None)
        if reader:
            await reader.stop()


async def main(adapter: str, ledger: str, high: str) -> None:
    """Obey until stdin ends."""
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    written = os.open(ledger, os.O_WRONLY | os.O_APPEND)
    async with OffsetClient.connect(adapter, PATIENCE_S) as client:
        consumer = Consumer(client, written, int(high))
        async for line in commands:
            sys.stdout.write(json.dumps(await consumer.obey(json.loads(line))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
