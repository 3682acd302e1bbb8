"""The operations that a `Ledger` applies to the store, as values."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import MappingProxyType
from typing import NamedTuple

from adapter.model.records import CommitMode, GroupKey, Member, OffsetKey, OffsetRecord, Run

Entry = tuple[OffsetKey, OffsetRecord]


class Columns(NamedTuple):
    """Commits of a group that are only an offset, in the same places of each list; `epochs` may be empty. No shard twice."""

    group: GroupKey
    shards: Sequence[str]
    offsets: Sequence[int]
    epochs: Sequence[int]
    committed_at_ms: int

    def entry(self, shard: str, offset: int, epoch: int) -> Entry:
        """One of them as an entry."""
        return OffsetKey(*self.group, shard), OffsetRecord(epoch, offset, committed_at_ms=self.committed_at_ms)

    def entries(self) -> Iterator[Entry]:
        """All of them as entries."""
        return map(self.entry, self.shards, self.offsets, self.epochs or repeat(0))


class Commit(NamedTuple):
    """Values that consumers committed, each with the epoch that its consumer knows (0: none), and who committed for a group.

    They take the epoch that stands; where nothing stands, see `GroupStates`. No key is there twice. Refused with FencedError
    when a later generation has committed for one of the groups. `by_operator`: held records do not stop it. `waited`: what
    stands may have come in while it waited, see `decide_commit`.
    """

    entries: Sequence[Entry]
    mode: CommitMode
    members: Mapping[GroupKey, Member] = MappingProxyType({})
    columns: Sequence[Columns] = ()
    by_operator: bool = False
    waited: bool = False

    @property
    def size(self) -> int:
        """The number of offsets."""
        return len(self.entries) + sum(len(columns.shards) for columns in self.columns)

    def offered(self) -> list[Entry]:
        """All offsets as entries."""
        return [*self.entries, *chain.from_iterable(columns.entries() for columns in self.columns)]


class Reconcile(NamedTuple):
    """What the Meta Service holds under some keys (None: nothing). The larger of both stands; a local value above it is dirty."""

    entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]


class Load(NamedTuple):
    """What the Meta Service holds under some keys (None: nothing), fetched when there had been `forgets` removals.

    With what came in former Loads of the same `forgets` it is all that it holds of `groups`. Refused with ContendedError when
    keys of one of its groups were removed since: what was fetched may be older than what was flushed and removed. What came from
    a server without epochs under a key that was rewound since is left out: it may be of before, and larger. The rewind stands.
    """

    groups: Collection[GroupKey]
    entries: Sequence[tuple[OffsetKey, OffsetRecord | None]]
    forgets: int


class Adopt(NamedTuple):
    """Encoded rows of the Meta Service, in key order and each once, which are only an offset (`codec.is_plain`).

    Does what a Load of no group does with them, but without objects for those of which nothing is known here; these do not come
    into memory, and are not in the answer.
    """

    rows: Sequence[tuple[bytes, bytes]]
    forgets: int


class FirstEpochs(NamedTuple):
    """Records that were sent with an unknown epoch, and that the Meta Service now holds in the first epoch.

    Each group is there once.

    Does what a Reconcile of each record does, but faster where the record still stands here and is only an offset.
    """

    runs: Sequence[Run]


class Forget(NamedTuple):
    """Keys to remove from the store, and groups of which no member shall be remembered.

    Refused with ContendedError while one of the keys is dirty, unless they are `gone` from the Meta Service on purpose; and if
    one is not what `stood` there any more, the records of the keys as they were read (empty: whatever stands).
    """

    keys: Sequence[OffsetKey]
    members: Sequence[GroupKey] = ()
    gone: bool = False
    stood: Sequence[OffsetRecord] = ()


class TakeUp(NamedTuple):
    """Keys that a reader has read from the Meta Service: of these, what is held is taken up."""

    keys: Sequence[OffsetKey]


Operation = Commit | Reconcile | Load | Adopt | FirstEpochs | Forget | TakeUp


class Standing(NamedTuple):
    """What stands under a key then. For a Forget: the removed record. `raised`: a commit stored it in a new epoch."""

    key: OffsetKey
    record: OffsetRecord | None
    raised: bool = False
