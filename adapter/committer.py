"""The only writer of the cache: decide, write, mark dirty, sync, answer, in this order.

Takes what all callers submitted meanwhile as one WriteBatch, in which the newest value of a key wins.
Never talks to the Meta Service.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from adapter.cache import OffsetCache
from adapter.codec import group_prefix
from adapter.combine import Combiner
from adapter.dirty import DirtyKeys
from adapter.errors import AdapterError, ContendedError, FencedError, NotReadyError
from adapter.model import FIRST_EPOCH, CommitMode, GroupKey, Member, OffsetKey, OffsetRecord, as_seen, decide, meet

MAX_CALLERS = 1_024  # of one WriteBatch: bounds for how long a single write holds the event loop


class Commit(NamedTuple):
    """Values that consumers committed, each with the epoch that its consumer knows (0: none), and who committed for a group.

    They take the epoch that stands; where nothing stands, see `LoadedGroups`. Refused with FencedError when a later generation
    has committed for one of the groups.
    """

    entries: Sequence[tuple[OffsetKey, OffsetRecord]]
    mode: CommitMode
    members: Mapping[GroupKey, Member] = MappingProxyType({})


class Reconcile(NamedTuple):
    """What the Meta Service holds under some keys (None: nothing). The larger of both stands; a local value above it is dirty."""

    entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]


class Load(NamedTuple):
    """All that the Meta Service holds of some groups, fetched when `forgets` keys had been forgotten.

    Refused with ContendedError when more have been since: what was fetched may be older than what was flushed and forgotten.
    """

    groups: Collection[GroupKey]
    entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]
    forgets: int


class Forget(NamedTuple):
    """Keys to remove from the cache, and groups of which no member shall be remembered.

    Refused with ContendedError while one of the keys is dirty, unless they are `gone` from the Meta Service on purpose.
    """

    keys: Sequence[OffsetKey]
    members: Sequence[GroupKey] = ()
    gone: bool = False


Change = Commit | Reconcile | Load | Forget


class Standing(NamedTuple):
    """What stands under a key after a change. For a Forget: what was removed."""

    key: OffsetKey
    record: OffsetRecord | None


class LoadedGroups:
    """The groups of which everything that the Meta Service holds is known here.

    A key of such a group that is not local is nowhere: it begins in the first epoch. Any other one may stand in some epoch
    remotely: it begins in epoch 0 (unknown), and the flush brings the true one.
    """

    def __init__(self) -> None:
        self.groups: set[GroupKey] = set()
        self.forgets = 0

    def epoch_of_absent(self, key: OffsetKey) -> int:
        """The epoch of the first commit of a key that is not local."""
        return FIRST_EPOCH if key.group_key in self.groups else 0


class Committer:
    """Applies changes in the order in which they came."""

    def __init__(self, cache: OffsetCache, dirty: DirtyKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self.loaded = LoadedGroups()
        self._cache = cache
        self._dirty = dirty
        self._clock = clock
        self._combiner: Combiner[Change, list[Standing]] = Combiner(self._apply, max_items=MAX_CALLERS)
        self.run = self._combiner.run

    async def submit(self, change: Change) -> list[Standing]:
        """Apply a change. Returns what stands, entry by entry, once it is as durable as `wal_sync` says.

        Raises DiskFullError or StorageFailedError: nothing of it counts as committed. NotReadyError for a rewind of a key
        whose epoch is unknown, FencedError, ContendedError for a Forget of a dirty key; then nothing of this change was stored.
        """
        return await self._combiner.submit(change)

    def check_members(self, members: Mapping[GroupKey, Member]) -> None:
        """Raise FencedError when a later generation has committed for one of the groups."""
        for group, member in members.items():
            check_generation(group, member, self._cache.member(group))

    async def _apply(self, changes: Sequence[Change]) -> list[list[Standing] | AdapterError]:
        self._cache.check()  # after a failed sync, not even what changes nothing is acknowledged: what stands may not be durable
        batch = _Batch(self._cache, self._dirty, self.loaded, self._clock)
        results = [batch.add(change) for change in changes]
        if batch.write() and self._cache.wal_sync == "always":
            await self._cache.sync()
        return results


class _Batch:
    """The changes of one WriteBatch, each decided against those before it."""

    def __init__(self, cache: OffsetCache, dirty: DirtyKeys, loaded: LoadedGroups, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._dirty = dirty
        self._loaded = loaded
        self._clock = clock
        self._newly_loaded: set[GroupKey] = set()
        self._staged: dict[OffsetKey, OffsetRecord | None] = {}
        self._clean: set[OffsetKey] = set()
        self._seqs: dict[OffsetKey, int] = {}
        self._members: dict[GroupKey, Member | None] = {}

    def add(self, change: Change) -> list[Standing] | AdapterError:
        """Decide a change; an error refuses it whole."""
        try:
            match change:
                case Commit():
                    return self._commit(change)
                case Reconcile():
                    return self._reconcile(change.entries)
                case Load():
                    return self._load(change)
                case Forget():
                    return self._forget(change)
        except AdapterError as error:
            return error

    def write(self) -> bool:
        """Write and mark dirty without a pause between: a flush that begins next must see each counter that it passes (3)."""
        stored = self._cache.write(self._staged, self._seqs, self._members) if self._staged or self._members else []
        # Only now: were the write refused, a key of these groups could be absent here and stand in any epoch there.
        self._loaded.groups |= self._newly_loaded
        now = self._clock()
        for key, record, seq in stored:
            if key in self._clean:
                self._dirty.discard(key)
            else:
                self._dirty.add(key, record, seq, now)
        return bool(self._staged or self._members)

    def _standing(self, key: OffsetKey) -> OffsetRecord | None:
        if key in self._staged:
            return self._staged[key]
        record, self._seqs[key] = self._cache.find(key)
        return record

    def _stage(self, key: OffsetKey, record: OffsetRecord, *, clean: bool) -> None:
        self._staged[key] = record
        if clean:
            self._clean.add(key)
        else:
            self._clean.discard(key)

    def _commit(self, change: Commit) -> list[Standing]:
        raised = self._raised(change.members)
        decided = []
        changed = []
        for key, offered in change.entries:
            before = self._standing(key)
            after = place(key, offered, before, change.mode, self._loaded)
            decided.append(Standing(key, after))
            if after != before:
                changed.append((key, after))
        for key, after in changed:
            self._stage(key, after, clean=False)
        self._members.update(raised)
        return decided

    def _raised(self, members: Mapping[GroupKey, Member]) -> dict[GroupKey, Member]:
        """Those of a generation that was not seen before. Raises FencedError for one that has ended."""
        raised = {}
        for group, member in members.items():
            seen = self._members[group] if group in self._members else self._cache.member(group)
            check_generation(group, member, seen)
            if seen is None or member.generation > seen.generation:
                raised[group] = member
        return raised

    def _load(self, change: Load) -> list[Standing]:
        if change.forgets != self._loaded.forgets:
            raise ContendedError("keys were removed while their groups were loaded")
        self._newly_loaded.update(change.groups)
        return self._reconcile(
            [(key, None if found and self._is_before_a_rewind(key, found) else found) for key, found in change.entries]
        )

    def _reconcile(self, entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]) -> list[Standing]:
        decided = []
        for key, found in entries:
            before = self._standing(key)
            remote = as_seen(found, before) if found else None
            after = meet(remote, before) if remote else before
            decided.append(Standing(key, after))
            if after is None:
                continue
            if after != before:
                # A local value that only took the remote epoch still has to go there.
                self._stage(key, after, clean=after == remote)
            elif after == remote:
                self._dirty.discard(key)
            elif key not in self._dirty and key not in self._staged:
                self._dirty.add(key, after, self._cache.seq_of(key), self._clock())
        return decided

    def _is_before_a_rewind(self, key: OffsetKey, found: OffsetRecord) -> bool:
        """True for the larger value of a server without epochs that may be from before a rewind of ours, not flushed yet."""
        before = self._standing(key)
        rewound = before is not None and before.epoch > FIRST_EPOCH and before.offset < found.offset
        return rewound and not found.epoch and key in self._dirty

    def _has_come_back(self, group: GroupKey, keys: Collection[OffsetKey]) -> bool:
        """True when the group has keys beside these, or a member or key that came in with this batch."""
        staged = any(record and key.group_key == group and key not in keys for key, record in self._staged.items())
        stored = self._cache.scan(group_prefix(group))
        return bool(self._members.get(group)) or staged or any(found.key not in keys for found in stored)

    def _forget(self, change: Forget) -> list[Standing]:
        busy = next((key for key in change.keys if key in self._dirty or key in self._staged), None)
        if busy and not change.gone:
            raise ContendedError(f"{'/'.join(busy)}: is still being committed")
        if not change.gone and any(self._has_come_back(group, change.keys) for group in change.members):
            raise ContendedError("the group has come back")
        groups = {key.group_key for key in change.keys}
        self._loaded.groups -= groups
        self._newly_loaded -= groups
        self._loaded.forgets += 1
        removed = [Standing(key, self._cache.get(key)) for key in change.keys]
        for key, record in removed:
            self._dirty.discard(key)
            if record is not None or key in self._staged:
                self._staged[key] = None
        self._members.update(dict.fromkeys(change.members))
        return [entry for entry in removed if entry.record is not None]


def check_generation(group: GroupKey, member: Member, seen: Member | None) -> None:
    """Raise FencedError when `seen` is of a later generation."""
    if seen and member.generation < seen.generation:
        raise FencedError(
            f"{'/'.join(group)}: ILLEGAL_GENERATION: generation {member.generation} of member {member.member_id!r} has ended; "
            f"{seen.generation} is the present one: rejoin the group"
        )


def place(
    key: OffsetKey, offered: OffsetRecord, standing: OffsetRecord | None, mode: CommitMode, loaded: LoadedGroups
) -> OffsetRecord:
    """What stands after a commit. Raises NotReadyError for a rewind of a key whose epoch is unknown.

    Such a rewind could be undone by the Meta Service, where the key may stand in a higher epoch, after it was acknowledged.
    So could a commit of an epoch that this adapter has not seen yet, which is refused in the same way.
    """
    known = standing.epoch if standing else loaded.epoch_of_absent(key)
    if offered.epoch > known:
        raise NotReadyError(
            f"{'/'.join(key)}: epoch {offered.epoch} is not known here, but {known or 'none'}: read it again from the store"
        )
    if standing is None:
        return offered._replace(epoch=loaded.epoch_of_absent(key))
    after = decide(offered, standing, mode)
    if standing.epoch == 0 and after.epoch > 0:
        raise NotReadyError(
            f"{'/'.join(key)}: cannot be rewound now: its epoch is unknown while the Meta Service is out of reach"
        )
    return after
