"""One HTTP/2 connection of a client, without I/O: it begins calls whose bytes are relayed as they are.

It is the same code as a server's connection (`framing`), with the same limits: a server takes a bounded amount of memory, and
work in proportion to its bytes.
"""

from typing import cast

from adapter.runtime.serving.http2 import frames, headers
from adapter.runtime.serving.http2.control import Control
from adapter.runtime.serving.http2.flood import FloodGuard
from adapter.runtime.serving.http2.frames import HEADER_BYTES, Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.serving.http2.framing import Framed
from adapter.runtime.serving.http2.sending import Sender
from adapter.runtime.serving.http2.streams import ANSWER, ENDED, TRAILERS, Event, Stream

ID_LAST = frames.ID_MAX - 1_000  # beyond, a new connection is needed: the numbers of streams are used up
INFORMATIONAL = range(100, 200)  # HTTP statuses of answers that come before the one that counts
NO_HEAD = headers.Head("", None, (), None, compressed=False, size=0, refusal=None)


class _CallSender(Sender):
    """Sends requests: the end of one leaves its stream open for the answer."""

    def end_request(self, stream: Stream) -> None:
        """End a request, behind what waits of it for a window; do nothing if its call has ended."""
        if stream.id in self._streams and not stream.final:
            stream.final = frames.frame(frames.DATA, frames.END_STREAM, stream.id)
            self._queue(stream, b"")

    def _close(self, stream: Stream) -> None:
        pass


class _CallControl(Control):
    """Takes a GOAWAY: streams that the server has not begun end as refused."""

    left_at: int | None = None  # the last stream that the server begins

    def _on_go_away(self, flags: int, stream_id: int, payload: bytes) -> None:
        super()._on_go_away(flags, stream_id, payload)
        self.left_at = int.from_bytes(payload[:4], "big") & frames.ID_MAX
        for stream in [each for each in self._streams.values() if each.id > self.left_at]:
            stream.code = Code.REFUSED_STREAM
            self._break_off(stream)


class CallingConnection(Framed[_CallSender, _CallControl]):
    """The client's side of a connection. The events of a stream are ANSWER, MESSAGE for each piece, then TRAILERS or ENDED.

    Or RESET, with the server's code in `stream.code`, at any time.
    """

    def __init__(self, now: float) -> None:
        asked = {frames.ENABLE_PUSH: 0, frames.MAX_HEADER_LIST_SIZE: headers.LIST_HARD_MAX}
        first = frames.PREFACE + frames.settings(asked)
        super().__init__(FloodGuard(now), first, 0, _CallSender, _CallControl)
        self._headers = headers.HeaderReader(headers.answer_of, self._guard.count_fields)
        self.end_request = self._sender.end_request
        self._next = 1

    @property
    def leaves(self) -> bool:
        """True once no more calls may begin here: the server has said so, or the numbers are used up."""
        return self.closed or self._next > ID_LAST or self._control.left_at is not None

    @property
    def has_room(self) -> bool:
        """False while as many calls are open as the server lets be."""
        return len(self.streams) < self._control.streams_max

    def call(self, block: bytes) -> Stream:
        """Begin a call with an encoded header block."""
        stream = Stream(self._next, NO_HEAD, self._sender.stream_window, relayed=True)
        self._next += 2
        self.streams[stream.id] = stream
        self._control.begin_stream(stream.id)
        self._sender.begin(stream, block)
        return stream

    def _greet(self, data: bytes) -> int:
        if len(data) >= HEADER_BYTES:
            if data[3] != frames.SETTINGS or data[4] & frames.ACK:
                raise ConnectionFailedError(Code.PROTOCOL_ERROR, "the first frame has to be SETTINGS")
            self.greeted = True
            return 0
        return len(data)

    def _on_payload(self, stream: Stream, payload: bytes) -> None:
        if not stream.answered:
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        self._relay(stream, payload)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        self._control.check_known(stream_id)
        answer = self._headers.read(block)
        stream = self.streams.get(stream_id)
        if stream is None or not stream.open:
            if stream_id not in self._sender.left:
                raise StreamFailedError(Code.STREAM_CLOSED)
            self._guard.count()
            return
        ends = bool(flags & frames.END_STREAM)
        if answer.http in INFORMATIONAL and not ends:
            self._guard.count()
        elif stream.answered:
            if answer.http or not ends:
                raise StreamFailedError(Code.PROTOCOL_ERROR)
            self._finish(stream, TRAILERS, answer)
        elif not answer.http:
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        elif ends:
            self._finish(stream, TRAILERS, answer)
        else:
            stream.answered = True
            self._events.append(cast("Event", (ANSWER, stream, answer)))

    def _on_end(self, stream: Stream) -> None:
        self._finish(stream, ENDED, None)

    def _finish(self, stream: Stream, kind: int, answer: headers.Answer | None) -> None:
        stream.open = False
        if stream.out or not stream.final:
            self._sender.reset(stream.id, Code.NO_ERROR)  # it is answered before all of it was sent
        self._guard.answered()
        self._events.append(cast("Event", (kind, stream, answer)) if answer else (kind, stream))
        self._sender.forget(stream)
