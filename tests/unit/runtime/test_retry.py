"""The retry policy, in virtual time."""

from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from adapter.errors import AdapterError, ContendedError, MetaUnavailableError, RefusedError
from adapter.runtime import backoff, retry
from adapter.runtime.retry import retrying
from tests.model.loop import VirtualLoop

DOWN = MetaUnavailableError("down by the test")


def attempts_of(
    work: Callable[[int], object], policy: Callable[[], retry.Attempts], patience_s: float = 1_000.0
) -> tuple[list[float], AdapterError | None]:
    """The time of each attempt since the first, and the final error. `work` gets the number of the attempt."""
    loop = VirtualLoop()
    began: list[float] = []
    ended: list[AdapterError] = []

    async def once() -> None:
        began.append(loop.time())
        work(len(began))

    async def main() -> None:
        try:
            await policy()(once)
        except AdapterError as error:
            ended.append(error)

    task: Coroutine[Any, Any, None] = main()
    kept = loop.create_task(task)
    loop.run_for(patience_s)
    kept.cancel()
    loop.run_for(0)
    loop.close()
    return [at - began[0] for at in began], ended[0] if ended else None


def failing(error: AdapterError, times: int = 1_000_000) -> Callable[[int], object]:
    """Work that fails this many times."""

    def work(attempt: int) -> None:
        if attempt <= times:
            raise error

    return work


def test_what_succeeds_is_done_once() -> None:
    """There is no pause before the first attempt."""
    assert attempts_of(failing(DOWN, 0), lambda: retrying("x", first_s=1.0, max_s=8.0)) == ([0.0], None)


def test_pauses_grow_to_the_largest_and_have_jitter() -> None:
    """Never below the first pause or above the largest; different in each run unless the jitter is seeded."""
    began, error = attempts_of(failing(DOWN), lambda: retrying("x", first_s=1.0, max_s=8.0))
    backoff = [later - earlier for earlier, later in pairwise(began)]
    assert error is None
    assert backoff[0] == pytest.approx(1.0)
    for at, pause in enumerate(backoff):
        assert 1.0 - 1e-6 <= pause <= min(2**at, 8.0) + 1e-6
    assert max(backoff) > 4.0
    assert attempts_of(failing(DOWN), lambda: retrying("x", first_s=1.0, max_s=8.0))[0] != began


def test_seeded_jitter_gives_the_same_times() -> None:
    """The model test depends on this to be deterministic."""
    runs = []
    for _ in range(2):
        backoff.jitter.seed(7)
        runs.append(attempts_of(failing(DOWN), lambda: retrying("x", first_s=1.0, max_s=8.0), 100.0))
    assert runs[0] == runs[1]


def test_after_the_limit_the_last_error_is_raised() -> None:
    """The limit counts from the first attempt; one attempt is still made when it is reached."""
    began, error = attempts_of(failing(DOWN), lambda: retrying("x", first_s=1.0, max_s=1.0, limit_s=10.0))
    assert error is DOWN
    assert began == pytest.approx(range(11))


def test_a_limit_of_zero_is_one_attempt() -> None:
    """As for `recovery.timeout_ms = 0`."""
    assert attempts_of(failing(DOWN), lambda: retrying("x", first_s=1.0, max_s=1.0, limit_s=0.0)) == ([0.0], DOWN)


@pytest.mark.parametrize(
    ("error", "on", "attempts"),
    [(RefusedError("no"), None, 1), (DOWN, ContendedError, 1), (ContendedError("busy"), ContendedError, 3)],
)
def test_only_errors_of_the_kind_are_tried_again(error: AdapterError, on: type[AdapterError] | None, attempts: int) -> None:
    """Other errors would fail again; the caller may narrow the choice."""
    kind = {} if on is None else {"on": on}
    began, ended = attempts_of(failing(error, 2), lambda: retrying("x", first_s=1.0, max_s=1.0, **kind))  # type: ignore[arg-type]
    assert len(began) == attempts
    assert ended is (error if attempts == 1 else None)


def changed_after(seconds: float, change: Callable[[retry.Attempts], None], error: AdapterError = DOWN) -> list[float]:
    """The times of the first three attempts, with pauses of 1,000 s, where `change` is made during the first pause."""
    loop = VirtualLoop()
    began: list[float] = []
    policy = retrying("x", first_s=1_000.0, max_s=1_000.0)

    async def once() -> None:
        began.append(loop.time())
        if len(began) < 3:
            raise error

    task = loop.create_task(policy(once))
    loop.call_later(seconds, change, policy)
    loop.run_for(10_000.0)
    assert task.done()
    loop.close()
    return [at - began[0] for at in began]


def test_new_pauses_shorten_the_one_that_is_under_way() -> None:
    """It is as long as the longest pause that is allowed by then, and never shorter than what the server asked for."""

    def shorter(policy: retry.Attempts) -> None:
        policy.set_pauses(20.0, 20.0)

    assert changed_after(5.0, shorter) == pytest.approx([0, 20, 40])
    assert changed_after(50.0, shorter) == pytest.approx([0, 50, 70])
    assert changed_after(5.0, shorter, MetaUnavailableError("by the test", retry_after_s=300.0)) == pytest.approx([0, 300, 600])


def test_a_pause_ends_when_it_is_told_to() -> None:
    """Only the one that is under way."""
    assert changed_after(5.0, retry.Attempts.try_now) == pytest.approx([0, 5, 1_005])
