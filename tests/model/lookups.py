"""What anyio and the adapter look up again and again, and is the same for a whole run: looked up once. It changes no run.

In production these take microseconds of each wait and each start; a run waits some thousand times and starts some ten processes.
"""

import sys
from asyncio import AbstractEventLoop, tasks
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType, coroutine

import anyio
import anyio.lowlevel
from anyio._backends import _asyncio
from anyio._core import _eventloop

from adapter.sidecar.api import access
from tests.model.order import PlacedScope

user_of = cache(access._user_of)


@coroutine
def _checkpoint() -> Generator[None, None, None]:
    yield


@cache
def _users() -> list[ModuleType]:
    """The modules of anyio that ask which event loop there is."""
    find = _eventloop.get_async_backend
    modules = [module for name, module in sys.modules.items() if name.startswith("anyio")]
    return [module for module in modules if vars(module).get("get_async_backend") is find]


@contextmanager
def looked_up(loop: AbstractEventLoop) -> Iterator[None]:
    """While it is entered, there is this event loop alone; and anyio makes scopes whose place is the seed's."""
    instead: list[tuple[ModuleType, str, object]] = [
        *((user, "get_async_backend", lambda: _asyncio.AsyncIOBackend) for user in _users()),
        (_asyncio, "CancelScope", PlacedScope),
        (_asyncio, "current_task", partial(tasks._current_tasks.get, loop)),  # type: ignore[attr-defined]
        (_asyncio, "_task_states", {}),  # weak keys are slow, and a run is short
        *((module, "current_time", loop.time) for module in (anyio, _eventloop)),
        (anyio.lowlevel, "checkpoint", _checkpoint),
        (access, "_user_of", user_of),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in instead]
    for module, name, value in instead:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
