"""RocketMQ's OffsetStore as a Python consumer sees it: the contract, how to read, and how it fails.

What is in memory only is a plain method; what does I/O is `async`. RocketMQ: client/consumer/store/OffsetStore.java, at 8fc57f1.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Protocol

from adapter.errors import TransientError
from adapter.model.queues import MessageQueue

QUEUES_NAMED = 10  # in an error's text


class ReadOffsetType(Enum):
    """Where a read looks. RocketMQ's ReadOffsetType."""

    READ_FROM_MEMORY = "memory"
    READ_FROM_STORE = "store"
    MEMORY_FIRST_THEN_STORE = "memory first"


class OffsetStoreError(TransientError):
    """The store did not answer, or refused, for the queues in `failed`, each with its reason. RocketMQ's -2.

    Values in memory are kept, so that the next persist tries them again; whether that helps, the reasons tell.
    """

    def __init__(self, text: str, failed: Mapping[MessageQueue, str]) -> None:
        super().__init__(text)
        self.failed = dict(failed)

    @classmethod
    def of(cls, what: str, failed: Mapping[MessageQueue, str]) -> "OffsetStoreError":
        """The error for queues for which `what` failed: names the first of each reason."""
        queues: dict[str, list[str]] = {}
        for queue, reason in failed.items():
            queues.setdefault(reason, []).append(f"{queue.broker_name}/{queue.topic}/{queue.queue_id}".lstrip("/"))
        return cls("; ".join(f"{what} of {_first(names)} failed: {reason}" for reason, names in queues.items()), failed)


def _first(names: Sequence[str]) -> str:
    more = len(names) - QUEUES_NAMED
    return ", ".join(names[:QUEUES_NAMED]) + (f" and {more} more" if more > 0 else "")


class OffsetStore(Protocol):
    """Where a consumer keeps how far it is in each queue: in memory, and persisted now and then. For one event loop.

    An offset is the next one to read. Absent is None and never 0; failed is OffsetStoreError. Methods raise InvalidInputError
    for a queue or an offset that cannot be stored.
    """

    @property
    def group(self) -> str:
        """The consumer group whose offsets these are."""

    async def load(self) -> None:
        """Bring what was persisted into memory, where the store keeps it in a file; otherwise nothing. Before all else."""

    def update_offset(self, queue: MessageQueue, offset: int, increase_only: bool = False) -> None:  # noqa: FBT001, FBT002 - RocketMQ's
        """Set the offset in memory; with `increase_only` a lower one changes nothing. Ignored when the offset is frozen.

        Without it a lower offset is a rewind, and is persisted as one.
        """

    def update_and_freeze_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset and ignore every update from now on, until `remove_offset`: those still come from before a reset."""

    async def read_offset(
        self, queue: MessageQueue, read_type: ReadOffsetType = ReadOffsetType.MEMORY_FIRST_THEN_STORE
    ) -> int | None:
        """The offset; None when there is none. What is read from the store is then in memory, unless it is frozen there.

        Raises OffsetStoreError when the store cannot tell.
        """

    async def persist(self, queue: MessageQueue) -> None:
        """Store the offset that is in memory; nothing where there is none. Raises OffsetStoreError."""

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues, and forget all others. Of no queues: nothing at all, as in RocketMQ.

        What came in meanwhile stays to be persisted. Raises OffsetStoreError after all were tried.
        """

    async def force_persist(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues so that whoever takes them over, anywhere, reads them. Forgets nothing.

        Raises OffsetStoreError after all were tried.
        """

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Give queues up: `force_persist` them, then forget them, also in this machine's adapter. Others keep all they have.

        Raises OffsetStoreError after all were tried. What failed, or got a new offset meanwhile, is not forgotten in memory.
        """

    def remove_offset(self, queue: MessageQueue) -> None:
        """Forget the offset in memory, frozen or not. What is stored stays."""

    def clone_offset_table(self, topic: str = "") -> dict[MessageQueue, int]:
        """A copy of what is in memory, of one topic or of all."""

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Raise the offset and store it at once, where a broker keeps it; otherwise nothing. Raises OffsetStoreError.

        A lower one changes nothing: commits of one queue may overtake each other. RocketMQ's `isOneway` is left out, since only
        what was answered is stored; who does not want to wait calls `update_offset`, and the next persist takes it along.
        """
