"""Keys, records, and the rules by which records merge. Pure values, no I/O.

An offset is a max-register ordered by (epoch, offset): writes may be repeated and reordered, and the largest record wins.
`decide` applies a commit to the local record, `resolve` fills in an unknown epoch, `merge` picks the winner of two records. Every
store uses these functions and no other rule.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

DEFAULT_NAMESPACE = "default"
STORE_ID_BYTES = 16
U64_MAX = 2**64 - 1
LONG_MAX = 2**63 - 1  # the largest integer of Java, Arrow and Spark, and so the largest offset of RocketMQ and Kafka
MAX_ENTRIES = 20_000  # of one merge: a Meta Service takes no more
FIRST_EPOCH = 1  # the epoch of a new key; 0 means unknown
# An epoch has two halves of 32 bits. A reset or delete raises the upper half (the era), a rewind the lower half. So a reset wins
# over every rewind before it, also over those that an adapter acknowledged while it could not reach the Meta Service.
ERA_BITS = 32
# A reset, delete or clone leaves a record in the first epoch of an era: it is held until a reader or a commit has taken it up,
# which raises the epoch to the second one. No rewind ends in the first epoch.
LOWER_HALF = (1 << ERA_BITS) - 1
# How long a commit without an epoch cannot pass a held record: the longest that a Kafka consumer may take between two polls
# (max.poll.interval.ms) and still commit. Adapters have a setting for commits of keys whose epoch they know.
HOLD_MS = 300_000
EPOCH_MAX = 2**63 - 1  # the largest that the Meta Service stores
# The largest epoch accepted from outside; it leaves room for 2**30 resets. A record stored above it (from before this limit, or
# by a reset from just below it) can still be raised, one era at a time.
EPOCH_LIMIT = 2**62 - 1


class GroupKey(NamedTuple):
    """A consumer group in its namespace."""

    namespace: str
    group: str


class Member(NamedTuple):
    """A committing group member: its generation, which grows with each rebalance, and a name for error messages."""

    generation: int
    member_id: str = ""


class OffsetKey(NamedTuple):
    """Identifies one consumer group's position in one shard (a queue or a partition)."""

    namespace: str
    group: str
    shard: str

    @property
    def group_key(self) -> GroupKey:
        """The group that this key belongs to."""
        return GroupKey(self.namespace, self.group)


class OffsetRecord(NamedTuple):
    """The value under a key. The order of the fields is the order of the register: `merge` is `max`.

    `epoch` is 0 when the writer does not know it. `offset` is the next offset to read. `live` is False for a tombstone: that of a
    delete starts a new era at offset 0; that of an expiry keeps the position, so that a late commit still wins over it.
    `committed_at_ms` is Unix time; 0 is unknown. `topic` and `partition` are labels; they are compared last, only to keep `merge`
    deterministic.
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
        """(epoch, offset): the part that must never decrease."""
        return self.epoch, self.offset


class StoreReport(NamedTuple):
    """What an adapter reports about its local store to the Meta Service.

    `store_id` is random and made with the store. `flushed_seq` is the sequence number of the newest local write that the Meta
    Service has.
    """

    broker: str
    path: str
    store_id: bytes
    flushed_seq: int


class KnownStore(NamedTuple):
    """The last report of a broker's local store, and when it came (Unix ms, by the Meta Service's clock)."""

    store: StoreReport
    reported_at_ms: int


class StoreStart(NamedTuple):
    """One start of the Meta Service on its store: a random number, and the store's revision when it was opened."""

    id: int
    revision: int


class StoreMark(NamedTuple):
    """How far a store behind the Meta Service is, as sent with its replies.

    If a later reply has another `store_id`, another `incarnation` or a lower `revision`, the store lost acknowledged writes.
    `name` is the Raft group, empty for the embedded store. `starts` are the last starts, oldest first; empty where they are not
    recorded (etcd).
    """

    name: str
    store_id: bytes
    incarnation: int
    revision: int
    starts: tuple[StoreStart, ...] = ()


class ChangedGroups(NamedTuple):
    """Groups whose offsets were changed other than by commits: reset, deleted, cloned onto, imported or expired.

    `places`: how far each store is, without starts; whoever has dealt with these groups asks next for what came behind them.
    `gap`: what came before `places` is not known to the end; all groups have to be compared. `unanswered`: why a part of the
    Meta Service tells nothing now; its place stays where it was.
    """

    groups: Sequence[GroupKey]
    places: Sequence[StoreMark]
    gap: bool = False
    unanswered: str = ""


class CommitMode(Enum):
    """How a commit of a lower offset is handled. `INCREASE_ONLY` is RocketMQ's `increaseOnly = true`."""

    INCREASE_ONLY = 0
    OVERWRITE = 1


