"""A consumer's way from one assignment of queues to the next: give up what went, begin what came. RocketMQ's RebalanceImpl.

Promises that a queue is given up only when the Meta Service has its offset, and begun only where the store says; what fails for
one queue is told and leaves the others alone. Never decides who gets which queue.
"""

from asyncio import Lock
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from adapter.client.offset_store.start import Start, StartPositions, Starts, each
from adapter.client.offset_store.store import OffsetStore, OffsetStoreError
from adapter.model.queues import MessageQueue

Queues = frozenset[MessageQueue]


class Change(NamedTuple):
    """What an assignment means for a consumer that reads some queues, and holds others that it could not give up yet."""

    went: Queues  # to be given up
    came: Queues  # to be begun
    stays: Queues  # is read on


def change(reads: Queues, holds: Queues, assigned: Queues) -> Change:
    """The old assignment against the new one. What is held is not read any more: when it comes back, it is begun anew."""
    return Change(went=(reads | holds) - assigned, came=assigned - reads, stays=reads & assigned)


@dataclass(frozen=True)
class Rebalanced:
    """What a rebalance came to. Where something failed: rebalance again, to the same or the next assignment."""

    starts: Mapping[MessageQueue, Start]  # begin to read these, here
    stays: Queues
    handed_over: Queues  # others may begin to read these: the Meta Service has their offsets
    held: Mapping[MessageQueue, Exception]  # not read any more, and not given up: the newest offset is only here
    failed: Mapping[MessageQueue, Exception]  # came, but where to begin is not known: not read, and nothing guessed


class Rebalance:
    """One per consumer and group; it knows what the consumer reads. `reads` is empty at first, also after a crash.

    `before_hand_over` is called for each queue that goes, once its workers must stop: it returns when the last one has, and the
    last offset (AckWindow.committable) is in the store by `update_offset`. It is called again when the rebalance is repeated,
    and may have a time limit of its own: as long as it takes, the whole rebalance waits.
    """

    def __init__(
        self,
        store: OffsetStore,
        starts: StartPositions,
        before_hand_over: Callable[[MessageQueue], Awaitable[None]],
    ) -> None:
        self._store = store
        self._starts = starts
        self._before_hand_over = before_hand_over
        self._reads: Queues = frozenset()
        self._holds: Queues = frozenset()
        self._one_at_a_time = Lock()

    @property
    def reads(self) -> Queues:
        """The queues that the consumer reads."""
        return self._reads

    async def to(self, assignment: Collection[MessageQueue]) -> Rebalanced:
        """Give up what is not in the new assignment, then begin what came. Nothing assigned: a consumer's orderly end.

        Nothing is read twice when the members of a group do this in two steps: first everybody `to(old & new)`, and when all
        have, everybody `to(new)`. In one step, as RocketMQ does it, the new owner may begin before the old one has ended:
        messages come twice, none is skipped. Raises nothing of one queue. Repeating it is harmless, also after a cancellation.
        """
        async with self._one_at_a_time:
            step = change(self._reads, self._holds, frozenset(assignment))
            # From here on the workers of these may be stopped: should this be cancelled, they are not read, and not given up.
            self._reads, self._holds = step.stays, self._holds | step.went
            _, held = await each(self._holds, self._hand_over)
            self._holds = frozenset(held)
            began = await self._begin(step.came - self._holds)
            self._reads |= began.starts.keys()
            return Rebalanced(began.starts, step.stays, step.went - self._holds, held, began.failed)

    async def _hand_over(self, queue: MessageQueue) -> None:
        # Persist, wait for those who consume, persist, forget: RebalancePushImpl.removeUnnecessaryMessageQueue. The first is for
        # a consumer that dies while it waits; whether the queue is given up, the second decides.
        with suppress(OffsetStoreError):
            await self._store.persist(queue)
        await self._before_hand_over(queue)
        await self._store.release([queue])

    async def _begin(self, queues: Queues) -> Starts:
        # RebalanceImpl.updateProcessQueueTableInRebalance: a value from the last time that this consumer had the queue must
        # neither be read nor persisted over the next owner's (RebalancePushImpl.removeDirtyOffset).
        for queue in queues:
            self._store.remove_offset(queue)
        return await self._starts.of(queues)
