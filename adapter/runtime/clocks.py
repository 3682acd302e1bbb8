"""Clocks, as values that are passed in, so that tests can replace them."""

import time
from collections.abc import Callable
from dataclasses import dataclass

# Milliseconds by which the clocks of an adapter and of the Meta Service may differ before one of them counts as wrong.
CLOCK_LIMIT_MS = 30_000


def wall_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Clocks:
    """`monotonic` measures seconds, as the event loop does; `now_ms` is Unix time in milliseconds."""

    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = wall_ms


REAL = Clocks()
