"""Queues of light topics at a broker with `configManagerVersion=v2`, which leaves them out of its table of all offsets.

That one of them is absent says nothing, so each is asked for by itself: some with every poll, in turn. Only what is known here
can be asked for. A light queue that appears at such a broker is found when something names it: an import, a reset at the broker,
another client of the adapter.
"""

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from adapter.formats.rocketmq_json import LMQ
from adapter.formats.rows import OffsetRow
from adapter.model.queues import queue_of
from adapter.model.records import OffsetKey
from adapter.rocketmq.broker import Broker
from adapter.rocketmq.errors import BrokerRefusedError
from adapter.rocketmq.offset_table import TableChanges
from adapter.sidecar.bridge.giving import at_once

_UNASKED = -1
ASK_AT_ONCE = 50  # queues asked for with a poll: some milliseconds of broker and bridge


class _Answer(NamedTuple):
    key: OffsetKey
    topic: str
    queue: int
    offset: int | None


class Untold:
    """The queues that are asked for, and what the broker answered last. `is_v2`: whether the broker leaves any out."""

    def __init__(self, *, is_v2: bool = False) -> None:
        self.is_v2 = is_v2
        self._offsets: dict[OffsetKey, int | None] = {}  # None: it has none. In the order of questions

    def __len__(self) -> int:
        """How many are asked for."""
        return len(self._offsets)

    def hides(self, topic: str) -> bool:
        """True if the broker's table does not say what it has of this topic. What it does say may be old (a reset leaves it)."""
        return self.is_v2 and topic.startswith(LMQ)

    def add(self, key: OffsetKey) -> None:
        """Ask for this queue from now on."""
        self._offsets.setdefault(key, _UNASKED)

    def is_asked(self, key: OffsetKey) -> bool:
        """True once the broker has answered for this queue."""
        return self._offsets.get(key, _UNASKED) != _UNASKED

    def forget(self, key: OffsetKey) -> None:
        """Ask for it no longer."""
        self._offsets.pop(key, None)

    async def ask_next(self, broker: Broker) -> TableChanges:
        """Ask for the next queues in turn. Raises BrokerError; they are asked for again then."""
        return await self.ask(broker, list(islice(self._offsets, ASK_AT_ONCE)))

    async def ask(self, broker: Broker, keys: Iterable[OffsetKey]) -> TableChanges:
        """What changed of these queues since they were asked for. One that the broker refuses to tell counts as unchanged."""

        async def answer(key: OffsetKey) -> _Answer | None:
            queue = queue_of(key.shard)
            if queue is None:
                return None
            try:
                return _Answer(key, *queue[:2], await broker.offset(key.group, queue.topic, queue.queue_id))
            except BrokerRefusedError:
                before = self._offsets.get(key)
                return _Answer(key, *queue[:2], None if before == _UNASKED else before)

        changes = TableChanges([], [], [])
        for found in await at_once(keys, answer):
            if found is None:
                continue
            before = self._offsets.pop(found.key, None)
            self._offsets[found.key] = found.offset
            if found.offset is not None and found.offset != before:
                changes.changed.append(_row(found, found.offset))
            elif found.offset is None and before not in {None, _UNASKED}:
                changes.gone.append(_row(found, before or 0))
        return changes


def _row(answer: _Answer, offset: int) -> OffsetRow:
    return OffsetRow(*answer.key, offset, topic=answer.topic, partition=answer.queue)
