"""Large calls: those that would block the event loop, because of how much their caller named or has stored.

They work in slices and yield to other tasks between them. A few run at a time, in the order of their arrival. The number that
waits is bounded, and so is what one call may read or answer: a caller that needs more makes several calls.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from adapter.errors import OverloadedError
from adapter.runtime.slices import others

if TYPE_CHECKING:  # this is imported also where nothing is served
    from adapter.runtime.serving.http2.call import Call
    from adapter.runtime.serving.statuses import Context

SLICE_ROWS = 250  # rows of the store that are read or answered between two yields: about a millisecond
MAX_ROWS = 50_000  # of an answer
MAX_BYTES = 4 * 2**20 - 65_536  # of an answer: the default limit of gRPC clients, less some room
MAX_NAMED = 50_000  # groups and shards in a request
MAX_CHANGES = 20_000  # shards of a reset, delete, clone or import
RETRY_AFTER_S = 0.5  # a large call takes some tenths of a second


class LargeCalls:
    """Runs `at_once` calls at a time, which bounds their memory and how long they delay others.

    `max_waiting` bounds what waits, in calls or in whatever `units` their callers count.
    """

    def __init__(self, what: str = "large calls", *, at_once: int = 2, max_waiting: int = 64) -> None:
        self._what = what
        self._room = asyncio.Semaphore(at_once)
        self._max_waiting = max_waiting
        self._waiting = 0

    @asynccontextmanager
    async def one(self, units: int = 1, *, patient: bool = False, context: "Context | None" = None) -> AsyncIterator[None]:
        """Wait for a place among the running calls, and hold it inside. With a call's `context` also wait until its client reads.

        Raises OverloadedError when too much waits already, unless `patient`; nothing of the call was done then.
        """
        call = cast("Call | None", context)  # a call of our server knows what its client has not read
        if self._waiting >= self._max_waiting and not patient:
            raise OverloadedError(
                f"too many {self._what} wait already; nothing was done: come back in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        while True:
            self._waiting += units
            try:
                await self._room.acquire()
            finally:
                self._waiting -= units
            if call is None or call.is_read:
                break
            self._room.release()
            await call.until_read()
        try:
            await others()  # a call never begins in the iteration of the event loop in which another one has ended
            yield
        finally:
            self._room.release()


class Room:
    """A budget of memory, in bytes, for waiting work. While any of it is left, the next one is admitted, whatever its size."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._taken = 0
        self._line: deque[asyncio.Future[None]] = deque()

    def take(self, size: int) -> None:
        """Take `size` bytes at once. Raises OverloadedError when none are left, without a change."""
        if self._line or self._taken >= self._most:
            raise OverloadedError(
                f"{self._taken:,} bytes of {self._what} wait already; nothing was done: come back in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        self._taken += size

    async def wait(self, size: int) -> None:
        """Take `size` bytes as soon as some are left, in the order of the callers."""
        if self._line or self._taken >= self._most:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._next()  # it was the next one in line
                raise
        self._taken += size
        self._next()

    def give_back(self, size: int) -> None:
        """Give back what was taken, which may admit the next one."""
        self._taken -= size
        self._next()

    def _next(self) -> None:
        while self._line and self._taken < self._most:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)  # it takes its bytes when it runs, and then wakes the next one
                return
