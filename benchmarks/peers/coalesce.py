"""What an application can build around a client library: commits that wait for a call go together into the next one."""

import asyncio
from collections import defaultdict

from benchmarks.peers.peer import Connection

CALLS = 2  # under way at most: while the server works on one, the next is made


class Coalescing:
    """A `Connection.commit` over `commit_many`. No timer: a commit that finds a free call goes at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: dict[str, dict[str, int]] = defaultdict(dict)
        self._futures: list[asyncio.Future[None]] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Returns, or raises, with the call that carried it."""
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
        if not batch:  # the call before it took everything
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
