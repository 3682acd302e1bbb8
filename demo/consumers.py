"""Consumers that read on from where a table ends, and commit every message: one request each, the next as soon as it is answered.

Each queue has several. They take messages from it in order but their commits may overtake each other, as those of a consumer's
threads do. What is not answered is sent again until it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import anyio
import anyio.abc
import grpc
import grpc.aio

from adapter.client import OffsetClient
from adapter.model import OffsetKey
from adapter.rpc import offsets_pb
from adapter.testing import Ledger
from demo.state import State
from demo.table import QueueOffset

PER_QUEUE = 3
COMMIT_TIMEOUT_S = 5.0
RETRY_S = 0.05  # pause before an unanswered commit is sent again

_AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}  # anything else is a mistake, and ends the demo


def commit_request(entries: Iterable[QueueOffset]) -> offsets_pb.CommitOffsetsRequest:
    """One commit of these offsets, with topic and queue id as labels."""
    request = offsets_pb.CommitOffsetsRequest()
    groups: dict[str, offsets_pb.GroupCommits] = {}
    for entry in entries:
        if entry.group not in groups:
            groups[entry.group] = request.groups.add(group=entry.group)
        shard = entry.key.shard
        groups[entry.group].shards.add(shard=shard, offset=entry.offset, topic=entry.topic, partition=entry.queue_id)
    return request


@dataclass
class _Queue:
    """A queue with messages enough for everybody."""

    start: QueueOffset
    key: OffsetKey
    taken: int

    def take(self) -> QueueOffset:
        """The next message, read and done with: returns the commit that says so."""
        self.taken += 1
        return self.start._replace(offset=self.taken)


class Consumers:
    """All consumers. Notes in the ledger what was answered, and nothing else."""

    def __init__(self, broker: OffsetClient, ledger: Ledger, state: State) -> None:
        self._broker = broker
        self._ledger = ledger
        self._state = state
        self._open = anyio.Event()
        self._stopping = False
        self.under_way = 0
        self.running = 0

    def start(self, tasks: anyio.abc.TaskGroup, starts: Iterable[QueueOffset]) -> None:
        """Start consuming at these offsets. Retry topics get no messages: nothing fails here."""
        for entry in starts:
            if entry.is_retry:
                continue
            queue = _Queue(entry, entry.key, entry.offset)
            for number in range(PER_QUEUE):
                self.running += 1
                tasks.start_soon(self._consume, queue, name=f"consumer {entry.group} {entry.key.shard} #{number}")
        self._state.consumers = self.running
        self.resume()

    def pause(self) -> None:
        """Send nothing more until `resume`; what is under way stays under way."""
        self._open = anyio.Event()

    def resume(self) -> None:
        """Go on."""
        self._open.set()

    def stop(self) -> None:
        """Everybody ends once the message in hand is committed."""
        self._stopping = True

    async def _consume(self, queue: _Queue) -> None:
        while not self._stopping:
            await self._commit(queue.key, queue.take())
        self.running -= 1

    async def _commit(self, key: OffsetKey, entry: QueueOffset) -> None:
        request = commit_request([entry])
        while not await self._answered(request):
            self._state.retried += 1
            await anyio.sleep(RETRY_S)
        self._ledger.note(key, entry.offset)
        self._state.acknowledged += 1

    async def _answered(self, request: offsets_pb.CommitOffsetsRequest) -> bool:
        while not self._open.is_set():  # without a checkpoint when open: nobody slips through after `pause`
            await self._open.wait()
        self.under_way += 1
        try:
            await self._broker.store.CommitOffsets(request, timeout=COMMIT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _AGAIN:
                raise
            return False
        finally:
            self.under_way -= 1
        return True
