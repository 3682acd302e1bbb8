"""The only writer of the cache: decide, write, mark dirty, sync, answer, in this order.

A change is decided and written in one go, with nothing awaited; a sync is shared by all who wait for one. Never talks to the Meta
Service.
"""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import MappingProxyType
from typing import NamedTuple

import structlog

from adapter.cache import OffsetCache
from adapter.codec import group_prefix
from adapter.combine import Combiner
from adapter.dirty import DirtyKeys
from adapter.errors import AdapterError, ContendedError, NotReadyError
from adapter.hot import Held
from adapter.journal import NO_JOURNAL, Journal, Moved
from adapter.model import (
    EPOCH_LIMIT,
    FIRST_EPOCH,
    CommitMode,
    GroupKey,
    Member,
    OffsetKey,
    OffsetRecord,
    as_seen,
    epoch_warning,
    meet,
)
from adapter.placing import LoadedGroups, check_generation, goes_back, place

log = structlog.get_logger(__name__)

Entry = tuple[OffsetKey, OffsetRecord]


class Columns(NamedTuple):
    """Commits of a group that are only an offset, in the same places of each list; `epochs` may be empty. No shard twice."""

    group: GroupKey
    shards: Sequence[str]
    offsets: Sequence[int]
    epochs: Sequence[int]
    committed_at_ms: int

    def entry(self, shard: str, offset: int, epoch: int) -> Entry:
        """One of them, as it would be by itself."""
        return OffsetKey(*self.group, shard), OffsetRecord(epoch, offset, committed_at_ms=self.committed_at_ms)

    def entries(self) -> Iterator[Entry]:
        """All of them."""
        return map(self.entry, self.shards, self.offsets, self.epochs or repeat(0))


class Commit(NamedTuple):
    """Values that consumers committed, each with the epoch that its consumer knows (0: none), and who committed for a group.

    They take the epoch that stands; where nothing stands, see `LoadedGroups`. No key is there twice. Refused with FencedError
    when a later generation has committed for one of the groups.
    """

    entries: Sequence[Entry]
    mode: CommitMode
    members: Mapping[GroupKey, Member] = MappingProxyType({})
    columns: Sequence[Columns] = ()

    @property
    def size(self) -> int:
        """How many offsets there are."""
        return len(self.entries) + sum(len(columns.shards) for columns in self.columns)

    def offered(self) -> list[Entry]:
        """All of them, one by one."""
        return [*self.entries, *chain.from_iterable(columns.entries() for columns in self.columns)]


class Reconcile(NamedTuple):
    """What the Meta Service holds under some keys (None: nothing). The larger of both stands; a local value above it is dirty."""

    entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]


