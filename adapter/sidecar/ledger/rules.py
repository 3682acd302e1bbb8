"""Where a commit goes: in which epoch it stands, and whether its member may still commit. Pure; never writes."""

import time
from collections.abc import Callable

from adapter.errors import FencedError, NotReadyError, RefusedError
from adapter.model.records import (
    EPOCH_MAX,
    HOLD_MS,
    LOWER_HALF,
    CommitMode,
    Fields,
    GroupKey,
    Member,
    OffsetKey,
    OffsetRecord,
    decide,
    epoch_warning,
    is_held,
    taken_up,
)
from adapter.sidecar.ledger.group_state import GroupStates


class Holds:
    """For how long a reset, delete or clone that nobody has taken up stops commits without an epoch (`records.is_held`)."""

    def __init__(self, hold_ms: int = HOLD_MS, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.hold_ms = hold_ms
        self._now_ms = now_ms
        self.on = hold_ms > 0  # off: a reset begins as one that is taken up

    def until_ms(self, record: OffsetRecord | None) -> int:
        """Until when a record is held; 0 when it is not, or not any more."""
        if record is None or not is_held(record.epoch):
            return 0
        until_ms = record.committed_at_ms + self.hold_ms
        return until_ms if self._now_ms() <= until_ms else 0

    def stops(self, record: OffsetRecord | None) -> bool:
        """True while a record is held."""
        return self.until_ms(record) > 0


def check_generation(group: GroupKey, member: Member, seen: Member | None) -> None:
    """Raise FencedError when `seen` is of a later generation."""
    if seen and member.generation < seen.generation:
        raise FencedError(
            f"{'/'.join(group)}: ILLEGAL_GENERATION: generation {member.generation} of member {member.member_id!r} has ended; "
            f"{seen.generation} is the present one: rejoin the group"
        )


def goes_back(before: OffsetRecord, after: OffsetRecord) -> bool:
    """True if a commit was a rewind of the record that stood."""
    return after.epoch > taken_up(before.epoch) and before.live


def is_raised(before: OffsetRecord | None, after: OffsetRecord) -> bool:
    """True when a commit is stored in a higher epoch than what stood before it."""
    return before is not None and after.epoch > before.epoch


def _came_before(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """True for a commit without an epoch that was made before what stands, in an era that a reset or delete began."""
    return not offered.epoch and standing.epoch > LOWER_HALF and 0 < offered.committed_at_ms <= standing.committed_at_ms


def plainly(fields: Fields, offset: int, knows: int, now_ms: int) -> Fields | None:
    """The plain case of `decide_commit`, in either mode: what stands after a commit of only an offset over a record.

    `knows`: the epoch that its consumer knows, or 0. `fields` themselves if it is made already; None if all rules are needed.
    """
    epoch, stands, live, when, _, topic, partition = fields
    # A held record, in the first epoch of an era, is left to them.
    if offset < stands or (knows and knows != epoch) or not (epoch & LOWER_HALF or not epoch):
        return None
    if offset == stands and now_ms <= when:
        return fields if live else None
    return epoch, offset, True, now_ms, "", topic, partition


def decide_commit(
    key: OffsetKey,
    offered: OffsetRecord,
    standing: OffsetRecord | None,
    mode: CommitMode,
    states: GroupStates,
    holds: Holds | None = None,
    *,
    waited: bool = False,
) -> OffsetRecord:
    """What stands after a commit. Raises NotReadyError for a rewind of a key whose epoch is unknown, RefusedError of the largest.

    Without `holds`, as for an operator's, held records stop nothing. One that `waited` for the Meta Service, and carries no
    epoch, loses as `records.resolve` has it to a reset or delete of a later time, also if that was taken up while it waited: its
    consumer did not know of it.

    Such a rewind could be undone by the Meta Service, where the key may stand in a higher epoch, after it was acknowledged.
    So could a commit of an epoch that this adapter has not seen yet, which is refused in the same way.
    """
    known = standing.epoch if standing else states.epoch_of_absent(key)
    if taken_up(offered.epoch) > taken_up(known):
        raise NotReadyError(
            f"{'/'.join(key)}: epoch {offered.epoch} is not known here, but {known or 'none'}: read it again from the store"
        )
    if standing is None:
        return offered._replace(epoch=states.epoch_of_absent(key))
    if waited and holds is not None and _came_before(offered, standing):
        return standing
    after = decide(offered, standing, mode, holds=holds is not None and holds.stops(standing))
    if after.epoch > max(EPOCH_MAX, standing.epoch):
        raise RefusedError(f"{'/'.join(key)}: cannot be rewound: it {epoch_warning(standing.epoch)}")
    if standing.epoch == 0 and after.epoch > 0:
        raise NotReadyError(
            f"{'/'.join(key)}: cannot be rewound now: its epoch is unknown while the Meta Service is out of reach"
        )
    return after
