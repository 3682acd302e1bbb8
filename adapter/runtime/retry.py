"""The retry policy: errors of one type, exponential backoff with full jitter, one log event for each failure.

A server that says when to retry is not called before that. Times are those of the event loop, so that tests can replace them.
"""

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.lowlevel
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from adapter.errors import AdapterError, TransientError
from adapter.runtime.backoff import pause_s

P = ParamSpec("P")
R = TypeVar("R")

log = structlog.get_logger(__name__)


class Attempts:
    """Call it with a function and its arguments to run that function until it succeeds. Made by `retrying`."""

    def __init__(self, what: str, first_s: float, max_s: float, limit_s: float | None, on: type[AdapterError]) -> None:
        self._what = what
        self._first_s = first_s
        self._max_s = max_s
        self._limit_s = limit_s
        self._on = on
        self._asked_s = 0.0  # by the server, before the next attempt
        self._sleepers: list[anyio.Event] = []
        self._skipped = 0  # pauses that were ended

    async def __call__(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `work` until it succeeds. Raises its last error of the retried type after the limit, any other error at once."""
        began = anyio.current_time()
        # tenacity's own stop and wait use the wall clock and a random generator that tests cannot seed.
        return await AsyncRetrying(
            sleep=self._sleep,
            retry=retry_if_exception_type(self._on),
            wait=self._pause,
            stop=lambda _: self._limit_s is not None and anyio.current_time() - began >= self._limit_s,
            before_sleep=self._tell,
            reraise=True,
        )(work, *args, **kwargs)

    def set_pauses(self, first_s: float, max_s: float) -> None:
        """Have other pauses from now on; one that is under way becomes no longer than `max_s`."""
        self._first_s, self._max_s = first_s, max_s
        self._wake()

    def try_now(self) -> None:
        """End the pause that is under way, if there is one: what failed before is another server now."""
        self._skipped += 1
        self._wake()

    def _wake(self) -> None:
        for sleeper in self._sleepers:
            sleeper.set()

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        self._asked_s = error.retry_after_s if isinstance(error, TransientError) else 0.0
        return max(pause_s(state.attempt_number, self._first_s, self._max_s), self._asked_s)

    async def _sleep(self, seconds: float) -> None:
        began, skipped = anyio.current_time(), self._skipped
        await anyio.lowlevel.checkpoint()
        while skipped == self._skipped:
            longest = max(self._max_s, self._first_s, self._asked_s)
            left = began + min(seconds, longest) - anyio.current_time()
            if left <= 0:
                return
            woken = anyio.Event()
            self._sleepers.append(woken)
            try:
                with anyio.move_on_after(left):
                    await woken.wait()
            finally:
                self._sleepers.remove(woken)

    def _tell(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause_s = state.next_action.sleep if state.next_action else 0.0
        log.warning("retry", what=self._what, attempt=state.attempt_number, pause_s=round(pause_s, 3), error=str(error))


def retrying(
    what: str, *, first_s: float, max_s: float, limit_s: float | None = None, on: type[AdapterError] = TransientError
) -> Attempts:
    """Retry `what` on errors of type `on`. Pauses grow from `first_s` to `max_s` seconds; after `limit_s` the error is raised.

    Without a limit it retries until the task is cancelled: use that only where each attempt reads the newest values.
    """
    return Attempts(what, first_s, max_s, limit_s, on)
