"""How a demo is played: to its end, to a failure, or until a signal comes."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
import anyio.abc
import grpc
import grpc.aio

from adapter.errors import AdapterError
from demo.cluster import DemoError

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130

# What may go wrong without being a mistake of the demo: a process that does not start, an answer that does not come.
FAILURES = (DemoError, AdapterError, RuntimeError, TimeoutError, subprocess.TimeoutExpired, grpc.RpcError, OSError)

T = TypeVar("T")


class Stage:
    """Where a demo is played. SIGINT, SIGTERM and SIGHUP end what is played, not the cleaning up after it."""

    def __init__(self, signals: AsyncIterator[signal.Signals]) -> None:
        self.interrupted = False
        self._signals = signals

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["Stage"]:
        """To be outermost: a second Ctrl-C must not disturb the cleaning up after the first."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            yield cls(signals)

    async def play(self, play: Callable[[anyio.abc.TaskGroup], Awaitable[T]], failed: Callable[[str], str]) -> T | None:
        """What `play` returns; the tasks that it starts end with it. None after a signal or a failure; `failed` tells of it."""
        outcome: T | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_on_signal, tasks.cancel_scope, name="signals")
                outcome = await play(tasks)
                tasks.cancel_scope.cancel()
        except* FAILURES as group:
            if not self.interrupted:
                tell(failed(_words(group)))
        return outcome

    async def _cancel_on_signal(self, scope: anyio.CancelScope) -> None:
        async for _ in self._signals:
            self.interrupted = True
            scope.cancel()


def tell(text: str) -> None:
    """A message on standard error."""
    print(text, file=sys.stderr, flush=True)


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _words(error.exceptions[0])
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
