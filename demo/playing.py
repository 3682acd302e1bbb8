"""Runs a demo until it ends, fails, or is interrupted by a signal, and cleans up."""

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

# Failures that end a demo with a message instead of a traceback: a process does not start, a call is not answered.
FAILURES = (DemoError, AdapterError, RuntimeError, TimeoutError, subprocess.TimeoutExpired, grpc.RpcError, OSError)

T = TypeVar("T")


class Stage:
    """Runs a demo. SIGINT, SIGTERM and SIGHUP cancel the demo, but not its clean-up."""

    def __init__(self, signals: AsyncIterator[signal.Signals]) -> None:
        self.interrupted = False
        self._signals = signals

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["Stage"]:
        """Open it as the outermost context: a second Ctrl-C must not interrupt the clean-up after the first."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            yield cls(signals)

    async def play(self, play: Callable[[anyio.abc.TaskGroup], Awaitable[T]], failed: Callable[[str], str]) -> T | None:
        """Run `play` and return its result; its tasks end with it. None after a signal or a failure, which `failed` describes."""
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
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _words(error.exceptions[0])
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
