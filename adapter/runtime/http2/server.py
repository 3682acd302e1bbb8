"""The sockets of the front: a thin asyncio.Protocol around each connection, and the server that listens, watches and drains.

Everything of one turn of the event loop is answered together: what was read is handled, then written, one write a connection.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

import grpc
import structlog

from adapter.runtime import descriptors
from adapter.runtime.http2.admission import PROVEN, Newcomers, is_closed
from adapter.runtime.http2.call import Call, Method, Take
from adapter.runtime.http2.connection import Connection
from adapter.runtime.http2.frames import Code
from adapter.runtime.http2.streams import CALL, ENDED, MESSAGE, RESET, Event, Stream

log = structlog.get_logger(__name__)

BACKLOG = 1_024
READ_MAX = 65_536  # bytes of a peer, about; who sends more in one turn of the event loop waits for the next
OUT_MAX = 2**20  # bytes that wait to be sent; beyond, nothing more is read from that peer
HELD_BACK_MAX = 16 * 2**20  # bytes of answers that a peer's windows hold back; beyond, none of its calls is begun
WATCH_S = 5.0  # between two looks at all connections
GREET_S = 20.0  # for a peer's first frame
QUIET_S = 60.0  # without a byte; then the peer is asked whether it is there, and has
ANSWER_S = 20.0  # to say so

IDLE_LOOK_S = 0.005  # between two looks whether calls are still open, at a stop

TELL_S = 10.0  # between two lines that connections are refused

STOPPED = "the server has stopped"


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: "Http2Server", kind: str) -> None:
        self.name = kind
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.connection = Connection(self._loop.time())
        self.can_write = asyncio.Event()
        self.can_write.set()
        self._transport: asyncio.Transport | None = None
        self._heard = self._loop.time()
        self._asked = 0.0  # when; 0: not since it was heard
        self._socket: Any = None
        self._proven = self._said_all = False
        self.unread = bytearray()  # of a newcomer, see `Newcomers`
        self.handled = 0  # bytes of it
        self._reading = True
        self._flushing = False
        self._begun: list[Call] = []
        self._waiting: deque[Call] = deque()
        self._until_it_reads: list[asyncio.Future[None]] = []
        self._in_turn = False
        self._running: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None and descriptors.is_reserved(self._socket.fileno()):
            self._server.refuse(self._transport)
            return
        self._transport.set_write_buffer_limits(OUT_MAX)
        if self.name == "tcp":
            host, port, *_ = transport.get_extra_info("peername") or ("", 0)
            self.name = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._server.peers.add(self)
        self._flush()

    def connection_lost(self, _: Exception | None) -> None:
        """Tell every call."""
        self._transport = self._socket = None
        self._server.peers.discard(self)
        self._server.newcomers.forget(self)
        self._begun.clear()
        self._waiting.clear()
        for stream in list(self.connection.streams.values()):
            call = stream.call
            self.connection.cut_off(stream, Code.CANCEL)
            if call:
                cast("Call", call).cancel()

    def data_received(self, data: bytes) -> None:
        """Handle all that is in one read, or of a newcomer in its turn."""
        self._heard = self._loop.time()
        self._asked = 0.0
        if self._proven and not self.unread:
            self.handle(data)
        else:
            self._server.newcomers.add(self, data)
        if len(data) >= READ_MAX or len(self.unread) >= READ_MAX:
            self._stop_reading()  # else libuv goes on reading this one, and nobody else has a turn

    def eof_received(self) -> bool:
        """It will send no more: the connection ends, for a newcomer when its turn has come."""
        self._said_all = bool(self.unread)
        return self._said_all

    def handle(self, data: bytes) -> None:
        """Bytes whose turn has come."""
        for event in self.connection.receive(data, self._heard):
            self._on_event(event)
        self.flush_soon()
        self._take_turn()
        if self.connection.closed:
            self._server.newcomers.forget(self)
            self.hang_up()
        elif self._said_all and not self.unread:
            self.hang_up()

    @property
    def is_proven(self) -> bool:
        """True when it has sent enough messages to be no newcomer any more."""
        self._proven = self._proven or self.connection.messages >= PROVEN
        return self._proven

    def is_gone(self) -> bool:
        """True when nobody is there to be answered."""
        return self._transport is None or self._transport.is_closing() or is_closed(self._socket)

    def pause_writing(self) -> None:
        """The peer does not read: nothing more is read from it, and who streams to it waits."""
        self.can_write.clear()
        self._stop_reading()

    def resume_writing(self) -> None:
        """It does again."""
        self.can_write.set()
        self._read_on()
        self._take_turn()

    def start_soon(self, call: Call) -> None:
        """Have a call handled in its turn."""
        self._waiting.append(call)
        self._take_turn()

    def start_next(self) -> bool:
        """Let one call be handled; False when no other waits, or none may start."""
        while self._waiting and self.may_start and not self._waiting.popleft().start():
            pass
        self._in_turn = bool(self._waiting) and self.may_start
        return self._in_turn

    def begun(self, task: asyncio.Task[None]) -> None:
        """A call of it is being handled."""
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def flush_soon(self) -> None:
        """Send what there is at the end of this turn of the event loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def watch(self, now: float) -> None:
        """Drop a peer that has gone without a word."""
        quiet_s = now - self._heard
        if (self._asked and now - self._asked > ANSWER_S) or (not self.connection.greeted and quiet_s > GREET_S):
            self.hang_up(at_once=True)
        elif quiet_s > QUIET_S and not self._asked:
            self._asked = now
            self.connection.ping()
            self.flush_soon()

    def drain(self) -> None:
        """Take no new calls, as soon as the peer knows."""
        self.connection.drain()
        self.flush_soon()

    @property
    def idle(self) -> bool:
        """True when no call is open or being handled, and all answers are out."""
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        return not (self.connection.streams or self._running or unsent)

    async def end(self) -> None:
        """End what is still open, and hang up."""
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

    async def until_it_reads(self) -> None:
        """Wait until the peer does not leave too much unread."""
        while not self.may_start:
            reads: asyncio.Future[None] = self._loop.create_future()
            self._until_it_reads.append(reads)
            await reads

    @property
    def may_start(self) -> bool:
        """False while the peer leaves too much unread."""
        return self.can_write.is_set() and self.connection.held_back <= HELD_BACK_MAX

    def _take_turn(self) -> None:
        if self._until_it_reads and self.may_start:
            waiting, self._until_it_reads = self._until_it_reads, []
            for reads in waiting:
                if not reads.done():
                    reads.set_result(None)
        if self._waiting and not self._in_turn and self.may_start:
            self._in_turn = True
            self._server.let_start(self)

    def _on_event(self, event: Event) -> None:
        kind, stream = event[0], event[1]
        if kind == CALL:
            method = self._server.methods.get(stream.head.path)
            if method is None:
                self.connection.finish(stream, grpc.StatusCode.UNIMPLEMENTED.value[0], "Method not found!")
            else:
                stream.call = call = Call(self, stream, method)
                self._begun.append(call)
        elif stream.call is None:
            return  # refused, or not taken
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
        for call in begun:  # only now: most are over, and need no timer
            call.watch_deadline()
        data = self.connection.take_output()
        if data and self._transport:
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
        """End the connection, behind what is still to be sent unless `at_once`."""
        self._flush()
        if self._transport:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()


