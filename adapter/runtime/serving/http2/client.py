"""Connections to the nodes that calls are relayed to: one for each node, which all calls share; made again when it is lost.

A node that cannot be reached, or answers no PING, is left out until a connection with it is made, without a call, after pauses
that grow: calls go on to the next one at once.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import structlog

from adapter.runtime.backoff import pause_s
from adapter.runtime.serving.http2.calling import CallingConnection
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.headers import Answer
from adapter.runtime.serving.http2.streams import ANSWER, MESSAGE, RESET, TRAILERS, WRITABLE, Event, Stream
from adapter.runtime.settings.addresses import split_address

log = structlog.get_logger(__name__)

CONNECT_S = 1.0  # seconds for a connection, with TLS
PAUSE_S, PAUSE_MAX_S = 0.1, 2.0  # pauses between two attempts at a node that is left out
QUIET_S = 10.0  # seconds without a byte after which a node gets a PING
WATCH_S = 5.0  # seconds between two looks at it
ANSWER_S = 10.0  # seconds that it has to answer, before the connection is given up
OUT_MAX = 2**20  # bytes that wait for the socket; beyond, no call takes more from its client

Ready = Callable[["Http2Client | None"], None]


class Caller(Protocol):
    """A call over a connection, as the connection sees it."""

    def answered(self, answer: Answer) -> None:
        """The headers have come."""

    def got(self, data: bytes) -> None:
        """Bytes have come."""

    def ended(self, answer: Answer | None) -> None:
        """The answer is complete, with these trailers."""

    def broke_off(self, code: int) -> None:
        """The node has reset the call."""

    def lost(self, reason: str) -> None:
        """The connection has ended, and with it the call."""

    def sent(self) -> None:
        """What waited to be sent has been sent."""


class Http2Client(asyncio.Protocol):
    """One connection with a node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self.connection = CallingConnection(self._loop.time())
        self.can_write = True
        self._transport: asyncio.Transport | None = None
        self._heard = self._loop.time()
        self._asked = 0.0  # when it got a PING; 0: not since it sent something
        self._watched = self._heard
        self._flushing = False
        self.greeted: asyncio.Future[None] = (
            self._loop.create_future()
        )  # the node speaks HTTP/2, and said how many calls it takes
        self._watching: asyncio.TimerHandle | None = None
        self._retired = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(OUT_MAX)
        self._watching = self._loop.call_later(WATCH_S, self._watch)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        """End every call."""
        self._transport = None
        if self._watching:
            self._watching.cancel()
        reason = str(error) if error else "the node has closed it"
        self._node.gone(self)
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError(reason))
        for stream in list(self.connection.streams.values()):
            call, stream.call = stream.call, None
            self.connection.cut_off(stream, Code.CANCEL)
            if call:
                cast("Caller", call).lost(reason)

    def data_received(self, data: bytes) -> None:
        """Hand out what came."""
        self._heard, self._asked = self._loop.time(), 0.0
        for event in self.connection.receive(data, self._heard):
            self._on_event(event)
        if self.connection.greeted and not self.greeted.done():
            self.greeted.set_result(None)
        self.flush_soon()
        if self.connection.leaves:
            self._node.left(self)
        if self.connection.closed:
            self._flush()
            self.hang_up()
        else:
            self._rest()

    def pause_writing(self) -> None:
        """Let calls take no more from their clients."""
        self.can_write = False

    def resume_writing(self) -> None:
        """Let calls go on."""
        self.can_write = True
        for stream in list(self.connection.streams.values()):
            if stream.call:
                cast("Caller", stream.call).sent()

    def begin(self, caller: Caller, block: bytes) -> Stream:
        """Begin a call."""
        stream = self.connection.call(block)
        stream.call = caller
        self.flush_soon()
        return stream

    def give_up(self, stream: Stream) -> None:
        """End a call whose answer nobody waits for."""
        stream.call = None
        self.connection.cut_off(stream, Code.CANCEL)
        self.flush_soon()
        self._rest()

    def flush_soon(self) -> None:
        """Write pending output at the end of this iteration of the event loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def retire(self) -> None:
        """Close the connection when its last call has ended."""
        self._retired = True
        self._rest()

    def hang_up(self) -> None:
        """Close the connection."""
        if self._transport:
            self._transport.abort()

    def _rest(self) -> None:
        """After a call: let one begin that waits for room; close a connection that is left with its last one."""
        if (self._retired or self.connection.leaves) and not self.connection.streams:
            self.hang_up()
        else:
            self._node.has_room(self)

    def _on_event(self, event: Event) -> None:
        kind, stream = event[0], event[1]
        call = cast("Caller | None", stream.call)
        if call is None:
            return
        if kind == ANSWER:
            call.answered(cast("Answer", event[-1]))
        elif kind == MESSAGE:
            call.got(cast("bytes", event[-1]))
        elif kind == WRITABLE:
            call.sent()
        else:
            stream.call = None
            if kind == RESET:
                call.broke_off(stream.code)
            else:
                call.ended(cast("Answer", event[-1]) if kind == TRAILERS else None)

    def _flush(self) -> None:
        self._flushing = False
        data = self.connection.take_output()
        if data and self._transport:
            self._transport.write(data)

    def _watch(self) -> None:
        """Find a node that has vanished."""
        now, watched = self._loop.time(), self._watched
        self._watched = now
        if now - watched > 2 * WATCH_S:  # this process was suspended, and has not read what came meanwhile
            self._heard, self._asked = now, 0.0
        elif self._asked and now - self._asked >= ANSWER_S:
            log.warning("relay.silent", node=self._node.name, help="it has not answered a PING")
            self._node.failed("it has not answered a PING")
            self.hang_up()
            return
        elif not self._asked and now - self._heard >= QUIET_S:
            self._asked = now
            self.connection.ping()
            self.flush_soon()
        self._watching = self._loop.call_later(WATCH_S, self._watch)


class Node:
    """A node by its address, HOST:PORT. `tls` is its context, if it has TLS."""

    def __init__(self, name: str, tls: ssl.SSLContext | None = None) -> None:
        self.name = name
        self.scheme = "https" if tls else "http"
        self.problem = ""  # why it could not be reached last; empty while it can be
        self.failures = 0  # in a row
        self.lost = 0  # connections that could not be made, or ended by themselves
        self._tls = tls
        self._client: Http2Client | None = None
        self._all: set[Http2Client] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[Ready] = deque()
        self._again: asyncio.TimerHandle | None = None  # until the next attempt
        self._closed = False

    @property
    def rests(self) -> bool:
        """True while it is left out: it could not be reached last."""
        return self._client is None and bool(self.problem)

    def when_ready(self, ready: Ready) -> None:
        """Call `ready` with a connection that has room for a call, perhaps at once; or with None if there is none to be had."""
        client = self._client
        if client and client.connection.has_room and not self._waiting:
            ready(client)
            return
        if client is None and self.rests:
            ready(None)
            return
        self._waiting.append(ready)
        self._connect_soon()

    def forget(self, ready: Ready) -> None:
        """The call that waits has ended."""
        if ready in self._waiting:
            self._waiting.remove(ready)

    def has_room(self, client: Http2Client) -> None:
        """A call over this connection has ended: those that wait may begin."""
        while self._waiting and client is self._client and client.connection.has_room:
            self._waiting.popleft()(client)

    def left(self, client: Http2Client) -> None:
        """New calls need another connection: this one has ended, or takes no more."""
        if client is self._client:
            self._client = None
            self.lost += 1
            if self._waiting:
                self._connect_soon()

    def gone(self, client: Http2Client) -> None:
        """Forget a connection that has ended."""
        self._all.discard(client)
        self.left(client)

    def failed(self, reason: str) -> None:
        """Leave it out until it is reached."""
        self.failures += 1
        if self._again:
            self._again.cancel()
        if not self._closed:
            pause = pause_s(self.failures, PAUSE_S, PAUSE_MAX_S)
            self._again = asyncio.get_running_loop().call_later(pause, self._connect_soon)
        if not self.problem:
            log.warning("relay.unreachable", node=self.name, reason=reason, help="calls go to the next one of meta.endpoints")
        self.problem = reason

    def retire(self) -> None:
        """Take no more calls. Those that are under way end, and then its connections."""
        self._stop_connecting()
        self._client = None
        waiting, self._waiting = self._waiting, deque()
        for ready in waiting:
            ready(None)
        for client in list(self._all):
            client.retire()

    def close(self) -> None:
        """End its connections."""
        self._stop_connecting()
        for client in list(self._all):
            client.hang_up()

    def _stop_connecting(self) -> None:
        self._closed = True
        self.problem = self.problem or "it is not used any more"
        if self._again:
            self._again.cancel()
        if self._connecting:
            self._connecting.cancel()

    def _connect_soon(self) -> None:
        if self._client is None and self._connecting is None and not self._closed:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(), name="relay.connect")

    async def _connect(self) -> None:
        made: Http2Client | None = None
        client: Http2Client | None = None
        host, port = split_address(self.name)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, client = await asyncio.get_running_loop().create_connection(
                    lambda: Http2Client(self), host, port, ssl=self._tls, server_hostname=host if self._tls else None
                )
                self._all.add(client)
                await client.greeted
            made = client
        except (OSError, TimeoutError) as error:  # also of ssl
            self.lost += 1
            self.failed(str(error) or "it does not answer")
        else:
            if self.problem:
                log.info("relay.reached", node=self.name)
            self.problem, self.failures = "", 0
            self._client = made
        finally:
            self._connecting = None
            if client and not made:
                client.hang_up()
        if made:
            self.has_room(made)
        else:
            waiting, self._waiting = self._waiting, deque()
            for ready in waiting:
                ready(None)
