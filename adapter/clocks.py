"""Where the time comes from, so that a test can bring its own. Never goes by itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def wall_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Clocks:
    """`monotonic` measures seconds, as the event loop does; `now_ms` is Unix time in milliseconds."""

    monotonic: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = wall_ms


REAL = Clocks()
