"""Coalescing: what concurrent callers submit while one call is under way is handled together by the next call.

There is no timer: a single submission is handled at once. Used for fsyncs, write-through saves and group loads.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from adapter.errors import AdapterError, NotReadyError

T = TypeVar("T")
R = TypeVar("R")


class Coalescer(Generic[T, R]):
    """Serializes calls of `perform`, which returns one result, or one error, for each item of a list.

    An AdapterError raised by `perform` goes to every caller of that call. Any other exception ends `run`, and so the process.
    """

    def __init__(
        self,
        perform: Callable[[Sequence[T]], Awaitable[Sequence[R | AdapterError]]],
        *,
        max_items: int,
        weight: Callable[[T], int] | None = None,
        max_weight: int = 0,
    ) -> None:
        """A call takes at most `max_items`; with `weight` it takes no more once the weights add up to `max_weight`."""
        self._perform = perform
        self._max_items = max_items
        self._weight = weight
        self._max_weight = max_weight
        self._waiting: deque[tuple[T, asyncio.Future[R]]] = deque()
        self._arrived = asyncio.Event()
        self._ended = False

    async def submit(self, item: T) -> R:
        """Wait until a call that includes `item` has ended, and return its result. A cancelled caller does not undo the call.

        Raises NotReadyError when `run` has ended, or ends meanwhile.
        """
        if self._ended:
            raise NotReadyError("stopped before this was taken; nothing of it is stored: send it again")
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._arrived.set()
        return await future

    async def run(self) -> None:
        """Serve submissions until cancelled. Callers that still wait then get a NotReadyError."""
        try:
            while True:
                await self._arrived.wait()
                await self._call_once()
        finally:
            self._ended = True
            self._abandon(self._waiting)
            self._waiting.clear()

    async def _call_once(self) -> None:
        taken = self._take()
        if not self._waiting:
            self._arrived.clear()
        try:
            results = await self._perform([item for item, _ in taken])
        except AdapterError as error:
            for _, future in taken:
                _settle(future, error)
            return
        except BaseException:
            self._abandon(taken)
            raise
        for (_, future), result in zip(taken, results, strict=True):
            _settle(future, result)

    def _take(self) -> list[tuple[T, asyncio.Future[R]]]:
        waiting, weight = self._waiting, self._weight
        if weight is None:
            return [waiting.popleft() for _ in range(min(len(waiting), self._max_items))]
        taken: list[tuple[T, asyncio.Future[R]]] = []
        left = self._max_weight
        while waiting and left > 0 and len(taken) < self._max_items:
            taken.append(waiting.popleft())
            left -= weight(taken[-1][0])
        return taken

    @staticmethod
    def _abandon(taken: Iterable[tuple[T, asyncio.Future[R]]]) -> None:
        for _, future in taken:
            _settle(future, NotReadyError("stopped before this was answered; it may or may not be stored: send it again"))


def _settle(future: asyncio.Future[R], result: R | AdapterError) -> None:
    # A caller that was cancelled meanwhile has a finished future.
    with contextlib.suppress(asyncio.InvalidStateError):
        if isinstance(result, AdapterError):
            future.set_exception(result)
        else:
            future.set_result(result)
