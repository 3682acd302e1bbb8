"""Saves of adapters whose clock is known to be off: their times are moved to this server's clock before anything is decided.

Else expiry would take away what is committed all the time, and a record of an unknown epoch would be judged by a wrong time. A
time is moved each time that it is sent, also one that the adapter once got from here: so none is moved beyond now.
"""

import time
from collections.abc import Iterable, Sequence

import structlog

from adapter.metaservice.bulk import TIME
from adapter.metaservice.metrics import MetaMetrics
from adapter.model.records import SaveEntry
from adapter.runtime.clocks import CLOCK_LIMIT_MS
from adapter.runtime.slices import in_slices

log = structlog.get_logger(__name__)

WARNING_INTERVAL_S = 60.0  # between two warnings


class SkewedClocks:
    """Finds them, warns of them, and moves the times of what they bring."""

    def __init__(self, metrics: MetaMetrics) -> None:
        self._metrics = metrics
        self._quiet_until = 0.0

    def shift_ms(self, their_ms: int, now_ms: int, who: str) -> int:
        """What is to be added to times of a clock that said `their_ms` (0: it said nothing); 0 within the limit."""
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


def has_future_time(newest_ms: int, their_ms: int, now_ms: int) -> bool:
    """Whether an adapter that tells its time brings a time that has not come yet: its clock was wrong, and was set right."""
    return bool(their_ms) and newest_ms > now_ms + CLOCK_LIMIT_MS


def shifted_entries(entries: Iterable[SaveEntry], shift_ms: int, now_ms: int) -> list[SaveEntry]:
    """Entries with the times of their records moved, none beyond `now_ms`."""
    return [
        entry._replace(record=entry.record._replace(committed_at_ms=shifted(entry.record.committed_at_ms, shift_ms, now_ms)))
        for entry in entries
    ]


async def shifted_records(records: Sequence[bytes], shift_ms: int, now_ms: int) -> list[bytes]:
    """The same of packed records, whose times are not 0."""
    found: list[bytes] = []
    async for some in in_slices(records):
        for data in some:
            at_ms = shifted(int.from_bytes(data[TIME], "big"), shift_ms, now_ms)
            found.append(data[: TIME.start] + at_ms.to_bytes(8, "big") + data[TIME.stop :])
    return found


def shifted(at_ms: int, shift_ms: int, now_ms: int) -> int:
    """A time by this server's clock: at least 1, at most now."""
    return max(1, min(at_ms + shift_ms, now_ms))
