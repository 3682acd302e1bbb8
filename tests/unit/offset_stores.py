"""Shared by the tests of start positions and rebalances: an OffsetStore over a dict, and logs that are only bounds."""

from collections.abc import Callable, Collection, Iterable, Mapping

from adapter.client.offset_store.start import QueueBounds
from adapter.client.offset_store.store import OffsetStoreError, ReadOffsetType
from adapter.model.queues import MessageQueue

DOWN = OffsetStoreError("the store is away", {})


class FakeStore:
    """One consumer's store over `stored`, which stores may share. A fault of a queue is raised until the test removes it."""

    group = "g"

    def __init__(self, stored: dict[MessageQueue, int] | None = None) -> None:
        self.stored = {} if stored is None else stored
        self.memory: dict[MessageQueue, int] = {}
        self.rewinds: set[MessageQueue] = set()
        self.faults: dict[MessageQueue, BaseException] = {}
        self.persist_faults: dict[MessageQueue, Exception] = {}
        self.before_read: Callable[[], object] = lambda: None
        self.done: list[tuple[str, MessageQueue]] = []

    async def load(self) -> None:
        """Do nothing: the offsets are in a dict."""

    def update_offset(self, queue: MessageQueue, offset: int, increase_only: bool = False) -> None:  # noqa: FBT002 - as there
        """Set the offset in memory; a lower one is ignored with `increase_only`, else noted as a rewind."""
        if offset < self.memory.get(queue, 0):
            if increase_only:
                return
            self.rewinds.add(queue)
        self.memory[queue] = offset

    def update_and_freeze_offset(self, queue: MessageQueue, offset: int) -> None:
        """Not used by these tests."""
        raise NotImplementedError

    async def read_offset(
        self, queue: MessageQueue, read_type: ReadOffsetType = ReadOffsetType.MEMORY_FIRST_THEN_STORE
    ) -> int | None:
        """Return the offset from memory or from the dict, or raise the queue's fault."""
        if read_type is not ReadOffsetType.READ_FROM_STORE and queue in self.memory:
            return self.memory[queue]
        self.before_read()
        if queue in self.faults:
            raise self.faults[queue]
        if queue in self.stored:
            self.memory[queue] = self.stored[queue]
        return self.stored.get(queue)

    async def persist(self, queue: MessageQueue) -> None:
        """Record the call, then store the offset, or raise the queue's fault."""
        self._persist("persist", queue)

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Not used by these tests."""
        raise NotImplementedError

    async def force_persist(self, queues: Collection[MessageQueue]) -> None:
        """Record the calls, then store the offsets, or raise the fault of a queue."""
        for queue in queues:
            self._persist("force", queue)

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Record the calls, then store and forget the offsets, or raise the fault of a queue."""
        for queue in queues:
            self._persist("release", queue)
            self.memory.pop(queue, None)

    def remove_offset(self, queue: MessageQueue) -> None:
        """Record the call, then forget the offset in memory."""
        self.done.append(("remove", queue))
        self.memory.pop(queue, None)

    def clone_offset_table(self, topic: str = "") -> dict[MessageQueue, int]:
        """A copy of the offsets in memory, of one topic or all."""
        return {queue: offset for queue, offset in self.memory.items() if topic in {"", queue.topic}}

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Not used by these tests."""
        raise NotImplementedError

    def _persist(self, how: str, queue: MessageQueue) -> None:
        self.done.append((how, queue))
        if queue in self.persist_faults:
            raise self.persist_faults[queue]
        if queue in self.memory and (queue in self.rewinds or self.memory[queue] > self.stored.get(queue, -1)):
            self.stored[queue] = self.memory[queue]
            self.rewinds.discard(queue)


class Logs:
    """`LogBounds` from a table. Records the times that were asked for."""

    def __init__(self, log: Mapping[MessageQueue, QueueBounds], times: Mapping[MessageQueue, int] | None = None) -> None:
        self.log = dict(log)
        self.times = dict(times or {})
        self.asked_times: list[int] = []
        self.down: dict[str, Exception] = {}
        self.no_times: Exception | None = None

    async def bounds(self, queues: Iterable[MessageQueue]) -> Mapping[MessageQueue, QueueBounds]:
        """The bounds in the table, or the fault of the broker; unknown queues are left out."""
        wanted = list(queues)
        (broker,) = {queue.broker_name for queue in wanted}
        if broker in self.down:
            raise self.down[broker]
        return {queue: self.log[queue] for queue in wanted if queue in self.log}

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int | None:
        """Record the time, and return the offset in the table or raise the fault."""
        self.asked_times.append(timestamp_ms)
        if self.no_times:
            raise self.no_times
        return self.times.get(queue)
