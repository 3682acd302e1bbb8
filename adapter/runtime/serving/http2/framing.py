"""The frames of one HTTP/2 connection, of either side, without I/O: cuts bytes into frames, and puts header blocks together."""

from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from adapter.runtime.serving.http2 import frames, headers
from adapter.runtime.serving.http2.control import PRIORITY_BYTES, Control, check_dependency
from adapter.runtime.serving.http2.flood import FloodGuard
from adapter.runtime.serving.http2.frames import HEADER, HEADER_BYTES, PREFIX, Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.serving.http2.receiving import CREDIT, Receiver
from adapter.runtime.serving.http2.sending import Sender
from adapter.runtime.serving.http2.streams import MESSAGE, Event, Stream


class _Block(NamedTuple):
    """A header block that is not complete."""

    stream_id: int
    flags: int
    payload: bytearray


S = TypeVar("S", bound=Sender)
C = TypeVar("C", bound=Control)


class Framed(ABC, Generic[S, C]):
    """What both sides of a connection have in common. They differ in their preface, and in what a header block says.

    `Control` handles the frames that concern the connection. `Sender` sends and removes streams, `Receiver` accounts for the
    receive windows, `FloodGuard` limits frames that carry no message. They share the table of open streams, the output and the
    events, and do not refer to the connection: there are no reference cycles.
    """

    def __init__(self, guard: FloodGuard, first: bytes, largest: int, sender: type[S], control: type[C]) -> None:
        """`first`: what is sent first. `largest`: how many bytes a message may have at most."""
        self.streams: dict[int, Stream] = {}
        self.greeted = False  # True when the peer's first frame has come
        self._out = [first, frames.window_update(0, CREDIT - frames.WINDOW)]
        self._events: list[Event] = []
        self._guard = guard
        self._receiver = receiver = Receiver(self.streams, self._out, largest)
        self._sender = sending = sender(self.streams, self._out, self._events, receiver.release, guard.answered)
        self._control = control(self.streams, self._out, self._events, sending, guard)
        self._control_handlers = self._control.handlers()
        self._rest = b""
        self._block: _Block | None = None
        # What a server or a client calls. Bound once, because each call passes here.
        self.cut_off = sending.cut_off
        self.ping = sending.ping
        self.send_bytes = sending.send_bytes
        self.passed_on = receiver.passed_on
        self.go_away = self._control.go_away

    @property
    def closed(self) -> bool:
        """True once the output ends with a GOAWAY that reports an error: nothing is received or sent after it."""
        return self._control.closed

    @property
    def lacks(self) -> int:
        """Bytes that a frame lacks whose header has come; 0 if there is none."""
        if not self.greeted or len(self._rest) < HEADER_BYTES:
            return 0
        high, low, *_ = HEADER.unpack_from(self._rest)
        return int(HEADER_BYTES + (high << 8 | low) - len(self._rest))

    @property
    def held_back(self) -> int:
        """Bytes of answers that wait for the peer's windows."""
        return self._sender.held_back

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Handle bytes that the peer sent, split anywhere, at `now` (monotonic seconds). Returns what happened."""
        if self._control.closed:
            return []
        self._guard.pass_time(now)
        try:
            self._rest = self._frames(self._rest + data if self._rest else data)
        except ConnectionFailedError as error:
            self._control.give_up(error)
        events = self._events.copy()
        self._events.clear()
        return events

    def take_output(self) -> bytes:
        """Return the bytes that are to be sent now."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def _frames(self, data: bytes) -> bytes:
        """Handle the frames that are complete; return the rest."""
        at, end = 0 if self.greeted else self._greet(data), len(data)
        unpack = HEADER.unpack_from
        handlers = (self._on_data, self._on_headers, *self._control_handlers, self._on_continuation)  # by their frames' types
        while end - at >= HEADER_BYTES:
            high, low, kind, flags, stream_id = unpack(data, at)
            begin, size = at + HEADER_BYTES, high << 8 | low
            if size > frames.FRAME_MAX:
                raise ConnectionFailedError(Code.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if end - begin < size:
                break
            at = begin + size
            if self._block and kind != frames.CONTINUATION:
                raise ConnectionFailedError(Code.PROTOCOL_ERROR, "a header block was interrupted")
            stream_id &= frames.ID_MAX
            try:
                if kind < len(handlers):
                    handlers[kind](flags, stream_id, data[begin:at])
                else:
                    self._guard.count()
            except StreamFailedError as error:
                self._control.fail_stream(stream_id, error)
        return data[at:] if self.greeted else data

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"a header block on stream {stream_id}")
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < PRIORITY_BYTES:
                raise ConnectionFailedError(Code.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            check_dependency(stream_id, payload)
            payload = payload[PRIORITY_BYTES:]
        if flags & frames.END_HEADERS:
            self._on_block(flags, stream_id, payload)
        else:
            self._block = _Block(stream_id, flags, bytearray(payload))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if not block or stream_id != block.stream_id:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        block.payload.extend(payload)
        if len(block.payload) > headers.LIST_HARD_MAX:
            raise ConnectionFailedError(Code.ENHANCE_YOUR_CALM, f"a header block of over {headers.LIST_HARD_MAX} bytes")
        self._guard.count()
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(block.flags, stream_id, bytes(block.payload))

    def _relay(self, stream: Stream, payload: bytes) -> None:
        """Pass bytes of a relayed stream on as they are."""
        if len(payload) >= PREFIX.size:
            self._guard.message()
        self._events.append((MESSAGE, stream, payload))

    def _account(self, stream: Stream, size: int, payload: int) -> None:
        stream.room -= size
        if stream.room < 0:
            raise StreamFailedError(Code.FLOW_CONTROL_ERROR)
        if size > payload:
            self._receiver.allow(stream, size - payload)  # the padding
        if stream.still_due is not None:
            stream.still_due -= payload

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receiver.data_arrived(size)
        stream = self.streams.get(stream_id)
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        if stream is None or not stream.open:
            self._control.check_known(stream_id)
            if stream_id not in self._sender.left:
                raise StreamFailedError(Code.STREAM_CLOSED)
            self._guard.count()
            return
        self._account(stream, size, len(payload))
        ends = flags & frames.END_STREAM
        if payload:
            self._on_payload(stream, payload)
        elif not ends:
            self._guard.count()
        if ends:
            self._on_end(stream)

    @abstractmethod
    def _greet(self, data: bytes) -> int:
        """Check what the peer sends first; return where the frames begin. Raises ConnectionFailedError."""

    @abstractmethod
    def _on_payload(self, stream: Stream, payload: bytes) -> None:
        """Handle bytes of a stream."""

    @abstractmethod
    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Handle a header block that is complete."""

    @abstractmethod
    def _on_end(self, stream: Stream) -> None:
        """Handle the end of what the peer sends on a stream."""
