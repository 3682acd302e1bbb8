"""What a reset, delete or clone would do to each shard: pure. Never reads or writes anything.

Every change begins the next era of its key: nothing that was committed or flushed before can pass it (invariant 7).
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from adapter.bounds import Bounds
from adapter.errors import InvalidInputError, RefusedError, UnknownBoundsError
from adapter.model import (
    FIRST_EPOCH,
    U64_MAX,
    OffsetKey,
    OffsetRecord,
    deleted,
    epoch_warning,
    exhausted,
    is_deleted,
    next_era,
)

ACTIVE_MS = 10_000  # a group that committed within this time has consumers that will go on


class To(Enum):
    """Where a reset goes, as kafka-consumer-groups names it."""

    OFFSET = "to_offset"
    EARLIEST = "to_earliest"
    LATEST = "to_latest"
    CURRENT = "to_current"
    SHIFT = "shift_by"
    TIMESTAMP = "to_timestamp_ms"
    TARGETS = "to_targets"


class Reset(NamedTuple):
    """A reset as it was asked for. `value` belongs to OFFSET, SHIFT and TIMESTAMP, `targets` (shard -> offset) to TARGETS."""

    to: To
    value: int = 0
    targets: Mapping[str, int] = {}

    @property
    def needs_bounds(self) -> bool:
        """True when it cannot be planned without the bounds of every shard."""
        return self.to in {To.EARLIEST, To.LATEST, To.TIMESTAMP}


class Change(NamedTuple):
    """What stood under a key and what shall stand. Equal records: nothing to do."""

    key: OffsetKey
    before: OffsetRecord | None
    after: OffsetRecord | None
    warning: str = ""

    @property
    def changes(self) -> bool:
        """True when something is to be written."""
        return self.after != self.before


class Known(NamedTuple):
    """What a reset is planned on: the records that stand, the bounds of shards, and for TIMESTAMP the offsets by time."""

    standing: Mapping[OffsetKey, OffsetRecord]
    bounds: Mapping[str, Bounds] = {}
    by_time: Mapping[str, int | None] = {}
    now_ms: int = 0


def plan_reset(reset: Reset, keys: Sequence[OffsetKey], known: Known) -> list[Change]:
    """Move each key. Raises InvalidInputError or UnknownBoundsError that names the shard which cannot be."""
    return [_reset_one(reset, key, known) for key in keys]


def plan_delete(keys: Sequence[OffsetKey], known: Known) -> list[Change]:
    """Delete each key that has an offset, or had one that expired: a late commit still passes the tombstone of an expiry."""
    changes = []
    for key in keys:
        before = known.standing.get(key)
        after = before
        if before is not None and not is_deleted(before):
            after = deleted(before, known.now_ms)._replace(epoch=_era_after(key, before))
        changes.append(Change(key, before, after, "" if before and before.live else "has no offset"))
    return changes


def plan_clone(sources: Mapping[OffsetKey, OffsetRecord], keys: Mapping[OffsetKey, OffsetKey], known: Known) -> list[Change]:
    """Give each key the offset of its source; `keys` is source -> key."""
    changes = []
    for source, key in keys.items():
        before, model = known.standing.get(key), sources[source]
        after = model._replace(epoch=_era_after(key, before), committed_at_ms=known.now_ms)
        changes.append(Change(key, before, after))
    return changes


def active_warning(changes: Sequence[Change], now_ms: int) -> str:
    """What to say when the group of these changes has consumers that commit; empty when it has not."""
    newest = max((change.before.committed_at_ms for change in changes if change.before and change.before.live), default=0)
    if not 0 <= now_ms - newest < ACTIVE_MS:
        return ""
    return f"its offsets moved {(now_ms - newest) / 1000:.1f} s ago: stop its consumers first, or they commit over the change"


def _era_after(key: OffsetKey, standing: OffsetRecord | None) -> int:
    # Also for a key that is not there: another adapter may hold a commit of it that is not flushed yet.
    epoch = standing.epoch if standing else FIRST_EPOCH
    if exhausted(epoch):
        raise RefusedError(f"{'/'.join(key)}: {epoch_warning(epoch)}; nothing was changed")
    return next_era(epoch)


def _reset_one(reset: Reset, key: OffsetKey, known: Known) -> Change:
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
        return Change(key, before, before, warning)
    labels = before or OffsetRecord(0, 0)
    after = labels._replace(epoch=_era_after(key, before), offset=target, live=True, committed_at_ms=known.now_ms, metadata="")
    return Change(key, before, after, warning)


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
    """The nearest offset that can be read, and what to say when that is another one."""
    low, high = (bounds.low, bounds.high) if bounds else (0, U64_MAX)
    target = min(max(wanted, low), high)
    if target == wanted:
        return target, ""
    what = f"the shard has {low} to {high}" if bounds else "offsets go from 0 to 2^64 - 1"
    return target, f"{wanted} is outside: {what}"
