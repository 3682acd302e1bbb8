"""Whether a Raft group elected a leader since a call was sent: what was on its way to the old one is lost without an answer.

Members are asked only while a call waits for longer than usual. Their answer costs no round through Raft.
"""

import asyncio
from collections.abc import Awaitable, Callable

POLL_INTERVAL_S = 0.05  # between two looks


class Elections:
    """The newest term in which a leader is known. `look` asks all members, and tells `saw` what they say."""

    def __init__(self, poll: Callable[[], Awaitable[object]]) -> None:
        self.term = 0
        self._poll = poll
        self._newer = asyncio.Event()
        self._waiting = 0
        self._polling: asyncio.Task[None] | None = None

    def observe(self, term: int) -> None:
        """A member told of a leader of this term."""
        if term > self.term:
            self.term = term
            self._newer.set()
            self._newer = asyncio.Event()

    async def wait_newer(self, term: int) -> None:
        """Return when there is a leader of a later term."""
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
