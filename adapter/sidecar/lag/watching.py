"""Watchers of the live lag: each compares the newest evaluation with what it sent, and sends what differs.

Nothing is queued and no evaluation is kept for a watcher that reads slowly: it gets the newest values when it reads on, and
begins anew (`resync`) when more groups have left meanwhile than are remembered. Watchers take turns; all together hold the event
loop for at most 1/REST of the time.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import anyio
import anyio.to_thread
import numpy as np

from adapter.errors import NotReadyError, OverloadedError
from adapter.model.lag_rows import Ints
from adapter.rpc import lag_pb
from adapter.sidecar.lag.filters import Filter, Filters
from adapter.sidecar.lag.view import View

MAX_WATCHERS = 100
RETRY_AFTER_S = 5.0
MAX_GROUPS = 1_000  # of a reply
SLICE_GROUPS = 100  # made between two yields: a millisecond
REST = 4

ENDED = "the watch has ended, because the adapter stops or opens its store again: begin another one"


class LagWatches:
    """All watchers of the lag of a store, and what they watch."""

    def __init__(self, filters: Filters) -> None:
        self.filters = filters
        self.turn = anyio.Lock()
        self.view = View.nothing()
        self.callers = 0
        self._ended = False
        self._changed = asyncio.Event()

    def note(self, view: View) -> None:
        """Let all watchers see the newest evaluation."""
        self.view = view
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

    async def after(self, version: int) -> None:
        """Wait for a later evaluation than this one. Raises NotReadyError at the end."""
        while not self._ended and self.view.version <= version:
            await self._changed.wait()
        self.check()

    def check(self) -> None:
        """Raise NotReadyError at the end."""
        if self._ended:
            raise NotReadyError(ENDED)


async def changes(watches: LagWatches, wanted: Filter) -> AsyncGenerator[lag_pb.WatchGroupLagReply, None]:
    """What a watcher is told, until it goes. Raises OverloadedError, and NotReadyError at the end."""
    with watches.one():
        watcher = _Watcher(watches, wanted)
        while True:
            await watches.after(watcher.done)
            async with watches.turn:
                reply = await watcher.next(watches.view)
            if reply:
                yield reply


class _Watcher:
    """What one watcher was sent: of each group, by its number, the view's version; 0: it was not. `done`: sent completely."""

    def __init__(self, watches: LagWatches, wanted: Filter) -> None:
        self._watches = watches
        self._wanted = wanted
        self._sent = np.zeros(0, np.int64)
        self._removed = 0  # how many of all removals it was told of
        self._resync = True
        self.done = 0

    async def next(self, view: View) -> lag_pb.WatchGroupLagReply | None:
        """The next reply by the newest view; None if nothing is to be told. Raises NotReadyError at the end."""
        self._sent = np.append(self._sent, np.zeros(max(len(view.groups) - len(self._sent), 0), np.int64))
        if self._removed < view.removals - len(view.removed):
            self._resync = True
        if self._resync:
            self._sent[:] = 0
            self._removed = view.removals
        reply = lag_pb.WatchGroupLagReply(resync=self._resync, evaluated_at_ms=view.evaluated_at_ms)
        if not await self._tell(view, reply):
            self.done = view.version
        if not (reply.resync or reply.groups or reply.removed):
            return None
        self._resync = False
        return reply

    async def _tell(self, view: View, reply: lag_pb.WatchGroupLagReply) -> bool:
        """Add what is to be told next, in slices; False if that is all."""
        sent = self._sent
        # First: the number of a group that left may be another group's now.
        untold = view.removals - self._removed
        left = view.removed[-untold:] if untold else ()
        for one in left[:MAX_GROUPS]:
            self._removed += 1
            if 0 < sent[one.group] < one.version:
                sent[one.group] = 0
                reply.removed.add(namespace=one.key.namespace, group=one.key.group)
        if len(left) > MAX_GROUPS:
            return True
        matches = await self._watches.filters.matching(view, self._wanted)
        gone: Ints = np.flatnonzero((sent[: len(matches)] > 0) & ~matches)
        for group in gone[:MAX_GROUPS].tolist():
            sent[group] = 0
            reply.removed.add(namespace=view.groups[group].namespace, group=view.groups[group].group)
        order = await anyio.to_thread.run_sync(view.order, lag_pb.NAME)
        new = order[matches[order] & (sent[order] < view.changed[order])]
        # Those that were sent longest ago first: none is passed over for ever.
        first = new[np.argsort(sent[new], kind="stable")][:MAX_GROUPS]
        for at in range(0, len(first), SLICE_GROUPS):
            self._watches.check()
            began = time.perf_counter()
            reply.groups.extend(view.messages(first[at : at + SLICE_GROUPS]))
            await anyio.sleep((time.perf_counter() - began) * REST)
        sent[first] = view.version
        return len(new) > MAX_GROUPS or len(gone) > MAX_GROUPS