class Http2Server:
    """A gRPC server for plaintext TCP and Unix sockets. Servicers are added to it as to grpc.aio's server."""

    def __init__(self, refused: Callable[[], None] = lambda: None) -> None:
        self._refused = refused
        self._told = -TELL_S
        self.newcomers = Newcomers()
        self.methods: dict[str, Method] = {}
        self.peers: set[Peer] = set()
        self._turns: deque[Peer] = deque()
        self._listening: list[asyncio.AbstractServer] = []
        self._watching: asyncio.TimerHandle | None = None
        self._watched = 0.0

    def refuse(self, transport: asyncio.Transport) -> None:
        """Close a connection at once: its file is one of those that are kept for the store."""
        transport.abort()
        self._refused()
        now = asyncio.get_running_loop().time()
        if now - self._told > TELL_S:
            self._told = now
            log.warning(
                "connections.refused", open=len(self.peers), limit=descriptors.limit(), help="raise the limit of open files"
            )

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """What generated code calls first; the same methods follow."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]) -> None:
        """The methods of a service, as generated code adds them."""
        self.methods.update((f"/{service}/{name}", Method.of(handler)) for name, handler in handlers.items())

    def take_together(self, takes: Mapping[str, Take]) -> None:
        """Have the requests of these methods taken together, see `Take`."""
        for path, take in takes.items():
            self.methods[path] = self.methods[path]._replace(take=take)

    async def listen(self, listener: socket.socket) -> None:
        """Serve on a socket that is bound."""
        loop = asyncio.get_running_loop()
        if listener.family == socket.AF_UNIX:
            server = await loop.create_unix_server(lambda: Peer(self, "unix:"), sock=listener, backlog=BACKLOG)
        else:
            server = await loop.create_server(lambda: Peer(self, "tcp"), sock=listener, backlog=BACKLOG)
        self._listening.append(server)
        if not self._watching:
            self._watch()

    def let_start(self, peer: Peer) -> None:
        """Let a peer's calls be handled: one in each turn of the event loop, peer by peer, so that commits get in between."""
        self._turns.append(peer)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_soon(self._start_next)

    def _start_next(self) -> None:
        peer = self._turns[0]
        more = peer.start_next()
        self._turns.popleft()
        if more:
            self._turns.append(peer)
        if self._turns:
            asyncio.get_running_loop().call_soon(self._start_next)

    async def stop(self, grace_s: float | None) -> None:
        """Take no more connections and calls; give calls that are open `grace_s` seconds, then end them with UNAVAILABLE."""
        for server in self._listening:
            server.close()
        self._listening.clear()
        if self._watching:
            self._watching.cancel()
        for peer in self.peers:
            peer.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s or 0):
                while not all(peer.idle for peer in self.peers):  # noqa: ASYNC110 - calls end in many places
                    await asyncio.sleep(IDLE_LOOK_S)
        await asyncio.gather(*(peer.end() for peer in list(self.peers)))

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now - self._watched < 2 * WATCH_S:  # else this process stood still, and has not read what came meanwhile
            for peer in list(self.peers):
                peer.watch(now)
        self._watched = now
        self._watching = loop.call_later(WATCH_S, self._watch)


def _call_of(stream: Stream) -> Call:
    return cast("Call", stream.call)
