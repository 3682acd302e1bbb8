"""Keys, records and the merge: pure values, no I/O.

An offset is a max-register ordered by (epoch, offset). Whatever is written anywhere is decided by `merge`, `resolve` or `decide`.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

DEFAULT_NAMESPACE = "default"
STORE_ID_BYTES = 16
U64_MAX = 2**64 - 1
FIRST_EPOCH = 1  # of a key that was never there; 0 means unknown
# A reset or delete begins the next era: the upper half of the epoch. A rewind raises only the lower half. So a reset is above
# every rewind of its time, also above those that an adapter acknowledged while it could not reach the Meta Service.
ERA_BITS = 32
EPOCH_MAX = 2**63 - 1  # the largest that the Meta Service keeps
# What comes from outside is at most this: 2**30 eras of room stay for resets. What stands above it, from before there was this
# bound or by a step from it, still goes on step by step.
EPOCH_LIMIT = 2**62 - 1


class GroupKey(NamedTuple):
    """A consumer group in its namespace."""

    namespace: str
    group: str


class Member(NamedTuple):
    """Who commits for a group: its generation, which grows with each rebalance, and a name to show."""

    generation: int
    member_id: str = ""


class OffsetKey(NamedTuple):
    """One consumer group's position in one shard (a queue, a partition)."""

    namespace: str
    group: str
    shard: str

    @property
    def group_key(self) -> GroupKey:
        """The group that this key belongs to."""
        return GroupKey(self.namespace, self.group)


class OffsetRecord(NamedTuple):
    """What stands under a key. The order of the fields is the order of the register: `merge` is `max`.

    `offset` is the next offset to read. `live` is False for a tombstone: of a delete (a new era, offset 0), or of an expiry
    (the position that expired; a late commit of it passes). `committed_at_ms` is Unix time.
    `topic` and `partition` are labels for the Meta Service; they are compared last, only to keep `merge` deterministic.
    """

    epoch: int
    offset: int
    live: bool = True
    committed_at_ms: int = 0
    metadata: str = ""
    topic: str = ""
    partition: int = 0

    @property
    def position(self) -> tuple[int, int]:
        """(epoch, offset): what may never go backwards."""
        return self.epoch, self.offset


class StoreReport(NamedTuple):
    """An adapter's local store, as the Meta Service knows it: where it is, which one, and its newest write that got there."""

    broker: str
    path: str
    store_id: bytes
    flushed_seq: int


class KnownStore(NamedTuple):
    """What the Meta Service remembers of a broker's local store, and when it was told (Unix ms, by the Meta Service's clock)."""

    store: StoreReport
    reported_at_ms: int


class StoreStart(NamedTuple):
    """A start of the Meta Service's process on its store: a random number, and the revision at which the store was opened."""

    id: int
    revision: int


class StoreMark(NamedTuple):
    """How far a store behind the Meta Service is.

    Another `store_id`, another `incarnation` or a lower `revision` than before: it holds less than was acknowledged. `name` is
    the Raft group, empty for the embedded store. `starts`: the last ones, oldest first; none if they are not known (etcd).
    """

    name: str
    store_id: bytes
    incarnation: int
    revision: int
    starts: tuple[StoreStart, ...] = ()


class CommitMode(Enum):
    """What a commit of a lower offset means. `INCREASE_ONLY` is RocketMQ's `increaseOnly = true`."""

    INCREASE_ONLY = 0
    OVERWRITE = 1


class Status(Enum):
    """What became of one saved entry; the values are the wire's."""

    APPLIED = 1
    SUPERSEDED = 2
    CONFLICT = 3
    INVALID = 4
    UNAVAILABLE = 5

    @property
    def acknowledged(self) -> bool:
        """True when the store now holds at least the saved value (invariant 3)."""
        return self in {Status.APPLIED, Status.SUPERSEDED}


class SaveEntry(NamedTuple):
    """One entry of a save. `expected_offset` makes it a compare-and-set on the offset that stands."""

    key: OffsetKey
    record: OffsetRecord
    expected_offset: int | None = None


class SaveOutcome(NamedTuple):
    """The answer to one `SaveEntry`. `standing` is None when the key is absent."""

    status: Status
    standing: OffsetRecord | None
    message: str = ""


def merge(a: OffsetRecord, b: OffsetRecord) -> OffsetRecord:
    """The larger of two records: idempotent, commutative, associative."""
    return max(a, b)


def as_first(record: OffsetRecord) -> OffsetRecord:
    """How a record stands where nothing stood: one of unknown epoch is in the first."""
    return record if record.epoch else record._replace(epoch=FIRST_EPOCH)


def next_era(epoch: int) -> int:
    """The epoch of a reset or delete of what stands in `epoch`: above every rewind of it."""
    return ((epoch >> ERA_BITS) + 1) << ERA_BITS


def epoch_problem(offered: int, standing: int) -> str:
    """Why a record of the epoch `offered` may not meet what stands in `standing` (0: nothing); empty when it may.

    Up to EPOCH_LIMIT every epoch may. Above it only what is not beyond the next era: the rewinds of an era, and a reset.
    """
    if offered <= max(EPOCH_LIMIT, standing):
        return ""
    if offered > EPOCH_MAX:
        return f"epoch {offered} is over {EPOCH_MAX}, the largest; {EXHAUSTED}"
    if standing and offered >> ERA_BITS <= (standing >> ERA_BITS) + 1:
        return ""
    over = f"epoch {offered} is over {EPOCH_LIMIT}"
    if not standing:
        return f"{over}, the largest for a key that is not there"
    return f"{over}, and more than one reset above what stands, epoch {standing}"


