"""What a reset leaves in the table of a broker with `configManagerVersion=v2` beside the offset that it moves: a phantom.

The broker has it for ever. It is no group's offset, and is not taken in. `adapter.formats.phantoms` says how it is recognized: it
cannot be real, and its mirror is. The broker is asked, for which groups and topics it knows; what becomes a group and a topic
later, or changes, is judged again.
"""

from collections.abc import Callable, Iterable

import structlog

from adapter.formats.phantoms import Names, is_phantom, mirror_of
from adapter.formats.rows import OffsetRow
from adapter.model.records import OffsetKey
from adapter.rocketmq.broker import Broker
from adapter.rocketmq.errors import BrokerError, BrokerRefusedError
from adapter.sidecar.bridge.giving import at_once

Pair = tuple[str, str]  # group, topic

TRIES = 5  # questions without an answer before a broker counts as one that cannot say

log = structlog.get_logger(__name__)


class Phantoms:
    """The entries of a broker's table that may be phantoms, and those that are. `is_there`: whether an offset is known."""

    def __init__(self, is_there: Callable[[OffsetKey], bool]) -> None:
        self._is_there = is_there
        self._suspects: dict[OffsetKey, OffsetRow] = {}
        self._held: dict[OffsetKey, OffsetRow] = {}
        self._told: set[OffsetKey] = set()
        self._real: set[Pair] = set()  # of which the broker has said that they are none
        self._unanswered = 0

    def clear(self) -> None:
        """Nothing is known of the broker that is followed now."""
        for known in (self._suspects, self._held, self._told, self._real):
            known.clear()

    def take(self, row: OffsetRow) -> bool:
        """True if this new or changed entry may be a phantom: `judged` has it then, once it is none."""
        self.forget(row.key)
        mirror = mirror_of(row)
        if not mirror or mirror == row.key or (row.group, row.topic) in self._real or not self._is_there(mirror):
            return False
        self._suspects[row.key] = row
        return True

    def forget(self, key: OffsetKey) -> None:
        """The broker has this entry no longer, or another value of it."""
        self._suspects.pop(key, None)
        self._held.pop(key, None)

    def doubt(self) -> None:
        """Let the next `judged` judge all phantoms again: a group and a topic of these names may have come."""
        self._suspects = self._held | self._suspects
        self._held = {}

    async def judged(self, broker: Broker) -> list[OffsetRow]:
        """Ask the broker about those that may be phantoms, and return those that are none.

        Raises BrokerError when it does not answer; they are asked about again then. A broker that never does, or whose answer
        cannot be read, loses nobody's offset: none of them is a phantom then.
        """
        if not self._suspects:
            return []
        suspects = dict(self._suspects)
        try:
            names = await _names(broker, suspects.values())
        except BrokerError as error:
            self._unanswered += 1
            if self._unanswered < TRIES and not isinstance(error, BrokerRefusedError):
                raise
            log.warning("rocketmq.phantom", entries=len(suspects), error=str(error), help="they are taken for offsets")
            names = None
        else:
            self._unanswered = 0
        real: list[OffsetRow] = []
        for key, row in suspects.items():
            del self._suspects[key]
            if names and is_phantom(row.group, row.topic, names):
                self._held[key] = row
                log.info(
                    "rocketmq.phantom", group=row.group, shard=row.shard, offset=row.offset, help="left by a reset at the broker"
                )
            else:
                real.append(row)
                self._real.update([(row.group, row.topic)] if names else [])
        return real


async def _names(broker: Broker, rows: Iterable[OffsetRow]) -> Names:
    groups = await broker.groups()

    async def topic(name: str) -> tuple[str, bool]:
        return name, await broker.has_topic(name)

    found = await at_once({name for row in rows for name in (row.group, row.topic)}, topic)
    return Names(groups, {name for name, there in found if there})
