"""What the Meta Service has not acknowledged yet. In memory, bounded by the number of distinct keys (invariants 3 and 4).

Begins and ends each flush, and tells up to which write of the store the Meta Service then has everything. Sends nothing.
By group, as commits come and saves go. A group is set aside when the part of the Meta Service that holds it does not answer; its
keys, new commits included, are not sent until it is taken up again. A key leaves by `acknowledge`, during the flush that took it,
or by `discard`, when the Meta Service is known to hold as much.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from adapter.model.records import GroupKey, Held, OffsetKey
from adapter.runtime.slices import SLICE, others
from adapter.sidecar.ledger.recovered import Recovered
from adapter.sidecar.ledger.write_batch import Plain

Tree = dict[GroupKey, dict[str, Held]]


class _Part:
    """Some dirty keys, and since when at least one may have been there (monotonic seconds)."""

    def __init__(self) -> None:
        self.groups: Tree = {}
        self.since: float | None = None

    def add(self, group: GroupKey, held: Mapping[str, Held], since: float | None) -> dict[str, Held]:
        """Returns all that there is of the group."""
        if since is not None and held and (self.since is None or since < self.since):
            self.since = since
        shards = self.groups.get(group)
        if shards is None:
            shards = self.groups[group] = dict(held)
        else:
            shards.update(held)
        return shards

    def merge(self, group: GroupKey, older: dict[str, Held] | None, newer: dict[str, Held] | None, *, first: bool) -> None:
        """Hold both, where the newer record of a shard stands. Moves the smaller one; `first`: the newer, behind the older."""
        if not older or not newer:
            self.groups[group] = older or newer or {}
        elif first or len(newer) <= len(older):
            older.update(newer)
            self.groups[group] = older
        else:
            for shard, held in older.items():
                newer.setdefault(shard, held)
            self.groups[group] = newer

    def pop(self, key: OffsetKey) -> Held | None:
        if not self.groups:
            return None
        shards = self.groups.get(key.group_key)
        found = shards.pop(key[2], None) if shards else None
        if not shards:
            self.drop(key.group_key)
        return found

    def drop(self, group: GroupKey) -> None:
        self.groups.pop(group, None)
        if not self.groups:
            self.since = None

    def __iter__(self) -> Iterator[OffsetKey]:
        return (OffsetKey(*group, shard) for group, shards in self.groups.items() for shard in shards)

    def __contains__(self, key: OffsetKey) -> bool:
        if not self.groups:
            return False
        shards = self.groups.get(key[:2])  # type: ignore[call-overload]  # a tuple finds the GroupKey that equals it
        return shards is not None and key[2] in shards

    def __len__(self) -> int:
        return sum(map(len, self.groups.values()))

    def __bool__(self) -> bool:
        return bool(self.groups)


class DirtyKeys:
    """The dirty keys: pending ones, those of the flush under way, refused ones, and those of groups that are set aside."""

    def __init__(self, recovered: Recovered) -> None:
        self._recovered = recovered
        self._pending = _Part()
        self._in_flight = _Part()
        self._refused = _Part()
        self._lowest_refused = 0  # a write counter that no refused key is below, while there are any
        # Of groups that are set aside: what was there at the last `take`. Newer than what was refused, older than what waits.
        self._set_aside = _Part()
        self._groups_aside: set[GroupKey] = set()
        self._marked = 0  # stored keys that became dirty as they are: a flush under way may have passed their write counters
        # Of the flush under way, or the last one: `_marked` when it began, the newest write then (0: it does not send all that is
        # dirty), and what is in the Meta Service once its save under way is applied (0: it has others behind it).
        self._marked_before = self._began_at = self._carried = 0
        self._uncompared: set[OffsetKey] = set()  # dirty when a recovery ended, and not acknowledged since

    def mark(self, key: OffsetKey, held: Held, now: float) -> None:
        """Mark a stored key dirty as it is."""
        self._marked += 1
        self.add(key.group_key, {key.shard: held}, now)

    def add(self, group: GroupKey, held: Mapping[str, Held], now: float) -> None:
        """Mark shards of a group dirty."""
        self._pending.add(group, held, now)

    def add_plain(self, written: Iterable[Plain], now: float) -> None:
        """Mark what plain commits wrote dirty; faster than `add`."""
        pending = self._pending
        last: tuple[str, str] | None = None
        shards: dict[str, Held] | None = None
        for group, shard, _, held in written:
            if group is not last:
                last = group
                shards = pending.groups.get(group)  # type: ignore[call-overload]  # a tuple finds the GroupKey that equals it
            if shards is None:
                shards = pending.add(GroupKey(*group), {shard: held}, now)
            else:
                shards[shard] = held

    def take(self, seq: int = 0, only: Collection[GroupKey] | None = None) -> Mapping[GroupKey, Mapping[str, Held]]:
        """Begin a flush of what is pending and not set aside, or of that of some groups; `seq` is the newest write of the store.

        What is committed from now on is for the next one (invariant 3).
        """
        self._marked_before, self._began_at = self._marked, seq if only is None else 0
        taken, self._pending = (self._pending, _Part()) if only is None else (self._pop_groups(only), self._pending)
        for group in self._groups_aside & taken.groups.keys():
            self._set_aside.add(group, taken.groups.pop(group), taken.since)
        self._in_flight = taken
        return taken.groups

    def send_last(self) -> None:
        """Note that the save that follows has all that is left of the present flush."""
        self._carried = self.covers()

    def acknowledge(self, key: OffsetKey) -> None:
        """Note that the Meta Service holds at least what the present flush took."""
        self._uncompared.discard(key)
        self._in_flight.pop(key)
        if self._refused:
            self._refused.pop(key)

    def acknowledge_all(self, group: GroupKey, shards: Collection[str]) -> None:
        """Note that the Meta Service holds at least what the present flush took of these shards."""
        taken = self._in_flight.groups.get(group, {})
        for shard in shards:
            taken.pop(shard, None)
        if not taken:
            self._in_flight.drop(group)
        if self._refused:
            for shard in shards:
                self._refused.pop(OffsetKey(*group, shard))
        if self._uncompared:
            self._uncompared.difference_update(OffsetKey(*group, shard) for shard in shards)

    def refuse(self, key: OffsetKey) -> None:
        """Note that the Meta Service refused what the present flush took: it is not sent before `retry_refused`."""
        since = self._in_flight.since
        found = self._in_flight.pop(key)
        if found:
            _, seq, _ = found
            self._lowest_refused = min(self._lowest_refused, seq) if self._refused else seq
            self._refused.add(key.group_key, {key.shard: found}, since)

    def set_aside(self, group: GroupKey) -> None:
        """Do not send the keys of a group before `take_up`: what the present flush took of it got no reply."""
        self._groups_aside.add(group)

    def take_up(self) -> None:
        """Let the next flush send again what was set aside."""
        self._groups_aside.clear()
        aside, self._set_aside = self._set_aside, _Part()
        self._put_back(aside)

    def settle(self, *, first: bool = False) -> None:
        """End the flush that `take` began. What was neither acknowledged nor refused is pending again.

        `first`: at the front, since the flush was interrupted.
        """
        self._carried = 0
        if first:
            self._began_at = 0
        unsent, self._in_flight = self._in_flight, _Part()
        for group in unsent.groups:
            for shard in unsent.groups[group] if self._refused else ():
                self._refused.pop(OffsetKey(*group, shard))
        self._put_back(unsent, first=first)

    def retry_refused(self) -> None:
        """Let the next flush send again what was refused."""
        refused, self._refused = self._refused, _Part()
        self._put_back(refused)

    def discard(self, key: OffsetKey) -> None:
        """Note that the Meta Service is known to hold at least the local value."""
        self._uncompared.discard(key)
        self._pending.pop(key)
        self._refused.pop(key)
        self._set_aside.pop(key)

    def is_refused(self, key: OffsetKey) -> bool:
        """True when the Meta Service refused the key's last flush."""
        return key in self._refused

    def is_aside(self, key: OffsetKey) -> bool:
        """True if the key is dirty and its group is set aside."""
        return bool(self._groups_aside) and key.group_key in self._groups_aside and key in self

    def of(self, group: GroupKey) -> list[AbstractSet[str]]:
        """The dirty shards of a group, in one or more collections, which the caller must not keep."""
        return [part.groups[group].keys() for part in self._parts() if group in part.groups]

    def any_of(self, group: GroupKey, shards: Sequence[str] = ()) -> str | None:
        """One dirty shard of these (none named: of all). Fast enough for tens of thousands of them."""
        return _any_of(self.of(group), shards)

    def refused_of(self, group: GroupKey, shards: Sequence[str] = ()) -> str | None:
        """One of these shards whose last flush was refused by the Meta Service."""
        held = self._refused.groups.get(group)
        return _any_of([held.keys()], shards) if held else None

    def aside_of(self, group: GroupKey, shards: Sequence[str] = ()) -> str | None:
        """One of these shards that is dirty, if the group is set aside."""
        return self.any_of(group, shards) if group in self._groups_aside else None

    def keys(self) -> set[OffsetKey]:
        """A copy of the dirty keys."""
        return {key for part in self._parts() for key in part}

    async def in_slices(self) -> AsyncIterator[list[OffsetKey]]:
        """The keys that are dirty now, in slices with other work of the event loop between them.

        Some may be clean when they are yielded. Those that became dirty meanwhile may be missing.
        """
        found: list[OffsetKey] = []
        for group in self._groups():
            # At once, since keys move between the parts while others run.
            for shards in [list(shards) for shards in self.of(group)]:
                for at in range(0, len(shards), SLICE):
                    found += [OffsetKey(*group, shard) for shard in shards[at : at + SLICE]]
                    if len(found) >= SLICE:
                        yield found
                        found = []
                        await others()
        yield found

    def __contains__(self, key: OffsetKey) -> bool:
        """True if the Meta Service has not acknowledged the newest local value."""
        return key in self._pending or key in self._in_flight or key in self._refused or key in self._set_aside

    def __bool__(self) -> bool:
        """True when any key is dirty."""
        return any(self._parts())

    def __len__(self) -> int:
        """The number of distinct dirty keys. Thread-safe."""
        # Also called from the metrics thread: `list` and `set` copy while no other thread runs.
        smaller = sorted((part.groups for part in self._parts() if part.groups), key=len)
        if not smaller:
            return 0
        largest = smaller.pop()
        count = sum(map(len, list(largest.values())))
        for group in set().union(*map(list, smaller)):
            found = largest.get(group, {})
            count += len(set(found).union(*(list(part.get(group, ())) for part in smaller))) - len(found)
        return count

    @property
    def groups(self) -> int:
        """The number of groups with a dirty key. Thread-safe."""
        return len(self._groups())

    @property
    def pending(self) -> int:
        """The number of keys that the next flush will send."""
        groups = self._pending.groups
        return len(self._pending) - sum(len(groups[group]) for group in self._groups_aside & groups.keys())

    @property
    def aside(self) -> int:
        """The number of keys that are set aside, as of the last flush."""
        return len(self._set_aside)

    @property
    def some_aside(self) -> bool:
        """True if there are any of these."""
        return bool(self._set_aside)

    @property
    def refused(self) -> int:
        """The number of keys that the Meta Service refused, and that are not pending again."""
        return len(self._refused)

    def oldest_age(self, now: float) -> float:
        """The age in seconds, at most, of the key that has been dirty the longest; 0 if none is."""
        return max((now - part.since for part in self._parts() if part.since is not None), default=0.0)

    def covers(self) -> int:
        """The newest write up to which the present flush, or the one that ended just now, leaves nothing to send.

        All up to its beginning was in it or before it, except what is refused or set aside. 0 if it does not send all, before the
        recovery has ended, and if stored keys became dirty since it began, of which it did not know.
        """
        if not self._recovered.now or self._set_aside or self._marked != self._marked_before:
            return 0  # finding the oldest would scan every such key
        # The lowest refused one stays where it is when it is acknowledged: to find the next one would take a look at all.
        return min(self._began_at, self._lowest_refused - 1) if self._refused else self._began_at

    def covered(self, flushed_seq: int, acknowledged_seq: int) -> int:
        """The newest write up to which the Meta Service has everything, or has it once the save under way is applied.

        It may be too low, but never too high; and it is none that a power cut may take back without any loss: what is not
        acknowledged may be in the Meta Service already, and the next start would find its own store to be an older copy.
        `flushed_seq` and `acknowledged_seq` are those of the store.
        """
        if self._recovered.now and not self:
            return acknowledged_seq
        carried = self._carried if self._recovered.now and self._marked == self._marked_before else 0
        return min(max(flushed_seq, carried), acknowledged_seq)

    async def note_uncompared(self) -> None:
        """Note which keys are dirty at the end of a recovery: a server without epochs may hold more of them."""
        uncompared: set[OffsetKey] = set()
        async for keys in self.in_slices():
            uncompared.update(keys)
        self._uncompared = uncompared

    def is_uncompared(self, key: OffsetKey) -> bool:
        """True for a key of which such a server may hold more."""
        return not self._recovered.now or key in self._uncompared

    def _groups(self) -> set[GroupKey]:
        return set[GroupKey]().union(*(list(part.groups) for part in self._parts() if part.groups))

    def _parts(self) -> tuple[_Part, ...]:
        return self._pending, self._in_flight, self._refused, self._set_aside

    def _pop_groups(self, groups: Collection[GroupKey]) -> _Part:
        """Take these groups out of what is pending."""
        popped, since = _Part(), self._pending.since
        for group in groups:
            if group in self._pending.groups:
                popped.add(group, self._pending.groups[group], since)
                self._pending.drop(group)
        return popped

    def _put_back(self, part: _Part, *, first: bool = False) -> None:
        """Under what came in meanwhile: the newer record stays."""
        for group in self._groups_aside & part.groups.keys():
            held = part.groups.pop(group)
            self._set_aside.add(group, {**held, **self._set_aside.groups.get(group, {})}, part.since)
        older, newer = part, self._pending
        since = min((one.since for one in (older, newer) if one and one.since is not None), default=None)
        kept, moved = (older, newer) if first or len(older.groups) > len(newer.groups) else (newer, older)
        for group in moved.groups:
            kept.merge(group, older.groups.get(group), newer.groups.get(group), first=first)
        kept.since = since
        self._pending = kept


def _any_of(found: Sequence[AbstractSet[str]], shards: Sequence[str]) -> str | None:
    if not shards:
        return next((shard for some in found for shard in some), None)
    return next((next(shard for shard in shards if shard in some) for some in found if not some.isdisjoint(shards)), None)