def exhausted(epoch: int) -> bool:
    """True for an epoch that no reset can raise any more."""
    return next_era(epoch) > EPOCH_MAX


def epoch_warning(epoch: int) -> str:
    """What a person should know of an epoch that came in before there was EPOCH_LIMIT; empty for any other."""
    if exhausted(epoch):
        return f"stands in epoch {epoch}: {EXHAUSTED}"
    left = (EPOCH_MAX >> ERA_BITS) - (epoch >> ERA_BITS)
    return f"stands in epoch {epoch}, over {EPOCH_LIMIT}: {left:,} resets are left" if epoch > EPOCH_LIMIT else ""


EXHAUSTED = "no reset can raise it: clone the group to a new one, and let its consumers use that"


def resolve(offered: OffsetRecord, standing: OffsetRecord | None) -> OffsetRecord:
    """Give a record of unknown epoch (0) the epoch of the record that it meets.

    Where that epoch was raised, or would be, only to a record that was committed later (or does not say when): otherwise what
    raised it, a rewind, reset or delete, would be undone by a commit from before (invariant 7). Such a record keeps 0, and loses.
    """
    if standing is None or not standing.epoch:
        return offered
    if offered.epoch:
        return offered._replace(epoch=standing.epoch + 1) if _begins_anew(offered, standing) else offered
    epoch = _epoch_over(standing, offered.offset)
    if epoch > FIRST_EPOCH and 0 < offered.committed_at_ms <= standing.committed_at_ms:
        return offered
    return offered._replace(epoch=epoch)


def _begins_anew(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """True for a commit after an expiry, of a lower offset, from an adapter that knew neither the expiry nor what had expired."""
    lower = offered.epoch == standing.epoch and offered.offset < standing.offset
    return lower and offered.live and not standing.live and offered.committed_at_ms > standing.committed_at_ms


def _epoch_over(standing: OffsetRecord, offset: int) -> int:
    """The epoch of a commit that knows none. Over a tombstone every offset may follow, also a lower one."""
    return standing.epoch + (not standing.live and offset < standing.offset)


def meet(offered: OffsetRecord, standing: OffsetRecord | None) -> OffsetRecord:
    """What stands after both met: epochs resolved in either direction, then merged."""
    if standing is None:
        return offered
    return merge(resolve(offered, standing), resolve(standing, offered))


def as_seen(remote: OffsetRecord, local: OffsetRecord | None) -> OffsetRecord:
    """A remote record as this side compares it. One of epoch 0 comes from a server that knows no epochs, only offsets.

    It counts as being in the local epoch, which is the first one where none is known, and at the same offset as the same record:
    such a server keeps nothing but the offset.
    """
    if remote.epoch:
        return remote
    if local is None:
        return remote._replace(epoch=FIRST_EPOCH)
    known = local._replace(epoch=local.epoch or FIRST_EPOCH)
    return known if local.live and local.offset == remote.offset else resolve(remote, known)


def decide(offered: OffsetRecord, standing: OffsetRecord | None, mode: CommitMode) -> OffsetRecord:
    """What stands after a commit. Either the offered value in the epoch that stands, or a larger one that stood before.

    The offered epoch is what the consumer knows, 0 for nothing: a commit of an older epoch than the one that stands changes
    nothing. A rewind (OVERWRITE of a lower offset) is stored under the next epoch.
    """
    if standing is None:
        return offered
    if offered.epoch and offered.epoch < standing.epoch:
        return standing
    placed = offered._replace(epoch=_epoch_over(standing, offered.offset))
    if mode is CommitMode.OVERWRITE and placed.offset < standing.offset:
        return placed._replace(epoch=standing.epoch + 1)
    return merge(placed, standing)


def deleted(standing: OffsetRecord, now_ms: int) -> OffsetRecord:
    """The tombstone of a delete: the next era, so that no save from before can pass it."""
    return OffsetRecord(next_era(standing.epoch), 0, live=False, committed_at_ms=now_ms)


def is_deleted(record: OffsetRecord) -> bool:
    """True for the tombstone of a delete, not for that of an expiry."""
    return not record.live and record.offset == 0 and record.epoch > 0 and record.epoch % (1 << ERA_BITS) == 0


def expired(standing: OffsetRecord, now_ms: int) -> OffsetRecord:
    """The tombstone of an expiry: where it stood, so that a commit acknowledged before it still passes."""
    return standing._replace(live=False, committed_at_ms=now_ms, metadata="")


class ReadMode(Enum):
    """Where a read looks, as RocketMQ's ReadOffsetType; the values are the wire's."""

    MEMORY_FIRST_THEN_STORE = 0
    MEMORY = 1
    STORE = 2


# An `OffsetRecord`'s fields. A bare tuple is made in a fraction of the time: there is one for each commit.
Fields = tuple[int, int, bool, int, str, str, int]

# A record, its write counter, and its key as the store has it.
Held = tuple[Fields, int, bytes]

# The same of a key that is not stored.
Absent = tuple[None, int, bytes]


class Run(NamedTuple):
    """Some shards of a group, each with its record in the same place."""

    group: GroupKey
    shards: Sequence[str]
    held: Sequence[Held]
