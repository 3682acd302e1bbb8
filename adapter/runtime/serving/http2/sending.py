"""The half of a connection that sends, within the peer's windows. Without I/O: output is kept until it is taken."""

import struct
from collections.abc import Callable, Iterable

from adapter.runtime.serving.http2 import frames, headers
from adapter.runtime.serving.http2.frames import HEADER, HEADER_BYTES, PREFIX, Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.serving.http2.streams import WRITABLE, Event, Stream

LEFT_MAX = 1_000  # streams that this side ended first, of which late frames are forgiven

_EMPTY = PREFIX.pack(0, 0)
# Most answers to commits: headers, an empty message and trailers in one piece.
_PLAIN = struct.Struct(f">{HEADER_BYTES}s{len(headers.START)}s{HEADER_BYTES}s5s{HEADER_BYTES}s{len(headers.OK)}s")


class Sender:
    """Sends answers, and removes streams from the table of open ones as they end.

    `out` (frames) and `events` are lists that are shared with the other parts of a connection. `release` is called for each
    stream that has ended, `answered` for each call whose answer is out.
    """

    def __init__(
        self,
        streams: dict[int, Stream],
        out: list[bytes],
        events: list[Event],
        release: Callable[[Stream], None],
        answered: Callable[[], None],
    ) -> None:
        self.left: dict[int, None] = {}  # streams that this side ended first, of which late frames are forgiven
        self.held_back = 0  # bytes of answers that wait for a window
        self.stream_window = frames.WINDOW  # bytes that a new stream may send
        self._streams = streams
        self._out = out
        self._events = events
        self._release = release
        self._answered = answered
        self._window = frames.WINDOW
        self._blocked: dict[Stream, None] = {}  # by the connection's window alone
        self._table_sent = False  # see `headers.NO_TABLE`

    def answer(self, stream: Stream, message: bytes) -> None:
        """Send the only message of a unary call, and status OK."""
        small = not message and self._window >= len(_EMPTY) <= stream.window
        if not small or not self._table_sent or stream.open or stream.answering or stream.id not in self._streams:
            self.send_message(stream, message)
            self.finish(stream, 0)
            return
        number, pack = stream.id, HEADER.pack
        self._out.append(
            _PLAIN.pack(
                pack(0, len(headers.START), frames.HEADERS, frames.END_HEADERS, number), headers.START,
                pack(0, len(_EMPTY), frames.DATA, 0, number), _EMPTY,
                pack(0, len(headers.OK), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, number), headers.OK,
            )
        )  # fmt: skip
        self._window -= len(_EMPTY)
        self._close(stream)

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Send a message of a call; do nothing if the call has ended."""
        if stream.id in self._streams and not stream.final:
            self._begin(stream, headers.START)
            self._queue(stream, PREFIX.pack(0, len(message)) + message)

    def finish(self, stream: Stream, code: int, text: str = "", metadata: Iterable[tuple[str, str]] = ()) -> None:
        """End a call with a gRPC status; do nothing if it has ended."""
        if stream.id in self._streams and not stream.final:
            self.end(stream, headers.trailers(code, text, metadata, alone=not stream.answering))

    def begin(self, stream: Stream, block: bytes) -> None:
        """Send the headers of a call as they are encoded; do nothing if they were sent, or the call has ended."""
        if stream.id in self._streams and not stream.answering:
            stream.answering = True
            self._out.append(frames.header_block(0, stream.id, self._first(block)))

    def send_bytes(self, stream: Stream, data: bytes) -> None:
        """Send bytes of a call as they are; do nothing if it has ended."""
        if stream.id in self._streams and not stream.final:
            self._queue(stream, data)

    def end(self, stream: Stream, block: bytes) -> None:
        """End a call with trailers, or all of its headers, as they are encoded; do nothing if it has ended."""
        if stream.id in self._streams and not stream.final:
            stream.final = frames.header_block(frames.END_STREAM, stream.id, self._first(block))
            self._queue(stream, b"")

    def cut_off(self, stream: Stream, code: int) -> None:
        """Reset a stream: it ends without an answer."""
        if stream.id in self._streams:
            self.reset(stream.id, code)
            self.forget(stream)

    def ping(self) -> None:
        """Send a PING: any byte that the peer sends then shows that it is alive."""
        self._out.append(frames.frame(frames.PING, 0, 0, bytes(8)))

    def refuse(self, stream: Stream) -> None:
        """Answer a request that is not a gRPC call, as its head says."""
        refusal = stream.head.refusal
        if refusal is None or stream.answering:
            return
        if refusal.http == headers.HTTP_OK:
            self.finish(stream, refusal.code, refusal.text)
            return
        text = refusal.text.encode()
        self._begin(stream, headers.plain(refusal.http, len(text)))
        stream.final = frames.frame(frames.DATA, frames.END_STREAM, stream.id)
        self._queue(stream, text)

    def _begin(self, stream: Stream, block: bytes) -> None:
        if not stream.answering:
            stream.answering = True
            self._out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, self._first(block)))

    def _first(self, block: bytes) -> bytes:
        if self._table_sent:
            return block
        self._table_sent = True
        return headers.NO_TABLE + block

    def _queue(self, stream: Stream, data: bytes) -> None:
        self.held_back += len(data)
        if stream.out is None:
            stream.out = bytearray(data)
        else:
            stream.out += data
        self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        """Send what the windows allow, and the final frame when nothing is left."""
        out = stream.out
        while out:
            size = min(len(out), self._window, stream.window, frames.FRAME_MAX)
            if size <= 0:
                if stream.window > 0:
                    self._blocked[stream] = None
                return
            self._out.append(frames.frame(frames.DATA, 0, stream.id, bytes(out[:size])))
            del out[:size]
            self.held_back -= size
            self._window -= size
            stream.window -= size
        if stream.final:
            self._out.append(stream.final)
            self._close(stream)

    def _close(self, stream: Stream) -> None:
        """Remove a stream whose answer is out."""
        if stream.open:
            self.reset(stream.id, Code.NO_ERROR)  # the peer need not send the rest of the request
        self.forget(stream)
        self._answered()

    def forget(self, stream: Stream) -> None:
        """Remove a stream from the table, with what it holds."""
        del self._streams[stream.id]
        self._blocked.pop(stream, None)
        self.drop_output(stream)
        self._release(stream)

    def drop_output(self, stream: Stream) -> None:
        """Discard what of an answer waits for a window."""
        if stream.out:
            self.held_back -= len(stream.out)
            stream.out = None
        stream.final = b""

    def reset(self, stream_id: int, code: int) -> None:
        """Send RST_STREAM, and remember the stream: frames of it that are on their way are ignored."""
        self._out.append(frames.reset(stream_id, code))
        self.left[stream_id] = None
        if len(self.left) > LEFT_MAX:
            del self.left[next(iter(self.left))]

    def widen(self, stream: Stream, size: int) -> None:
        """Change a stream's send window by `size` bytes, which may be negative. Raises StreamFailedError."""
        stream.window += size
        if stream.window > frames.WINDOW_MAX:
            raise StreamFailedError(Code.FLOW_CONTROL_ERROR)
        self._go_on(stream)

    def widen_all(self, size: int) -> None:
        """Enlarge the connection's send window by `size` bytes. Raises ConnectionFailedError."""
        self._window += size
        if self._window > frames.WINDOW_MAX:
            raise ConnectionFailedError(Code.FLOW_CONTROL_ERROR, "the connection's window is over 2^31 - 1")
        while self._blocked and self._window > 0:
            stream = next(iter(self._blocked))
            del self._blocked[stream]
            if stream.id in self._streams:
                self._go_on(stream)

    def _go_on(self, stream: Stream) -> None:
        if stream.out:
            self._pump(stream)
            if not stream.out and stream.id in self._streams:
                self._events.append((WRITABLE, stream))

    def resize_streams(self, window: int) -> None:
        """Apply the peer's INITIAL_WINDOW_SIZE, also to the streams that are open. Raises ConnectionFailedError."""
        more, self.stream_window = window - self.stream_window, window
        for stream in list(self._streams.values()):
            if stream.window + more > frames.WINDOW_MAX:
                raise ConnectionFailedError(Code.FLOW_CONTROL_ERROR, "a stream's window is over 2^31 - 1")
            self.widen(stream, more)
