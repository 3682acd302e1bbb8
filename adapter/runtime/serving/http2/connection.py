"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, events and bytes out. It knows no clock.

What a peer sends takes a bounded amount of memory, and work in proportion to its bytes; beyond its limits it gets a GOAWAY.
"""

from collections.abc import Callable
from typing import NamedTuple

from adapter.runtime.serving.http2 import frames, headers
from adapter.runtime.serving.http2.control import PRIORITY_BYTES, Control, check_dependency
from adapter.runtime.serving.http2.flood import FloodGuard
from adapter.runtime.serving.http2.frames import HEADER, HEADER_BYTES, PREFIX, Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.serving.http2.headers import HTTP_OK, INTERNAL, RESOURCE_EXHAUSTED, UNIMPLEMENTED
from adapter.runtime.serving.http2.receiving import CREDIT, Receiver
from adapter.runtime.serving.http2.sending import Sender
from adapter.runtime.serving.http2.streams import CALL, ENDED, MESSAGE, RESET, Event, Stream

MESSAGE_MAX = 4 * 2**20  # bytes of a request
STREAMS_MAX = 1_000  # open at a time


class _Block(NamedTuple):
    """A header block that is not complete."""

    stream_id: int
    flags: int
    payload: bytearray


class Connection:
    """The server's side of a connection: parses frames, and handles those of requests (HEADERS, CONTINUATION, DATA).

    `Control` handles all other frames. `Sender` sends answers and removes streams, `Receiver` accounts for the receive windows,
    `FloodGuard` limits frames that carry no message. They share the table of open streams, the output and the events, and do not
    refer to the connection: there are no reference cycles. `message_max` tells how many bytes a message to a path may have,
    `largest` how many one may have to any.
    """

    def __init__(self, now: float, message_max: Callable[[str], int] = lambda _: MESSAGE_MAX, largest: int = MESSAGE_MAX) -> None:
        self._message_max = message_max
        self.streams: dict[int, Stream] = {}
        self.greeted = False  # True when the preface and SETTINGS have come
        asked = {frames.MAX_CONCURRENT_STREAMS: STREAMS_MAX, frames.MAX_HEADER_LIST_SIZE: headers.LIST_MAX}
        self._out = [frames.settings(asked), frames.window_update(0, CREDIT - frames.WINDOW)]
        self._events: list[Event] = []
        self._guard = guard = FloodGuard(now)
        self._receiver = receiver = Receiver(self.streams, self._out, largest)
        self._sender = sender = Sender(self.streams, self._out, self._events, receiver.release, guard.answered)
        self._control = control = Control(self.streams, self._out, self._events, sender, guard)
        self._control_handlers = control.handlers()
        self._rest = b""
        self._headers = headers.HeaderReader(guard.count_fields)
        self._block: _Block | None = None
        self._gap = (0, 0)  # the streams between these were never opened
        # What a server calls. Bound once, because each call passes here.
        self.answer = sender.answer
        self.send_message = sender.send_message
        self.finish = sender.finish
        self.cut_off = sender.cut_off
        self.ping = sender.ping
        self.consumed = receiver.consumed
        self.drain = control.drain
        self.go_away = control.go_away

    @property
    def closed(self) -> bool:
        """True once the output ends with a GOAWAY that reports an error: nothing is received or sent after it."""
        return self._control.closed

    @property
    def has_left(self) -> bool:
        """True once the peer has been told which call was the last one."""
        return self._control.limit != frames.ID_MAX

    @property
    def messages(self) -> int:
        """How many messages have been received."""
        return self._guard.messages

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

    def _greet(self, data: bytes) -> int:
        """Check the preface; return where the frames begin. Raises ConnectionFailedError."""
        size = len(frames.PREFACE)
        if data[:size] != frames.PREFACE[: len(data)]:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, "this is an HTTP/2 server, for gRPC")
        if len(data) < size + HEADER_BYTES:
            return len(data)
        if data[size + 3] != frames.SETTINGS or data[size + 4] & frames.ACK:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, "the first frame has to be SETTINGS")
        self.greeted = True
        return size

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

    def _account(self, stream: Stream, size: int, payload: int) -> None:
        stream.room -= size
        if stream.room < 0:
            raise StreamFailedError(Code.FLOW_CONTROL_ERROR)
        if size > payload:
            self._receiver.allow(stream, size - payload)  # the padding
        if stream.still_due is not None:
            stream.still_due -= payload

    def _on_payload(self, stream: Stream, payload: bytes) -> None:
        if stream.head.refusal:
            if stream.room < frames.WINDOW // 2:
                self._sender.refuse(stream)  # at its end, unless that is far away
            return
        rest = stream.rest
        if not rest and len(payload) >= PREFIX.size:  # mostly it is a message, neither more nor less
            compressed, size = PREFIX.unpack_from(payload)
            if size == len(payload) - PREFIX.size and not compressed:
                self._on_message(stream, payload[PREFIX.size :])
                return
        if rest is None:
            rest = stream.rest = bytearray()
        rest += payload
        stream.missing -= len(payload)
        if stream.missing <= 0:
            self._cut(stream, rest)

    def _on_message(self, stream: Stream, message: bytes) -> None:
        self._receiver.message_arrived(stream)
        self._guard.message()
        self._events.append((MESSAGE, stream, message))

    def _cut(self, stream: Stream, rest: bytearray) -> None:
        """Handle the messages of `rest` that are complete; keep what follows."""
        begin, end = 0, PREFIX.size  # of a message, as far as it is known
        while len(rest) >= begin + PREFIX.size:
            compressed, size = PREFIX.unpack_from(rest, begin)
            if not self._acceptable(stream, compressed, size):
                return
            end = begin + PREFIX.size + size
            if len(rest) < end:
                break
            self._on_message(stream, bytes(memoryview(rest)[begin + PREFIX.size : end]))
            begin, end = end, end + PREFIX.size
        stream.missing = end - len(rest)
        del rest[:begin]
        self._receiver.request_credit(stream)

    def _acceptable(self, stream: Stream, compressed: int, size: int) -> bool:
        """Refuse a compressed or too large message: end the call, and return False."""
        most = self._message_max(stream.head.path)
        if not compressed and size <= most:
            return True
        self._guard.count(2)  # one of it comes back with the answer
        self._sender.drop_output(stream)
        self._events.append((RESET, stream))
        if compressed == 1 and stream.head.compressed:
            self.finish(stream, UNIMPLEMENTED, "compressed messages are not taken", (("grpc-accept-encoding", "identity"),))
        elif compressed:
            self.finish(stream, INTERNAL, "a message is marked as compressed; the headers name no compression")
        else:
            self.finish(stream, RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {most})")
        return False

    def _on_end(self, stream: Stream) -> None:
        if stream.id not in self.streams:
            return  # it was answered at a message that is not taken
        stream.open = False
        if stream.still_due:
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        if stream.head.refusal:
            self._sender.refuse(stream)
        elif stream.rest:
            self._guard.count(2)
            self._sender.drop_output(stream)
            self.finish(stream, INTERNAL, "the request ended within a message")
            self._events.append((RESET, stream))
        else:
            self._events.append((ENDED, stream))

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

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        ends = flags & frames.END_STREAM
        control = self._control
        if stream_id <= control.last:
            self._on_trailers(stream_id, self._headers.fields(block), ends=bool(ends))
            return
        if stream_id > control.last + 2:
            self._gap = (control.last, stream_id)
        control.begin_stream(stream_id)
        head = self._headers.read(block)
        if stream_id > control.limit or len(self.streams) >= STREAMS_MAX:
            raise StreamFailedError(Code.REFUSED_STREAM)
        stream = self.streams[stream_id] = Stream(stream_id, head, self._sender.stream_window)
        if head.refusal and head.refusal.http == HTTP_OK:
            stream.open = not ends
            self._sender.refuse(stream)
            return
        if not head.refusal:
            self._events.append((CALL, stream))
        if ends:
            self._on_end(stream)

    def _on_trailers(self, stream_id: int, fields: headers.Fields, *, ends: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id in self._sender.left:
                self._guard.count()
                return
            never = self._gap[0] < stream_id < self._gap[1]
            raise ConnectionFailedError(
                Code.PROTOCOL_ERROR if never else Code.STREAM_CLOSED, f"a header block on stream {stream_id}, which has passed"
            )
        if not stream.open:
            raise StreamFailedError(Code.STREAM_CLOSED)
        if not ends:
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        headers.check_trailers(fields)
        self._on_end(stream)