class Status(Enum):
    """The result of one saved entry. The numbers are those of the protocol."""

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
    """One entry of a save. `expected_offset` makes it a compare-and-set against the stored live offset."""

    key: OffsetKey
    record: OffsetRecord
    expected_offset: int | None = None


class SaveOutcome(NamedTuple):
    """The result for one `SaveEntry`. `standing` is the stored record after the save; None when the key is absent."""

    status: Status
    standing: OffsetRecord | None
    message: str = ""


def merge(a: OffsetRecord, b: OffsetRecord) -> OffsetRecord:
    """Return the larger of two records. Idempotent, commutative, associative."""
    return max(a, b)


def as_first(record: OffsetRecord) -> OffsetRecord:
    """Return the record as it is stored under an absent key: an unknown epoch becomes the first epoch."""
    return record if record.epoch else record._replace(epoch=FIRST_EPOCH)


def next_era(epoch: int) -> int:
    """The epoch of a reset or delete of a record of this epoch. It is higher than any rewind can reach."""
    return ((epoch >> ERA_BITS) + 1) << ERA_BITS


def is_held(epoch: int) -> bool:
    """True for the epoch of a reset, delete or clone that nobody has taken up."""
    return not epoch & LOWER_HALF and epoch > 0


def taken_up(epoch: int) -> int:
    """The epoch of a held record from when it is taken up; any other epoch is unchanged.

    Both epochs of a reset are the same to a consumer that knows one of them.
    """
    return epoch + is_held(epoch)


def epoch_text(epoch: int) -> str:
    """An epoch as people read it: era.rewind. The first epoch is 0.1, that of a first reset 1.0, and 1.1 once it is taken up."""
    return f"{epoch >> ERA_BITS}.{epoch & LOWER_HALF}"


