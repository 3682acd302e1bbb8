"""The newest records of the keys that were used last, in memory, by group: commits are decided against them without a read.

Between two iterations of the event loop it holds only what is in RocksDB. A batch of the fast path replaces records here before
it is written, and puts the former ones back when the write fails (`FastWriteBatch`); all other writes come here after RocksDB.
Bounded: whole groups leave, the one used longest ago first.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain

from adapter.model.records import GroupKey, Held, OffsetKey

MAX_KEYS = 100_000  # some 450 bytes each
_MARK = GroupKey("", "")  # among the groups, behind those that were used before the last `used`; no name is empty


class RecordCache:
    """Records of the store by group and shard, up to `max_keys`."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._groups: OrderedDict[GroupKey, dict[str, Held]] = OrderedDict()
        self._count = 0
        self.evicted: Callable[[Collection[Held]], None] | None = None  # called with what leaves for lack of room

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
            gone = self._groups.popitem(last=False)[1]
            self._count -= len(gone)
            if self.evicted and gone:
                self.evicted(gone.values())

    def used(self) -> list[GroupKey]:
        """The groups that were used since the last call, the newest first: among them are all that were written since.

        A commit does nothing for this: the cache keeps its groups in the order of their use in any case.
        """
        found = list(iter(reversed(self._groups).__next__, _MARK))
        self._groups[_MARK] = {}
        self._groups.move_to_end(_MARK)
        return found

    def held(self, groups: Iterable[GroupKey]) -> list[Held]:
        """The cached records of some groups."""
        return list(chain.from_iterable(map(dict.values, filter(None, map(self._groups.get, groups)))))

    def discard(self, key: OffsetKey) -> None:
        """Remove a record, if it is cached."""
        group = key.group_key
        known = self._groups.get(group)
        if known and known.pop(key[2], None):
            self._count -= 1
            if not known:
                del self._groups[group]
