"""Whether a Raft group elected a leader since a call was sent: what was on its way to the old one is lost without an answer.

Members are asked only while a call waits for longer than usual. Their answer costs no round through Raft.
"""

import asyncio
from collections.abc import Awaitable, Callable

LOOK_S = 0.05  # between two looks


class Elections:
    """The newest term in which a leader is known. `look` asks all members, and tells `saw` what they say."""

    def __init__(self, look: Callable[[], Awaitable[object]]) -> None:
        self.term = 0
        self._look = look
        self._newer = asyncio.Event()
        self._waiting = 0
        self._looking: asyncio.Task[None] | None = None

    def saw(self, term: int) -> None:
        """A member told of a leader of this term."""
        if term > self.term:
            self.term = term
            self._newer.set()
            self._newer = asyncio.Event()

    async def since(self, term: int) -> None:
        """Return when there is a leader of a later term."""
        self._waiting += 1
        self._looking = self._looking or asyncio.create_task(self._look_on(), name="etcd.elections")
        try:
            while self.term <= term:
                await self._newer.wait()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._looking.cancel()
                self._looking = None

    async def _look_on(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_S)
