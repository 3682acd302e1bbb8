"""What a consumer has in memory: of each queue the offset, whether it is frozen, and what of it is stored. No I/O.

Promises RocketMQ's updateOffset and updateAndFreeze (ControllableOffset), and that nothing counts as stored that was not sent.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from adapter.errors import InvalidInputError
from adapter.model.names import check_name
from adapter.model.queues import MessageQueue, shard_of


class Sent(NamedTuple):
    """An entry as it was when it was sent."""

    offset: int
    epoch: int
    overwrite: bool


@dataclass(slots=True, eq=False)
class Entry:
    """One queue. `offset` is None only where a deletion froze it."""

    shard: str
    offset: int | None
    epoch: int = 0  # with which it was read from the store; 0: it never was
    stored: int | None = None  # what the store is known to have at least, or to have been rewound to
    frozen: bool = False
    overwrite: bool = False  # `offset` is to be stored also where the store has a larger one: a rewind, or a reset
    # The lowest offset that was sent to overwrite, until its epoch is known: the store puts a rewind under the next one.
    rewound: int | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one send or read of the store at a time

    @property
    def dirty(self) -> bool:
        """True while the store does not have it."""
        return self.offset is not None and (self.overwrite or self.stored is None or self.offset > self.stored)

    @property
    def told(self) -> tuple[int | None, bool, bool]:
        """What the consumer has said of it: changes when it says something new."""
        return self.offset, self.overwrite, self.frozen

    def take(self) -> Sent:
        """What is to be sent now; only for a dirty entry. What the consumer says from here on is sent the next time."""
        offset = self.offset or 0
        sent = Sent(offset, self.epoch, self.overwrite)
        if self.overwrite:
            self.overwrite = False
            self.rewound = offset if self.rewound is None else min(self.rewound, offset)
        return sent

    def put_back(self, sent: Sent) -> None:
        """It is not known to be stored."""
        self.overwrite |= sent.overwrite

    def settle(self, sent: Sent) -> None:
        """The store has at least what was sent."""
        self.stored = sent.offset
        if not sent.overwrite:
            self.rewound = None  # it passed with the epoch that is known here, so the rewind raised none

    def follow(self, sent: Sent, epoch: int, standing: int | None) -> bool:
        """True when what supersedes `sent`, one epoch above it, is this consumer's own rewind: it goes on in that epoch."""
        own = standing is not None and self.rewound is not None and standing >= self.rewound and epoch == sent.epoch + 1
        if own:
            self.epoch, self.rewound = epoch, None
            self.put_back(sent)
        return own

    def give_way(self, epoch: int, standing: int | None) -> None:
        """What stands in the store is above all that was said here: freeze at it."""
        self.refresh(standing, epoch)
        self.frozen = True

    def refresh(self, offset: int | None, epoch: int) -> None:
        """It is as the store has it."""
        self.offset = self.stored = offset
        self.epoch, self.overwrite, self.rewound = epoch, False, None


class OffsetTable:
    """The half of an `OffsetStore` that is in memory only."""

    def __init__(self, group: str, offset_max: int) -> None:
        self._group = check_name(group, "group")
        self._offset_max = offset_max
        self._entries: dict[MessageQueue, Entry] = {}

    @property
    def group(self) -> str:
        """See `OffsetStore`."""
        return self._group

    def update_offset(self, queue: MessageQueue, offset: int, increase_only: bool = False) -> None:  # noqa: FBT001, FBT002 - RocketMQ's
        """See `OffsetStore`. RocketMQ: RemoteBrokerOffsetStore.java:59, ControllableOffset.java:72."""
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
        """See `OffsetStore`. RocketMQ: RemoteBrokerOffsetStore.java:77, ControllableOffset.java:105."""
        self._check(offset)
        entry = self._entries.setdefault(queue, Entry(self._shard(queue), offset))
        entry.offset, entry.overwrite, entry.frozen = offset, True, True

    def remove_offset(self, queue: MessageQueue) -> None:
        """See `OffsetStore`. RocketMQ: RemoteBrokerOffsetStore.java:174."""
        self._entries.pop(queue, None)

    def clone_offset_table(self, topic: str = "") -> dict[MessageQueue, int]:
        """See `OffsetStore`. A blank topic is every topic. RocketMQ: RemoteBrokerOffsetStore.java:183."""
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
        """Have an offset as the store has it, unless it is frozen here. RocketMQ: RemoteBrokerOffsetStore.java:100."""
        entry = self._entries.setdefault(queue, Entry(self._shard(queue), offset))
        if not entry.frozen:
            entry.refresh(offset, epoch)

    def _retain(self, queues: Collection[MessageQueue]) -> None:
        """Forget all but these, stored or not: the unusedMQ of persistAll. RocketMQ: RemoteBrokerOffsetStore.java:149."""
        kept = frozenset(queues)
        self._entries = {queue: entry for queue, entry in self._entries.items() if queue in kept}

    def _forget_stored(self, queues: Collection[MessageQueue]) -> None:
        """Forget those that the store has."""
        for queue in queues:
            if (entry := self._entries.get(queue)) and not entry.dirty:
                del self._entries[queue]

    def _shard(self, queue: MessageQueue) -> str:
        return shard_of(queue)

    def _check(self, offset: int) -> None:
        if not isinstance(offset, int) or not 0 <= offset <= self._offset_max:
            raise InvalidInputError(f"offset: {offset!r} is not a whole number from 0 to {self._offset_max}")
