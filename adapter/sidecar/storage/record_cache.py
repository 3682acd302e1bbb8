"""The newest records of the keys that were used last, in memory, by group: commits are decided against them without a read.

Between two iterations of the event loop it holds only what is in RocksDB. A batch of the fast path replaces records here before
it is written, and puts the former ones back when the write fails (`FastWriteBatch`); all other writes come here after RocksDB.
Bounded: whole groups leave, the one used longest ago first.
"""

from collections import OrderedDict
from collections.abc import Mapping

from adapter.model.records import GroupKey, Held, OffsetKey

MAX_KEYS = 100_000  # some 450 bytes each


class RecordCache:
    """Records of the store by group and shard, up to `max_keys`."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._groups: OrderedDict[GroupKey, dict[str, Held]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """How many records are cached."""
        return self._count

    def of(self, group: tuple[str, str]) -> dict[str, Held]:
        """The cached records of a group, by shard. One that is here may be replaced by a newer one; none may be added."""
        # A tuple finds the GroupKey that equals it.
        found: dict[str, Held] | None = self._groups.get(group)  # type: ignore[call-overload]
        if found is None:
            return {}
        self._groups.move_to_end(group)  # type: ignore[arg-type]
        return found

    def get(self, key: OffsetKey) -> Held | None:
        """A cached record; None if it is not cached, although it may be stored."""
        found = self._groups.get(key[:2])  # type: ignore[call-overload]  # a tuple finds the GroupKey that equals it
        return found.get(key[2]) if found else None

    def update(self, group: GroupKey, held: Mapping[str, Held]) -> None:
        """Cache newer records of a group, and drop groups when there are too many."""
        known = self._groups.setdefault(group, {})
        self._count -= len(known)
        known.update(held)
        self._count += len(known)
        self._groups.move_to_end(group)
        while self._count > self._max_keys:
            self._count -= len(self._groups.popitem(last=False)[1])

    def discard(self, key: OffsetKey) -> None:
        """Remove a record, if it is cached."""
        known = self._groups.get(key.group_key)
        if known and known.pop(key[2], None):
            self._count -= 1
