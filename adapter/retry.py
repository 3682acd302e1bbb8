"""The one retry policy: only transient errors, exponential backoff with full jitter, one event for each failure."""

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_delay, stop_never, wait_random_exponential

from adapter.errors import AdapterError, TransientError

log = structlog.get_logger(__name__)


def retrying(
    what: str, *, first_s: float, max_s: float, limit_s: float | None = None, on: type[AdapterError] = TransientError
) -> AsyncRetrying:
    """Attempts of `what`: the pause grows from `first_s` to at most `max_s` seconds; after `limit_s` the last error is raised.

    Without a limit it goes on for as long as the task lives: right only where each attempt takes the newest values.
    """

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        pause = state.next_action.sleep if state.next_action else 0.0
        log.warning("retry", what=what, attempt=state.attempt_number, pause_s=round(pause, 3), error=str(error))

    return AsyncRetrying(
        retry=retry_if_exception_type(on),
        wait=wait_random_exponential(multiplier=first_s, max=max_s, min=first_s),
        stop=stop_never if limit_s is None else stop_after_delay(limit_s),
        before_sleep=tell,
        reraise=True,
    )
