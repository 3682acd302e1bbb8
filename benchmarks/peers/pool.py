"""A pool of connections for tasks. Fair: first come, first served; the pools of some libraries let tasks starve."""

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pool(Generic[T]):
    """Lends connections to tasks. Not a context manager, whose cost would count for the peers."""

    def __init__(self, connections: Iterable[T]) -> None:
        self.connections = list(connections)
        self._free = list(self.connections)
        self._places = asyncio.Semaphore(len(self._free))

    async def take(self) -> T:
        """Take the connection that was returned last, waiting for one if needed."""
        await self._places.acquire()
        return self._free.pop()

    def give(self, connection: T) -> None:
        """Return a connection."""
        self._free.append(connection)
        self._places.release()
