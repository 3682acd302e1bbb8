"""Admission control: requests beyond a limit are refused at once, before anything is written, with a time to come back.

A request is admitted while there is any room, whatever its size; otherwise a large one might never be admitted among small ones.
So the work in progress is at most the limit plus one request. Nothing is delayed or queued.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from adapter.errors import OverloadedError
from adapter.metaservice.config import LimitsSection
from adapter.metaservice.metrics import MetaMetrics
from adapter.runtime.wording import counted

MIN_DELAY_S, MAX_DELAY_S = 0.1, 5.0
SPREAD = 0.5  # jitter of a delay, as a part of it, so that refused callers do not return together
GUESS_S = 0.1  # busy time that the initial guess of the rate counts for
HALF_LIFE_S = 2.0  # busy time after which a measurement counts half

TINY = 1e-9  # avoids a division by zero

jitter = Random()  # noqa: S311 - spreads attempts, keeps no secret; a test seeds it


class Limit:
    """The limit of one kind of work, and its recent rate. At most `most` units may be in progress."""

    def __init__(self, what: str, most: int, on_refused: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._most = most
        self._on_refused = on_refused
        self._clock = clock
        self.under_way = 0
        # Work done and busy seconds, with exponential decay. The initial guess is a rate of `most` units a second.
        self._done = most * GUESS_S
        self._busy_s = GUESS_S
        self._measured_at = 0.0

    @contextmanager
    def admit(self, units: int) -> Iterator[None]:
        """Count `units` as in progress while the context is open. Raises OverloadedError if there is no room."""
        if self.under_way >= self._most:
            self._on_refused()
            delay_s = self._delay_s()
            raise OverloadedError(
                f"{counted(self.under_way, self._what)} under way, of at most {self._most:,}; nothing was done: "
                f"come back in {delay_s:.1f} s",
                retry_after_s=delay_s,
            )
        if not self.under_way:
            self._measured_at = self._clock()
        self.under_way += units
        try:
            yield
        finally:
            self.under_way -= units
            self._measure(units)

    def _measure(self, units: int) -> None:
        now = self._clock()
        busy_s = now - self._measured_at
        weight = _weight(busy_s)
        self._done = self._done * weight + units
        self._busy_s = self._busy_s * weight + busy_s
        self._measured_at = now

    def _delay_s(self) -> float:
        """About how long the work in progress will take, in seconds; longer if nothing was finished for a while."""
        stalled_s = self._clock() - self._measured_at
        weight = _weight(stalled_s)
        takes_s = self.under_way * (self._busy_s * weight + stalled_s) / max(self._done * weight, TINY)
        return min(max(takes_s * jitter.uniform(1 - SPREAD, 1 + SPREAD), MIN_DELAY_S), MAX_DELAY_S)


class Limits:
    """The limits of a process: `offsets` in saves and merges, `metadata` calls. Reads of offsets are not limited."""

    def __init__(self, section: LimitsSection, metrics: MetaMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.offsets = Limit("offset", section.offsets, metrics.refused("offsets"), clock)
        self.metadata = Limit("metadata call", section.metadata, metrics.refused("metadata"), clock)
        metrics.shows_under_way("offsets", lambda: self.offsets.under_way)
        metrics.shows_under_way("metadata", lambda: self.metadata.under_way)


def _weight(age_s: float) -> float:
    """The weight of a measurement of this age."""
    return math.exp2(-age_s / HALF_LIFE_S)
