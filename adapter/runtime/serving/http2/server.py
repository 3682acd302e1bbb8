"""The sockets of the built-in gRPC server: an asyncio protocol for each connection, and the server that listens and drains.

What was read in one iteration of the event loop is handled, then all its answers are written: one write for each connection.
"""

import asyncio
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

import grpc
import structlog

from adapter.runtime import descriptors
from adapter.runtime.serving.http2.admission import PROVEN_MESSAGES, AdmissionQueue, is_closed
from adapter.runtime.serving.http2.call import Call, Method, ServedCall, Take
from adapter.runtime.serving.http2.connection import STREAMS_MAX, Connection
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.handshakes import BACKLOG, GOODBYE_S, Handshakes, TlsContext
from adapter.runtime.serving.http2.relay import Relay
from adapter.runtime.serving.http2.streams import CALL, ENDED, MESSAGE, RESET, Event, Stream
from adapter.runtime.serving.request_sizes import NO_LISTS, Sizes
from adapter.runtime.settings.certificates import names_shown

log = structlog.get_logger(__name__)

READ_MAX = 65_536  # bytes of a peer in one iteration of the event loop, about; the rest waits for the next one
OUT_MAX = 2**20  # bytes that wait to be sent; beyond, nothing more is read from that peer
HELD_BACK_MAX = 16 * 2**20  # bytes of answers that a peer's windows hold back; beyond, none of its calls is started
WATCH_S = 5.0  # seconds between two checks of all connections
GREET_S = 20.0  # seconds that a peer has for its first frame
QUIET_S = 60.0  # seconds without a byte after which the peer gets a PING
ANSWER_S = 20.0  # seconds that it has to answer, before the connection is closed

# At a stop.
LEAVING_LOOK_S = 0.005  # seconds between two looks at the connections
ASKED_S = 1.0  # seconds that a client has to acknowledge that it is asked for no more calls
LEFT_S = 1.0  # seconds that it has to close the connection, once it has all its answers

TELL_S = 10.0  # seconds between two log lines about refused connections

STOPPED = "the server has stopped"

ALPN = "h2"  # RFC 9113, 3.2: what a client that speaks HTTP/2 over TLS offers

CREDENTIALS = struct.Struct("3i")  # of the process at the other end of a Unix socket: pid, uid, gid (unix(7), SO_PEERCRED)


