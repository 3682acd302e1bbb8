"""A small HTTP server: `/metrics` for Prometheus, `/livez` and `/readyz` for probes.

It has its own thread and event loop, so that a scrape delays no call, and `/livez` can report that the main loop is blocked. Its
connections, their time and the bytes of a request are bounded. A new connection beyond the limit closes the oldest one.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from adapter.errors import ListenError
from adapter.runtime.settings.addresses import split_address
from adapter.runtime.settings.config import MetricsSection

log = structlog.get_logger(__name__)

CONNECTIONS_MAX = 32
REQUEST_MAX = 8_192  # bytes of a request's head
REQUEST_S = 3.0  # from the connection to the last byte of the answer
BEAT_S = 1.0  # seconds between two heartbeats of the main event loop
DEAD_S = 10.0  # seconds without a heartbeat after which the process counts as dead
CLOSING_TURNS = 5  # iterations of the event loop in which accepted connections are taken, and aborted ones closed
PLAIN = "text/plain; charset=utf-8"

# Whether the process can serve, and a text for a person.
Ready = Callable[[], tuple[bool, str]]


class Reply(NamedTuple):
    """An HTTP response."""

    status: HTTPStatus
    body: bytes
    kind: str = PLAIN
    allow: str = ""


class Beat:
    """The heartbeat of the event loop in which it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._go_on()

    def age_s(self) -> float:
        """Return the seconds since the last heartbeat. Thread-safe."""
        return time.monotonic() - self._last

    def stop(self) -> None:
        """Stop the heartbeat."""
        if self._timer:
            self._timer.cancel()

    def _go_on(self) -> None:
        self._last = time.monotonic()
        self._timer = self._loop.call_later(BEAT_S, self._go_on)


class Pages:
    """The pages that are served. Called in the server's thread."""

    def __init__(self, registry: CollectorRegistry, ready: Ready, age_s: Callable[[], float]) -> None:
        self._registry = registry
        self._ready = ready
        self._age_s = age_s

    def answer(self, head: bytes) -> Reply:
        """Return the response to the head of a request."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):  # noqa: PLR2004 - method, target, version
            return _told(HTTPStatus.BAD_REQUEST, "this is an HTTP server")
        method, path = words[0], words[1].partition("?")[0]
        page = {"/metrics": self._metrics, "/livez": self._live, "/readyz": self._readiness}.get(path)
        if page is None:
            return _told(HTTPStatus.NOT_FOUND, "there are /metrics, /livez and /readyz")
        if method not in {"GET", "HEAD"}:
            return _told(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are taken")._replace(allow="GET, HEAD")
        reply = page(lines[1:])
        return reply if method == "GET" else reply._replace(body=b"")

    def _metrics(self, headers: list[str]) -> Reply:
        accepts = [value.strip() for name, _, value in (line.partition(":") for line in headers) if name.lower() == "accept"]
        encode, kind = choose_encoder(",".join(accepts))
        return Reply(HTTPStatus.OK, encode(self._registry), kind)

    def _live(self, _: list[str]) -> Reply:
        age_s = self._age_s()
        if age_s > DEAD_S:
            return _told(HTTPStatus.SERVICE_UNAVAILABLE, f"the event loop stands still for {age_s:.0f} s")
        return _told(HTTPStatus.OK, "alive")

    def _readiness(self, headers: list[str]) -> Reply:
        live = self._live(headers)
        ready, text = self._ready()
        return (
            live if live.status is not HTTPStatus.OK else _told(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, text)
        )


class _Server:
    """Accepts connections and answers one request on each."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}  # the oldest first
        self._stop = asyncio.Event()

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Serve until `stop`."""
        servers = [await asyncio.start_server(self._take, sock=listener, limit=REQUEST_MAX) for listener in listeners]
        await self._stop.wait()
        for listener in listeners:
            asyncio.get_running_loop().remove_reader(listener)
        # Let connections that were just accepted start first: asyncio would leave their sockets open once the server is closed.
        await _some_turns()
        for server in servers:
            server.close()
        for writer in list(self._open):
            writer.transport.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _some_turns()  # until aborted connections are closed

    def stop(self) -> None:
        """End `serve`, in its event loop."""
        self._stop.set()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a new connection; close the oldest ones beyond CONNECTIONS_MAX."""
        while len(self._open) >= CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = asyncio.create_task(self._answer(reader, writer), name="metrics.answer")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_encoded(self._reply(head)))
                writer.close()
                await writer.wait_closed()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError, OSError):
            writer.transport.abort()  # TimeoutError is an OSError; it is cancelled by `serve` alone, which ends
        finally:
            self._open.pop(writer, None)

    def _reply(self, head: bytes) -> Reply:
        try:
            return self._pages.answer(head)
        except Exception:
            log.exception("metrics.failed")
            return _told(HTTPStatus.INTERNAL_SERVER_ERROR, "the log says why")


@contextmanager
def serving(section: MetricsSection, registry: CollectorRegistry, ready: Ready) -> Iterator[None]:
    """Serve inside, unless `listen` is empty. Raises ListenError.

    Enter it in the event loop whose heartbeat `/livez` reports.
    """
    if not section.listen:
        yield
        return
    listeners = _listeners(section)
    beat = Beat()
    server = _Server(Pages(registry, ready, beat.age_s))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_run, args=(loop, server.serve(listeners)), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        beat.stop()
        loop.call_soon_threadsafe(server.stop)
        thread.join()  # it must not read what the caller closes next
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    loop.run_until_complete(work)


def _listeners(section: MetricsSection) -> list[socket.socket]:
    """Bind a socket on each address of the host name."""
    host, port = split_address(section.listen)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, (address, *_) in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            both = family == socket.AF_INET6 and address == "::"
            made.append(socket.create_server((address, port), family=family, backlog=CONNECTIONS_MAX, dualstack_ipv6=both))
    except OSError as error:
        for listener in made:
            listener.close()
        raise ListenError(
            f"metrics.listen = {section.listen!r}: {error.strerror}: choose another port or stop what uses it"
        ) from error
    return made


async def _some_turns() -> None:
    for _ in range(CLOSING_TURNS):
        await asyncio.sleep(0)


def _told(status: HTTPStatus, text: str) -> Reply:
    return Reply(status, f"{text}\n".encode())


def _encoded(reply: Reply) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}",
        f"Content-Type: {reply.kind}",
        f"Content-Length: {len(reply.body)}",
        *([f"Allow: {reply.allow}"] if reply.allow else []),
        "Cache-Control: no-store",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + reply.body
