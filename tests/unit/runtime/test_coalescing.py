"""Group commit: which items share a call, and which caller gets which error."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from adapter.errors import AdapterError, DiskFullError, InvalidInputError, NotReadyError
from adapter.runtime.coalescing import Coalescer
from adapter.testing.waiting import eventually


class Calls:
    """A `perform` that records its calls, may be held at a gate, and returns what a test has set."""

    def __init__(self) -> None:
        self.made: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers: dict[str, AdapterError] = {}
        self.fails: BaseException | None = None

    async def perform(self, items: Sequence[str]) -> list[str | AdapterError]:
        """Return each item in capitals, or its error."""
        self.made.append(list(items))
        await self.gate.wait()
        if self.fails:
            raise self.fails
        return [self.answers.get(item, item.upper()) for item in items]


@asynccontextmanager
async def combining(calls: Calls, max_items: int = 100) -> AsyncIterator[Coalescer[str, str]]:
    """Run a combiner for the length of a test."""
    combiner: Coalescer[str, str] = Coalescer(calls.perform, max_items=max_items)
    task = asyncio.create_task(combiner.run())
    try:
        yield combiner
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def submit(combiner: Coalescer[str, str], *items: str) -> list[asyncio.Task[str]]:
    """One caller for each item."""
    return [asyncio.create_task(combiner.submit(item)) for item in items]


async def outcomes(tasks: Sequence[asyncio.Task[str]]) -> list[str | BaseException]:
    """The result of each caller."""
    return await asyncio.gather(*tasks, return_exceptions=True)


async def held(calls: Calls, combiner: Coalescer[str, str]) -> list[asyncio.Task[str]]:
    """Begin a call that waits at the gate."""
    calls.gate.clear()
    first = submit(combiner, "first")
    await eventually(lambda: bool(calls.made))
    return first


async def test_a_lone_caller_is_served_at_once() -> None:
    """There is no timer, and no wait for other callers."""
    calls = Calls()
    async with combining(calls) as combiner:
        assert await combiner.submit("a") == "A"
        assert await combiner.submit("b") == "B"
    assert calls.made == [["a"], ["b"]]


async def test_callers_that_come_during_a_call_share_the_next_in_their_order() -> None:
    """One call serves them all, which is the group commit (5)."""
    calls = Calls()
    async with combining(calls) as combiner:
        first = await held(calls, combiner)
        others = submit(combiner, "a", "b", "c")
        await asyncio.sleep(0)
        assert calls.made == [["first"]]
        calls.gate.set()
        assert await outcomes(first + others) == ["FIRST", "A", "B", "C"]
    assert calls.made == [["first"], ["a", "b", "c"]]


async def test_a_call_takes_at_most_max_items() -> None:
    """The remaining items follow immediately, in order."""
    calls = Calls()
    async with combining(calls, max_items=2) as combiner:
        first = await held(calls, combiner)
        others = submit(combiner, "a", "b", "c", "d", "e")
        await asyncio.sleep(0)
        calls.gate.set()
        assert await outcomes(first + others) == ["FIRST", "A", "B", "C", "D", "E"]
    assert calls.made[1:] == [["a", "b"], ["c", "d"], ["e"]]


async def test_an_error_for_one_item_goes_to_its_caller_alone() -> None:
    """One bad request does not affect the others (10)."""
    calls = Calls()
    calls.answers["b"] = InvalidInputError("b is bad")
    async with combining(calls) as combiner:
        first = await held(calls, combiner)
        others = submit(combiner, "a", "b", "c")
        await asyncio.sleep(0)
        calls.gate.set()
        assert await outcomes(first + others) == ["FIRST", "A", calls.answers["b"], "C"]


async def test_an_adapter_error_of_the_call_goes_to_all_its_callers_and_the_next_call_goes_on() -> None:
    """For example a full disk refuses one batch; the next batch is tried as usual."""
    calls = Calls()
    calls.fails = DiskFullError("full")
    async with combining(calls) as combiner:
        assert await outcomes(submit(combiner, "a", "b")) == [calls.fails, calls.fails]
        calls.fails = None
        assert await combiner.submit("c") == "C"


async def test_any_other_exception_ends_run_and_nobody_waits_for_ever() -> None:
    """A bug stops the process, and every caller, of this call and of later ones, gets NotReadyError."""
    calls = Calls()
    combiner: Coalescer[str, str] = Coalescer(calls.perform, max_items=1)
    run = asyncio.create_task(combiner.run())
    first = await held(calls, combiner)
    second = submit(combiner, "second")
    await asyncio.sleep(0)
    calls.fails = ValueError("a bug")
    calls.gate.set()
    with pytest.raises(ValueError, match="a bug"):
        await run
    assert [type(found) for found in await outcomes(first + second)] == [NotReadyError, NotReadyError]
    assert calls.made == [["first"]]


async def test_a_stop_answers_everybody_who_waits() -> None:
    """Items of the running call may be done or not; items behind it are not done, but their callers cannot know that."""
    calls = Calls()
    async with combining(calls) as combiner:
        first = await held(calls, combiner)
        second = submit(combiner, "second")
        await asyncio.sleep(0)
    found = await outcomes(first + second)
    assert [type(error) for error in found] == [NotReadyError, NotReadyError]
    assert "may or may not be stored" in str(found[0])


async def test_after_the_end_nothing_is_taken() -> None:
    """A later caller immediately gets an error that says that nothing was stored."""
    calls = Calls()
    async with combining(calls) as combiner:
        await combiner.submit("a")
    with pytest.raises(NotReadyError, match="nothing of it is stored"):
        await combiner.submit("late")
    assert calls.made == [["a"]]


async def test_a_cancelled_caller_disturbs_nobody() -> None:
    """Its item may still be performed; the others get their results."""
    calls = Calls()
    async with combining(calls) as combiner:
        first = await held(calls, combiner)
        gone, stays = submit(combiner, "gone", "stays")
        await asyncio.sleep(0)
        gone.cancel()
        first[0].cancel()
        await asyncio.sleep(0)
        calls.gate.set()
        assert await stays == "STAYS"
        assert gone.cancelled()
        assert await combiner.submit("next") == "NEXT"


async def test_an_error_for_a_caller_that_left_is_dropped() -> None:
    """The other callers get theirs, and there is no warning about an exception that was never read."""
    calls = Calls()
    async with combining(calls) as combiner:
        first = await held(calls, combiner)
        gone, stays = submit(combiner, "gone", "stays")
        await asyncio.sleep(0)
        gone.cancel()
        calls.fails = DiskFullError("full")
        calls.gate.set()
        assert await outcomes([*first, stays]) == [calls.fails, calls.fails]
        calls.fails = None
        assert await combiner.submit("a") == "A"
