"""The newest records of the keys that were used last, in memory, by group: commits are decided against them without a read.

Only what is in the store is here, as the single writer put it there. Bounded: whole groups leave, the one used longest ago first.
"""

from collections import OrderedDict
from collections.abc import Mapping

from adapter.model.records import GroupKey, Held, OffsetKey

MAX_KEYS = 100_000  # some 450 bytes each


class RecordCache:
    """Some of the store's records."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._groups: OrderedDict[GroupKey, dict[str, Held]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def of(self, group: tuple[str, str]) -> dict[str, Held]:
        """Those of a group, by shard. One that is here may be replaced by a newer one; none may be added."""
        # A tuple finds the GroupKey that equals it.
        found: dict[str, Held] | None = self._groups.get(group)  # type: ignore[call-overload]
        if found is None:
            return {}
        self._groups.move_to_end(group)  # type: ignore[arg-type]
        return found

    def get(self, key: OffsetKey) -> Held | None:
        """One of them."""
        found = self._groups.get(key[:2])  # type: ignore[call-overload]  # a tuple finds the GroupKey that equals it
        return found.get(key[2]) if found else None

    def update(self, group: GroupKey, held: Mapping[str, Held]) -> None:
        """Keep newer ones of a group."""
        known = self._groups.setdefault(group, {})
        self._count -= len(known)
        known.update(held)
        self._count += len(known)
        self._groups.move_to_end(group)
        while self._count > self._max_keys:
            self._count -= len(self._groups.popitem(last=False)[1])

    def discard(self, key: OffsetKey) -> None:
        """Drop one, if it is here."""
        known = self._groups.get(key.group_key)
        if known and known.pop(key[2], None):
            self._count -= 1
