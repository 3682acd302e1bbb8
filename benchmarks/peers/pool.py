"""Connections that tasks take turns on. Fair: who waits longest is next; some libraries' own pools let others starve."""

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Pool(Generic[T]):
    """As many takers at a time as there are connections. No context manager: its cost would be the peers'."""

    def __init__(self, connections: Iterable[T]) -> None:
        self.connections = list(connections)
        self._free = list(self.connections)
        self._places = asyncio.Semaphore(len(self._free))

    async def take(self) -> T:
        """The one that was given back last."""
        await self._places.acquire()
        return self._free.pop()

    def give(self, connection: T) -> None:
        """Give it back."""
        self._free.append(connection)
        self._places.release()
