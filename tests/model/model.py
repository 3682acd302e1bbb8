"""The model: what was acknowledged, and what must stand. The invariants compare the world with it after every step."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from adapter.model.records import ERA_BITS, FIRST_EPOCH, HOLD_MS, GroupKey, OffsetKey, OffsetRecord

Position = tuple[int, int]

NEVER = 2**63
HOUR_MS = 3_600_000  # the retention


@dataclass
class Sent:
    """A commit of a key: the epoch that its consumer knew (0: none), and when it was decided at the latest (Unix ms).

    That is when it was first seen on a disk or in the Meta Service, or answered: until then it is in flight, and may come before
    or behind any reset. One of `unknown` epoch was decided by its time, which stands for it.
    """

    key: OffsetKey
    epoch: int
    committed_at_ms: int
    at_ms: int = NEVER
    unknown: bool = False


class Acknowledged(NamedTuple):
    """What a broker answered, and when (virtual seconds)."""

    record: OffsetRecord
    at: float


class Moved(NamedTuple):
    """A reset, delete or clone that its caller was told to be done: where it began, and what it left."""

    begun_ms: int
    record: OffsetRecord


class Model:
    """An offset is a max-register: per broker and key, the largest acknowledged position is all that counts."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.here: dict[tuple[str, OffsetKey], Acknowledged] = {}
        self.there: dict[OffsetKey, Position] = {}
        self.moved: dict[OffsetKey, list[Moved]] = {}
        self.generations: dict[tuple[str, GroupKey], int] = {}
        self.forgotten: Counter[tuple[str, GroupKey]] = Counter()  # how often a delete or an expiry took a generation away
        # Who may have taken up a reset: the latest era that a commit of a key carried, and when a group was read from the store.
        self._eras: dict[OffsetKey, int] = {}
        self._reads: dict[GroupKey, int] = {}
        self.reading: Counter[GroupKey] = Counter()  # such reads that are under way

    def committed(self, broker: str, key: OffsetKey, record: OffsetRecord, at: float, *, through: bool) -> None:
        """A broker acknowledged a commit; written `through`, the Meta Service has it."""
        before = self.here.get((broker, key))
        if before is None or known(record) >= known(before.record):
            self.here[broker, key] = Acknowledged(record, at)
        if through:
            self.there[key] = max(self.there.get(key, (0, 0)), known(record))

    def was_moved(self, key: OffsetKey, moved: Moved) -> None:
        """The Meta Service has it, and nothing that was sent before may stand above it."""
        self.moved.setdefault(key, []).append(moved)
        self.there[key] = max(self.there.get(key, (0, 0)), moved.record.position)

    def decided(self, key: OffsetKey, record: OffsetRecord, now_ms: int) -> None:
        """The record is stored somewhere, or was answered."""
        sent = self.sent.get(record.metadata)
        if sent is None or sent.key != key:
            return
        if record.epoch == 0:
            sent.at_ms, sent.unknown = record.committed_at_ms, True
        else:
            sent.at_ms = min(sent.at_ms, now_ms)

    def carried(self, key: OffsetKey, epoch: int) -> None:
        """A commit is sent with this epoch."""
        self._eras[key] = max(self._eras.get(key, 0), epoch >> ERA_BITS)

    def read_from_store(self, group: GroupKey, now_ms: int) -> None:
        """A STORE read of the group has ended now, or may go on for as long as this says."""
        self._reads[group] = max(self._reads.get(group, 0), now_ms)

    def is_held(self, key: OffsetKey, record: OffsetRecord, now_ms: int) -> bool:
        """True when nobody can have taken up a reset, delete or clone that left this record."""
        return (
            self._eras.get(key, 0) < record.epoch >> ERA_BITS
            and not self.reading[key.group_key]
            and self._reads.get(key.group_key, -1) < record.committed_at_ms
            and now_ms <= record.committed_at_ms + HOLD_MS
        )

    def undone(self, key: OffsetKey, record: OffsetRecord, now_ms: int) -> str:
        """Why this record must not stand, though it is above a reset or delete; empty when it may."""
        sent = self.sent.get(record.metadata)
        if sent is None or (sent.key, sent.committed_at_ms) != (key, record.committed_at_ms):
            return ""  # it came by a reset or clone
        for moved in self.moved.get(key, ()):
            if moved.record.epoch <= record.epoch:
                if sent.at_ms < moved.begun_ms:
                    return f"{record} was committed at {sent.at_ms}, before {moved}"
                if 0 < sent.epoch < moved.record.epoch:
                    return f"{record} was committed in epoch {sent.epoch}, which {moved} ended"
                if not sent.epoch and self.is_held(key, self._first_at(key, moved.record), now_ms):
                    return f"{record} was committed without an epoch, and {moved} is held"
        return ""

    def _first_at(self, key: OffsetKey, record: OffsetRecord) -> OffsetRecord:
        """The first of the changes to this position: two that do not know of each other are one, and its hold may end first."""
        same = [moved.record for moved in self.moved.get(key, ()) if moved.record.position == record.position]
        return min(same, key=lambda one: one.committed_at_ms)


def known(record: OffsetRecord) -> Position:
    """The position; one of unknown epoch counts as of the first."""
    return max(record.epoch, FIRST_EPOCH), record.offset


def stands_in(there: OffsetRecord, record: OffsetRecord) -> bool:
    """The Meta Service holds at least this, or took it away when it was old enough for that."""
    if there.position != known(record) or there.live:
        return there.position >= known(record)
    return not record.live or record.committed_at_ms <= there.committed_at_ms - HOUR_MS
