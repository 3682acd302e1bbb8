"""Moves a consumer from one assignment of queues to the next, as RocketMQ's RebalanceImpl: releases queues, starts new ones.

A queue is released only after the Meta Service has its offset, and started only at the offset that the store gives. A failure of
one queue is reported and does not affect the others. The assignment itself is decided elsewhere.
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
    """A new assignment compared to the queues that a consumer reads, and to those that it holds: could not release yet."""

    went: Queues  # to be released
    came: Queues  # to be started
    stays: Queues  # to be read on without a change


def change(reads: Queues, holds: Queues, assigned: Queues) -> Change:
    """Compare the old assignment to the new one. A held queue is not read: if it is assigned again, it is started anew."""
    return Change(went=(reads | holds) - assigned, came=assigned - reads, stays=reads & assigned)


@dataclass(frozen=True)
class Rebalanced:
    """The result of a rebalance. If a queue is held or failed, call `to` again with the same or the next assignment."""

    starts: Mapping[MessageQueue, Start]  # start to read these queues at these offsets
    stays: Queues
    handed_over: Queues  # released: other consumers may start to read these
    held: Mapping[MessageQueue, Exception]  # no longer read, but not released: their newest offset is not stored yet
    failed: Mapping[MessageQueue, Exception]  # assigned, but not read: their start offset could not be determined


class Rebalance:
    """The queues that one consumer of a group reads. Create one for each consumer and group; it starts without queues.

    `before_hand_over` is called for each queue that is to be released. It has to stop the queue's workers, pass the last offset
    (AckWindow.committable) to the store by `update_offset`, and return then. It is called again if the rebalance is repeated. The
    rebalance waits for it, so it should have a time limit.
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
        """The queues that the consumer reads now."""
        return self._reads

    async def to(self, assignment: Collection[MessageQueue]) -> Rebalanced:
        """Release the queues that are not in the new assignment, then start the new ones. An empty assignment releases all.

        No message is read twice if the members of a group rebalance in two steps: first all members `to(old & new)`, and after
        that all members `to(new)`. In one step, as in RocketMQ, the new owner may start before the old one has stopped: messages
        are delivered twice, but none is skipped. Errors of single queues are returned, not raised. It is safe to repeat, also
        after a cancellation.
        """
        async with self._one_at_a_time:
            step = change(self._reads, self._holds, frozenset(assignment))
            # Their workers may be stopped from here on: after a cancellation these queues are held, neither read nor released.
            self._reads, self._holds = step.stays, self._holds | step.went
            _, held = await each(self._holds, self._hand_over)
            self._holds = frozenset(held)
            began = await self._begin(step.came - self._holds)
            self._reads |= began.starts.keys()
            return Rebalanced(began.starts, step.stays, step.went - self._holds, held, began.failed)

    async def _hand_over(self, queue: MessageQueue) -> None:
        # Persist, wait for the workers, persist, forget: RebalancePushImpl.removeUnnecessaryMessageQueue. The first persist is
        # for a crash while it waits; the second one decides whether the queue is released.
        with suppress(OffsetStoreError):
            await self._store.persist(queue)
        await self._before_hand_over(queue)
        await self._store.release([queue])

    async def _begin(self, queues: Queues) -> Starts:
        # RebalanceImpl.updateProcessQueueTableInRebalance: an offset from an earlier assignment must neither be read nor
        # persisted over that of the owner in between (RebalancePushImpl.removeDirtyOffset).
        for queue in queues:
            self._store.remove_offset(queue)
        return await self._starts.of(queues)
