"""Detects that a Raft group elected a leader after a call was sent: requests to the old leader are lost without a reply.

Members are polled only while a call takes longer than usual. Their status is answered without a round through Raft.
"""

import asyncio
from collections.abc import Awaitable, Callable

POLL_INTERVAL_S = 0.05


class Elections:
    """Keeps the newest term in which a leader is known. `poll` asks all members; their answers go to `observe`."""

    def __init__(self, poll: Callable[[], Awaitable[object]]) -> None:
        self.term = 0
        self._poll = poll
        self._newer = asyncio.Event()
        self._waiting = 0
        self._polling: asyncio.Task[None] | None = None

    def observe(self, term: int) -> None:
        """Record that a member knows a leader of this term."""
        if term > self.term:
            self.term = term
            self._newer.set()
            self._newer = asyncio.Event()

    async def wait_newer(self, term: int) -> None:
        """Wait until a leader of a later term is known."""
        self._waiting += 1
        self._polling = self._polling or asyncio.create_task(self._poll_forever(), name="etcd.elections")
        try:
            while self.term <= term:
                await self._newer.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._polling.cancel()
                self._polling = None

    async def _poll_forever(self) -> None:
        while True:
            await self._poll()
            await asyncio.sleep(POLL_INTERVAL_S)
