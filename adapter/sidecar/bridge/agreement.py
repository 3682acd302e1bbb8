"""What is to be done about one offset that broker and store have, each its own. Pure.

Both may have moved since they agreed. What each had then (`Agreed`) tells whose move it was: what only one side moved is taken
over by the other, also when it is lower. Where nothing is known of a former agreement, the larger value stands, because a
broker that was killed has lost what came last; `Memory` names the exceptions.
"""

from enum import Enum, auto
from typing import NamedTuple

from adapter.model.records import ERA_BITS, OffsetRecord, is_deleted

NOWHERE = OffsetRecord(0, 0, live=False)  # in place of a record where none is stored


class Agreed(NamedTuple):
    """What the broker (None: nothing) and the store had when the bridge last left this offset."""

    at_broker: int | None
    epoch: int
    offset: int
    live: bool

    @classmethod
    def on(cls, at_broker: int | None, stored: OffsetRecord | None) -> "Agreed":
        """The agreement on these two values, which may differ: then it is agreed that they do."""
        record = stored or NOWHERE
        return cls(at_broker, record.epoch, record.offset, record.live)

    @classmethod
    def until(cls, act: "Act", at_broker: int, stored: OffsetRecord | None) -> "Agreed":
        """What counts as agreed on until the broker gets what a meeting found to be its due.

        Before a reset or rewind: in an earlier era, where there is one, since a commit with the epoch of a reset takes it up.
        """
        if act is Act.NOTHING:
            return cls.on(at_broker, stored)
        if stored is None or act is Act.GIVE:
            return cls.on(at_broker, None)
        moved = (era_of(stored.epoch) << ERA_BITS) or stored.epoch
        return cls(at_broker, max(moved - 1, 0), 0, live=False)

    def is_stored(self, record: OffsetRecord | None) -> bool:
        """True while the store has what was agreed on; the time of a commit does not count."""
        stands = record or NOWHERE
        return (self.epoch, self.offset, self.live) == (stands.epoch, stands.offset, stands.live)

    @property
    def era(self) -> int:
        """How many resets and deletes this offset has seen."""
        return era_of(self.epoch)


class Act(Enum):
    """What to do. Everything that goes to the broker is left out where its log ends before the offset."""

    NOTHING = auto()  # agree on what is there
    COMMIT = auto()  # the broker's value is committed; a larger one in the store stands
    REWIND = auto()  # the broker's value is committed, although it is lower
    GIVE = auto()  # the broker gets the store's value if its own is lower
    PLACE = auto()  # the broker gets the store's value, also a lower one; consumers that are online go on from where they are
    RESET = auto()  # as PLACE, and consumers that are online begin there


class Memory(NamedTuple):
    """What is known of an offset from before the bridge was started, or the broker.

    `same_life`: the broker was not restarted since. `known`: the bridge has kept this broker's offsets before. `era`: of the last
    reset that the broker has got. `ceiling`: the largest offset that the broker may have on its disk from before it was rewound.
    """

    same_life: bool = False
    known: bool = False
    era: int = 0
    ceiling: int = -1


def era_of(epoch: int) -> int:
    """The era of an epoch: the number of resets and deletes before it."""
    return epoch >> ERA_BITS


def on_meeting(at_broker: int | None, stored: OffsetRecord | None, memory: Memory) -> Act:
    """For an offset of which no agreement is known: the bridge or the broker was started."""
    if stored is None or not stored.live:
        deleted_here = stored is not None and memory.known and is_deleted(stored)
        return Act.NOTHING if at_broker is None or deleted_here else Act.COMMIT
    if at_broker is None:
        return Act.GIVE
    if at_broker == stored.offset:
        return Act.NOTHING
    if memory.known and era_of(stored.epoch) > memory.era:
        return Act.RESET
    if at_broker > stored.offset:
        return Act.PLACE if at_broker <= memory.ceiling and not memory.same_life else Act.COMMIT
    return Act.REWIND if memory.same_life else Act.GIVE


def when_broker_moved(at_broker: int, agreed: Agreed, stored: OffsetRecord | None) -> Act:
    """For an offset that the broker changed since the agreement."""
    if at_broker == agreed.at_broker:
        return Act.NOTHING
    if agreed.is_stored(stored):
        lower = stored is not None and stored.live and at_broker < stored.offset
        return Act.REWIND if lower else Act.COMMIT
    if stored is not None and era_of(stored.epoch) > agreed.era:
        return when_store_moved(stored, agreed)
    # Both moved, neither by a reset. What the broker did on purpose stands; else the larger of the two.
    on_purpose = agreed.at_broker is not None and at_broker < agreed.at_broker
    return Act.REWIND if on_purpose else Act.COMMIT


def when_store_moved(stored: OffsetRecord | None, agreed: Agreed) -> Act:
    """For an offset that somebody else changed in the store since the agreement: a reset, another adapter, an import."""
    if agreed.is_stored(stored) or stored is None or not stored.live:
        return Act.NOTHING
    if stored.epoch > agreed.epoch > 0:
        return Act.RESET
    return Act.GIVE
