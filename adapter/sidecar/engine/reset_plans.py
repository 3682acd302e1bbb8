"""What a reset, delete or clone would do to each shard: pure. Never reads or writes anything.

Every change begins the next era of its key: nothing that was committed or flushed before can pass it (invariant 7).
"""

from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from itertools import islice
from typing import NamedTuple, TypeAlias

from adapter.errors import InvalidInputError, RefusedError, UnknownBoundsError
from adapter.model.bounds import Bounds
from adapter.model.queues import topics_of
from adapter.model.records import (
    FIRST_EPOCH,
    U64_MAX,
    OffsetKey,
    OffsetRecord,
    deleted,
    epoch_warning,
    exhausted,
    is_deleted,
    next_era,
    taken_up,
)

NAMED = 3  # shards that an error names
LOOKED_AT = 1_000  # shards among which those of a topic are looked for, to be suggested
# Names that are compared letter by letter, and their length: together some milliseconds.
COMPARED = 100
COMPARED_LENGTH = 64
ACTIVE_MS = 10_000  # a group that committed within this time has consumers that will go on


Records: TypeAlias = Mapping[OffsetKey, OffsetRecord]


class To(Enum):
    """The targets of a reset, with the names of kafka-consumer-groups."""

    OFFSET = "to_offset"
    EARLIEST = "to_earliest"
    LATEST = "to_latest"
    CURRENT = "to_current"
    SHIFT = "shift_by"
    TIMESTAMP = "to_timestamp_ms"
    TARGETS = "to_targets"


class Reset(NamedTuple):
    """A reset as it was asked for. `value` belongs to OFFSET, SHIFT and TIMESTAMP, `targets` (shard -> offset) to TARGETS.

    `create`: a shard without an offset gets one; without it such a shard refuses the whole reset.
    """

    to: To
    value: int = 0
    targets: Mapping[str, int] = {}
    create: bool = False

    @property
    def needs_bounds(self) -> bool:
        """True when it cannot be planned without the bounds of every shard."""
        return self.to in {To.EARLIEST, To.LATEST, To.TIMESTAMP}


class OffsetChange(NamedTuple):
    """The records under a key before and after the change. If they are equal, there is nothing to do."""

    key: OffsetKey
    before: OffsetRecord | None
    after: OffsetRecord | None
    warning: str = ""

    @property
    def changes(self) -> bool:
        """True if something has to be written."""
        return self.after != self.before


class Known(NamedTuple):
    """The input of a plan: the records that stand, the bounds of shards, and for TIMESTAMP the offsets by time.

    `holds`: whether what is changed is held (`records.is_held`).
    """

    standing: Records
    bounds: Mapping[str, Bounds] = {}
    by_time: Mapping[str, int | None] = {}
    now_ms: int = 0
    holds: bool = True


def plan_reset(reset: Reset, keys: Sequence[OffsetKey], known: Known) -> list[OffsetChange]:
    """Plan the new offset of each key. Raises InvalidInputError or UnknownBoundsError that names the shard."""
    check_there(reset, keys, known.standing)
    return [_reset_one(reset, key, known) for key in keys]


def check_there(reset: Reset, keys: Sequence[OffsetKey], standing: Records) -> None:
    """Raise InvalidInputError if a key has no offset, unless the reset may create it: usually its name is a mistake."""
    absent = [] if reset.create else [key for key in keys if not _is_live(standing.get(key))]
    if absent:
        raise InvalidInputError(f"shards: {no_offset_of(absent, standing)}; create (--create) gives a shard its first offset")


def no_offset_of(absent: Sequence[OffsetKey], standing: Records) -> str:
    """An error text: these shards of a group have no offset, and which shards may have been meant."""
    group = "/".join(absent[0].group_key)
    if not any(map(_is_live, standing.values())):
        return f"{group} has no offsets; `groups list` shows the groups that have"
    more = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
    return f"{group} has no offset of {', '.join(repr(key.shard) for key in absent[:NAMED])}{more}{meant(absent[0], standing)}"


def meant(absent: OffsetKey, standing: Records) -> str:
    """A question that suggests shards instead of one without an offset; empty if no shard has a similar name."""
    known = [(key.shard, record.topic) for key, record in islice(standing.items(), LOOKED_AT) if record.live]
    of_topic = [shard for shard, label in known if absent.shard in topics_of(shard, label)]
    short = [shard for shard, _ in known[:COMPARED] if len(shard) <= COMPARED_LENGTH]
    found = of_topic or get_close_matches(absent.shard[:COMPARED_LENGTH], short, NAMED)
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    question = f"; did you mean {', '.join(found[:NAMED])}{more}?" if found else ""
    return f"{question} topics: {absent.shard} (--topic {absent.shard}) means all of them" if of_topic else question


def plan_delete(keys: Sequence[OffsetKey], known: Known) -> list[OffsetChange]:
    """Delete each key that has an offset, or had one that expired: a late commit still passes the tombstone of an expiry."""
    changes, absent = [], 0
    for key in keys:
        before = known.standing.get(key)
        after = before
        if before is not None and not is_deleted(before):
            after = deleted(before, known.now_ms)._replace(epoch=_era_after(key, before, known))
        # Suggestions for the first absent shards are enough.
        warning = "" if _is_live(before) else f"has no offset{meant(key, known.standing) if absent < NAMED else ''}"
        changes.append(OffsetChange(key, before, after, warning))
        absent += bool(warning)
    return changes


