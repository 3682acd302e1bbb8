"""Live pages: what is sent, to whom, and where it ends."""

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from markupsafe import Markup
from starlette.applications import Starlette

from adapter.console.config import ConsoleConfig, ConsoleServerSection
from adapter.console.views import live as live_module
from adapter.console.views.view import Fragments, Table, difference, digest
from adapter.errors import OverloadedError
from adapter.fleet.views import GroupPage, Health
from adapter.rpc import lag_pb
from tests.unit.console.fakes import BASE, FakeFleet, FakeMeta, adapter_view, application, client_of, group_view, instance

Event = tuple[str, str]


class Reader:
    """A browser that reads a stream: ASGI by hand, since a test must see an answer that does not end."""

    def __init__(self, app: Starlette, path: str, host: str = "127.0.0.1") -> None:
        self._app = app
        path, _, query = path.partition("?")
        self._scope: MutableMapping[str, Any] = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
            "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [(b"host", BASE[7:].encode())],
            "client": (host, 1), "server": ("127.0.0.1", 9540),
        }  # fmt: skip
        self._gone = anyio.Event()
        self.taking = anyio.Event()
        self.taking.set()
        self.status = 0
        self.ended = anyio.Event()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    async def run(self) -> None:
        """Read until the stream ends."""
        await self._app(self._scope, self._receive, self._send)
        self.ended.set()

    def leave(self) -> None:
        """Close the connection."""
        self._gone.set()

    async def next(self, kind: str) -> Any:
        """The data of the next event of a kind."""
        with anyio.fail_after(60):
            while True:
                name, data = await self._events.get()
                if name == kind:
                    return json.loads(data) if data != "-" else None

    async def _receive(self) -> MutableMapping[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        await self.taking.wait()
        for block in message["body"].decode().split("\r\n\r\n"):
            lines = dict(line.partition(": ")[::2] for line in block.splitlines())
            if "event" in lines:
                self._events.put_nowait((lines["event"], lines.get("data", "")))


@asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[TaskGroup]:
    """The streams of an application."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.state.background.run)
        await anyio.wait_all_tasks_blocked()
        yield tasks
        tasks.cancel_scope.cancel()


def fleet_of(*names: str) -> FakeFleet:
    """One adapter with groups."""
    return FakeFleet([adapter_view()], [group_view(name) for name in names])


async def seen_by(app: Starlette, path: str) -> str:
    """The address of the stream that a page names."""
    async with client_of(app) as client:
        html = (await client.get(path)).text
    return str(html.split('data-live="')[1].split('"')[0]).replace("&amp;", "&")


async def test_a_reader_gets_the_row_that_changed_and_no_other() -> None:
    """The page that it loaded is not sent again."""
    fleet = fleet_of("a", "b")
    app = application(fleet)
    async with running(app) as tasks:
        reader = Reader(app, await seen_by(app, "/groups"))
        tasks.start_soon(reader.run)
        await reader.next("alive")
        await reader.next("alive")
        fleet.views["default", "b"] = group_view("b", lag=99)
        fleet.tell()
        [(name, html)] = await reader.next("fragments")
    assert 'data-value="99"' in html
    assert f'id="{name}"' in html


async def test_a_new_order_sends_the_whole_table() -> None:
    """Single rows cannot say where they belong."""
    fleet = fleet_of("a", "b")
    app = application(fleet)
    async with running(app) as tasks:
        reader = Reader(app, await seen_by(app, "/groups"))
        tasks.start_soon(reader.run)
        await reader.next("alive")
        await reader.next("alive")
        fleet.views = dict(reversed(fleet.views.items()))
        fleet.tell()
        parts = dict(await reader.next("fragments"))
    assert list(parts) == ["groups"]
    assert parts["groups"].index('data-group="b"') < parts["groups"].index('data-group="a"')


async def test_a_page_of_another_time_is_sent_whole() -> None:
    """What a reader has is not known then."""
    app = application(fleet_of("a"))
    async with running(app) as tasks:
        reader = Reader(app, "/live/groups?seen=old")
        tasks.start_soon(reader.run)
        parts = dict(await reader.next("fragments"))
    assert list(parts) == ["groups-count", "groups-pager", "groups"]


@pytest.mark.parametrize("path", ["/", "/groups", "/group?group=a"])
async def test_each_page_knows_its_stream(path: str) -> None:
    """The digest in its address is that of what the page shows: nothing is sent while nothing changes."""
    fleet = fleet_of("a")
    app = application(fleet, FakeMeta([instance()]))
    async with running(app) as tasks:
        first = Reader(app, await seen_by(app, path))
        tasks.start_soon(first.run)
        await first.next("alive")
        fleet.adapters = [adapter_view(health=Health.AWAY)]
        fleet.views = {("default", "a"): group_view("a", status=lag_pb.STOP)}
        fleet.tell()
        changed = dict(await first.next("fragments"))
    fragments = {"/": "problems", "/groups": next(iter(changed)), "/group?group=a": "group-sums"}
    assert fragments[path] in changed


async def test_readers_of_one_page_share_what_is_built() -> None:
    """A hundred readers cost the fleet what one costs."""
    fleet = fleet_of("a")
    app = application(fleet)
    path = await seen_by(app, "/groups?q=a")
    async with running(app) as tasks:
        readers = [Reader(app, path) for _ in range(20)]
        for reader in readers:
            tasks.start_soon(reader.run)
        for reader in readers:
            await reader.next("alive")
        assert (app.state.background.live.streams, app.state.background.live.views) == (20, 1)
        for reader in readers:
            reader.leave()
            with anyio.fail_after(60):
                await reader.ended.wait()
        assert app.state.background.live.streams == 0


async def test_a_view_that_nobody_looks_at_is_built_no_more() -> None:
    """The last reader leaves: its task ends."""
    app = application(fleet_of("a"))
    async with running(app) as tasks:
        reader = Reader(app, "/live/groups")
        tasks.start_soon(reader.run)
        await reader.next("fragments")
        reader.leave()
        with anyio.fail_after(60):
            while app.state.background.live.views:  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.05)


async def test_streams_are_bounded() -> None:
    """The one too many is refused, and a place that is free again is given."""
    settings = ConsoleConfig(server=ConsoleServerSection(streams=1))
    app = application(fleet_of("a"), settings=settings)
    async with running(app) as tasks:
        first, second, third = (Reader(app, "/live/groups") for _ in range(3))
        tasks.start_soon(first.run)
        await first.next("fragments")
        with anyio.move_on_after(30):  # one that is taken does not end
            await second.run()
        assert second.status == 503
        first.leave()
        with anyio.fail_after(60):
            await first.ended.wait()
        assert app.state.metrics.registry.get_sample_value("offset_console_live_streams") == 0
        tasks.start_soon(third.run)
        await third.next("fragments")
        assert third.status == 200


async def test_the_address_with_the_most_streams_gives_one_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest, and at once; it gets no place back while others have as many."""
    monkeypatch.setattr(live_module, "ALIVE_S", 3_600.0)
    app = application(fleet_of("a"), settings=ConsoleConfig(server=ConsoleServerSection(streams=2)))
    async with running(app) as tasks:
        first, second, refused = (Reader(app, "/live/groups") for _ in range(3))
        other = Reader(app, "/live/groups", "127.0.0.2")
        for reader in (first, second, other):
            tasks.start_soon(reader.run)
            await reader.next("fragments")
        with anyio.fail_after(60):
            await first.ended.wait()
        with anyio.move_on_after(30):
            await refused.run()
        assert (refused.status, other.status) == (503, 200)
        assert [reader.ended.is_set() for reader in (second, other)] == [False, False]
        assert app.state.background.live.streams == 2


async def test_a_reader_that_takes_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is free again, and others are not held up by it."""
    monkeypatch.setattr(live_module, "SEND_S", 0.2)
    app = application(fleet_of("a"))
    async with running(app) as tasks:
        slow, other = Reader(app, "/live/groups"), Reader(app, "/live/groups")
        slow.taking = anyio.Event()
        tasks.start_soon(slow.run)
        tasks.start_soon(other.run)
        await other.next("fragments")
        with anyio.fail_after(60):
            await slow.ended.wait()
        assert app.state.background.live.streams == 1
        assert app.state.metrics.registry.get_sample_value("offset_console_readers_dropped_total") == 1


async def test_stop_ends_all_streams_and_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits neither for readers nor for the next sign of life."""
    monkeypatch.setattr(live_module, "ALIVE_S", 3_600.0)
    app = application(fleet_of("a"))
    async with running(app) as tasks:
        reader, late = Reader(app, "/live/groups"), Reader(app, "/live/groups")
        tasks.start_soon(reader.run)
        await reader.next("fragments")
        app.state.background.stop()
        with anyio.fail_after(60):
            await reader.ended.wait()
        with anyio.move_on_after(30):
            await late.run()
        assert late.status == 503


async def test_a_page_that_is_gone_tells_its_readers_to_leave() -> None:
    """The group was deleted everywhere: the browser loads the page again, and sees that."""
    fleet = fleet_of("a")
    app = application(fleet)
    async with running(app) as tasks:
        reader = Reader(app, "/live/group?group=a")
        tasks.start_soon(reader.run)
        await reader.next("fragments")
        fleet.views.clear()
        fleet.tell()
        await reader.next("away")
        with anyio.fail_after(60):
            await reader.ended.wait()


@pytest.mark.parametrize("error", [OverloadedError("too many ask"), RuntimeError("a bug")])
async def test_a_page_that_cannot_be_made_is_said_to_be_old(error: Exception) -> None:
    """Its readers are told, others are not concerned, and it goes on when it can be made again."""

    class Failing(FakeFleet):
        failing = False

        async def groups(self, *arguments: Any, **named: Any) -> GroupPage:
            if self.failing and named.get("text"):
                raise error
            return await super().groups(*arguments, **named)

    fleet = Failing([adapter_view()], [group_view("a")])
    app = application(fleet)
    async with running(app) as tasks:
        reader, other = Reader(app, "/live/groups?q=a"), Reader(app, "/live/groups")
        tasks.start_soon(reader.run)
        tasks.start_soon(other.run)
        await reader.next("fragments")
        await other.next("fragments")
        fleet.failing = True
        fleet.views["default", "a"] = group_view("a", lag=50)
        fleet.tell()
        assert await reader.next("stale")
        assert await other.next("fragments")
        fleet.failing = False
        fleet.tell()
        assert await reader.next("fragments")


async def test_the_end_of_a_stream_comes_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one shows again who reads: a session may have ended."""
    monkeypatch.setattr(live_module, "LIFE_S", 0.0)
    app = application(fleet_of("a"))
    async with running(app) as tasks:
        reader = Reader(app, "/live/groups")
        tasks.start_soon(reader.run)
        with anyio.fail_after(60):
            await reader.ended.wait()


def test_the_difference_is_what_changed() -> None:
    """Rows one by one while they are the same ones; all of it otherwise."""
    row = {"r1": Markup("<tr>1</tr>"), "r2": Markup("<tr>2</tr>")}
    before: Fragments = {"t": Table(Markup("<b>"), row, Markup("</b>")), "x": Markup("x")}
    changed: Fragments = {**before, "t": Table(Markup("<b>"), {**row, "r2": Markup("<tr>3</tr>")}, Markup("</b>"))}
    fewer: Fragments = {**before, "t": Table(Markup("<b>"), {"r2": row["r2"]}, Markup("</b>"))}
    assert difference(before, before) == []
    assert difference(before, changed) == [("r2", "<tr>3</tr>")]
    assert difference(before, fewer) == [("t", "<b><tr>2</tr></b>")]
    assert difference(before, {**before, "x": Markup("y")}) == [("x", "y")]
    assert difference(None, before) == [("t", "<b><tr>1</tr><tr>2</tr></b>"), ("x", "x")]
    assert digest(before) != digest(changed)