class Http2Peer(asyncio.BufferedProtocol):
    """One connection with a client: its socket, its protocol state (`connection`), and its calls."""

    def __init__(self, server: "Http2Server", kind: str) -> None:
        self.name = kind
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.connection = Connection(
            self._loop.time(), server.sizes.of, server.sizes.most, server.is_relayed if server.relay else None
        )
        self.can_write = asyncio.Event()
        self.can_write.set()
        self._transport: asyncio.Transport | None = None
        self._heard = self._loop.time()
        self._asked = 0.0  # when it got a PING; 0: not since it sent something
        self._socket: Any = None
        self._tls: ssl.SSLObject | None = None
        self._proven = self._got_eof = False
        self.unread = bytearray()  # of an unproven connection, see `AdmissionQueue`
        self.handled = 0  # bytes that went through the queue
        self._reading = True
        self._flushing = False
        self._begun: list[ServedCall] = []  # since the last write
        self._waiting: deque[Call] = deque()  # calls that have not been started
        self._until_read: list[asyncio.Future[None]] = []
        self._in_line = False
        self._running: set[asyncio.Task[None]] = set()
        self._asked_to_leave = self._told_all = 0.0  # when; 0: not yet

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, unless its file descriptor is reserved for the store, or its client has not agreed on HTTP/2."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None and descriptors.is_reserved(self._socket.fileno()):
            self._transport.abort()
            self._server.refuse()
            return
        self._tls = transport.get_extra_info("ssl_object")
        if self._tls and self._tls.selected_alpn_protocol() != ALPN:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(OUT_MAX)
        if self.name == "tcp":
            host, port, *_ = transport.get_extra_info("peername") or ("", 0)
            self.name = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._server.peers.add(self)
        self._flush()
        if self._server.leaving:
            self.drain()  # it was accepted before the listening socket was closed

    def connection_lost(self, _: Exception | None) -> None:
        """Cancel every call."""
        self._transport = self._socket = None
        self._server.peers.discard(self)
        self._server.admission.forget(self)
        self._begun.clear()
        self._waiting.clear()
        for stream in list(self.connection.streams.values()):
            call = stream.call
            self.connection.cut_off(stream, Code.CANCEL)
            if call:
                cast("ServedCall", call).cancel()

    def get_buffer(self, _: int) -> memoryview:
        """Return where the event loop puts what it reads: all connections share it. uvloop's own would take 250 KiB at once."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what one read brought."""
        self.data_received(bytes(self._server.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Handle what one read brought; queue it if the connection is unproven."""
        self._heard = self._loop.time()
        self._asked = 0.0
        if self._proven and not self.unread:
            self.handle(data)
        else:
            self._server.admission.add(self, data)
        if len(data) >= READ_MAX or len(self.unread) >= READ_MAX:
            self._stop_reading()  # else libuv goes on reading this connection before any other

    def eof_received(self) -> bool:
        """End the connection, as soon as queued bytes are handled: the client will send no more.

        With TLS at once: what is answered could not be sent.
        """
        self._got_eof = bool(self.unread) and not self._tls
        return self._got_eof

    def handle(self, data: bytes) -> None:
        """Handle bytes: start calls, and schedule the write of what is answered."""
        for event in self.connection.receive(data, self._heard):
            self._on_event(event)
        self.flush_soon()
        self._start_calls()
        if self.connection.closed:
            self._server.admission.forget(self)
            self.hang_up()
        elif self._got_eof and not self.unread:
            self.hang_up()

    @property
    def is_proven(self) -> bool:
        """True once it has sent PROVEN_MESSAGES messages."""
        self._proven = self._proven or self.connection.messages >= PROVEN_MESSAGES
        return self._proven

    @property
    def lacks(self) -> int:
        """Bytes that the frame lacks that is being received; 0 if that is not known."""
        return self.connection.lacks

    def is_gone(self) -> bool:
        """True when the client cannot receive an answer any more."""
        return self._transport is None or self._transport.is_closing() or is_closed(self._socket)

    def pause_writing(self) -> None:
        """Stop reading, and let streaming calls wait: the client does not read its answers."""
        self.can_write.clear()
        self._stop_reading()

    def resume_writing(self) -> None:
        """Read on: the client reads its answers again."""
        self.can_write.set()
        self._read_on()
        for stream in list(self.connection.streams.values()):
            if stream.call:
                _call_of(stream).wrote()
        self._start_calls()

    def start_soon(self, call: Call) -> None:
        """Queue a call to be started. Those that have ended leave the queue once it is longer than open calls can make it."""
        if len(self._waiting) >= 2 * STREAMS_MAX:
            self._waiting = deque(each for each in self._waiting if each.is_open)
        self._waiting.append(call)
        self._start_calls()

    def start_next(self) -> bool:
        """Start one call; False when no other waits, or none may start."""
        while self._waiting and self.may_start and not self._waiting.popleft().start():
            pass
        self._in_line = bool(self._waiting) and self.may_start
        return self._in_line

    def begun(self, task: asyncio.Task[None]) -> None:
        """Keep the task of a call that was started."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def flush_soon(self) -> None:
        """Write the pending output at the end of this iteration of the event loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def watch(self, now: float) -> None:
        """Close the connection of a client that has vanished: it answers no PING, or has not sent its first frame in time."""
        quiet_s = now - self._heard
        if (self._asked and now - self._asked > ANSWER_S) or (not self.connection.greeted and quiet_s > GREET_S):
            self.hang_up(at_once=True)
        elif quiet_s > QUIET_S and not self._asked:
            self._asked = now
            self.connection.ping()
            self.flush_soon()

    @property
    def uid(self) -> int | None:
        """The user of the process that connected to a Unix socket; None for TCP, and for a connection that is lost."""
        if self._socket is None or self._socket.family != socket.AF_UNIX:
            return None
        _, uid, _ = CREDENTIALS.unpack(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        return int(uid)

    @property
    def certificate(self) -> dict[str, list[bytes]]:
        """The names in the certificate that the client has shown, as `grpc.aio` tells them; empty without one."""
        return names_shown(self._tls) if self._tls else {}

    @property
    def is_secure(self) -> bool:
        """True for a connection with TLS."""
        return self._tls is not None

    def drain(self) -> None:
        """Ask the client for no new calls; those that it sent before it knew are still handled."""
        if not self._asked_to_leave:
            self._asked_to_leave = self._loop.time()
            self.connection.drain()
            self.flush_soon()

    def see_off(self, now: float) -> None:
        """Go on with the end of a connection that drains; called until it is closed.

        The client is told which call was the last, gets its answers and the end of the output, and closes the connection. Were it
        closed on this side while bytes of the client are on their way, the kernel would reset it, and the client could lose what
        it had not read: answers, and that a call was not begun, which is what lets it make the call again.
        """
        if not self.idle:
            return
        if not self.connection.has_left:
            if now - self._asked_to_leave < ASKED_S:
                return
            self.connection.go_away()
            self._flush()
        if not self._told_all:
            self._flush()
            self._told_all = now
            self._end_output()
        elif now - self._told_all > LEFT_S:
            self.hang_up(at_once=self.is_secure)

    def _end_output(self) -> None:
        if not self._transport or self._transport.is_closing():
            return
        if self.is_secure:
            self._transport.close()  # sends close_notify, and reads until the client has answered it or GOODBYE_S have passed
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has gone, and the event loop has not read that so far
            self.hang_up(at_once=True)

    @property
    def idle(self) -> bool:
        """True when no call is open or being handled, no bytes wait to be handled, and all answers are out."""
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        return not (self.connection.streams or self._running or self.unread or unsent)

    async def end(self) -> None:
        """End open calls with UNAVAILABLE, and close the connection."""
        running = list(self._running)
        for stream in list(self.connection.streams.values()):
            if stream.call:
                _call_of(stream).finish(grpc.StatusCode.UNAVAILABLE, STOPPED)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self.connection.go_away()
        self._flush()
        self.hang_up(at_once=bool(self._transport and self._transport.get_write_buffer_size()))

    async def until_read(self) -> None:
        """Wait until `may_start`."""
        while not self.may_start:
            reads: asyncio.Future[None] = self._loop.create_future()
            self._until_read.append(reads)
            await reads

    @property
    def may_start(self) -> bool:
        """False while too many answers wait for the client to read them."""
        return self.can_write.is_set() and self.connection.held_back <= HELD_BACK_MAX

    def _start_calls(self) -> None:
        if self._until_read and self.may_start:
            waiting, self._until_read = self._until_read, []
            for reads in waiting:
                if not reads.done():
                    reads.set_result(None)
        if self._waiting and not self._in_line and self.may_start:
            self._in_line = True
            self._server.start_calls_of(self)

    def _on_event(self, event: Event) -> None:
        kind, stream = event[0], event[1]
        if kind == CALL:
            method, relay = self._server.methods.get(stream.head.path), self._server.relay
            if method is None and relay:
                stream.call = relayed = relay(self, stream)
                self._begun.append(relayed)
            elif method is None:
                self.connection.finish(stream, grpc.StatusCode.UNIMPLEMENTED.value[0], "Method not found!")
            else:
                stream.call = call = method.call(self, stream, method)
                self._begun.append(call)
        elif stream.call is None:
            return  # refused, or its method is not known
        elif kind == MESSAGE:
            _call_of(stream).put(cast("tuple[int, Stream, bytes]", event)[2])
        elif kind == ENDED:
            _call_of(stream).end()
        elif kind == RESET:
            _call_of(stream).cancel()
        else:
            _call_of(stream).wrote()

    def _flush(self) -> None:
        self._flushing = False
        begun, self._begun = self._begun, []
        for call in begun:  # only now: most calls have ended already, and need no timer
            call.watch_deadline()
        data = self.connection.take_output()
        if data and self._transport and not self._told_all:
            self._transport.write(data)
        if not self._reading and self.can_write.is_set() and len(self.unread) < READ_MAX:
            self._read_on()

    def _stop_reading(self) -> None:
        if self._transport and self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._transport and not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close the connection, after sending what is pending unless `at_once`."""
        self._flush()
        if self._transport:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()


class Http2Server:
    """A gRPC server for TCP, with TLS or without, and Unix sockets. Servicers are added to it as to grpc.aio's server.

    `refused` is called for each connection that is closed because file descriptors are short; `clock`, in seconds, ends the share
    that unproven connections have of each iteration of the event loop; `sizes` bounds the requests. `relay` takes the calls of
    methods that no servicer has.
    """

    def __init__(
        self,
        refused: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sizes: Sizes = NO_LISTS,
        relay: Relay | None = None,
    ) -> None:
        self.sizes = sizes
        self.relay = relay
        self._refused = refused
        self._last_warning = -TELL_S
        self.admission = AdmissionQueue(clock)
        self.buffer = memoryview(bytearray(READ_MAX))
        self.methods: dict[str, Method] = {}
        self.peers: set[Http2Peer] = set()
        self._starting: deque[Http2Peer] = deque()
        self._listening: list[asyncio.AbstractServer] = []
        self._handshakes = Handshakes(lambda: Http2Peer(self, "tcp"), self.refuse)
        self._watching: asyncio.TimerHandle | None = None
        self._watched = 0.0
        self.leaving = False  # True once clients are asked to leave

    def is_relayed(self, path: str) -> bool:
        """True for calls whose bytes are relayed as they are."""
        return self.relay is not None and path not in self.methods

    def refuse(self) -> None:
        """Note that a connection was closed at once: its file descriptor is one of those that are reserved for the store."""
        self._refused()
        now = asyncio.get_running_loop().time()
        if now - self._last_warning > TELL_S:
            self._last_warning = now
            log.warning(
                "connections.refused", open=len(self.peers), limit=descriptors.limit(), help="raise the limit of open files"
            )

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Do nothing: generated code calls `add_registered_method_handlers` with the same methods next."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]) -> None:
        """Add the methods of a service; generated code calls this."""
        paths = {f"/{service}/{name}": handler for name, handler in handlers.items()}
        self.methods.update((path, Method.of(handler, path, self.sizes)) for path, handler in paths.items())

    def take_together(self, takes: Mapping[str, Take]) -> None:
        """Have the requests of these methods handled in groups, see `Take`."""
        for path, take in takes.items():
            self.methods[path] = self.methods[path].taken_together(take)

    async def listen(self, listener: socket.socket, tls: TlsContext | None = None) -> None:
        """Serve on a bound socket, with TLS if there is a context for it."""
        loop = asyncio.get_running_loop()
        if not self._watching:
            self._watch()
        if tls:
            self._handshakes.listen(listener, tls)
            return
        if listener.family == socket.AF_UNIX:
            server = await loop.create_unix_server(lambda: Http2Peer(self, "unix:"), sock=listener, backlog=BACKLOG)
        else:
            server = await loop.create_server(lambda: Http2Peer(self, "tcp"), sock=listener, backlog=BACKLOG)
        self._listening.append(server)

    def start_calls_of(self, peer: Http2Peer) -> None:
        """Start the calls of a peer: one in each iteration of the event loop, peer by peer, so that commits are not delayed."""
        self._starting.append(peer)
        if len(self._starting) == 1:
            asyncio.get_running_loop().call_soon(self._start_next)

    def _start_next(self) -> None:
        peer = self._starting[0]
        more = peer.start_next()
        self._starting.popleft()
        if more:
            self._starting.append(peer)
        if self._starting:
            asyncio.get_running_loop().call_soon(self._start_next)

    def drain(self) -> None:
        """Accept no more connections, and ask all clients to leave. Calls that they send before they know are handled."""
        if self.leaving:
            return
        self.leaving = True
        for server in self._listening:
            server.close()
        self._listening.clear()
        self._handshakes.close()
        if self._watching:
            self._watching.cancel()
        for peer in self.peers:
            peer.drain()

    async def drained(self, grace_s: float) -> bool:
        """Wait until all clients have left, for at most `grace_s` seconds; False if there are some left."""
        loop = asyncio.get_running_loop()
        until, connected = loop.time() + grace_s, loop.time() + ASKED_S
        await asyncio.sleep(0)  # connections that were accepted a moment ago begin in this iteration of the event loop
        while (self.peers or self._handshakes) and loop.time() < until:
            for peer in list(self.peers):
                peer.see_off(loop.time())
            if self._handshakes and loop.time() > connected:
                await self._handshakes.end()
            await asyncio.sleep(LEAVING_LOOK_S)
        return not self.peers and not self._handshakes

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections and calls; give open calls `grace_s` seconds, then end them with UNAVAILABLE."""
        self.drain()
        await self.drained(grace_s)
        await self._handshakes.end()
        await asyncio.gather(*(peer.end() for peer in list(self.peers)))
        await self._said_goodbye()

    async def _said_goodbye(self) -> None:
        """Wait until connections with TLS have ended: what they are told last is sent before."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GOODBYE_S
        while secure := [peer for peer in self.peers if peer.is_secure]:
            if loop.time() > until:
                for peer in secure:
                    peer.hang_up(at_once=True)
            await asyncio.sleep(LEAVING_LOOK_S)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._watched < 2 * WATCH_S:  # else this process was suspended, and has not read what came meanwhile
            for peer in list(self.peers):
                peer.watch(now)
        self._watched = now
        self._watching = loop.call_later(WATCH_S, self._watch)


def _call_of(stream: Stream) -> ServedCall:
    return cast("ServedCall", stream.call)