def plan_clone(
    sources: Mapping[OffsetKey, OffsetRecord], keys: Mapping[OffsetKey, OffsetKey], known: Known
) -> list[OffsetChange]:
    """Give each key the offset of its source, also one that its log does not have; `keys` is source -> key."""
    changes = []
    for source, key in keys.items():
        before, model = known.standing.get(key), sources[source]
        after = model._replace(epoch=_era_after(key, before, known), committed_at_ms=known.now_ms)
        changes.append(OffsetChange(key, before, after, outside(after.offset, known.bounds.get(key.shard))))
    return changes


def active_warning(changes: Sequence[OffsetChange], now_ms: int, own_ms: Container[int] = ()) -> str:
    """What to say when the group of these changes has consumers that commit; empty when it has not.

    `own_ms`: the times that former changes gave to offsets of this group. Those were not committed by a consumer.
    """
    before = (change.before for change in changes)
    times = (record.committed_at_ms for record in before if record and record.live and record.committed_at_ms not in own_ms)
    newest = max(times, default=None)
    if newest is None or not 0 <= now_ms - newest < ACTIVE_MS:
        return ""
    return f"its offsets moved {(now_ms - newest) / 1000:.1f} s ago: stop its consumers first, or they commit over the change"


def _is_live(record: OffsetRecord | None) -> bool:
    return record is not None and record.live


def _era_after(key: OffsetKey, standing: OffsetRecord | None, known: Known) -> int:
    # Also for a key that is not there: another adapter may hold a commit of it that is not flushed yet.
    epoch = standing.epoch if standing else FIRST_EPOCH
    if exhausted(epoch):
        raise RefusedError(f"{'/'.join(key)}: {epoch_warning(epoch)}; nothing was changed")
    return next_era(epoch) if known.holds else taken_up(next_era(epoch))


def _reset_one(reset: Reset, key: OffsetKey, known: Known) -> OffsetChange:
    before = known.standing.get(key)
    bounds = known.bounds.get(key.shard)
    if reset.needs_bounds and bounds is None:
        raise UnknownBoundsError(f"{'/'.join(key)}: the broker does not know this shard, so there is no {reset.to.value} of it")
    if reset.to is To.TIMESTAMP and key.shard not in known.by_time:
        raise UnknownBoundsError(f"{'/'.join(key)}: the broker gave no offset for this time, not even that there is none")
    wanted = _target(reset, key, before, bounds, known.by_time)
    target, warning = _clamp(wanted, bounds)
    if reset.to is To.TIMESTAMP and known.by_time[key.shard] is None:
        warning = "no message is at or after this time: the end of the shard"
    if before and before.live and target == before.offset and reset.to is To.CURRENT:
        return OffsetChange(key, before, before, warning)
    labels = before or OffsetRecord(0, 0)
    epoch = _era_after(key, before, known)
    after = labels._replace(epoch=epoch, offset=target, live=True, committed_at_ms=known.now_ms, metadata="")
    return OffsetChange(key, before, after, warning)


def _target(
    reset: Reset, key: OffsetKey, before: OffsetRecord | None, bounds: Bounds | None, by_time: Mapping[str, int | None]
) -> int:
    if reset.to is To.OFFSET:
        return reset.value
    if reset.to is To.TARGETS:
        return reset.targets[key.shard]
    if bounds and reset.to is To.EARLIEST:
        return bounds.low
    if bounds and reset.to is To.LATEST:
        return bounds.high
    if bounds and reset.to is To.TIMESTAMP:
        found = by_time[key.shard]
        return bounds.high if found is None else found
    if before is None or not before.live:
        raise InvalidInputError(f"{'/'.join(key)}: has no offset to start from; use to_offset, to_earliest or to_latest")
    return before.offset + (reset.value if reset.to is To.SHIFT else 0)


def _clamp(wanted: int, bounds: Bounds | None) -> tuple[int, str]:
    """The nearest offset that can be read, and a warning if it is another one."""
    low, high = (bounds.low, bounds.high) if bounds else (0, U64_MAX)
    target = min(max(wanted, low), high)
    if target == wanted:
        return target, ""
    what = f"the shard has {low} to {high}" if bounds else "offsets go from 0 to 2^64 - 1"
    return target, f"{wanted} is outside: {what}"


def outside(offset: int, bounds: Bounds | None) -> str:
    """A warning for an offset that is given as it is, though the log does not have it; empty if it has, or nothing is known."""
    if bounds and offset > bounds.high:
        return (
            f"{offset} is beyond the log's end {bounds.high}: "
            "a consumer there gets nothing until the log is that long, or starts where its own rule says"
        )
    if bounds and offset < bounds.low:
        return f"{offset} is before the log's start {bounds.low}: a consumer starts there, or where its own rule says"
    return ""


def some_of(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
