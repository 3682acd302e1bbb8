"""Runs a coroutine as a process: signals, exit codes, the limit of open files, and the garbage collector.

The first SIGTERM or SIGINT asks for an orderly stop, the second ends the process at once. SIGHUP, which `reloading` takes, ends
it at no time.
"""

import gc
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import structlog

from adapter.errors import AdapterError, leaves
from adapter.runtime import descriptors, notify

log = structlog.get_logger(__name__)

Until = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]

EXIT_OK, EXIT_FAILED = 0, 1


async def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first signal, exit at the second."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        asked = False
        async for received in signals:
            name = signal.Signals(received).name
            if asked:
                log.error("process.forced", signal=name, help="stopped at once: what is dirty stays on disk")
                os._exit(EXIT_FAILED)
            asked = True
            log.info("process.signal", signal=name, help="a second one stops at once")
            stop()


def run_process(main: Callable[[Until], Awaitable[int]]) -> int:
    """Run `main` and return its exit code. An AdapterError is logged without a traceback."""

    async def guarded() -> int:
        try:
            with notify.connect().alive():
                return await main(on_signals)
        except* AdapterError as group:
            for error in leaves(group):
                log.error("process.failed", error=str(error), kind=type(error).__name__)
        return EXIT_FAILED

    descriptors.raise_limit()
    # The default action of SIGHUP ends the process without a drain. It is sent when a terminal closes, or to reload settings;
    # `reloading` handles it as soon as it runs, and reads then what had changed before.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # A full collection takes 50 ms and more once a flush of many keys has filled the memory with objects, and every commit waits
    # for it. Almost all objects are freed by their reference counts; the few cycles may wait for the 10 millionth new object.
    gc.freeze()
    gc.enable()  # adapter.__main__ begins without it
    gc.set_threshold(1_000, 10, 1_000)
    return anyio.run(guarded, backend_options={"use_uvloop": True})
