"""Watchers of the live lag: each compares the newest evaluation with what it sent, and sends what differs.

Nothing is queued, so a watcher that reads slowly costs no memory: it misses evaluations in between, and begins anew (`resync`) when
groups have left that nobody remembers any more. What is sent to all watchers together holds the event loop for at most 1/REST of the
time.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager

import anyio
import numpy as np

from adapter.errors import NotReadyError, OverloadedError
from adapter.model.lag_rows import Bools, Ints
from adapter.rpc import lag_pb
from adapter.runtime.slices import others
from adapter.sidecar.lag.view import View

MAX_WATCHERS = 100
RETRY_AFTER_S = 5.0
MAX_GROUPS = 1_000  # of a reply
SLICE_GROUPS = 100  # made between two yields: a millisecond
REST = 4

ENDED = "the watch has ended, because the adapter stops or opens its store again: begin another one"


class LagWatches:
    """All watchers of the lag of a store."""

    def __init__(self) -> None:
        self._ended = False
        self._changed = asyncio.Event()
        self._turn = anyio.Lock()  # of who sends
        self._view = View.nothing()
        self.callers = 0

    def note(self, view: View) -> None:
        """This is the newest evaluation."""
        self._view = view
        self._wake()

    def end(self) -> None:
        """End all watchers, and those that come."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a watcher inside. Raises OverloadedError when there are too many."""
        if self.callers >= MAX_WATCHERS:
            raise OverloadedError(
                f"there are {MAX_WATCHERS} watchers of lag already: end some, or list the groups instead",
                retry_after_s=RETRY_AFTER_S,
            )
        self.callers += 1
        try:
            yield
        finally:
            self.callers -= 1

    async def after(self, version: int) -> View:
        """Wait for a later evaluation than this one. Raises NotReadyError at the end."""
        while not self._ended and self._view.version <= version:
            await self._changed.wait()
        if self._ended:
            raise NotReadyError(ENDED)
        return self._view

    async def messages(self, view: View, groups: Ints) -> list[lag_pb.GroupLag]:
        """The messages of some groups, in slices; one watcher at a time. Raises NotReadyError at the end."""
        found: list[lag_pb.GroupLag] = []
        for at in range(0, len(groups), SLICE_GROUPS):
            if self._ended:
                raise NotReadyError(ENDED)
            async with self._turn:
                began = time.perf_counter()
                found += view.messages(groups[at : at + SLICE_GROUPS])
                took_s = time.perf_counter() - began
                if len(groups) > SLICE_GROUPS:
                    await anyio.sleep(took_s * REST)
        return found


async def changes(watches: LagWatches, matching: Callable[[View], Ints]) -> AsyncGenerator[lag_pb.WatchGroupLagReply, None]:
    """What a watcher is told, until it goes. `matching`: the groups of a view that it wants, in key order.

    Raises OverloadedError, and NotReadyError at the end.
    """
    with watches.one():
        sent, version = np.zeros(0, np.bool_), 0
        while True:
            view = await watches.after(version)
            resync = version == 0 or version < view.floor
            removed = [] if resync else [one for one in view.removed if one.version > version and _is_sent(sent, one.group)]
            sent = _sized(np.zeros(0, np.bool_) if resync else sent, len(view.groups))
            sent[[one.group for one in removed]] = False
            wanted = matching(view)
            matches = np.zeros(len(view.groups), np.bool_)
            matches[wanted] = True
            left = np.flatnonzero(sent & ~matches)
            new = wanted[~sent[wanted] | (view.changed[wanted] > version)]
            gone = [*(one.key for one in removed), *(view.groups[group] for group in left.tolist())]
            async for reply in _replies(watches, view, new, gone, resync=resync):
                yield reply
            sent, version = matches, view.version


async def _replies(
    watches: LagWatches, view: View, new: Ints, gone: list[tuple[str, str]], *, resync: bool
) -> AsyncGenerator[lag_pb.WatchGroupLagReply, None]:
    """The replies of one evaluation; none if nothing changed."""
    for at in range(0, max(len(new), len(gone), resync), MAX_GROUPS):
        reply = lag_pb.WatchGroupLagReply(resync=resync and at == 0, evaluated_at_ms=view.evaluated_at_ms)
        reply.groups.extend(await watches.messages(view, new[at : at + MAX_GROUPS]))
        for namespace, group in gone[at : at + MAX_GROUPS]:
            reply.removed.add(namespace=namespace, group=group)
        await others()
        yield reply


def _is_sent(sent: Bools, group: int) -> bool:
    return group < len(sent) and bool(sent[group])


def _sized(sent: Bools, size: int) -> Bools:
    return np.append(sent, np.zeros(max(size - len(sent), 0), np.bool_))
