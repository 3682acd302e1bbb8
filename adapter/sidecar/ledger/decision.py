"""What one operation of the store does: to records, dirty keys, members, and to what is known of groups. Decided, not written."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, groupby, repeat

import structlog

from adapter.errors import ContendedError
from adapter.model.codec import decode_key, decode_stored, group_prefix, head_of, prefix_end, unpack_names
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
from adapter.sidecar.journal.notes import Moved
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.operations import (
    Adopt,
    Columns,
    Commit,
    Entry,
    FirstEpochs,
    Forget,
    Load,
    Operation,
    Reconcile,
    Standing,
    TakeUp,
)
from adapter.sidecar.ledger.rules import Holds, check_generation, decide_commit, goes_back, is_raised, plainly
from adapter.sidecar.ledger.store import LocalStore

log = structlog.get_logger(__name__)


def _group_of(entry: tuple[OffsetKey, OffsetRecord | None]) -> tuple[str, ...]:
    return entry[0][:2]


class Decision:
    """The effect of one operation, which `Ledger.apply` brings about. Nothing has happened before that.

    To write: records by key in `staged` (None: removed), those that plainly go forward in `forward`, by group (or are `adopted`:
    plainly new, from the Meta Service), encoded `rows` of that kind, and `members`. To mark: what is written is dirty, unless it
    is `clean`, in `rows`, or in `forward` when `forward_is_clean`; what is `dirty_as_it_is`, and what is `flushed`. To note:
    groups that are `loaded`, keys that are `absent`, groups of which keys are `removed`, keys that stand in a `raised` epoch.
    """

    __slots__ = (
        "_dirty",
        "_holds",
        "_states",
        "_store",
        "absent",
        "adopted",
        "clean",
        "dirty_as_it_is",
        "era_began",
        "flushed",
        "forward",
        "forward_is_clean",
        "loaded",
        "members",
        "raised",
        "removed",
        "rewinds",
        "rows",
        "staged",
    )

    def __init__(self, store: LocalStore, dirty: DirtyKeys, holds: Holds) -> None:
        self._store = store
        self._states = store.states
        self._dirty = dirty
        self._holds = holds
        self.staged: dict[OffsetKey, OffsetRecord | None] = {}
        self.clean: set[OffsetKey] = set()
        self.forward: dict[GroupKey, dict[str, Held]] = {}
        self.forward_is_clean = False
        self.adopted: set[OffsetKey] = set()
        self.rows: list[tuple[bytes, bytes]] = []
        self.members: dict[GroupKey, Member | None] = {}
        self.flushed: list[OffsetKey] = []
        self.dirty_as_it_is: list[tuple[OffsetKey, Held]] = []
        self.loaded: Collection[GroupKey] = ()
        self.absent: Collection[OffsetKey] = ()
        self.removed: AbstractSet[GroupKey] = frozenset()
        self.rewinds: list[Moved] = []
        self.raised: set[OffsetKey] = set()
        self.era_began = False  # other than by a commit: its consumers need not know of it

    def decide(self, operation: Operation) -> list[Standing]:
        """Decide the whole operation, or raise."""
        if isinstance(operation, Commit):
            return self._commit(operation)
        if isinstance(operation, Reconcile):
            return self._reconcile(operation.entries)
        if isinstance(operation, Adopt):
            return self._adopt(operation)
        if isinstance(operation, FirstEpochs):
            return self._take_first_epochs(operation)
        if isinstance(operation, TakeUp):
            return self._take_up(operation)
        return self._load(operation) if isinstance(operation, Load) else self._forget(operation)

    @property
    def changed(self) -> list[OffsetKey]:
        """The keys that are written, but for those that plainly go forward."""
        return [*self.staged, *self.adopted, *(decode_key(key) for key, _ in self.rows)]

    def _standing(self, key: OffsetKey) -> OffsetRecord | None:
        return self.staged[key] if key in self.staged else self._store.get(key)

    def _stage(self, key: OffsetKey, record: OffsetRecord, *, clean: bool) -> None:
        self.staged[key] = record
        if clean:
            self.clean.add(key)
        else:
            self.clean.discard(key)

    def _note_raised(self, key: OffsetKey, before: OffsetRecord | None, after: OffsetRecord) -> None:
        if before and after.epoch > max(before.epoch, FIRST_EPOCH):
            self.raised.add(key)

    def _commit(self, operation: Commit) -> list[Standing]:
        if operation.members:
            self.members.update(self._raised(operation.members))
        entries = list(operation.entries)
        for columns in operation.columns:
            entries += columns.entries() if operation.waited else self._go_forward(columns)
        holds = None if operation.by_operator else self._holds
        decided = []
        for key, offered in entries:
            before = self._standing(key)
            after = decide_commit(key, offered, before, operation.mode, self._states, holds, waited=operation.waited)
            decided.append(Standing(key, after, raised=is_raised(before, after)))
            if after != before:
                self._stage(key, after, clean=False)
                self._note_raised(key, before, after)
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
            self.forward[columns.group] = forward
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

    def _load(self, operation: Load) -> list[Standing]:
        if self._states.removed_since(
            chain(operation.groups, {key.group_key for key, _ in operation.entries}), operation.forgets
        ):
            raise ContendedError("keys were removed while their groups were loaded")
        without = [key for key, found in operation.entries if found and not found.epoch]
        rewound = self._states.rewound_since(without, operation.forgets)
        if rewound is None:
            raise ContendedError("offsets were reset, or rewound, while their groups were loaded")
        entries = [entry for entry in operation.entries if entry[0] not in rewound] if rewound else operation.entries
        self.loaded = operation.groups
        self.absent = [key for key, found in entries if found is None and self._standing(key) is None]
        return self._reconcile(
            [(key, None if found and self._is_before_a_rewind(key, found) else found) for key, found in entries]
        )

    def _adopt(self, operation: Adopt) -> list[Standing]:
        rows, at = operation.rows, 0
        rest: list[tuple[bytes, bytes]] = []
        while at < len(rows):
            head = head_of(rows[at][0])
            end = bisect_left(rows, (prefix_end(head),), at)
            some, at = rows[at:end], end
            group = GroupKey(*unpack_names(head))
            if self._states.removed_since([group], operation.forgets):
                raise ContendedError("keys were removed while their groups were loaded")
            stored = self._store.are_stored([key for key, _ in some])
            if self._dirty.of(group) or any(stored):
                rest += some
            else:
                self.rows += some
        return self._reconcile([decode_stored(*row)[:2] for row in rest])

    def _reconcile(self, entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]) -> list[Standing]:
        decided = []
        for names, members in groupby(entries, _group_of):
            group, some = GroupKey(*names), list(members)
            held = self._store.hold_all(group, [key.shard for key, _ in some])
            for key, found in some:
                one = held[key.shard]
                if one[0] is None and found and self._is_plainly_new(key, found):
                    self.adopted.add(key)
                    self.forward_is_clean = True
                    self.forward.setdefault(group, {})[key.shard] = (found, 0, one[2])
                    decided.append(Standing(key, found))
                    continue
                stands = None if one[0] is None else OffsetRecord(*one[0])
                if key in self.adopted:  # named twice
                    self.adopted.remove(key)
                    self._stage(key, OffsetRecord(*self.forward[group].pop(key.shard)[0]), clean=True)
                before = self.staged.get(key, stands)
                remote = as_seen(found, before) if found else None
                after = meet(remote, before) if remote else before
                decided.append(Standing(key, after))
                if after is None:
                    continue
                if after != before:
                    self._note_raised(key, before, after)
                    self.era_began |= after.epoch >> ERA_BITS > (before.epoch >> ERA_BITS if before else 0)
                    if after.epoch > EPOCH_LIMIT:
                        log.warning("epoch.high", key="/".join(key), warning=epoch_warning(after.epoch))
                    # A local value that only took the remote epoch still has to go there.
                    self._stage(key, after, clean=after == remote)
                elif after == remote:
                    self.flushed.append(key)
                elif one[0] is not None and key not in self._dirty and key not in self.staged:
                    self.dirty_as_it_is.append((key, one))
        return decided

    def _is_plainly_new(self, key: OffsetKey, found: OffsetRecord) -> bool:
        """True for only an offset, in an epoch of the first era, of a key of which nothing is known here."""
        epoch, _, live, _, metadata, topic, partition = found
        plain = live and 0 < epoch < 1 << ERA_BITS and not (metadata or topic or partition)
        return plain and not (key in self.staged or key in self._dirty or key in self.adopted)

    def _take_first_epochs(self, operation: FirstEpochs) -> list[Standing]:
        self.forward_is_clean = True
        rest = []
        for group, shards, held in operation.runs:
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
                self.forward[group] = forward
        return self._reconcile(rest)

    def _take_up(self, operation: TakeUp) -> list[Standing]:
        for key in operation.keys:
            before = self._standing(key)
            if before is not None and is_held(before.epoch):
                self.era_began = True
                self._stage(key, before._replace(epoch=taken_up(before.epoch)), clean=False)
        return []

    def _is_before_a_rewind(self, key: OffsetKey, found: OffsetRecord) -> bool:
        """True for a larger value of a server without epochs that may precede a local rewind that is not flushed yet."""
        if found.epoch or key not in self._dirty:
            return False
        before = self._standing(key)
        return before is not None and before.epoch > FIRST_EPOCH and before.offset < found.offset

    def _forget(self, operation: Forget) -> list[Standing]:
        busy = next((key for key in operation.keys if key in self._dirty), None)
        if busy and not operation.gone:
            raise ContendedError(f"{'/'.join(busy)}: is still being committed")
        keys = set(operation.keys)
        if not operation.gone and any(self._has_come_back(group, keys) for group in operation.members):
            raise ContendedError("the group has come back")
        removed = [Standing(key, self._store.get(key)) for key in operation.keys]
        if operation.stood and [record for _, record, _ in removed] != list(operation.stood):
            raise ContendedError("the group was committed to meanwhile")
        self.removed = {key.group_key for key in operation.keys}
        self.flushed += operation.keys
        self.staged.update((key, None) for key, record, _ in removed if record is not None)
        self.members.update(dict.fromkeys(operation.members))
        return [entry for entry in removed if entry.record is not None]

    def _has_come_back(self, group: GroupKey, keys: AbstractSet[OffsetKey]) -> bool:
        """True if the group has keys besides these."""
        return any(found.key not in keys for found in self._store.scan(group_prefix(group)))
