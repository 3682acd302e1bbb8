"""Connections that never finish a request, that read no answer, and that are too many: by a real server over sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from adapter.console import connections
from adapter.console.access.guard import Turns
from adapter.console.connections import Connections
from adapter.testing.waiting import PATIENCE_S, eventually

HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LARGE = 16 * 2**20  # bytes of an answer: more than the sockets of both sides hold


class Pages:
    """The application: answers at once, largely, or when the test says so."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        self.asked += 1
        if scope["path"] == "/slow":
            await self.goes_on.wait()
        text = "x" * LARGE if scope["path"] == "/large" else "ok"
        await PlainTextResponse(text)(scope, receive, send)


class Server:
    """A server, and clients of it."""

    def __init__(self, pages: Pages, all_: Connections, port: int) -> None:
        self.pages = pages
        self.all = all_
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"", host: str = "127.0.0.1") -> asyncio.StreamReader:
        """Connect from an address, and send bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))
        writer.write(data)
        self._writers.append(writer)
        return reader

    async def get(self, path: str = "/") -> int:
        """The status of a page over a new connection."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE_S) as client:
            return (await client.get(path)).status_code

    def close(self) -> None:
        """Close all."""
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def serving(most: int = 10, **limits: Any) -> AsyncIterator[Server]:
    """A server of so many connections."""
    pages, all_ = Pages(), Connections(most, **limits)
    listener = socket.create_server(("127.0.0.1", 0))
    http = cast("Any", all_.protocol)
    made = uvicorn.Server(uvicorn.Config(pages, http=http, lifespan="off", log_config=None, ws="none", timeout_keep_alive=1_000))
    task = asyncio.create_task(made.serve([listener]))
    await eventually(lambda: made.started)
    server = Server(pages, all_, listener.getsockname()[1])
    try:
        yield server
    finally:
        pages.goes_on.set()
        server.close()
        made.should_exit = True
        await task


async def closed(reader: asyncio.StreamReader) -> bytes:
    """What came until the server closed the connection."""
    found = b""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(PATIENCE_S):
            while data := await reader.read(65_536):
                found += data
    return found


@pytest.mark.parametrize(
    ("data", "limits"),
    [
        (b"", {"head_s": 0.05}),
        (b"GET / HTT", {"head_s": 0.05}),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nx", {"body_s": 0.05}),
        (HEAD, {"head_s": 0.05}),
    ],
)
async def test_a_connection_that_does_not_finish_its_request_is_closed(data: bytes, limits: dict[str, Any]) -> None:
    """At its head, in its body, and behind an answer. It stayed as long as it liked, and kept its place."""
    async with serving(**limits) as server:
        await closed(await server.connect(data))
        await eventually(lambda: not server.all.hosts)


async def test_a_client_that_sends_a_little_at_a_time_gets_no_more_time() -> None:
    """Each byte began the wait anew."""
    async with serving(head_s=1.0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while not reader.at_eof():
                    writer.write(b"x")
                    await writer.drain()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await reader.read(1)
        writer.close()
        await eventually(lambda: not server.all.hosts)


async def test_a_new_connection_finds_a_place_among_those_that_wait() -> None:
    """201 of them made every page and /healthz answer 503, without a login."""
    async with serving() as server:
        for _ in range(30):
            await server.connect(b"GET / HTT")
        assert await server.get() == 200
        assert await server.get("/healthz") == 200
        assert server.all.hosts.total() <= 10


async def test_the_address_with_the_most_connections_loses_them() -> None:
    """Others keep theirs, however long they wait."""
    async with serving() as server:
        honest = await server.connect(b"", host="127.0.0.2")
        for _ in range(30):
            await server.connect(b"GET / HTT")
        assert server.all.hosts["127.0.0.2"] == 1
        assert not honest.at_eof()


async def test_connections_that_are_answered_stay_and_health_is_told_beyond_the_limit() -> None:
    """All else is told to come back, and connections beyond it go one for the other."""
    async with serving() as server:
        slow = [await server.connect(HEAD.replace(b"/ ", b"/slow ", 1)) for _ in range(10)]
        await eventually(lambda: server.pages.asked == 10)
        assert await server.get() == 503
        assert await server.get("/healthz") == 200
        for _ in range(15):
            await server.connect()
        await eventually(lambda: server.all.hosts.total() == 11)
        server.pages.goes_on.set()
        for reader in slow:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_an_answer_that_nobody_reads_is_dropped() -> None:
    """After some time; and before, when there are too many bytes of them."""
    large = HEAD.replace(b"/ ", b"/large ", 1)
    async with serving(taken_s=0.05) as server:
        await server.connect(large)
        await eventually(lambda: server.pages.asked == 1 and not server.all.hosts)
    async with serving(unread_max=2 * LARGE, taken_s=1_000, head_s=1_000) as server:
        for _ in range(5):
            await server.connect(large)
        await eventually(lambda: server.pages.asked == 5 and server.all.unread <= 2 * LARGE)
        await eventually(lambda: server.all.hosts.total() < 5)
        assert server.all.hosts.total() >= 2, "as many as have room stay"


async def test_an_answer_is_read_to_its_end_however_long_that_takes() -> None:
    """The time of the next request does not end it."""
    async with serving(head_s=0.05) as server:
        reader = await server.connect(HEAD.replace(b"/ ", b"/large ", 1))
        await eventually(lambda: server.all.unread > 0)
        await asyncio.sleep(0.2)  # several times the limit; a slow machine makes it longer
        assert len(await closed(reader)) > LARGE


async def test_pages_have_turns_and_too_many_are_refused() -> None:
    """Health and live pages do not wait for them."""
    pages = Pages()
    turns = Turns(pages, at_once=2, waiting_max=4)

    async def status(path: str, host: str = "a", method: str = "GET") -> int:
        found: list[Any] = []

        async def send(message: Any) -> None:
            found.append(message)

        scope = {"type": "http", "method": method, "path": path, "client": (host, 1), "headers": []}
        await turns(scope, cast("Receive", None), send)
        return int(found[0]["status"])

    asked = [asyncio.create_task(status("/slow")) for _ in range(4)]
    await _until_waiting(lambda: pages.asked == 2)
    assert await status("/slow") == 503, "two of this address wait already"
    other = [asyncio.create_task(status("/slow", "b")) for _ in range(2)]
    await asyncio.sleep(0)
    assert await status("/slow", "c") == 503, "four wait altogether"
    for path in ("/healthz", "/live/groups", "/static/a.js"):
        assert await status(path) == 200
    assert await status("/", method="POST") == 200
    pages.goes_on.set()
    assert await asyncio.gather(*asked, *other) == [200] * 6


async def _until_waiting(condition: Callable[[], bool]) -> None:
    await eventually(condition)
    await asyncio.sleep(0)


def test_the_limits_are_those_that_the_documents_name() -> None:
    """docs/console.md."""
    assert (connections.HEAD_S, connections.BODY_S, connections.TAKEN_S) == (20, 30, 30)
