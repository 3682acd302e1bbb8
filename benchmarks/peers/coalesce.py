"""Coalescing of commits around any client library, as an application can build it: waiting commits share the next call."""

import asyncio
from collections import defaultdict

from benchmarks.peers.peer import Connection

CALLS = 2  # calls in flight: the server works on one while the next is prepared


class Coalescing:
    """A `Connection.commit` over `commit_many`. Without a timer: a commit is sent at once if a call is free."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, dict[str, int]] = defaultdict(dict)
        self._futures: list[asyncio.Future[None]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Commit; returns or raises when its call does."""
        self._waiting[group][shard] = offset
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        if len(self._calls) < CALLS:
            self._begin()
        await future

    def _begin(self) -> None:
        task = asyncio.create_task(self._send())
        self._calls.add(task)
        task.add_done_callback(self._done)

    async def _send(self) -> None:
        batch, self._waiting = self._waiting, defaultdict(dict)
        futures, self._futures = self._futures, []
        if not batch:  # the previous call has taken all commits
            return
        try:
            await self._connection.commit_many(batch)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
            for future in futures:
                future.set_exception(error)
        else:
            for future in futures:
                future.set_result(None)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        if self._futures:
            self._begin()
