"""The acknowledgement window with several tasks and threads: back-pressure, and consistent results."""

import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from adapter.client.ack_window import AckWindow, WindowClosedError
from adapter.testing.waiting import eventually
from tests.unit.client.ack_windows import window_of


async def waiting_take(window: AckWindow, offset: int) -> asyncio.Task[None]:
    """A task that waits for room."""
    task = asyncio.create_task(window.take(offset))
    await eventually(lambda: bool(window._waiting))
    return task


async def test_a_take_waits_until_the_oldest_has_finished() -> None:
    """Other messages that finish do not help. Then as many takes continue as fit."""
    window = window_of([0, 1, 2], max_span=2)
    task = await waiting_take(window, 3)
    window.ack(1)
    assert window._waiting
    assert not task.done()
    window.ack(0)
    await task
    await window.take(4)
    assert window.status()[:4] == (2, 5, 3, 0)


async def test_a_take_whose_room_is_not_enough_waits_on() -> None:
    """The oldest finished, but the next unfinished message is too near for a take over a wide gap."""
    window = window_of([0, 1], max_span=5)
    task = await waiting_take(window, 7)
    window.ack(0)
    assert not window._waiting
    await eventually(lambda: bool(window._waiting))
    assert not task.done()
    window.ack(1)
    await task
    assert window.committable == 7


async def test_an_acknowledgement_from_another_thread_lets_a_take_go_on() -> None:
    """Blocking handlers run in threads beside the event loop that fetches."""
    window = window_of([0], max_span=1)
    await window.take(1)
    task = await waiting_take(window, 2)
    await asyncio.to_thread(window.ack, 0)
    await task


async def test_room_that_came_before_the_wait_is_not_missed() -> None:
    """Another thread finishes the oldest message between the failed attempt and the wait."""
    window = window_of([0], max_span=1)
    assert not window.try_take(2)
    window.ack(0)
    assert window._room(2).done()


async def test_takes_that_give_up_leave_nothing_behind() -> None:
    """As fetches with a timeout, repeated while a message is stuck."""
    window = window_of([0], max_span=1)
    for _ in range(5):
        task = await waiting_take(window, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not window.take_blocking(2, timeout_s=0)
    assert len(window._waiting) == 1
    window.ack(0)
    await window.take(2)


def test_a_thread_waits_for_room() -> None:
    """`take_blocking` does what `take` does, without an event loop."""
    window = window_of([0], max_span=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(window.take_blocking, 2)
        while not window._waiting:
            assert not waiting.done()
        window.ack(0)
        assert waiting.result(10)
    assert window.take_blocking(3, timeout_s=0)
    assert not window.take_blocking(4, timeout_s=0.001)


@pytest.mark.parametrize("end", [AckWindow.close, lambda window: window.reset(0)])
async def test_a_take_that_waits_ends_with_its_window(end: Callable[[AckWindow], object]) -> None:
    """Otherwise a consumer that lost the shard would wait for messages that nobody finishes any more."""
    window = window_of([0], max_span=1)
    task = await waiting_take(window, 2)
    end(window)
    with pytest.raises(WindowClosedError, match="offset 2 "):
        await task
    with pytest.raises(WindowClosedError, match="offset 2 "):
        window.skip_to(2)
    assert window._room(2).done()


class Guarded(bytearray):
    """State that records, at each access, whether the window's lock is held."""

    def __init__(self, window: AckWindow) -> None:
        super().__init__()
        self.window = window
        window._states = self

    def __len__(self) -> int:
        """Called by every method, between its steps."""
        assert self.window._lock.locked()
        return super().__len__()


def test_every_step_is_made_with_the_lock_held() -> None:
    """Threads interleave too rarely within a method for a test to rely on it."""
    window = AckWindow(0)
    guarded = Guarded(window)
    window.try_take(0)
    window.try_take(2)
    window.ack(0)
    window.ack_range(0, 3)
    window.skip_to(5)
    window.status()
    window._room(9)
    assert window._states is guarded
    with pytest.raises(ValueError, match="never taken"):
        window.ack(9)
    window.close()
    assert not window._lock.locked()


@pytest.fixture
def switching() -> Iterator[None]:
    """Let the interpreter switch threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_threads_never_see_an_unfinished_message_below_the_committable_offset() -> None:
    """One thread takes, eight acknowledge; of two acknowledgements of one message only one returns that it finished it."""
    window, total = AckWindow(0, 64), 2_000
    queues = [SimpleQueue[int | None]() for _ in range(8)]
    finished = bytearray(total)

    def work(queue: SimpleQueue[int | None]) -> int:
        confirmed, seen = 0, 0
        while (offset := queue.get()) is not None:
            finished[offset] = 1
            confirmed += window.ack(offset)
            now = window.committable
            assert now >= seen
            assert all(finished[seen:now])
            seen = now
        return confirmed

    def take(rnd: random.Random) -> None:
        for offset in range(total):
            assert window.take_blocking(offset, timeout_s=30)
            for queue in rnd.sample(queues, 2):
                queue.put(offset)

    with ThreadPoolExecutor(9) as pool:
        workers = [pool.submit(work, queue) for queue in queues]
        try:
            pool.submit(take, random.Random(9)).result(60)
        finally:
            for queue in queues:
                queue.put(None)
        assert sum(worker.result(60) for worker in workers) == total
    assert window.status()[:4] == (total, total, 0, 0)


async def test_eight_workers_commit_and_a_crash_loses_no_message() -> None:
    """Whoever reads on from the last commit gets every message that had not finished."""
    log = [offset for offset in range(400) if offset % 7 != 3]
    window, queue = AckWindow(0, 40), asyncio.Queue[int](8)
    rnd = random.Random(4)
    finished: set[int] = set()
    committed = [0]

    async def fetch() -> None:
        for offset in log:
            await window.take(offset)
            await queue.put(offset)

    async def work() -> None:
        while True:
            offset = await queue.get()
            for _ in range(rnd.randrange(5)):
                await asyncio.sleep(0)
            finished.add(offset)
            window.ack(offset)
            committed.append(window.committable)
            assert all(below in finished for below in log if below < committed[-1])
            assert len([above for above in finished if above >= committed[-1]]) <= 40

    fetching = asyncio.create_task(fetch())
    workers = [asyncio.create_task(work()) for _ in range(8)]
    await fetching
    await eventually(lambda: len(finished) == len(log))
    for worker in workers:
        worker.cancel()
    ends = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert committed == sorted(committed)
    assert window.committable == log[-1] + 1
