"""What the Meta Service has not acknowledged yet. In memory, bounded by the number of distinct keys (invariants 3 and 4).

A key leaves only by `take` (a flush that then settles it) or `discard` (the Meta Service is known to hold as much).
"""

from collections.abc import Mapping
from typing import NamedTuple

from adapter.model import OffsetKey, OffsetRecord


class DirtyRecord(NamedTuple):
    """A record, its write counter, and when its key became dirty (monotonic seconds)."""

    record: OffsetRecord
    seq: int
    since: float


class DirtyKeys:
    """The dirty keys, those of the running flush, and those that the Meta Service refused."""

    def __init__(self) -> None:
        self._waiting: dict[OffsetKey, DirtyRecord] = {}
        self._in_flight: Mapping[OffsetKey, DirtyRecord] = {}
        self._refused: dict[OffsetKey, DirtyRecord] = {}

    def add(self, key: OffsetKey, record: OffsetRecord, seq: int, now: float) -> None:
        """Mark a key dirty. It keeps the time since which it has been so."""
        older = self._waiting.get(key)
        self._waiting[key] = DirtyRecord(record, seq, older.since if older else now)

    def take(self) -> Mapping[OffsetKey, DirtyRecord]:
        """Hand everything that waits to a flush. What is committed from now on waits for the next (invariant 3)."""
        self._in_flight, self._waiting = self._waiting, {}
        return self._in_flight

    def settle(self, refused: Mapping[OffsetKey, DirtyRecord], unsent: Mapping[OffsetKey, DirtyRecord]) -> None:
        """End the flush that `take` began. What is in neither argument was acknowledged."""
        for key in self._in_flight:
            self._refused.pop(key, None)
        self._in_flight = {}
        self._refused.update(refused)
        self._put_back(unsent)

    def retry_refused(self) -> None:
        """Let the next flush send again what was refused."""
        refused, self._refused = self._refused, {}
        self._put_back(refused)

    def discard(self, key: OffsetKey) -> None:
        """The Meta Service is known to hold at least the local value."""
        self._waiting.pop(key, None)
        self._refused.pop(key, None)

    def is_refused(self, key: OffsetKey) -> bool:
        """True when the Meta Service refused the key's last flush."""
        return key in self._refused

    def keys(self) -> set[OffsetKey]:
        """The dirty keys, of which a caller may keep this copy."""
        return self._waiting.keys() | self._in_flight.keys() | self._refused.keys()

    def __contains__(self, key: OffsetKey) -> bool:
        """True when the Meta Service has not acknowledged the newest local value."""
        return key in self._waiting or key in self._in_flight or key in self._refused

    def __len__(self) -> int:
        """Distinct dirty keys."""
        if not self._in_flight and not self._refused:
            return len(self._waiting)
        return len(self._waiting.keys() | self._in_flight.keys() | self._refused.keys())

    @property
    def waiting(self) -> int:
        """Keys that the next flush will send."""
        return len(self._waiting)

    @property
    def refused(self) -> int:
        """Keys that the Meta Service refused and that wait for another try."""
        return len(self._refused)

    def oldest_age(self, now: float) -> float:
        """For how many seconds the longest waiting key has been dirty; 0 when none is."""
        # Also called from the metrics thread: `list` copies while no other thread runs.
        ages = [now - entry.since for part in self._parts() for entry in list(part.values())]
        return max(ages, default=0.0)

    def lowest_refused_seq(self) -> int | None:
        """The write counter below which nothing is refused."""
        return min((entry.seq for entry in self._refused.values()), default=None)

    def _parts(self) -> tuple[Mapping[OffsetKey, DirtyRecord], ...]:
        return self._waiting, self._in_flight, self._refused

    def _put_back(self, entries: Mapping[OffsetKey, DirtyRecord]) -> None:
        # Under what came in meanwhile: the newer record stays, with the older time.
        for key, entry in entries.items():
            newer = self._waiting.get(key)
            self._waiting[key] = newer._replace(since=entry.since) if newer else entry