def epoch_problem(offered: int, standing: int) -> str:
    """Why a record of epoch `offered` may not be saved over one of epoch `standing` (0: absent key); empty if it may.

    Epochs up to EPOCH_LIMIT are always allowed. Above it, only epochs up to the next era are: the rewinds of the current era, and
    one reset.
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
    """True for an epoch that no further reset can raise."""
    return next_era(epoch) > EPOCH_MAX


def epoch_warning(epoch: int) -> str:
    """A warning for a person about an epoch stored before EPOCH_LIMIT was introduced; empty for any other epoch."""
    if exhausted(epoch):
        return f"stands in epoch {epoch}: {EXHAUSTED}"
    left = (EPOCH_MAX >> ERA_BITS) - (epoch >> ERA_BITS)
    return f"stands in epoch {epoch}, over {EPOCH_LIMIT}: {left:,} resets are left" if epoch > EPOCH_LIMIT else ""


EXHAUSTED = "no reset can raise it: clone the group to a new one, and let its consumers use that"


def resolve(offered: OffsetRecord, standing: OffsetRecord | None) -> OffsetRecord:
    """Give a record of unknown epoch (0) the epoch of the stored record.

    If the stored epoch was raised, or would be, only a record committed later than the stored one, or without a commit time, gets
    it. Otherwise an older commit would undo the rewind, reset or delete that raised the epoch (invariant 7); such a record keeps
    epoch 0 and loses. A held record is passed only by one that was committed more than HOLD_MS later, or without a commit time.

    A known epoch stays, with one exception: a live record committed after an expiry, of a lower offset in the expired epoch, gets
    the next one.
    """
    if standing is None or not standing.epoch:
        return offered
    if offered.epoch:
        return offered._replace(epoch=standing.epoch + 1) if _begins_anew(offered, standing) else offered
    epoch = _epoch_over(standing, offered.offset)
    until_ms = standing.committed_at_ms + HOLD_MS * is_held(standing.epoch)
    if epoch > FIRST_EPOCH and 0 < offered.committed_at_ms <= until_ms:
        return offered
    return offered._replace(epoch=epoch)


def _begins_anew(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """True for a commit of a lower offset after an expiry, from an adapter that did not know of the expired record."""
    lower = offered.epoch == standing.epoch and offered.offset < standing.offset
    return lower and offered.live and not standing.live and offered.committed_at_ms > standing.committed_at_ms


def _epoch_over(standing: OffsetRecord, offset: int) -> int:
    """The epoch for a commit that carries none. A lower offset over a tombstone starts the next epoch.

    A held record is taken up, except by a lower offset, which is not above it.
    """
    if offset < standing.offset:
        return standing.epoch + (not standing.live)
    return taken_up(standing.epoch)


def meet(offered: OffsetRecord, standing: OffsetRecord | None) -> OffsetRecord:
    """Merge two records after resolving the epoch of each against the other.

    A held record that meets the tombstone of its own expiry is taken up, as that is: the live one then stands, as it does where
    nothing was held. So an expiry can be taken back, and nobody else has to know which holds it ended.
    """
    if standing is None:
        return offered
    offered, standing = _beside(offered, standing), _beside(standing, offered)
    return merge(resolve(offered, standing), resolve(standing, offered))


def _beside(record: OffsetRecord, other: OffsetRecord) -> OffsetRecord:
    """The record in the epoch in which it is compared with another one."""
    of_its_expiry = record.live and not other.live and other.position == (taken_up(record.epoch), record.offset)
    return record._replace(epoch=other.epoch) if of_its_expiry else record


def as_seen(remote: OffsetRecord, local: OffsetRecord | None) -> OffsetRecord:
    """A remote record in the form in which it is compared with the local one.

    Epoch 0 comes from a server that stores only offsets. Such a record counts as being in the local epoch (the first epoch if
    none is known). With the same offset as a live local record it counts as equal to it, since the server keeps nothing else.
    """
    if remote.epoch:
        return remote
    if local is None:
        return remote._replace(epoch=FIRST_EPOCH)
    known = local._replace(epoch=local.epoch or FIRST_EPOCH)
    return known if local.live and local.offset == remote.offset else resolve(remote, known)


def decide(offered: OffsetRecord, standing: OffsetRecord | None, mode: CommitMode, *, holds: bool = False) -> OffsetRecord:
    """Return the record that is stored after a commit: the offered value, or a larger record that was there before.

    The offered epoch is the one the consumer knows, 0 if none: a commit of an older epoch changes nothing. A rewind (OVERWRITE of
    a lower offset) is stored under the next epoch. A held record is taken up; with `holds` not by a commit without an epoch,
    which then changes nothing. A commit without labels keeps those that stand.
    """
    if standing is None:
        return offered
    epoch = taken_up(standing.epoch)
    if offered.epoch and taken_up(offered.epoch) < epoch:
        return standing
    if holds and not offered.epoch and epoch > standing.epoch:
        return standing
    stands = standing if epoch == standing.epoch else standing._replace(epoch=epoch)
    placed = offered._replace(epoch=_epoch_over(stands, offered.offset))
    if not (offered.topic or offered.partition):
        placed = placed._replace(topic=standing.topic, partition=standing.partition)
    if mode is CommitMode.OVERWRITE and placed.offset < stands.offset:
        return placed._replace(epoch=epoch + 1)
    # Without an epoch, what changes nothing does not take up either.
    return standing if placed < stands and not offered.epoch else merge(placed, stands)


def deleted(standing: OffsetRecord, now_ms: int, *, held: bool = False) -> OffsetRecord:
    """The tombstone of a delete. It starts the next era, so that no earlier save can win over it; `held` see `is_held`."""
    epoch = next_era(standing.epoch)
    return OffsetRecord(epoch if held else taken_up(epoch), 0, live=False, committed_at_ms=now_ms)


def is_deleted(record: OffsetRecord) -> bool:
    """True for the tombstone of a delete, False for that of an expiry."""
    return not record.live and record.offset == 0 and record.epoch > LOWER_HALF and record.epoch & LOWER_HALF <= 1


def is_old_tombstone(record: OffsetRecord, before_ms: int) -> bool:
    """True for a tombstone from before `before_ms` (Unix time)."""
    return not record.live and record.committed_at_ms < before_ms


def expired(standing: OffsetRecord, now_ms: int) -> OffsetRecord:
    """The tombstone of an expiry. It keeps the position, so that a commit acknowledged before the expiry still wins.

    Its time is not that of a reset, so it is not held: a reset that nobody took up for so long holds nothing any more.
    """
    return standing._replace(epoch=taken_up(standing.epoch), live=False, committed_at_ms=now_ms, metadata="")


class ReadMode(Enum):
    """Where a read looks. Corresponds to RocketMQ's ReadOffsetType; the numbers are those of the protocol."""

    MEMORY_FIRST_THEN_STORE = 0
    MEMORY = 1
    STORE = 2


# The fields of an `OffsetRecord`. A plain tuple is much faster to make, and one is made for each commit.
Fields = tuple[int, int, bool, int, str, str, int]

# A record, its write counter, and its encoded key.
Held = tuple[Fields, int, bytes]

# The same for a key that is not stored.
Absent = tuple[None, int, bytes]


class Run(NamedTuple):
    """Some shards of one group and, at the same indexes, their records."""

    group: GroupKey
    shards: Sequence[str]
    held: Sequence[Held]
