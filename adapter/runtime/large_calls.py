"""Large calls: those that do more than fits into one turn of the event loop, because their caller named, or stored, that much.

They work in slices with turns for others between them, a few at a time, in the order in which they came. What waits is bounded,
and so is what one of them may read or answer: whoever needs more asks in several calls, each of which ends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, runtime_checkable

from adapter.errors import OverloadedError
from adapter.runtime.slices import others

SLICE_ROWS = 250  # rows of the store that are read, or answered, in one turn: about a millisecond
MAX_ROWS = 50_000  # of an answer
MAX_BYTES = 4 * 2**20 - 65_536  # of an answer: what a gRPC client takes unless it is told otherwise, and some room
MAX_NAMED = 50_000  # groups and shards in a request
MAX_CHANGES = 20_000  # shards of a reset, delete, clone or import
RETRY_AFTER_S = 0.5  # a large call takes some tenths of a second


@runtime_checkable
class HasPeer(Protocol):
    """A call of the built-in server, which knows what its peer has not read. grpcio's does not."""

    @property
    def is_read(self) -> bool:
        """False while the peer leaves too much unread."""

    async def until_read(self) -> None:
        """Wait until it does not."""


class LargeCalls:
    """`at_once` calls at a time: their slices take a small part of each turn, and what they make a bounded part of the memory.

    `max_waiting` bounds what waits, in calls or in whatever `units` their callers count.
    """

    def __init__(self, what: str = "large calls", *, at_once: int = 2, max_waiting: int = 64) -> None:
        self._what = what
        self._room = asyncio.Semaphore(at_once)
        self._max_waiting = max_waiting
        self._waiting = 0

    @asynccontextmanager
    async def one(self, units: int = 1, *, patient: bool = False, context: object = None) -> AsyncIterator[None]:
        """Wait for one's turn, and have it inside; with the `context` of a call not before its peer reads what it has.

        Raises OverloadedError when too much waits already, unless `patient`; nothing of the call was done then.
        """
        call = context if isinstance(context, HasPeer) else None
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
            await others()  # one never begins in the turn in which another one has ended
            yield
        finally:
            self._room.release()


class Room:
    """Bytes of memory for what waits for somebody else. Who comes while there is any room is let in, whatever its size."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._taken = 0
        self._line: deque[asyncio.Future[None]] = deque()

    def take(self, size: int) -> None:
        """Take it at once. Raises OverloadedError when there is none; nothing was done then."""
        if self._line or self._taken >= self._most:
            raise OverloadedError(
                f"{self._taken:,} bytes of {self._what} wait already; nothing was done: come back in {RETRY_AFTER_S} s",
                retry_after_s=RETRY_AFTER_S,
            )
        self._taken += size

    async def wait(self, size: int) -> None:
        """Take it when there is some, in the order in which they came."""
        if self._line or self._taken >= self._most:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._line.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._next()  # it was this one's turn
                raise
        self._taken += size
        self._next()

    def give_back(self, size: int) -> None:
        """It is over."""
        self._taken -= size
        self._next()

    def _next(self) -> None:
        while self._line and self._taken < self._most:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)  # who is next takes its room when it runs, and wakes the one behind it
                return
