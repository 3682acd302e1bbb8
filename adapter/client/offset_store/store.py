"""The Protocol OffsetStore, after RocketMQ's, with its read types and its error.

Methods that work in memory only are plain, those with I/O are `async`. RocketMQ: client/consumer/store/OffsetStore.java, at
8fc57f1.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Protocol

from adapter.errors import TransientError
from adapter.model.queues import MessageQueue

QUEUES_NAMED = 10  # at most, in the message of an error


class ReadOffsetType(Enum):
    """Where a read looks for an offset. RocketMQ's ReadOffsetType."""

    READ_FROM_MEMORY = "memory"
    READ_FROM_STORE = "store"
    MEMORY_FIRST_THEN_STORE = "memory first"


class OffsetStoreError(TransientError):
    """The store did not answer, or refused the call, for the queues in `failed`, each with a reason. RocketMQ returns -2.

    Offsets in memory are kept, so the next persist sends them again.
    """

    def __init__(self, text: str, failed: Mapping[MessageQueue, str]) -> None:
        super().__init__(text)
        self.failed = dict(failed)

    @classmethod
    def of(cls, what: str, failed: Mapping[MessageQueue, str]) -> "OffsetStoreError":
        """The error for queues for which `what` failed. The message names up to QUEUES_NAMED queues for each reason."""
        queues: dict[str, list[str]] = {}
        for queue, reason in failed.items():
            queues.setdefault(reason, []).append(f"{queue.broker_name}/{queue.topic}/{queue.queue_id}".lstrip("/"))
        return cls("; ".join(f"{what} of {_first(names)} failed: {reason}" for reason, names in queues.items()), failed)


def _first(names: Sequence[str]) -> str:
    more = len(names) - QUEUES_NAMED
    return ", ".join(names[:QUEUES_NAMED]) + (f" and {more} more" if more > 0 else "")


class OffsetStore(Protocol):
    """The offsets of a consumer by queue: updated in memory, and persisted from time to time. For one event loop.

    An offset is the next one to read. An absent offset is None, never 0; a failed call raises OffsetStoreError. Methods raise
    InvalidInputError for a queue or an offset that cannot be stored.
    """

    @property
    def group(self) -> str:
        """The consumer group whose offsets these are."""

    async def load(self) -> None:
        """Read a file store's offsets into memory; other stores do nothing. Call it before all other methods."""

    def update_offset(self, queue: MessageQueue, offset: int, increase_only: bool = False) -> None:  # noqa: FBT001, FBT002 - RocketMQ's
        """Set the offset in memory. A lower offset is a rewind, and is persisted as one; with `increase_only` it is ignored.

        Every update of a frozen offset is ignored.
        """

    def update_and_freeze_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, and ignore updates until `remove_offset`, because they come from before a reset."""

    async def read_offset(
        self, queue: MessageQueue, read_type: ReadOffsetType = ReadOffsetType.MEMORY_FIRST_THEN_STORE
    ) -> int | None:
        """The offset, or None. An offset that is read from the store is also set in memory, unless it is frozen there.

        Raises OffsetStoreError if the store cannot be read.
        """

    async def persist(self, queue: MessageQueue) -> None:
        """Store the offset that is in memory, if there is one. Raises OffsetStoreError."""

    async def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues, and forget all others. With no queues it does nothing, as in RocketMQ.

        An update during the call is persisted by the next one. Raises OffsetStoreError after all queues were tried.
        """

    async def force_persist(self, queues: Collection[MessageQueue]) -> None:
        """Store the offsets of these queues where the next owner of a queue reads them, on any machine. Forgets none.

        Raises OffsetStoreError after all were tried.
        """

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Release queues: `force_persist` them, then forget them in memory and in this machine's adapter. Other queues are kept.

        Raises OffsetStoreError after all were tried. A queue that failed, or got a new offset meanwhile, stays in memory.
        """

    def remove_offset(self, queue: MessageQueue) -> None:
        """Forget the offset in memory, frozen or not. The stored offset is kept."""

    def clone_offset_table(self, topic: str = "") -> dict[MessageQueue, int]:
        """A copy of the offsets in memory, of one topic or of all."""

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Raise the offset and store it at once, if the store is a broker's; a file store does nothing. Raises OffsetStoreError.

        A lower offset is ignored, because commits of one queue may overtake each other. RocketMQ's `isOneway` is left out, since
        only answered commits count as stored. To avoid the wait, call `update_offset`: the next persist stores the offset.
        """
