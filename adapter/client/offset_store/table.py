"""The offsets of a consumer in memory: for each queue the offset, whether it is frozen, and what of it is stored. No I/O.

Behaves as RocketMQ's updateOffset and updateAndFreeze (ControllableOffset). Only offsets that were sent count as stored.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.queues import MessageQueue, shard_of
from adapter.model.records import taken_up


class Sent(NamedTuple):
    """The values of an entry when it was sent."""

    offset: int
    epoch: int
    overwrite: bool


@dataclass(slots=True, eq=False)
class Entry:
    """The state of one queue. `offset` is None only if a deletion froze the entry."""

    shard: str
    offset: int | None
    epoch: int = 0  # the epoch read from the store with the offset; 0: never read
    stored: int | None = None  # the store has at least this offset, or was rewound to it; None: unknown
    frozen: bool = False
    overwrite: bool = False  # store `offset` even over a larger one: a rewind or a reset
    # The lowest offset that was sent as an overwrite and whose epoch is unknown (the reply was lost): a rewind gets the next
    # epoch in the store.
    rewound: int | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one send or read of the store at a time

    @property
    def dirty(self) -> bool:
        """True while the store does not have the offset."""
        return self.offset is not None and (self.overwrite or self.stored is None or self.offset > self.stored)

    @property
    def state(self) -> tuple[int | None, bool, bool]:
        """The part of the entry that the consumer sets: compare two of these to see whether it changed anything meanwhile."""
        return self.offset, self.overwrite, self.frozen

    def take(self) -> Sent:
        """The values to send now. Call it only for a dirty entry; later updates are sent the next time."""
        offset = self.offset or 0
        sent = Sent(offset, self.epoch, self.overwrite)
        if self.overwrite:
            self.overwrite = False
            self.rewound = offset if self.rewound is None else min(self.rewound, offset)
        return sent

    def put_back(self, sent: Sent) -> None:
        """Undo `take`: the offset is not known to be stored."""
        self.overwrite |= sent.overwrite

    def settle(self, sent: Sent) -> None:
        """Note that the store has at least the sent offset."""
        self.stored = sent.offset
        if not sent.overwrite:
            self.rewound = None  # the known epoch was still valid, so the rewind did not raise it

    def raise_to(self, epoch: int) -> None:
        """Go on in the new epoch in which the store has what was sent; 0: in the known one."""
        if epoch and self.epoch:
            self.epoch, self.rewound = epoch, None

    def follow_own_rewind(self, sent: Sent, epoch: int, stored: int | None) -> bool:
        """True if `sent` was superseded by this consumer's own rewind, one epoch above: continue in that epoch."""
        own = stored is not None and self.rewound is not None and stored >= self.rewound and epoch == sent.epoch + 1
        if own:
            self.epoch, self.rewound = epoch, None
            self.put_back(sent)
        return own

    def freeze_at(self, epoch: int, stored: int | None) -> None:
        """Freeze the entry at the stored offset, whose epoch is higher: a reset or deletion by someone else."""
        self.refresh(stored, epoch)
        self.frozen = True

    def refresh(self, offset: int | None, epoch: int) -> None:
        """Take over the offset and epoch of the store; of a reset that is held, the epoch in which the next commit stands."""
        self.offset = self.stored = offset
        self.epoch, self.overwrite, self.rewound = taken_up(epoch), False, None


class OffsetTable:
    """The base class of the stores: the methods of `OffsetStore` that work in memory only."""

    def __init__(self, group: str, offset_max: int) -> None:
        self._group = check_name(group, "group")
        self._offset_max = offset_max
        self._entries: dict[MessageQueue, Entry] = {}

    @property
    def group(self) -> str:
        """The consumer group whose offsets these are."""
        return self._group

    def update_offset(self, queue: MessageQueue, offset: int, increase_only: bool = False) -> None:  # noqa: FBT001, FBT002 - RocketMQ's
        """Set an offset in memory unless it is frozen. RocketMQ: RemoteBrokerOffsetStore.java:59, ControllableOffset.java:72."""
        self._check(offset)
        entry = self._entries.get(queue)
        if entry is None:
            self._entries[queue] = Entry(self._shard(queue), offset)
        elif entry.frozen or entry.offset is None or entry.offset == offset:
            pass
        elif entry.offset < offset:
            entry.offset = offset
        elif not increase_only:
            entry.offset, entry.overwrite = offset, True

    def update_and_freeze_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset and ignore later updates. RocketMQ: RemoteBrokerOffsetStore.java:77, ControllableOffset.java:105."""
        self._check(offset)
        entry = self._entries.setdefault(queue, Entry(self._shard(queue), offset))
        entry.offset, entry.overwrite, entry.frozen = offset, True, True

    def remove_offset(self, queue: MessageQueue) -> None:
        """Forget an offset in memory, frozen or not. RocketMQ: RemoteBrokerOffsetStore.java:174."""
        self._entries.pop(queue, None)

    def clone_offset_table(self, topic: str = "") -> dict[MessageQueue, int]:
        """A copy of the offsets in memory; a blank topic means all topics. RocketMQ: RemoteBrokerOffsetStore.java:183."""
        every = not topic.strip()
        return {
            queue: entry.offset
            for queue, entry in self._entries.items()
            if entry.offset is not None and (every or queue.topic == topic)
        }

    def _in_memory(self, queue: MessageQueue) -> int | None:
        entry = self._entries.get(queue)
        return entry.offset if entry else None

    def _refresh(self, queue: MessageQueue, offset: int, epoch: int = 0) -> None:
        """Take over a stored offset, unless the entry is frozen. RocketMQ: RemoteBrokerOffsetStore.java:100."""
        entry = self._entries.setdefault(queue, Entry(self._shard(queue), offset))
        if not entry.frozen:
            entry.refresh(offset, epoch)

    def _retain(self, queues: Collection[MessageQueue]) -> None:
        """Forget all other queues, stored or not. RocketMQ: unusedMQ in persistAll, RemoteBrokerOffsetStore.java:149."""
        kept = frozenset(queues)
        self._entries = {queue: entry for queue, entry in self._entries.items() if queue in kept}

    def _forget_stored(self, queues: Collection[MessageQueue]) -> None:
        """Forget those of the queues that are not dirty."""
        for queue in queues:
            if (entry := self._entries.get(queue)) and not entry.dirty:
                del self._entries[queue]

    def _shard(self, queue: MessageQueue) -> str:
        return shard_of(queue)

    def _check(self, offset: int) -> None:
        if not isinstance(offset, int) or not 0 <= offset <= self._offset_max:
            raise InvalidInputError(f"offset: {offset!r} is not a whole number from 0 to {self._offset_max}")
