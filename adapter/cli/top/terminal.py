"""The end of the live table by a signal, or with its terminal, also where that takes nothing any more.

Textual 8.2.8 writes in a thread with a queue of 30 texts. When the terminal is gone, or is not read, the queue is full, and
what puts into it holds the event loop: neither its signal handlers nor anything else runs. A terminal that is gone does not
always send SIGHUP: not to a process whose controlling terminal is another one or none, as behind `docker exec -t` or `setsid`.
"""

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LEAVES_S = 1.0  # in which the terminal is left as it was; then the process ends


@contextmanager
def ended_by_signals(end: Callable[[int], None]) -> Iterator[None]:
    """Call `end` in the event loop with the exit code of a signal, and end the process if nothing follows from that."""
    loop = asyncio.get_running_loop()

    def ended(number: int, _: object) -> None:
        timer = threading.Timer(LEAVES_S, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()
        loop.call_soon_threadsafe(end, 128 + number)

    before = {number: signal.signal(number, ended) for number in (signal.SIGTERM, signal.SIGHUP)}
    threading.Thread(target=_hang_up, args=(sys.stdout.fileno(),), name="top.terminal", daemon=True).start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hang_up(descriptor: int) -> None:
    """End the process when the terminal is gone, as SIGHUP does: there is nothing to leave as it was."""
    terminal = select.poll()
    terminal.register(descriptor, 0)  # a hang-up is told whatever is asked for
    terminal.poll()
    os._exit(128 + signal.SIGHUP)
