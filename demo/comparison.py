"""Compares every key in three places: acknowledged commits, the local store, the Meta Service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from adapter.model.records import OffsetKey

Positions = Mapping[OffsetKey, tuple[int, int]]  # key -> (epoch, offset)


class Difference(NamedTuple):
    """A key that differs from what was acknowledged in some place. None: absent there."""

    key: OffsetKey
    acknowledged: tuple[int, int] | None
    local: tuple[int, int] | None
    remote: tuple[int, int] | None

    def __str__(self) -> str:
        """The difference as text: offsets only, which is sufficient without rewinds."""
        values = zip(("acknowledged", "local", "remote"), self[1:], strict=True)
        found = (f"{name} {'absent' if value is None else f'{value[1]:,}'}" for name, value in values)
        return f"{self.key.group} {self.key.shard}: {', '.join(found)}"


class GroupRow(NamedTuple):
    """A group: its number of keys, the sums of their offsets, and how many keys lack an acknowledged commit."""

    group: str
    keys: int
    acknowledged: int
    local: int
    remote: int
    missing: int


@dataclass(frozen=True)
class Comparison:
    """The result. `missing`: absent or below the acknowledged offset. `ahead`: above it, so that messages would be skipped."""

    rows: tuple[GroupRow, ...]
    missing: tuple[Difference, ...]
    ahead: tuple[Difference, ...]

    @property
    def complete(self) -> bool:
        """True if there are keys, and each is equal in all three places."""
        return bool(self.rows) and not self.missing and not self.ahead

    @property
    def keys(self) -> int:
        """The number of acknowledged keys."""
        return sum(row.keys for row in self.rows)


def compare(acknowledged: Positions, local: Positions, remote: Positions) -> Comparison:
    """Compare all keys that exist in any place."""
    missing: list[Difference] = []
    ahead: list[Difference] = []
    for key in sorted({*acknowledged, *local, *remote}):
        difference = Difference(key, acknowledged.get(key), local.get(key), remote.get(key))
        wanted, *found = difference[1:]
        if wanted is not None and any(value is None or value < wanted for value in found):
            missing.append(difference)
        elif wanted is None or any(value != wanted for value in found):
            ahead.append(difference)
    lacking = {difference.key for difference in missing}
    groups = sorted({key.group for key in acknowledged})
    rows = tuple(_row(group, acknowledged, local, remote, lacking) for group in groups)
    return Comparison(rows, tuple(missing), tuple(ahead))


def _row(group: str, acknowledged: Positions, local: Positions, remote: Positions, lacking: set[OffsetKey]) -> GroupRow:
    keys = [key for key in acknowledged if key.group == group]
    summed, local_sum, remote_sum = (
        sum(place[key][1] for key in keys if key in place) for place in (acknowledged, local, remote)
    )
    return GroupRow(group, len(keys), summed, local_sum, remote_sum, sum(key in lacking for key in keys))
