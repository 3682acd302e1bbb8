"""Applies every change of the store that the fast path does not take: decide, write, mark dirty, sync, answer, in this order.

A change is decided and written without an await, so that neither another change nor one of the fast path comes between. Memory
gets the records after RocksDB has them. A sync is shared by all that wait for one. Never talks to the Meta Service.
"""

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, groupby, repeat

import structlog

from adapter.errors import AdapterError, ContendedError, NotReadyError
from adapter.model.codec import group_prefix
from adapter.model.records import (
    EPOCH_LIMIT,
    ERA_BITS,
    FIRST_EPOCH,
    GroupKey,
    Held,
    Member,
    OffsetKey,
    OffsetRecord,
    as_first,
    as_seen,
    epoch_warning,
    is_held,
    meet,
    taken_up,
)
from adapter.runtime.coalescing import Coalescer
from adapter.sidecar.engine.changes import Change, Columns, Commit, Entry, FirstEpochs, Forget, Load, Reconcile, Standing, TakeUp
from adapter.sidecar.engine.commit_rules import Holds, check_generation, decide_commit, goes_back, is_raised, plainly
from adapter.sidecar.engine.watching import Watches
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.journal.notes import Moved
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.storage.store import LocalStore

log = structlog.get_logger(__name__)


class Committer:
    """Applies changes in the order in which they come: each is decided, written and marked dirty before the next is looked at."""

    def __init__(
        self,
        store: LocalStore,
        dirty: DirtyKeys,
        clock: Callable[[], float] = time.monotonic,
        journal: Journal = NO_JOURNAL,
        holds: Holds | None = None,
    ) -> None:
        self.holds = holds or Holds()
        self.watches = Watches()
        self._store = store
        self._dirty = dirty
        self._journal = journal
        self._clock = clock
        self.eras = 0  # how often an era began here, or was taken up, other than by a commit
        self.syncs_each = store.wal_sync == "always"
        self._syncs: Coalescer[None, None] = Coalescer(self._sync, max_items=sys.maxsize)
        self._ended = False

    async def run(self) -> None:
        """Serve the syncs of `always` until cancelled; nothing is applied after that."""
        try:
            await self._syncs.run()
        finally:
            self._ended = True

    async def submit(self, change: Change) -> list[Standing]:
        """Apply a change, and return what stands once it is as durable as `wal_sync` says.

        Of a commit's columns, and of FirstEpochs, only what did not plainly go forward is in the answer. Raises DiskFullError or
        StorageFailedError: nothing of it counts as committed. NotReadyError for a rewind of a key whose epoch is unknown,
        FencedError, ContendedError for a Forget that is refused; then nothing of this change was stored.
        """
        standing = self.apply(change)
        await self._synced()
        return standing

    async def sync(self) -> None:
        """Return once all that was applied is as durable as `wal_sync` says. Raises what `submit` does of any change."""
        self._check()
        await self._synced()

    def apply(self, change: Change) -> list[Standing]:
        """Apply a change without the sync: written and dirty, but with `always` it must not be acknowledged yet."""
        self._check()
        deciding = _Deciding(self._store, self._dirty, self.holds, self._clock)
        standing = deciding.decide(change)
        deciding.write()
        self.eras += deciding.era_began
        if deciding.rewinds:
            self._journal.moved("rewind", deciding.rewinds)
        if self.watches.any:
            self.watches.note([one.key for one in standing if one.raised] if isinstance(change, Commit) else deciding.staged)
        return standing

    def check_members(self, members: Mapping[GroupKey, Member]) -> None:
        """Raise FencedError if a later generation has committed for one of the groups."""
        for group, member in members.items():
            check_generation(group, member, self._store.member(group))

    def _check(self) -> None:
        if self._ended:
            raise NotReadyError("stopped before this was taken; nothing of it is stored: send it again")
        self._store.check()  # after a failed sync, not even what changes nothing is acknowledged: what stands may not be durable

    async def _synced(self) -> None:
        # Also behind what changed nothing: what stands may be a write that is not synced yet.
        if self._store.must_sync:
            await self._syncs.submit(None)

    async def _sync(self, waiting: Sequence[None]) -> list[AdapterError | None]:
        await self._store.sync()
        return list(waiting)


def _group_of(entry: tuple[OffsetKey, OffsetRecord | None]) -> tuple[str, ...]:
    return entry[0][:2]


