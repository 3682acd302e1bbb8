"""The connections of the pages: how long each may take for a request and its answer, and which one goes if there are too many.

Nobody has to log in to connect. So a connection that waits for its client, which is at its head, its body or behind an answer,
can be closed in favour of a new one, and none is waited for without a limit. One that is being answered stays.
"""

import asyncio
from collections import Counter
from typing import Any, cast

import h11
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0  # for the head of a request, from the connection or the answer before
BODY_S = 30.0  # for its body
TAKEN_S = 30.0  # in which a client has to make room for the rest of an answer
UNREAD_MAX = 64 * 2**20  # bytes of answers that wait for their clients; beyond, the longest waiting connection is closed
HEALTH = "/healthz"


class Connections:
    """All connections of a server. At most `most` are open; one beyond is told the health, and goes for the next.

    Of those that wait for their clients, one of the address with the most connections goes first: who fills the server is alone
    in losing by that.
    """

    def __init__(
        self, most: int, *, head_s: float = HEAD_S, body_s: float = BODY_S, taken_s: float = TAKEN_S, unread_max: int = UNREAD_MAX
    ) -> None:
        self._most = most
        self._seconds = {h11.IDLE: head_s, h11.SEND_BODY: body_s}
        self.taken_s = taken_s
        self._unread_max = unread_max
        self._open: dict[PageConnection, None] = {}  # in the order in which they came
        self.hosts: Counter[str] = Counter()  # how many are open, by address

    def protocol(self, **arguments: Any) -> "PageConnection":  # noqa: ANN401 - as uvicorn makes it
        """The protocol of a new connection; uvicorn calls this."""
        return PageConnection(self, **arguments)

    def seconds(self, state: object) -> float | None:
        """How long a client may be in this state of h11; None for as long as it likes."""
        return self._seconds.get(cast("Any", state))

    def came(self, new: "PageConnection") -> None:
        """Take a connection. If there are too many, one that waits for its client goes; if none does, only health is told."""
        if len(self._open) >= self._most:
            self._make_room()
        new.only_health = len(self._open) >= self._most
        self._open[new] = None
        self.hosts[new.host] += 1

    def went(self, one: "PageConnection") -> None:
        """Forget a connection."""
        if one in self._open:
            del self._open[one]
            self.hosts[one.host] -= 1
            self.hosts += Counter()  # without those that have none

    @property
    def unread(self) -> int:
        """Bytes of answers that wait for their clients."""
        return sum(one.unread for one in self._open)

    def limit_unread(self) -> None:
        """Close connections, the longest waiting first, until no more answers than UNREAD_MAX wait for their clients."""
        total = self.unread
        for one in list(self._open):
            if total <= self._unread_max:
                return
            if size := one.unread:
                total -= size
                one.transport.abort()
                self.went(one)

    def _make_room(self) -> None:
        waiting = [one for one in self._open if one.waits]
        if waiting:
            goes = max(waiting, key=lambda one: (self.hosts[one.host], -one.since))
            goes.transport.abort()
            self.went(goes)


class PageConnection(H11Protocol):
    """A connection, with its limits of time. `since`: when its client was last waited for."""

    def __init__(self, all_: Connections, **arguments: Any) -> None:  # noqa: ANN401 - as uvicorn makes it
        super().__init__(**arguments)
        self.limit_concurrency = None  # `Connections` limits them, by who waits
        self.host = ""
        self.only_health = False
        self.since = self.loop.time()
        self._all = all_
        self._state: object = None
        self._until: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it."""
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self._all.came(self)
        if self.only_health:
            self.app = _Health(self.app)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        for timer in (self._until, self._untaken):
            if timer:
                timer.cancel()
        self._all.went(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; a client that sends a little at a time gets no more time."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Give the client the time of a next request."""
        super().on_response_complete()
        self._all.limit_unread()
        self._state = None
        self._look()

    def pause_writing(self) -> None:
        """The client has to take something of its answer."""
        super().pause_writing()
        self._untaken = self._untaken or self.loop.call_later(self._all.taken_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It has."""
        super().resume_writing()
        if self._untaken:
            self._untaken.cancel()
            self._untaken = None

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn: to send a request, or to read an answer."""
        return self._until is not None

    @property
    def unread(self) -> int:
        """Bytes of answers that the client has not taken."""
        return self.transport.get_write_buffer_size()

    def _look(self) -> None:
        """Begin the time of the state that the client is in now, if it is another one."""
        state = self.conn.their_state
        if state is self._state:
            return
        self._state, self.since = state, self.loop.time()
        if self._until:
            self._until.cancel()
        seconds = self._all.seconds(state)
        self._until = None if seconds is None else self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        """Close the connection, unless its client still reads the answer: `pause_writing` limits that."""
        if self.unread:
            self._state = None
            self._look()
        else:
            self.transport.abort()


class _Health:
    """Answers /healthz, and 503 to all else: for connections beyond the limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and end the connection."""
        if scope["path"].removeprefix(scope.get("root_path", "")) == HEALTH:
            await self._app(scope, receive, send)
        else:
            text = "there are too many connections: try again, or raise server.connections\n"
            await PlainTextResponse(text, 503, {"Retry-After": "5", "Connection": "close"})(scope, receive, send)
