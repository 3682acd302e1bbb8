"""The half of a connection that sends: answers, within the peer's windows. Pure: what is to be sent is kept until it is taken."""

import struct
from collections.abc import Iterable

from adapter.runtime.http2 import frames, headers
from adapter.runtime.http2.frames import HEADER, HEADER_BYTES, Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.http2.streams import WRITABLE, Event, Stream

LEFT_MAX = 1_000  # streams that this side ended first, of which late frames are forgiven

PREFIX = struct.Struct(">BL")  # of a message: compressed, length
_EMPTY = PREFIX.pack(0, 0)
# Most answers: headers, an empty message, trailers.
_PLAIN = struct.Struct(f">{HEADER_BYTES}s{len(headers.START)}s{HEADER_BYTES}s5s{HEADER_BYTES}s{len(headers.OK)}s")


class Sending:
    """What a connection sends of its own accord."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self._left: dict[int, None] = {}
        self._out: list[bytes] = []
        self._events: list[Event] = []
        self._window = frames.WINDOW
        self._stream_window = frames.WINDOW
        self._blocked: dict[Stream, None] = {}  # by the connection's window alone
        self.held_back = 0  # bytes of answers that wait for a window
        self._table_told = False

    def take_output(self) -> bytes:
        """What is to be sent now."""
        out, self._out = self._out, []
        return b"".join(out)

    def answer(self, stream: Stream, message: bytes) -> None:
        """Send the only message of a call that went well."""
        small = not message and self._window >= len(_EMPTY) <= stream.window
        if not small or not self._table_told or stream.open or stream.answering or stream.id not in self.streams:
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
        """Send a message of a call; nothing when it is over."""
        if stream.id in self.streams and not stream.final:
            self._begin(stream, headers.START)
            self._queue(stream, PREFIX.pack(0, len(message)) + message)

    def finish(self, stream: Stream, code: int, text: str = "", metadata: Iterable[tuple[str, str]] = ()) -> None:
        """End a call with a gRPC status; nothing when it is over."""
        if stream.id in self.streams and not stream.final:
            block = self._first(headers.trailers(code, text, metadata, alone=not stream.answering))
            stream.final = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream.id, block)
            self._queue(stream, b"")

    def cut_off(self, stream: Stream, code: Code) -> None:
        """End a stream without an answer."""
        if stream.id in self.streams:
            self._reset(stream.id, code)
            self._forget(stream)

    def ping(self) -> None:
        """Have the peer show that it is there: whatever it sends does."""
        self._out.append(frames.frame(frames.PING, 0, 0, bytes(8)))

    def _refuse(self, stream: Stream) -> None:
        """Answer what is no call."""
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
        if self._table_told:
            return block
        self._table_told = True
        return headers.NO_TABLE + block

    def _queue(self, stream: Stream, data: bytes) -> None:
        self.held_back += len(data)
        if stream.out is None:
            stream.out = bytearray(data)
        else:
            stream.out += data
        self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        """Send what the windows allow, and the end behind it."""
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
        """The answer is out."""
        if stream.open:
            self._reset(stream.id, Code.NO_ERROR)  # the rest of the request is of no use any more
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        del self.streams[stream.id]
        self._blocked.pop(stream, None)
        self._drop_output(stream)

    def _drop_output(self, stream: Stream) -> None:
        if stream.out:
            self.held_back -= len(stream.out)
            stream.out = None
        stream.final = b""

    def _reset(self, stream_id: int, code: Code) -> None:
        self._out.append(frames.reset(stream_id, code))
        self._left[stream_id] = None
        if len(self._left) > LEFT_MAX:
            del self._left[next(iter(self._left))]

    def _widen(self, stream: Stream, size: int) -> None:
        """A stream's window grows, or shrinks, by so many bytes."""
        stream.window += size
        if stream.window > frames.WINDOW_MAX:
            raise StreamFailedError(Code.FLOW_CONTROL_ERROR)
        self._go_on(stream)

    def _widen_all(self, size: int) -> None:
        """The connection's."""
        self._window += size
        if self._window > frames.WINDOW_MAX:
            raise ConnectionFailedError(Code.FLOW_CONTROL_ERROR, "the connection's window is over 2^31 - 1")
        while self._blocked and self._window > 0:
            stream = next(iter(self._blocked))
            del self._blocked[stream]
            if stream.id in self.streams:
                self._go_on(stream)

    def _go_on(self, stream: Stream) -> None:
        if stream.out:
            self._pump(stream)
            if not stream.out and stream.id in self.streams:
                self._events.append((WRITABLE, stream))

    def _resize_streams(self, window: int) -> None:
        """The peer's setting: what a stream's window begins with, also for those that have begun."""
        more, self._stream_window = window - self._stream_window, window
        for stream in list(self.streams.values()):
            if stream.window + more > frames.WINDOW_MAX:
                raise ConnectionFailedError(Code.FLOW_CONTROL_ERROR, "a stream's window is over 2^31 - 1")
            self._widen(stream, more)
