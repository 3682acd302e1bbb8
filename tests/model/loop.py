"""An event loop in virtual time: nothing waits, the clock jumps to the next timer. Deterministic; no sockets, no threads.

A process, as the code that runs in its context, can be paused: its callbacks are kept until it goes on.
"""

import asyncio
import contextvars
import heapq
from asyncio import Handle, TimerHandle
from collections.abc import Callable
from typing import Any, TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")

STARTS_AT_S = 1_000.0  # virtual
RESOLUTION_S = 1e-9  # timers that are this near are due: sums of floats are not exact


class Process:
    """Whose code runs: everything that is called in its context belongs to it."""

    def __init__(self) -> None:
        self.paused = False
        self.kept: list[Handle] = []
        self.kept_timers: list[TimerHandle] = []

    def context(self) -> contextvars.Context:
        """A context in which code of this process runs."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Selector:
    """Where asyncio would wait for sockets, the clock goes to the next timer, but not beyond `until`."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        """Called by asyncio when nothing is ready, with the time to the next timer; or with 0."""
        loop = self._loop
        if timeout is not None and timeout <= 0:
            return []
        next_at = float("inf") if timeout is None else loop.now + timeout
        if next_at > loop.until:
            loop.now = max(loop.now, loop.until)
            loop.stop()
        else:
            loop.now = next_at
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """`run_for` is the way to let time pass."""

    # Of asyncio, and in none of its type stubs.
    _ready: Any
    _scheduled: list[TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self.now = STARTS_AT_S
        self.until = 0.0
        self._selector = _Selector(self)
        self._clock_resolution = RESOLUTION_S
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def run_for(self, seconds: float) -> None:
        """Let so much time pass, and run everything that is due then; 0: only what can run without waiting."""
        self.until = self.now + seconds
        self.run_forever()

    def pause(self, process: Process) -> None:
        """Nothing of a process runs until it is resumed."""
        process.paused = True
        ready, self._ready = list(self._ready), type(self._ready)()
        for handle in ready:
            (process.kept if _process_of(handle) is process else self._ready).append(handle)
        timers = self._scheduled
        process.kept_timers = [timer for timer in timers if _process_of(timer) is process]
        self._scheduled = [timer for timer in timers if _process_of(timer) is not process]
        heapq.heapify(self._scheduled)

    def resume(self, process: Process) -> None:
        """Let a paused process go on: everything that it missed happens now."""
        if not process.paused:
            return
        process.paused = False
        self._ready.extend(process.kept)
        for timer in process.kept_timers:
            heapq.heappush(self._scheduled, timer)
        process.kept, process.kept_timers = [], []

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Handle:
        """As asyncio's, but not for a paused process."""
        handle = super().call_soon(callback, *args, context=context)
        process = _process_of(handle)
        if process is not None and process.paused:
            process.kept.append(self._ready.pop())
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Handle:
        """There are no threads."""
        return self.call_soon(callback, *args, context=context)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is nobody to wake."""


def _process_of(handle: Handle) -> Process | None:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context.get(PROCESS)
