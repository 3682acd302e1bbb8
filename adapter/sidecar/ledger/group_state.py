"""What is known of each group in memory, in one place: its newest records, and what the Meta Service holds of it.

Commits are decided against it without a read. It holds only records that are in RocksDB: each write comes here after that. To
forget anything is always right: it is read, or loaded, again.
Bounded: beyond MAX_KEYS the keys of whole groups leave, the group used longest ago first, and those that nobody uses leave in
any case (`leave_idle`); what a group is known for without them stays, for MAX_GROUPS: mostly that it is loaded (`resting`).
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain, islice

from adapter.model.records import FIRST_EPOCH, GroupKey, Held, OffsetKey
from adapter.sidecar.ledger.resting import RestingGroups

MAX_KEYS = 100_000  # that are remembered one by one: some 450 bytes each
MAX_GROUPS = 200_000  # a reader may name any
MAX_REMOVED = 10_000  # groups with removals, and keys with rewinds, that are remembered one by one
SPARSE_BYTES = 1_000  # of a dictionary for each entry, beyond which it is copied: some 10,000 entries at most
# Among the groups in use, behind those that were used before the last `used`, and before the last round of `leave_idle`. No name
# is empty.
_MARK, _IDLE = GroupKey("", ""), GroupKey("", "idle")


class GroupState:
    """What is known of one group.

    `records`: those of its keys that were used last, as they are stored. `absent`: shards that are neither stored here nor in the
    Meta Service. `loaded`: all that the Meta Service holds of it is stored here. `large`: that does not fit into a page, so for a
    commit only its keys are loaded. `removed_at`: the number of the last removal of its keys from the store, or a later one.
    """

    __slots__ = ("absent", "large", "loaded", "records", "removed_at")

    def __init__(self, removed_at: int) -> None:
        self.records: dict[str, Held] = {}
        self.absent: set[str] | None = None
        self.loaded = self.large = False
        self.removed_at = removed_at

    @property
    def keys(self) -> int:
        """How many keys are remembered one by one."""
        return len(self.records) + (len(self.absent) if self.absent else 0)


class GroupStates:
    """The states of all groups. `removals` counts the removals of keys from the store, and the rewinds.

    A key that is not stored, of a group that is `loaded` or `absent` itself, is nowhere: it begins in the first epoch. Any other
    one may stand in some epoch in the Meta Service: it begins in epoch 0 (unknown), and the flush brings the true one.
    """

    def __init__(self) -> None:
        self._states: dict[GroupKey, GroupState] = {}  # those with keys, and those that do not just rest
        self._resting = RestingGroups(MAX_GROUPS)  # none that is in `_states`
        self._used: OrderedDict[GroupKey, GroupState] = OrderedDict()  # those with keys, in the order of their use
        self._keys = 0
        self._max_keys = MAX_KEYS
        self.removals = 0
        self._removed = 0  # groups with removals behind `_removed_before`
        self._removed_before = 0  # `removed_at` of a group without a state is at most this
        self._rewound: dict[OffsetKey, int] = {}  # the number of the last rewind of some keys
        self._rewound_before = 0  # of the others it is at most this
        self.evicted: Callable[[Collection[Held]], None] | None = None  # called with records that leave for lack of room

    def __len__(self) -> int:
        """How many keys are remembered one by one."""
        return self._keys

    def records(self, group: tuple[str, str]) -> dict[str, Held]:
        """The records of a group in memory, by shard. One that is here may be replaced by a newer one; none may be added."""
        # A tuple finds the GroupKey that equals it.
        found: GroupState | None = self._used.get(group)  # type: ignore[call-overload]
        if found is None:
            return {}
        self._used.move_to_end(group)  # type: ignore[arg-type]
        return found.records

    def get(self, key: OffsetKey) -> Held | None:
        """A record in memory; None if it is not there, although it may be stored."""
        found = self._used.get(key[:2])  # type: ignore[call-overload]  # a tuple finds the GroupKey that equals it
        return found.records.get(key[2]) if found else None

    def put(self, group: GroupKey, held: Mapping[str, Held]) -> None:
        """Remember records of a group that are stored now, and let others leave when there are too many."""
        state = self._in_use(group)
        records = state.records
        self._keys -= len(records)
        records.update(held)
        self._keys += len(records)
        if state.absent:
            self._keys -= len(state.absent)
            state.absent.difference_update(held)
            self._keys += len(state.absent)
        self._make_room()

    def discard(self, key: OffsetKey) -> None:
        """Forget a record: it is not stored any more."""
        group = key.group_key
        state = self._used.get(group)
        if state and state.records.pop(key[2], None):
            self._keys -= 1
            if not state.keys:
                del self._used[group]
                self._let_rest(group, state)

    def used(self) -> list[GroupKey]:
        """The groups that were used since the last call, the newest first: among them are all that were written since.

        A commit does nothing for this: groups are kept in the order of their use in any case.
        """
        found = [group for group in iter(reversed(self._used).__next__, _MARK) if group is not _IDLE]
        self._put_mark(_MARK)
        return found

    def held(self, groups: Iterable[GroupKey]) -> list[Held]:
        """The records of some groups in memory."""
        return list(chain.from_iterable(state.records.values() for state in map(self._used.get, groups) if state))

    def leave_idle(self, most: int, busy: Callable[[GroupKey], object]) -> bool:
        """Let the keys leave of up to so many groups that were not used since the last round; False at the end of this round.

        Those of a `busy` group stay, and count as used.
        """
        for group in list(islice(self._used, most if _IDLE in self._used else 0)):
            if group is _IDLE:
                break
            if busy(group):
                self._used.move_to_end(group)
            else:  # also _MARK: all that are left were used since
                self._leave(group, self._used.pop(group))
        else:
            if _IDLE in self._used:
                return True
        self._put_mark(_IDLE)
        # A dictionary keeps the room of all that it ever had. Copied is only what is few.
        if sys.getsizeof(self._used) > SPARSE_BYTES * len(self._used):
            self._used = OrderedDict(self._used)
        if sys.getsizeof(self._states) > SPARSE_BYTES * (1 + len(self._states)):
            self._states = dict(self._states)
        return False

    def is_loaded(self, group: tuple[str, str]) -> bool:
        """True if all records of the group in the Meta Service are stored here."""
        state: GroupState | None = self._states.get(group)  # type: ignore[call-overload]  # as in `get`
        return state.loaded if state is not None else self._rests(group)

    def is_large(self, group: GroupKey) -> bool:
        """True for a group of which only the keys of a commit are loaded."""
        state = self._states.get(group)
        return state is not None and state.large

    def knows_absent(self, key: OffsetKey) -> bool:
        """True if a key that is not stored is known to be absent in the Meta Service too."""
        state: GroupState | None = self._states.get(key[:2])  # type: ignore[call-overload]  # as in `get`
        if state is None:
            return self._rests(key[:2])
        return state.loaded or (state.absent is not None and key[2] in state.absent)

    def epoch_of_absent(self, key: OffsetKey) -> int:
        """The epoch of the first commit of a key that is not stored."""
        return FIRST_EPOCH if self.knows_absent(key) else 0

    def note_loaded(self, groups: Iterable[GroupKey]) -> None:
        """Note that all records of these groups in the Meta Service are stored here."""
        for group in groups:
            state = self._states.get(group)
            if state is None:
                self._resting.add(group)
                continue
            state.loaded, state.large = True, False
            if group not in self._used:
                self._let_rest(group, state)

    def note_large(self, groups: Iterable[GroupKey]) -> None:
        """Note that these groups do not fit into a page."""
        for group in groups:
            self._state(group).large = True

    def note_absent(self, keys: Iterable[OffsetKey]) -> None:
        """Note keys that are not stored, and that the Meta Service does not have."""
        for key in keys:
            state = self._in_use(key.group_key)
            if state.absent is None:
                state.absent = set()
            self._keys -= len(state.absent)
            state.absent.add(key[2])
            self._keys += len(state.absent)
        self._make_room()

    def note_removal(self, groups: Iterable[GroupKey]) -> None:
        """Note that keys of these groups are removed: the Meta Service may hold them. Earlier fetches must not be adopted."""
        if self._removed > MAX_REMOVED:
            self._removed, self._removed_before = 0, self.removals
            for group, state in [entry for entry in self._states.items() if entry[0] not in self._used]:
                self._let_rest(group, state)
        self.removals += 1
        for group in groups:
            state = self._state(group)
            state.loaded, state.removed_at = False, self.removals
            self._removed += 1
            if state.absent:
                self._keys -= len(state.absent)
                state.absent = None
                if not state.records:
                    del self._used[group]

    def removed_since(self, groups: Iterable[GroupKey], removals: int) -> bool:
        """True if there may have been a removal in one of these groups since `removals` had this value."""
        return removals < self.removals and any(self._removed_at(group) > removals for group in groups)

    def note_rewind(self, keys: Collection[OffsetKey]) -> None:
        """Note that these keys stand in a higher epoch, or that this was saved: what was fetched without one is of before."""
        if len(self._rewound) >= MAX_REMOVED:
            self._rewound.clear()
            self._rewound_before = self.removals
        self.removals += 1
        self._rewound.update(dict.fromkeys(keys, self.removals))

    def rewound_since(self, keys: Collection[OffsetKey], removals: int) -> AbstractSet[OffsetKey] | None:
        """Those of the keys that were rewound since `removals` had this value; None: it is not known any more."""
        if not keys or removals >= self.removals:
            return frozenset()
        if removals < self._rewound_before:
            return None
        return {key for key in keys if self._rewound.get(key, 0) > removals}

    def _removed_at(self, group: GroupKey) -> int:
        state = self._states.get(group)
        return state.removed_at if state else self._removed_before

    def _rests(self, group: tuple[str, str]) -> bool:
        return self._resting.count > 0 and group in self._resting

    def _state(self, group: GroupKey) -> GroupState:
        """The state of a group, which may be new."""
        state = self._states.get(group)
        if state is None:
            if len(self._states) >= MAX_GROUPS:
                self._forget_half()
            state = self._states[group] = GroupState(self._removed_before)
            state.loaded = self._resting.count > 0 and self._resting.remove(group)
        return state

    def _in_use(self, group: GroupKey) -> GroupState:
        """The same, of a group that gets a key."""
        state = self._used.get(group)
        if state is None:
            state = self._used[group] = self._state(group)
        else:
            self._used.move_to_end(group)
        return state

    def _make_room(self) -> None:
        """Let the keys leave of the groups that were used longest ago."""
        while self._keys > self._max_keys:
            self._leave(*self._used.popitem(last=False))

    def _leave(self, group: GroupKey, state: GroupState) -> None:
        """Forget the keys of a group that is not among those in use any more."""
        self._keys -= state.keys
        # Not cleared: a caller may have these records.
        gone, state.records, state.absent = state.records, {}, None
        self._let_rest(group, state)
        if self.evicted and gone:
            self.evicted(gone.values())

    def _put_mark(self, mark: GroupKey) -> None:
        self._used[mark] = GroupState(0)
        self._used.move_to_end(mark)

    def _let_rest(self, group: GroupKey, state: GroupState) -> None:
        """Of a group without keys, keep only that it is loaded, unless there is more to know of it."""
        if state.large or state.removed_at > self._removed_before:
            return
        self._states.pop(group, None)
        if state.loaded:
            self._resting.add(group)

    def _forget_half(self) -> None:
        """Forget half of the states without keys, the oldest ones."""
        without = [group for group in self._states if group not in self._used]
        for group in islice(without, (len(without) + 1) // 2):
            self._removed_before = max(self._removed_before, self._states.pop(group).removed_at)
