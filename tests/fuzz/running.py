"""What targets share: an event loop that goes on between inputs, a directory in memory, and the time."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")

NOW_MS = 1_795_442_400_000  # Unix time at which all happens


def wait(work: Coroutine[Any, Any, R]) -> R:
    """The result of some work. What it has left running goes on with the next one."""
    return _runner().run(work)


_at_end: list[Callable[[], None]] = []


def at_end(work: Callable[[], None]) -> None:
    """Call this when what goes on is ended."""
    _at_end.append(work)


def close() -> None:
    """End what goes on: its threads would hold up the end of the process. The next input begins anew."""
    while _at_end:
        _at_end.pop()()
    if _runner.cache_info().currsize:
        _runner().close()
        _runner.cache_clear()


def directory() -> Path:
    """A directory of this process, which is removed at its end."""
    return Path(_kept().name)


@cache
def _runner() -> asyncio.Runner:
    return asyncio.Runner()


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm")
