"""Shared by the tests of acknowledgement windows: a clock that the test sets, and a window that uses it."""

import time
from collections.abc import Callable, Iterable

from adapter.client.ack_window import DEFAULT_MAX_SPAN, AckWindow


class Clock:
    """A clock in seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now


def window_of(
    offsets: Iterable[int], max_span: int = DEFAULT_MAX_SPAN, *, start: int = 0, clock: Callable[[], float] = time.monotonic
) -> AckWindow:
    """A window that has taken these offsets."""
    window = AckWindow(start, max_span, clock=clock)
    for offset in offsets:
        assert window.try_take(offset)
    return window