class Load(NamedTuple):
    """What the Meta Service holds under some keys (None: nothing), fetched when there had been `forgets` removals.

    With what came in former Loads of the same `forgets` it is all that it holds of `groups`. Refused with ContendedError when
    keys of one of its groups were removed since: what was fetched may be older than what was flushed and removed.
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


class Committer:
    """Applies changes in the order in which they come: each is decided, written and marked dirty before the next is looked at."""

    def __init__(
        self,
        cache: OffsetCache,
        dirty: DirtyKeys,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal = NO_JOURNAL,
    ) -> None:
        self.loaded = LoadedGroups()
        self._cache = cache
        self._dirty = dirty
        self._journal = journal
        self._clock = clock
        self.syncs_each = cache.wal_sync == "always"
        self._syncs: Combiner[None, None] = Combiner(self._sync, max_items=sys.maxsize)
        self._ended = False

    async def run(self) -> None:
        """Serve the syncs of `always` until cancelled; nothing is applied after that."""
        try:
            await self._syncs.run()
        finally:
            self._ended = True

    async def submit(self, change: Change) -> list[Standing]:
        """Apply a change. Returns what stands once it is as durable as `wal_sync` says.

        Of a commit's columns only what did not plainly go forward is in the answer. Raises DiskFullError or StorageFailedError:
        nothing of it counts as committed. NotReadyError for a rewind of a key whose epoch is unknown, FencedError, ContendedError
        for a Forget of a dirty key; then nothing of this change was stored.
        """
        standing = self.apply(change)
        # Also when it changed nothing: what stands may be a write that is not synced yet.
        if self._cache.must_sync:
            await self._syncs.submit(None)
        return standing

    def apply(self, change: Change) -> list[Standing]:
        """The same without the sync: written and dirty, but with `always` not to be acknowledged yet."""
        if self._ended:
            raise NotReadyError("stopped before this was taken; nothing of it is stored: send it again")
        self._cache.check()  # after a failed sync, not even what changes nothing is acknowledged: what stands may not be durable
        deciding = _Deciding(self._cache, self._dirty, self.loaded, self._clock)
        standing = deciding.decide(change)
        deciding.write()
        if deciding.rewinds:
            self._journal.moved("rewind", deciding.rewinds)
        return standing

    def check_members(self, members: Mapping[GroupKey, Member]) -> None:
        """Raise FencedError when a later generation has committed for one of the groups."""
        for group, member in members.items():
            check_generation(group, member, self._cache.member(group))

    async def _sync(self, waiting: Sequence[None]) -> list[AdapterError | None]:
        await self._cache.sync()
        return list(waiting)


class _Deciding:
    """What one change does, and its write."""

    __slots__ = (
        "_cache",
        "_clean",
        "_clock",
        "_dirty",
        "_forward",
        "_loaded",
        "_members",
        "_newly_absent",
        "_newly_loaded",
        "_staged",
        "rewinds",
    )

    def __init__(self, cache: OffsetCache, dirty: DirtyKeys, loaded: LoadedGroups, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._dirty = dirty
        self._loaded = loaded
        self._clock = clock
        self._newly_loaded: Collection[GroupKey] = ()
        self._newly_absent: Collection[OffsetKey] = ()
        self._staged: dict[OffsetKey, OffsetRecord | None] = {}
        self._forward: dict[GroupKey, dict[str, Held]] = {}
        self._clean: set[OffsetKey] = set()
        self._members: dict[GroupKey, Member | None] = {}
        self.rewinds: list[Moved] = []

    def decide(self, change: Change) -> list[Standing]:
        """Decide the whole of it, or raise."""
        if isinstance(change, Commit):
            return self._commit(change)
        if isinstance(change, Reconcile):
            return self._reconcile(change.entries)
        return self._load(change) if isinstance(change, Load) else self._forget(change)

    def write(self) -> None:
        """Write and mark dirty without a pause between: a flush that begins next must see each counter that it passes (3)."""
        if self._staged or self._members or self._forward:
            writing = self._cache.write(self._staged, self._members, self._forward)
            now = self._clock()
            for group, held in writing.forward.items():
                self._dirty.add(group, held, now)
            for key, one in writing.held():
                if key in self._clean:
                    self._dirty.discard(key)
                else:
                    self._dirty.add(key.group_key, {key.shard: one}, now)
        if self._newly_loaded:
            # Only now: were the write refused, a key of these groups could be absent here and stand in any epoch there.
            self._loaded.groups.update(self._newly_loaded)
        if self._newly_absent:
            self._loaded.note_absent(self._newly_absent)

    def _standing(self, key: OffsetKey) -> OffsetRecord | None:
        return self._staged[key] if key in self._staged else self._cache.get(key)

    def _stage(self, key: OffsetKey, record: OffsetRecord, *, clean: bool) -> None:
        self._staged[key] = record
        self._loaded.absent.discard(key)
        if clean:
            self._clean.add(key)
        else:
            self._clean.discard(key)

    def _commit(self, change: Commit) -> list[Standing]:
        if change.members:
            self._members.update(self._raised(change.members))
        entries = list(change.entries)
        for columns in change.columns:
            entries += self._go_forward(columns)
        decided = []
        for key, offered in entries:
            before = self._standing(key)
            after = place(key, offered, before, change.mode, self._loaded)
            decided.append(Standing(key, after))
            if after != before:
                self._stage(key, after, clean=False)
                if before and goes_back(before, after):
                    self.rewinds.append(Moved(key, before, after))
        return decided

    def _go_forward(self, columns: Columns) -> list[Entry]:
        """Take what simply goes forward, or begins; returns the rest, which `place` decides one by one.

        What `place` says of such a commit, in either mode, in a fraction of the time.
        """
        held = self._cache.hold_all(columns.group, columns.shards)
        loaded = columns.group in self._loaded.groups
        forward: dict[str, Held] = {}
        rest = []
        now_ms = columns.committed_at_ms
        for shard, offset, knows in zip(columns.shards, columns.offsets, columns.epochs or repeat(0), strict=False):
            fields, seq, encoded = held[shard]
            if fields is not None:
                epoch, stands, _, when, _, _, _ = fields
                newer = offset > stands or (offset == stands and now_ms > when)
                if newer and (not knows or knows == epoch):
                    forward[shard] = ((epoch, offset, True, now_ms, "", "", 0), seq, encoded)
                    continue
            elif loaded and knows <= FIRST_EPOCH:
                forward[shard] = ((FIRST_EPOCH, offset, True, now_ms, "", "", 0), 0, encoded)
                continue
            rest.append(columns.entry(shard, offset, knows))
        if forward:
            self._forward[columns.group] = forward
        return rest

    def _raised(self, members: Mapping[GroupKey, Member]) -> dict[GroupKey, Member]:
        """Those of a generation that was not seen before. Raises FencedError for one that has ended."""
        raised = {}
        for group, member in members.items():
            seen = self._cache.member(group)
            check_generation(group, member, seen)
            if seen is None or member.generation > seen.generation:
                raised[group] = member
        return raised

    def _load(self, change: Load) -> list[Standing]:
        if self._loaded.forgotten_since(chain(change.groups, {key.group_key for key, _ in change.entries}), change.forgets):
            raise ContendedError("keys were removed while their groups were loaded")
        self._newly_loaded = change.groups
        self._newly_absent = [key for key, found in change.entries if found is None and self._standing(key) is None]
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
                if after.epoch > EPOCH_LIMIT:
                    log.warning("epoch.high", key="/".join(key), warning=epoch_warning(after.epoch))
                # A local value that only took the remote epoch still has to go there.
                self._stage(key, after, clean=after == remote)
            elif after == remote:
                self._dirty.discard(key)
            elif key not in self._dirty and key not in self._staged and (held := self._cache.hold(key)):
                self._dirty.add(key.group_key, {key.shard: held}, self._clock())
        return decided

    def _is_before_a_rewind(self, key: OffsetKey, found: OffsetRecord) -> bool:
        """True for the larger value of a server without epochs that may be from before a rewind of ours, not flushed yet."""
        before = self._standing(key)
        rewound = before is not None and before.epoch > FIRST_EPOCH and before.offset < found.offset
        return rewound and not found.epoch and key in self._dirty

    def _forget(self, change: Forget) -> list[Standing]:
        busy = next((key for key in change.keys if key in self._dirty), None)
        if busy and not change.gone:
            raise ContendedError(f"{'/'.join(busy)}: is still being committed")
        if not change.gone and any(self._has_come_back(group, change.keys) for group in change.members):
            raise ContendedError("the group has come back")
        self._loaded.forget({key.group_key for key in change.keys})
        removed = [Standing(key, self._cache.get(key)) for key in change.keys]
        for key, record in removed:
            self._dirty.discard(key)
            if record is not None:
                self._staged[key] = None
        self._members.update(dict.fromkeys(change.members))
        return [entry for entry in removed if entry.record is not None]

    def _has_come_back(self, group: GroupKey, keys: Collection[OffsetKey]) -> bool:
        """True when the group has keys beside these."""
        return any(found.key not in keys for found in self._cache.scan(group_prefix(group)))
