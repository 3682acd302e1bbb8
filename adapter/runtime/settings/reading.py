"""Reads small files that this process cannot trust to end: configuration, certificates, tokens.

Only regular files of at most 4 MiB are read: a pipe would be waited for, and a device has no end. A file system may not answer at
all, such as a hung mount, and then no read of it returns. So what reads files while the process runs does it in a thread for
which nobody has to wait, not even the end of the process, and only one at a time.
"""

import asyncio
import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from adapter.errors import ConfigError

T = TypeVar("T")

FILE_MAX = 4 * 2**20  # bytes
READ_S = 10.0  # seconds for all files of a reload
SOON_S = 1.0  # seconds that the event loop may stand, once; a file system that answers takes a millisecond


def read_file(path: Path) -> tuple[bytes, os.stat_result]:
    """The content of a regular file, and what is known of it. Raises OSError, also for any other file and for a larger one."""
    # Without O_NONBLOCK the opening of a pipe waits for its other end.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        content = file.read(FILE_MAX + 1)
    if len(content) > FILE_MAX:
        raise OSError(errno.EFBIG, f"has more than {FILE_MAX:,} bytes", str(path))
    return content, found


class Reader:
    """Reads files in a thread, one read at a time; who asks waits for so long at most."""

    def __init__(self, seconds: float = READ_S) -> None:
        self._seconds = seconds
        self._last: Future[Any] | None = None
        self._began = 0.0

    async def read(self, function: Callable[[], T]) -> T:
        """What `function` returns. Raises what it raises, and ConfigError if it takes too long, or the one before still does."""
        reading = self.begin(function)
        try:
            # Not `asyncio.wait_for`, which in 3.11 loses a cancellation that comes with the end of the read.
            async with asyncio.timeout(self._seconds):
                return await asyncio.wrap_future(reading)
        except TimeoutError:
            raise self.stuck() from None

    def begin(self, function: Callable[[], T]) -> "Future[T]":
        """Begin a read. Raises ConfigError while the one before has not ended."""
        if self._last and not self._last.done():
            raise self.stuck()
        made: Future[T] = Future()
        made.set_running_or_notify_cancel()  # who stops waiting does not cancel it
        self._last, self._began = made, time.monotonic()
        threading.Thread(target=_run, args=(made, function), name="files", daemon=True).start()
        return made

    def stuck(self) -> ConfigError:
        """The error of a read that takes too long."""
        seconds = time.monotonic() - self._began
        return ConfigError(
            f"files: a read that began {seconds:.0f} s ago has not ended: their file system does not answer; look at its mount"
        )


def _run(made: "Future[T]", function: Callable[[], T]) -> None:
    try:
        found = function()
    except BaseException as error:  # noqa: BLE001 - raised by who waits for it
        made.set_exception(error)
    else:
        with suppress(RuntimeError):  # the event loop of who waited has ended
            made.set_result(found)


_reader = Reader()  # of all who call `soon`


def soon(function: Callable[[], T]) -> T:
    """As `Reader.read`, for a caller in the event loop that cannot await: it waits for SOON_S. Raises ConfigError."""
    reading = _reader.begin(function)
    try:
        return reading.result(SOON_S)
    except TimeoutError:
        raise _reader.stuck() from None
