"""Live pages: streams of server-sent events with what changed, one build for all who look at the same page.

A view that somebody looks at is built again when the fleet says that something changed, at most twice per second, and at least
once per second. A reader gets the difference between what it was sent last and what is now; whoever is slow skips what was in
between, and is dropped when it takes nothing for `SEND_S`. Their number is bounded: beyond it, an address that has more than the
new reader's gives one up.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from adapter.console.metrics import ConsoleMetrics
from adapter.console.sources.meta_instances import MetaInstances
from adapter.console.views.view import Fragments, difference, digest
from adapter.errors import AdapterError
from adapter.fleet.fleet import FleetApi

log = structlog.get_logger(__name__)

LEAST_S = 0.5  # between two builds of a view
MOST_S = 1.0  # the same, when nothing was said to have changed
ALIVE_S = 4.0  # a reader hears something at least so often
SEND_S = 10.0  # a reader that takes nothing for so long is dropped
LIFE_S = 600.0  # of a stream: the next one shows again who reads
RETRY_MS = 1_000
FLEET_PAUSE_S = 0.5
ALIVE = ServerSentEvent(event="alive", data="-")

BuildFragments = Callable[[], Awaitable[Fragments]]


class _Shown:
    """A view that somebody looks at."""

    def __init__(self, build: BuildFragments) -> None:
        self.build = build
        self.readers = 0
        self.fragments: Fragments | None = None
        self.error = ""
        self.gone = False  # there is no such page any more
        self.changed = anyio.Event()

    def tell(self) -> None:
        """Wake the readers."""
        self.changed.set()
        self.changed = anyio.Event()


class _Reader:
    """One stream: the address of who reads it, and whether it has to end."""

    def __init__(self, host: str, shown: _Shown) -> None:
        self.host = host
        self._shown = shown
        self.ends = False

    def end(self) -> None:
        """Let it end; the page connects again if there is room."""
        self.ends = True
        self._shown.tell()


class StreamKey(NamedTuple):
    """What identifies a page: its view and its parameters."""

    view: str
    query: str


class Live:
    """All streams. `most` is their number; 0: there are none."""

    def __init__(self, fleet: FleetApi, meta: MetaInstances, most: int, metrics: ConsoleMetrics) -> None:
        self._fleet = fleet
        self._meta = meta
        self._most = most
        self.metrics = metrics
        self._readers: dict[_Reader, None] = {}  # in the order in which they came; without those that have to end
        self.streams = 0
        self._views: dict[StreamKey, _Shown] = {}
        self._wake = anyio.Event()
        self._stopping = anyio.Event()
        self._tasks: TaskGroup | None = None

    @property
    def views(self) -> int:
        """How many different pages somebody looks at."""
        return len(self._views)

    async def run(self) -> None:
        """Build what is looked at, until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                tasks.start_soon(self._follow_meta, name="live.meta")
                async with aclosing(self._fleet.changes(FLEET_PAUSE_S)) as changes:
                    async for change in changes:
                        if change.adapters or change.groups or change.many:
                            self._tell()
            finally:
                self._tasks = None

    def stop(self) -> None:
        """End all streams, and take no more."""
        self._stopping.set()
        for shown in self._views.values():
            shown.tell()

    def open(self, key: StreamKey, build: BuildFragments, seen: str, host: str) -> EventSourceResponse:
        """A stream for a reader at an address, whose page shows fragments with the digest `seen`.

        Raises HTTPException 503 beyond the limit.
        """
        if self._tasks is None or self._stopping.is_set():
            raise HTTPException(503, "there are no live pages now", {"Retry-After": "5"})
        if len(self._readers) >= self._most and not self._make_room(host):
            raise HTTPException(503, f"there are {self.streams} live pages already (server.streams)", {"Retry-After": "10"})
        return _Stream(self._events(key, build, seen, host), self)

    def _make_room(self, host: str) -> bool:
        """End the oldest stream of the address with the most; False if that has hardly more than this one."""
        hosts = Counter(reader.host for reader in self._readers)
        most, count = next(iter(hosts.most_common(1)), (host, 0))
        if count <= hosts[host] + 1:
            return False
        oldest = next(reader for reader in self._readers if reader.host == most)
        del self._readers[oldest]
        oldest.end()
        return True

    def _count(self, more: int) -> None:
        self.streams += more
        self.metrics.streams.set(self.streams)

    def _tell(self) -> None:
        self._wake.set()
        self._wake = anyio.Event()

    async def _follow_meta(self) -> None:
        while True:
            await self._meta.wait()
            self._tell()

    async def _events(self, key: StreamKey, build: BuildFragments, seen: str, host: str) -> AsyncIterator[ServerSentEvent]:
        shown = self._views.get(key)
        if shown is None:
            shown = self._views[key] = _Shown(build)
            assert self._tasks is not None  # noqa: S101 - checked by `open`
            self._tasks.start_soon(self._keep, key, shown, name="live.view")
        shown.readers += 1
        reader = _Reader(host, shown)
        self._readers[reader] = None
        self._count(1)
        sent: Fragments | None = None
        ends_at = anyio.current_time() + LIFE_S
        try:
            yield ServerSentEvent(event="alive", data="-", retry=RETRY_MS)
            # No cancel scope is open at a `yield`: it would reach into the sending.
            while not (self._stopping.is_set() or reader.ends) and anyio.current_time() < ends_at:
                changed, now = shown.changed, shown.fragments
                if shown.gone:
                    yield ServerSentEvent(event="away", data="-")
                    return
                if now is not None and now is not sent:
                    parts = [] if sent is None and digest(now) == seen else difference(sent, now)
                    sent = now
                    if parts:
                        yield ServerSentEvent(event="fragments", data=json.dumps(parts, separators=(",", ":")))
                yield ServerSentEvent(event="stale", data=json.dumps(shown.error)) if shown.error else ALIVE
                with anyio.move_on_after(ALIVE_S):
                    await changed.wait()
        finally:
            self._count(-1)
            self._readers.pop(reader, None)
            shown.readers -= 1

    async def _keep(self, key: StreamKey, shown: _Shown) -> None:
        """Build a view again and again, until nobody looks at it."""
        try:
            while not self._stopping.is_set():
                began, wake = anyio.current_time(), self._wake
                await self._build(shown)
                if shown.gone:
                    return
                await anyio.sleep(max(0.0, began + LEAST_S - anyio.current_time()))
                if not shown.readers:
                    return
                with anyio.move_on_after(MOST_S - LEAST_S):
                    await wake.wait()
        finally:
            if self._views.get(key) is shown:
                del self._views[key]

    async def _build(self, shown: _Shown) -> None:
        error = ""
        try:
            made = await shown.build()
        except HTTPException as refused:
            shown.gone, made = True, None
            error = refused.detail
        except AdapterError as failed:
            made, error = shown.fragments, str(failed)
        except Exception:
            # One page that cannot be made must not end the others.
            log.exception("console.view_failed")
            made, error = shown.fragments, "this page cannot be made; the console's log says why"
        if made is not shown.fragments or error != shown.error or shown.gone:
            same = made is not None and shown.fragments is not None and not difference(shown.fragments, made)
            shown.error = error
            if not same or shown.gone:
                shown.fragments = made
                shown.tell()


class _Stream(EventSourceResponse):
    """A stream of which the server drops a reader that takes nothing."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], live: Live) -> None:
        super().__init__(events, ping=0, send_timeout=SEND_S)
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the reader or the console leaves."""
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            self._live.metrics.dropped.inc()
            log.info("console.reader_dropped", after_s=SEND_S, help="it took nothing for so long; its page connects again")