class _Deciding:
    """The effect of one change on the store, the dirty keys and the loaded groups: decided first, then written."""

    __slots__ = (
        "_clean",
        "_clock",
        "_dirty",
        "_forward",
        "_forward_is_clean",
        "_holds",
        "_members",
        "_newly_absent",
        "_newly_loaded",
        "_staged",
        "_states",
        "_store",
        "era_began",
        "rewinds",
    )

    def __init__(self, store: LocalStore, dirty: DirtyKeys, holds: Holds, clock: Callable[[], float]) -> None:
        self._store = store
        self._states = store.states
        self._dirty = dirty
        self._holds = holds
        self._clock = clock
        self._newly_loaded: Collection[GroupKey] = ()
        self._newly_absent: Collection[OffsetKey] = ()
        self._staged: dict[OffsetKey, OffsetRecord | None] = {}
        self._forward: dict[GroupKey, dict[str, Held]] = {}
        self._clean: set[OffsetKey] = set()
        self._forward_is_clean = False  # whether `_forward` is what the Meta Service holds
        self._members: dict[GroupKey, Member | None] = {}
        self.rewinds: list[Moved] = []
        self.era_began = False  # other than by a commit: its consumers need not know of it

    def decide(self, change: Change) -> list[Standing]:
        """Decide the whole change, or raise."""
        if isinstance(change, Commit):
            return self._commit(change)
        if isinstance(change, Reconcile):
            return self._reconcile(change.entries)
        if isinstance(change, FirstEpochs):
            return self._take_first_epochs(change)
        if isinstance(change, TakeUp):
            return self._take_up(change)
        return self._load(change) if isinstance(change, Load) else self._forget(change)

    @property
    def staged(self) -> Collection[OffsetKey]:
        """The keys that it changes, except by a plain commit or the first epoch."""
        return self._staged.keys()

    def write(self) -> None:
        """Write and mark dirty, with nothing awaited between.

        A flush that begins next must see as dirty every write up to the counter from which it begins (invariant 3).
        """
        if self._staged or self._members or self._forward:
            writing = self._store.write(self._staged, self._members, self._forward)
            now = self._clock()
            for group, held in writing.forward.items():
                if not self._forward_is_clean:
                    self._dirty.add(group, held, now)
            for key, one in writing.held():
                if key in self._clean:
                    self._dirty.discard(key)
                else:
                    self._dirty.add(key.group_key, {key.shard: one}, now)
        if self._newly_loaded:
            # Only now: were the write refused, a key of these groups could be absent here and stand in any epoch there.
            self._states.note_loaded(self._newly_loaded)
        if self._newly_absent:
            self._states.note_absent(self._newly_absent)

    def _standing(self, key: OffsetKey) -> OffsetRecord | None:
        return self._staged[key] if key in self._staged else self._store.get(key)

    def _stage(self, key: OffsetKey, record: OffsetRecord, *, clean: bool) -> None:
        self._staged[key] = record
        if clean:
            self._clean.add(key)
        else:
            self._clean.discard(key)

    def _commit(self, change: Commit) -> list[Standing]:
        if change.members:
            self._members.update(self._raised(change.members))
        entries = list(change.entries)
        for columns in change.columns:
            entries += columns.entries() if change.waited else self._go_forward(columns)
        holds = None if change.by_operator else self._holds
        decided = []
        for key, offered in entries:
            before = self._standing(key)
            after = decide_commit(key, offered, before, change.mode, self._states, holds, waited=change.waited)
            decided.append(Standing(key, after, raised=is_raised(before, after)))
            if after != before:
                self._stage(key, after, clean=False)
                if before and goes_back(before, after):
                    self.rewinds.append(Moved(key, before, after))
        return decided

    def _go_forward(self, columns: Columns) -> list[Entry]:
        """Take what plainly goes forward, or begins; returns the rest, which `decide_commit` decides one by one."""
        held = self._store.hold_all(columns.group, columns.shards)
        loaded = self._states.is_loaded(columns.group)
        forward: dict[str, Held] = {}
        rest = []
        now_ms = columns.committed_at_ms
        for shard, offset, knows in zip(columns.shards, columns.offsets, columns.epochs or repeat(0), strict=False):
            fields, seq, encoded = held[shard]
            if fields is not None:
                after = plainly(fields, offset, knows, now_ms)
                if after is not None and after is not fields:
                    forward[shard] = (after, seq, encoded)
                    continue
            elif loaded and knows <= FIRST_EPOCH:
                forward[shard] = ((FIRST_EPOCH, offset, True, now_ms, "", "", 0), 0, encoded)
                continue
            rest.append(columns.entry(shard, offset, knows))
        if forward:
            self._forward[columns.group] = forward
        return rest

    def _raised(self, members: Mapping[GroupKey, Member]) -> dict[GroupKey, Member]:
        """The members of a generation that is new. Raises FencedError for one that has ended."""
        raised = {}
        for group, member in members.items():
            seen = self._store.member(group)
            check_generation(group, member, seen)
            if seen is None or member.generation > seen.generation:
                raised[group] = member
        return raised

    def _load(self, change: Load) -> list[Standing]:
        if self._states.removed_since(chain(change.groups, {key.group_key for key, _ in change.entries}), change.forgets):
            raise ContendedError("keys were removed while their groups were loaded")
        self._newly_loaded = change.groups
        self._newly_absent = [key for key, found in change.entries if found is None and self._standing(key) is None]
        return self._reconcile(
            [(key, None if found and self._is_before_a_rewind(key, found) else found) for key, found in change.entries]
        )

    def _reconcile(self, entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]) -> list[Standing]:
        decided = []
        for names, members in groupby(entries, _group_of):
            group, some = GroupKey(*names), list(members)
            held = self._store.hold_all(group, [key.shard for key, _ in some])
            for key, found in some:
                one = held[key.shard]
                stands = None if one[0] is None else OffsetRecord(*one[0])
                before = self._staged.get(key, stands)
                remote = as_seen(found, before) if found else None
                after = meet(remote, before) if remote else before
                decided.append(Standing(key, after))
                if after is None:
                    continue
                if after != before:
                    self.era_began |= after.epoch >> ERA_BITS > (before.epoch >> ERA_BITS if before else 0)
                    if after.epoch > EPOCH_LIMIT:
                        log.warning("epoch.high", key="/".join(key), warning=epoch_warning(after.epoch))
                    # A local value that only took the remote epoch still has to go there.
                    self._stage(key, after, clean=after == remote)
                elif after == remote:
                    self._dirty.discard(key)
                elif one[0] is not None and key not in self._dirty and key not in self._staged:
                    self._dirty.mark(key, one, self._clock())
        return decided

    def _take_first_epochs(self, change: FirstEpochs) -> list[Standing]:
        self._forward_is_clean = True
        rest = []
        for group, shards, held in change.runs:
            now = self._store.hold_all(group, shards)
            forward: dict[str, Held] = {}
            for shard, (fields, seq, encoded) in zip(shards, held, strict=True):
                epoch, offset, live, at_ms, metadata, topic, partition = fields
                plain = live and not (epoch or metadata or topic or partition)
                if plain and now[shard][1] == seq:
                    forward[shard] = ((FIRST_EPOCH, offset, True, at_ms, "", "", 0), seq, encoded)
                else:
                    rest.append((OffsetKey(*group, shard), as_first(OffsetRecord(*fields))))
            if forward:
                self._forward[group] = forward
        return self._reconcile(rest)

    def _take_up(self, change: TakeUp) -> list[Standing]:
        for key in change.keys:
            before = self._standing(key)
            if before is not None and is_held(before.epoch):
                self.era_began = True
                self._stage(key, before._replace(epoch=taken_up(before.epoch)), clean=False)
        return []

    def _is_before_a_rewind(self, key: OffsetKey, found: OffsetRecord) -> bool:
        """True for a larger value of a server without epochs that may precede a local rewind that is not flushed yet."""
        before = self._standing(key)
        rewound = before is not None and before.epoch > FIRST_EPOCH and before.offset < found.offset
        return rewound and not found.epoch and key in self._dirty

    def _forget(self, change: Forget) -> list[Standing]:
        busy = next((key for key in change.keys if key in self._dirty), None)
        if busy and not change.gone:
            raise ContendedError(f"{'/'.join(busy)}: is still being committed")
        keys = set(change.keys)
        if not change.gone and any(self._has_come_back(group, keys) for group in change.members):
            raise ContendedError("the group has come back")
        removed = [Standing(key, self._store.get(key)) for key in change.keys]
        if change.stood and [record for _, record, _ in removed] != list(change.stood):
            raise ContendedError("the group was committed to meanwhile")
        self._states.note_removal({key.group_key for key in change.keys})
        for key, record, _ in removed:
            self._dirty.discard(key)
            if record is not None:
                self._staged[key] = None
        self._members.update(dict.fromkeys(change.members))
        return [entry for entry in removed if entry.record is not None]

    def _has_come_back(self, group: GroupKey, keys: AbstractSet[OffsetKey]) -> bool:
        """True if the group has keys besides these."""
        return any(found.key not in keys for found in self._store.scan(group_prefix(group)))
