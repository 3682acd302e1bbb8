"""One adapter without its front, in a loop of its own, which a model test drives step by step."""

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from adapter.core import Core
from adapter.errors import AdapterError
from adapter.testing import FakeMeta
from tests.unit.helpers import WatchedCache, core_over, doom, watched

R = TypeVar("R")


class Broker:
    """A core over a real store, from a start to a stop or a kill, and the next one after it."""

    core: Core
    cache: WatchedCache

    def __init__(self, meta: FakeMeta) -> None:
        self._meta = meta
        self._runner = asyncio.Runner()
        self._directory = tempfile.TemporaryDirectory(prefix="model-")
        self._runner.run(self._start())

    def run(self, work: Coroutine[Any, Any, R]) -> R | AdapterError:
        """Let the loop do something; an error that an adapter tells its callers is a result."""

        async def outcome() -> R | AdapterError:
            try:
                return await work
            except AdapterError as error:
                return error

        return self._runner.run(outcome())

    def restart(self, *, killed: bool) -> None:
        """End this process and start the next one, which finds its dirty keys by the store alone."""
        self._runner.run(self._stop(killed=killed))
        self._runner.run(self._start())

    def close(self) -> None:
        """End for good."""
        self._runner.run(self._stop(killed=False))
        self._runner.close()
        self._directory.cleanup()

    async def _start(self) -> None:
        ready = asyncio.Event()
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(self._serve(ready))
        await asyncio.wait({self._task, asyncio.create_task(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await self.core.recovery.mark_unflushed()

    async def _serve(self, ready: asyncio.Event) -> None:
        """Enter and leave the core in one task, as its task group wants it."""
        directory = Path(self._directory.name)
        self.cache = watched(directory, "never")
        sections: dict[str, Any] = {"flush": {"interval_ms": 1, "max_batch_bytes": 16_384}, "recovery": {"batch_keys": 2}}
        async with core_over(directory, self._meta, cache=self.cache, tracks_all=False, **sections) as self.core:
            ready.set()
            await self._stopped.wait()

    async def _stop(self, *, killed: bool) -> None:
        if killed:
            doom(self.cache)
        self._stopped.set()
        await self._task
