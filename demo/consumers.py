"""Consumers that continue at the offsets of a table and commit every message: one request each, one after the other.

Each queue has several consumers. They take its messages in order, but their commits may overtake each other, like those of a
consumer's threads. An unanswered commit is sent again. Each commit has the queue's epoch: after a reset it is superseded, and the
queue continues at the reset offset.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import anyio
import anyio.abc
import grpc
import grpc.aio

from adapter.client import OffsetClient
from adapter.model.bounds import ShardKey
from adapter.model.records import FIRST_EPOCH, taken_up
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.testing.broker_log import MemoryLog
from adapter.testing.history import History
from demo.state import State
from demo.table import QueueOffset

PER_QUEUE = 3
COMMIT_TIMEOUT_S = 5.0
RETRY_S = 0.05  # pause before an unanswered commit is sent again

_AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}  # any other error ends the demo


def commit_request(entries: Iterable[QueueOffset], epoch: int = 0) -> offsets_pb.CommitOffsetsRequest:
    """A commit of these offsets, read in this epoch (0: unknown), with topic and queue id as labels."""
    request = offsets_pb.CommitOffsetsRequest()
    groups: dict[str, offsets_pb.GroupCommits] = {}
    for entry in entries:
        if entry.group not in groups:
            groups[entry.group] = request.groups.add(group=entry.group)
        shard = entry.key.shard
        item = groups[entry.group].shards.add(shard=shard, offset=entry.offset, epoch=epoch)
        item.topic, item.partition = entry.topic, entry.queue_id
    return request


@dataclass
class _Queue:
    """A queue with an endless supply of messages."""

    start: QueueOffset
    shard: ShardKey
    log: MemoryLog
    taken: int
    epoch: int = FIRST_EPOCH

    def take(self) -> QueueOffset:
        """Process the next message; returns its commit."""
        self.taken += 1
        if self.taken > self.log.bounds(self.shard)[1]:
            self.log.append(self.shard, wall_ms())
        return self.start._replace(offset=self.taken)

    def go_on_from(self, row: offsets_pb.Superseded) -> None:
        """Handle a superseded commit: another consumer's was larger, or a reset moved the queue, which then continues there."""
        epoch = taken_up(row.epoch)  # of a reset that is held, the one in which the next commit stands
        if epoch > self.epoch:
            self.epoch, self.taken = epoch, row.offset


class Consumers:
    """All consumers. They record in the history what was sent and what was answered."""

    def __init__(self, broker: OffsetClient, log: MemoryLog, history: History, state: State) -> None:
        self._broker = broker
        self._log = log
        self._history = history
        self._state = state
        self._open = anyio.Event()
        self._stopping = False
        self.under_way = 0
        self.running = 0

    def start(self, tasks: anyio.abc.TaskGroup, starts: Iterable[QueueOffset]) -> None:
        """Start consuming at these offsets. Retry topics get no messages, since no processing fails here."""
        for entry in starts:
            shard = ShardKey(entry.key.namespace, entry.key.shard)
            self._log.create(shard, entry.offset)
            if entry.is_retry:
                continue
            queue = _Queue(entry, shard, self._log, entry.offset)
            for number in range(PER_QUEUE):
                self.running += 1
                tasks.start_soon(self._consume, queue, name=f"consumer {entry.group} {entry.key.shard} #{number}")
        self._state.consumers = self.running
        self.resume()

    def pause(self) -> None:
        """Send no more commits until `resume`. Commits in flight continue."""
        self._open = anyio.Event()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._open.set()

    def stop(self) -> None:
        """Stop all consumers after the commit of their current message."""
        self._stopping = True

    async def _consume(self, queue: _Queue) -> None:
        while not self._stopping:
            await self._commit(queue, queue.take())
        self.running -= 1

    async def _commit(self, queue: _Queue, entry: QueueOffset) -> None:
        request = commit_request([entry], queue.epoch)
        write = self._history.begin(entry.key, (queue.epoch, entry.offset))
        while (reply := await self._answered(request)) is None:
            self._state.retried += 1
            await anyio.sleep(RETRY_S)
        for row in reply.superseded:
            write.superseded((row.epoch, row.offset))
            queue.go_on_from(row)
        if not reply.superseded:
            write.acknowledged()
        self._state.acknowledged += 1

    async def _answered(self, request: offsets_pb.CommitOffsetsRequest) -> offsets_pb.CommitOffsetsReply | None:
        while not self._open.is_set():  # no await if it is set: no commit may be sent after `pause`
            await self._open.wait()
        self.under_way += 1
        try:
            return await self._broker.store.CommitOffsets(request, timeout=COMMIT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _AGAIN:
                raise
            return None
        finally:
            self.under_way -= 1
