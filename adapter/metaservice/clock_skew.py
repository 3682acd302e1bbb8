"""Commit times that are wrong are corrected, whoever saves them; what a wrong clock proposes to expire is refused.

Times are corrected before anything is decided by them. With wrong times, groups that commit regularly would expire, and records
of unknown epoch would be compared wrongly. A time is shifted each time it is sent, also one that the adapter once read from here;
therefore no time is shifted beyond now.
"""

import time
from collections.abc import Iterable, Sequence

import structlog

from adapter.errors import InvalidInputError
from adapter.metaservice.bulk import TIME
from adapter.metaservice.metrics import MetaMetrics
from adapter.model.records import SaveEntry
from adapter.runtime.clocks import CLOCK_LIMIT_MS
from adapter.runtime.slices import in_slices

log = structlog.get_logger(__name__)

WARNING_INTERVAL_S = 60.0


class SkewedClocks:
    """Detects skewed clocks, counts their saves, and logs a warning at most once a minute."""

    def __init__(self, metrics: MetaMetrics) -> None:
        self._metrics = metrics
        self._quiet_until = 0.0

    def correction_ms(self, newest_ms: int, their_ms: int, now_ms: int, who: str) -> int | None:
        """How to shift the times of a save, the newest of which is `newest_ms`; None if they are stored as they are."""
        shift_ms = self.shift_ms(their_ms, now_ms, who)
        return shift_ms if shift_ms or has_future_time(newest_ms, now_ms) else None

    def shift_ms(self, their_ms: int, now_ms: int, who: str) -> int:
        """The milliseconds to add to the times of a clock that said `their_ms` (0: unknown); 0 within the limit."""
        shift_ms = now_ms - their_ms if their_ms else 0
        if abs(shift_ms) <= CLOCK_LIMIT_MS:
            return 0
        self._metrics.skewed_saves.inc()
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + WARNING_INTERVAL_S
            log.warning(
                "save.clock_skew",
                broker=who,
                skew_seconds=-shift_ms / 1000,
                help="the adapter's clock or this server's is wrong; the times of its commits are moved to this server's clock",
            )
        return shift_ms


def check_proposal(before_ms: int, their_ms: int, now_ms: int) -> None:
    """Refuse to expire what is older than `before_ms`, as a clock that said `their_ms` proposes. Raises InvalidInputError."""
    if not 0 < before_ms <= their_ms:
        raise InvalidInputError(f"before_ms: {before_ms} is not between 1 and now_ms, {their_ms}")
    ahead_ms = their_ms - now_ms
    if abs(ahead_ms) > CLOCK_LIMIT_MS:
        where = "ahead of" if ahead_ms > 0 else "behind"
        raise InvalidInputError(f"now_ms: is {abs(ahead_ms)} ms {where} this server's clock; one of both is wrong")


def has_future_time(newest_ms: int, now_ms: int) -> bool:
    """Whether a time has not come yet: an adapter's clock was wrong before and is right now, or a job or a consumer made it up.

    Stored, it would keep its group from expiring, and pass every reset for a record of unknown epoch.
    """
    return newest_ms > now_ms + CLOCK_LIMIT_MS


def shifted_entries(entries: Iterable[SaveEntry], shift_ms: int, now_ms: int) -> list[SaveEntry]:
    """The entries with their commit times shifted, none beyond `now_ms`."""
    return [
        entry._replace(record=entry.record._replace(committed_at_ms=shifted(entry.record.committed_at_ms, shift_ms, now_ms)))
        for entry in entries
    ]


async def shifted_records(records: Sequence[bytes], shift_ms: int, now_ms: int) -> list[bytes]:
    """The same for packed records, all with a commit time."""
    found: list[bytes] = []
    async for some in in_slices(records):
        for data in some:
            at_ms = shifted(int.from_bytes(data[TIME], "big"), shift_ms, now_ms)
            found.append(data[: TIME.start] + at_ms.to_bytes(8, "big") + data[TIME.stop :])
    return found


def shifted(at_ms: int, shift_ms: int, now_ms: int) -> int:
    """A time by this server's clock: at least 1, at most `now_ms`."""
    return max(1, min(at_ms + shift_ms, now_ms))
