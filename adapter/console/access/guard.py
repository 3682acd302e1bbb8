"""What every request passes: the Host header, the size of the request, its time; and the headers that every answer gets."""

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_MAX = 8 * 2**20  # bytes of a request's body: an offset file that is sent for a reset
HEADERS_MAX = 16_384  # bytes of all headers
TARGET_MAX = 4_096  # bytes of a path with its query
REQUEST_S = 30.0  # for a whole request that is not a stream of events
AT_ONCE = 4  # pages that are made; a page of 1,000 rows takes a tenth of a second of CPU
WAITING_MAX = 16  # pages that wait for that, and half as many of one address: the last one waits for some seconds

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Sequence[tuple[str, str]] = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),  # with no-referrer, our own forms would come with `Origin: null`
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
STATIC, LIVE, HEALTH = "/static/", "/live", "/healthz"

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")


class SecurityHeaders:
    """Adds the headers to every answer, and `no-store` unless the answer says how long it may be kept."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for key, value in HEADERS:
                    headers[key] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class Limits:
    """Refuses a foreign Host, a long target, large headers, a large body, and what takes too long.

    `hosts`: the names without a port by which the console may be called; empty: any. On loopback it must not be any: a page of
    another site could give its own name this address (DNS rebinding), and read.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], *, request_s: float = REQUEST_S, body_max: int = BODY_MAX) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._request_s = request_s
        self._body_max = body_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal:
            await refusal(scope, receive, send)
            return
        body = _Body(receive, self._body_max)
        began = _Begun(send)
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if path.startswith(LIVE):
            await self._app(scope, body, began)
            return
        # Not anyio's: a cancelled call of grpc.aio ends with a CancelledError of its own, which no scope of anyio takes.
        try:
            async with asyncio.timeout(self._request_s):
                await self._app(scope, body, began)
        except _TooLargeError:
            if not began.begun:
                await PlainTextResponse(f"the body has more than {self._body_max:,} bytes\n", 413)(scope, receive, send)
        except TimeoutError:
            if not began.begun:
                await PlainTextResponse(f"not answered within {self._request_s:g} s\n", 503)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > TARGET_MAX:
            return PlainTextResponse(f"the path and its query have more than {TARGET_MAX:,} bytes\n", 414)
        if sum(len(key) + len(value) for key, value in scope["headers"]) > HEADERS_MAX:
            return PlainTextResponse(f"the headers have more than {HEADERS_MAX:,} bytes\n", 431)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_max:
            return PlainTextResponse(f"the body has more than {self._body_max:,} bytes\n", 413)
        match = _HOST.fullmatch(headers.get("host", "").lower())
        if match is None or (self._hosts and match[1] not in self._hosts):
            return PlainTextResponse("the console is not called by this name: add it to server.hosts\n", 421)
        return None


class Turns:
    """Lets a few pages be made at a time, and refuses those that would wait behind too many. Forms do not wait."""

    def __init__(self, app: ASGIApp, *, at_once: int = AT_ONCE, waiting_max: int = WAITING_MAX) -> None:
        self._app = app
        self._room = asyncio.Semaphore(at_once)
        self._waiting_max = waiting_max
        self._waiting: Counter[str] = Counter()  # by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"} or path.startswith((STATIC, LIVE)) or path == HEALTH:
            await self._app(scope, receive, send)
            return
        host = (scope.get("client") or ("",))[0]
        if self._waiting[host] >= self._waiting_max // 2 or self._waiting.total() >= self._waiting_max:
            await PlainTextResponse("too many pages are asked for: try again\n", 503, {"Retry-After": "1"})(scope, receive, send)
            return
        self._waiting[host] += 1
        try:
            await self._room.acquire()
        finally:
            self._waiting[host] -= 1
            self._waiting += Counter()  # without those that have none
        try:
            await self._app(scope, receive, send)
        finally:
            self._room.release()


class _TooLargeError(Exception):
    """The body is larger than is allowed."""


class _Body:
    """Receives a body up to a limit. Raises _TooLargeError beyond it."""

    def __init__(self, receive: Receive, most: int) -> None:
        self._receive = receive
        self._left = most

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise _TooLargeError
        return message


class _Begun:
    """Notes whether an answer has begun: then no other can be sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        await self._send(message)
