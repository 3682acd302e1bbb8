"""Ack windows in the time of a test."""

import time
from collections.abc import Callable, Iterable

from adapter.client.ack_window import DEFAULT_MAX_SPAN, AckWindow


class Clock:
    """Seconds, as a test wants them."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def window_of(
    offsets: Iterable[int], max_span: int = DEFAULT_MAX_SPAN, *, start: int = 0, clock: Callable[[], float] = time.monotonic
) -> AckWindow:
    """A window that took these."""
    window = AckWindow(start, max_span, clock=clock)
    for offset in offsets:
        assert window.try_take(offset)
    return window
