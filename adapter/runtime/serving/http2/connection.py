"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, events and bytes out. It knows no clock.

What a peer sends takes a bounded amount of memory, and work in proportion to its bytes; beyond its limits it gets a GOAWAY.
"""

from collections.abc import Callable

from adapter.runtime.serving.http2 import frames, headers
from adapter.runtime.serving.http2.control import Control
from adapter.runtime.serving.http2.flood import FloodGuard
from adapter.runtime.serving.http2.frames import HEADER_BYTES, PREFIX, Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.serving.http2.framing import Framed
from adapter.runtime.serving.http2.headers import HTTP_OK, INTERNAL, RESOURCE_EXHAUSTED, UNIMPLEMENTED
from adapter.runtime.serving.http2.sending import Sender
from adapter.runtime.serving.http2.streams import CALL, ENDED, MESSAGE, RESET, Stream

MESSAGE_MAX = 4 * 2**20  # bytes of a request
STREAMS_MAX = 1_000  # open at a time


class Connection(Framed[Sender, Control]):
    """The server's side of a connection: handles the frames of requests (HEADERS, CONTINUATION, DATA).

    `message_max` tells how many bytes a message to a path may have, `largest` how many one may have to any, and `relayed`
    whether calls of a path are relayed as they are (none: no call is).
    """

    def __init__(
        self,
        now: float,
        message_max: Callable[[str], int] = lambda _: MESSAGE_MAX,
        largest: int = MESSAGE_MAX,
        relayed: Callable[[str], bool] | None = None,
    ) -> None:
        asked = {frames.MAX_CONCURRENT_STREAMS: STREAMS_MAX, frames.MAX_HEADER_LIST_SIZE: headers.LIST_MAX}
        super().__init__(FloodGuard(now), frames.settings(asked), largest, Sender, Control)
        self._message_max = message_max
        self._relayed = relayed
        self._headers = headers.HeaderReader(headers.head_of, self._guard.count_fields)
        self._gap = (0, 0)  # the streams between these were never opened
        # What a server calls, as in `Framed`.
        sender = self._sender
        self.answer = sender.answer
        self.send_message = sender.send_message
        self.finish = sender.finish
        self.begin = sender.begin
        self.end = sender.end
        self.consumed = self._receiver.consumed
        self.drain = self._control.drain

    @property
    def has_left(self) -> bool:
        """True once the peer has been told which call was the last one."""
        return self._control.limit != frames.ID_MAX

    @property
    def messages(self) -> int:
        """How many messages have been received."""
        return self._guard.messages

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

    def _on_payload(self, stream: Stream, payload: bytes) -> None:
        if stream.head.refusal:
            if stream.room < frames.WINDOW // 2:
                self._sender.refuse(stream)  # at its end, unless that is far away
            return
        if stream.relayed:
            self._relay(stream, payload)
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
        stream = self.streams[stream_id] = Stream(
            stream_id,
            head,
            self._sender.stream_window,
            relayed=self._relayed is not None and not head.refusal and self._relayed(head.path),
        )
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
