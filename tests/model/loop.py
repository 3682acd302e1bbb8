"""An event loop in virtual time: nothing waits, the clock jumps to the next timer. Deterministic; no sockets, no threads.

A process, as the code that runs in its context, can be paused: its callbacks are kept until it goes on. Callbacks run in the
order of asyncio, timers that are due at once in the order in which they were set. What asyncio does for sockets, threads, signals
and debugging is left out: the loop takes a good part of a run's time.
"""

import asyncio
import contextvars
import heapq
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, TypeVarTuple, Unpack

from tests.model.order import PlacedTask

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

STARTS_AT_S = 1_000.0  # virtual
RESOLUTION_S = 1e-9  # timers that are this near are due: sums of floats are not exact


class Process:
    """Whose code runs: everything that is called in its context belongs to it."""

    def __init__(self) -> None:
        self.paused = False
        self.kept: list[Call] = []
        self.kept_timers: list[Timer] = []

    def context(self) -> contextvars.Context:
        """A context in which code of this process runs."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Call(asyncio.TimerHandle):
    """A callback that was asked for; without what asyncio's own keep for debugging."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]  # as asyncio does

    def cancelled(self) -> bool:
        return self._cancelled

    def __repr__(self) -> str:
        """For errors."""
        return f"<{self._callback}>"


Timer = tuple[float, int, Call]  # when, and the how manieth timer it is


class VirtualLoop(asyncio.BaseEventLoop):
    """`run_for` is the way to let time pass."""

    _ready: deque[Call]
    _scheduled: list[Timer]

    def __init__(self) -> None:
        super().__init__()
        self.now = STARTS_AT_S
        self._timers = 0
        self._paused = 0  # processes
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def run_for(self, seconds: float) -> None:
        """Let so much time pass, and run everything that is due then; 0: only what can run without waiting."""
        until = self.now + seconds
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook)  # type: ignore[attr-defined]
        events._set_running_loop(self)
        try:
            self._run_until(until)
        finally:
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
        self.now = max(self.now, until)

    def _run_until(self, until: float) -> None:
        ready, run = self._ready, self._run
        while True:
            timers = self._scheduled
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not ready:
                if not timers or timers[0][0] > until:
                    return
                self.now = max(self.now, timers[0][0])
            due = self.now + RESOLUTION_S
            while timers and timers[0][0] <= due:
                when, _, call = heapq.heappop(timers)
                self.now = max(self.now, when)  # what finds its time not come yet would set its timer again, for ever
                ready.append(call)
            for _ in range(len(ready)):
                if not ready:  # one of them has paused a process
                    break
                run(ready.popleft())

    def _run(self, call: Call) -> None:
        if call._cancelled:
            return
        try:
            call._context.run(call._callback, *call._args)
        except Exception as error:  # noqa: BLE001 - told by the next step
            self.call_exception_handler({"message": f"Exception in callback {call}", "exception": error})

    def pause(self, process: Process) -> None:
        """Nothing of a process runs until it is resumed."""
        self._paused += not process.paused
        process.paused = True
        ready = list(self._ready)
        self._ready.clear()
        for call in ready:
            (process.kept if _process_of(call) is process else self._ready).append(call)
        timers = self._scheduled
        process.kept_timers = [timer for timer in timers if _process_of(timer[2]) is process]
        self._scheduled = [timer for timer in timers if _process_of(timer[2]) is not process]
        heapq.heapify(self._scheduled)

    def resume(self, process: Process) -> None:
        """Let a paused process go on: everything that it missed happens now."""
        if not process.paused:
            return
        self._paused -= 1
        process.paused = False
        self._ready.extend(process.kept)
        for timer in process.kept_timers:
            heapq.heappush(self._scheduled, timer)
        process.kept, process.kept_timers = [], []

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None) -> Call:
        """As asyncio's, but not for a paused process."""
        call = Call(callback, args, contextvars.copy_context() if context is None else context)
        process = _process_of(call) if self._paused else None
        if process is not None and process.paused:
            process.kept.append(call)
        else:
            self._ready.append(call)
        return call

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Call:
        """There are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Call:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Call:
        call = Call(callback, args, contextvars.copy_context() if context is None else context)
        self._timers += 1
        heapq.heappush(self._scheduled, (when, self._timers, call))
        return call

    def create_task(
        self,
        coro: Generator[Any, None, R] | Coroutine[Any, Any, R],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[R]:
        return PlacedTask(coro, loop=self, name=None if name is None else str(name), context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def close(self) -> None:
        """Forget what was to come."""
        self._ready.clear()
        self._scheduled.clear()
        super().close()


def _process_of(call: Call) -> Process | None:
    return call._context.get(PROCESS)
