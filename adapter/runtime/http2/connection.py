"""One HTTP/2 connection of a gRPC server, without I/O: bytes in, events and bytes out. It knows no method and no clock.

Promises: what a peer sends takes bounded memory, and no more work than its bytes are worth; one that goes too far gets a GOAWAY.
"""

from collections.abc import Iterable
from typing import NamedTuple

from adapter.runtime.http2 import frames, headers
from adapter.runtime.http2.control import PRIORITY_BYTES, Control, check_dependency
from adapter.runtime.http2.credit import ReceiveCredit
from adapter.runtime.http2.frames import HEADER, HEADER_BYTES, Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.http2.headers import HTTP_OK, INTERNAL, RESOURCE_EXHAUSTED, UNIMPLEMENTED
from adapter.runtime.http2.sending import PREFIX
from adapter.runtime.http2.streams import CALL, ENDED, MESSAGE, RESET, Event, Stream

MESSAGE_MAX = 4 * 2**20  # bytes of a request
STREAMS_MAX = 1_000  # that are open at a time
HELD_MAX = 200_000  # messages of a connection that nobody has taken
CREDIT = 2**20  # bytes of all streams that may be on their way


class _Block(NamedTuple):
    """A header block that is not complete."""

    stream_id: int
    flags: int
    payload: bytearray


class Connection(Control):
    """The server's side. `closed` is True once a GOAWAY with an error is in the output: it is to be sent, and that was it."""

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.greeted = False
        self._rest = b""
        self._headers = headers.HeaderReader()
        self._block: _Block | None = None
        self._gap = (0, 0)  # the streams between these were never opened
        self._uncredited = 0
        self._loans = ReceiveCredit()
        self._held = 0
        asked = {frames.MAX_CONCURRENT_STREAMS: STREAMS_MAX, frames.MAX_HEADER_LIST_SIZE: headers.LIST_MAX}
        self._out = [frames.settings(asked), frames.window_update(0, CREDIT - frames.WINDOW)]

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take what the peer sent, cut anywhere, `now` (monotonic seconds). Returns what happened."""
        if self.closed:
            return []
        self._pass_time(now)
        try:
            self._rest = self._frames(self._rest + data if self._rest else data)
        except ConnectionFailedError as error:
            self._give_up(error)
        events, self._events = self._events, []
        return events

    def consumed(self, stream: Stream, message: bytes) -> None:
        """A message of a stream is done with: the peer may send as much again."""
        if stream.id not in self.streams:
            return
        stream.held -= 1
        self._held -= 1
        size = len(message) + PREFIX.size
        paid = min(stream.lent, size)
        stream.returned += size - paid
        if paid:
            self._allow_all(self._loans.pay_back(stream, paid))
        if stream.open and stream.returned and (stream.returned > frames.WINDOW // 2 or stream.missing > stream.room):
            self._allow(stream, stream.returned)
            stream.returned = 0
            self._ask(stream)

    def _frames(self, data: bytes) -> bytes:
        """Take all that is whole; returns the rest."""
        at, end = 0 if self.greeted else self._greet(data), len(data)
        unpack = HEADER.unpack_from
        kinds = (  # not kept: it would be a cycle
            self._on_data, self._on_headers, self._on_priority, self._on_reset, self._on_settings, self._on_push,
            self._on_ping, self._on_go_away, self._on_window_update, self._on_continuation,
        )  # fmt: skip
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
                if kind < len(kinds):
                    kinds[kind](flags, stream_id, data[begin:at])
                else:
                    self._note_noise()
            except StreamFailedError as error:
                self._fail(stream_id, error)
        return data[at:] if self.greeted else data

    def _greet(self, data: bytes) -> int:
        """Where the frames begin."""
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
        self._uncredited += size
        if self._uncredited >= CREDIT // 2:  # at once, whatever becomes of it: it is the streams' windows that hold a peer back
            self._out.append(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        stream = self.streams.get(stream_id)
        if flags & frames.PADDED:
            payload = frames.unpadded(flags, payload)
        if stream is None or not stream.open:
            self._check_known(stream_id)
            if stream_id not in self._left:
                raise StreamFailedError(Code.STREAM_CLOSED)
            self._note_noise()
            return
        self._account(stream, size, len(payload))
        ends = flags & frames.END_STREAM
        if payload:
            self._on_payload(stream, payload)
        elif not ends:
            self._note_noise()
        if ends:
            self._on_end(stream)

    def _account(self, stream: Stream, size: int, payload: int) -> None:
        stream.room -= size
        if stream.room < 0:
            raise StreamFailedError(Code.FLOW_CONTROL_ERROR)
        if size > payload:
            self._allow(stream, size - payload)  # the padding
        if stream.still_due is not None:
            stream.still_due -= payload

    def _on_payload(self, stream: Stream, payload: bytes) -> None:
        if stream.head.refusal:
            if stream.room < frames.WINDOW // 2:
                self._refuse(stream)  # at its end, unless that is far away
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
        stream.held += 1
        self._held += 1
        self.messages += 1
        if self._held > HELD_MAX:
            raise ConnectionFailedError(Code.ENHANCE_YOUR_CALM, "too many messages that nobody has taken")
        self._forgive()
        self._events.append((MESSAGE, stream, message))

    def _cut(self, stream: Stream, rest: bytearray) -> None:
        """Take the messages that are whole."""
        begin, end = 0, PREFIX.size  # of a message, as far as it is known
        while len(rest) >= begin + PREFIX.size:
            compressed, size = PREFIX.unpack_from(rest, begin)
            if not self._acceptable(stream, compressed, size):
                return
            end = begin + PREFIX.size + size
            if len(rest) < end:
                break
            self._on_message(stream, bytes(rest[begin + PREFIX.size : end]))
            begin, end = end, end + PREFIX.size
        stream.missing = end - len(rest)
        del rest[:begin]
        self._ask(stream)

    def _ask(self, stream: Stream) -> None:
        """A message that is larger than a window needs a loan. One that others have to be taken before waits for that."""
        if stream.missing > stream.room and not stream.held:
            self._allow_all(self._loans.ask(stream))

    def _allow_all(self, granted: Iterable[tuple[Stream, int]]) -> None:
        for stream, size in granted:
            self._allow(stream, size)

    def _acceptable(self, stream: Stream, compressed: int, size: int) -> bool:
        """False when the call ends here, for a message that is not taken."""
        if not compressed and size <= MESSAGE_MAX:
            return True
        self._note_noise(2)  # one of it comes back with the answer
        self._drop_output(stream)
        self._events.append((RESET, stream))
        if compressed == 1 and stream.head.compressed:
            self.finish(stream, UNIMPLEMENTED, "compressed messages are not taken", (("grpc-accept-encoding", "identity"),))
        elif compressed:
            self.finish(stream, INTERNAL, "a message is marked as compressed; the headers name no compression")
        else:
            self.finish(stream, RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {MESSAGE_MAX})")
        return False

    def _allow(self, stream: Stream, size: int) -> None:
        stream.room += size
        self._out.append(frames.window_update(stream.id, size))

    def _on_end(self, stream: Stream) -> None:
        if stream.id not in self.streams:
            return  # it was answered at a message that is not taken
        stream.open = False
        if stream.still_due:
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        if stream.head.refusal:
            self._refuse(stream)
        elif stream.rest:
            self._note_noise(2)
            self._drop_output(stream)
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
        self._note_noise()
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(block.flags, stream_id, bytes(block.payload))

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        ends = flags & frames.END_STREAM
        if stream_id <= self._last:
            self._on_trailers(stream_id, self._headers.fields(block), ends=bool(ends))
            return
        if stream_id > self._last + 2:
            self._gap = (self._last, stream_id)
        self._last = stream_id
        head = self._headers.read(block)
        if stream_id > self._limit or len(self.streams) >= STREAMS_MAX:
            raise StreamFailedError(Code.REFUSED_STREAM)
        stream = self.streams[stream_id] = Stream(stream_id, head, self._stream_window)
        if head.refusal and head.refusal.http == HTTP_OK:
            stream.open = not ends
            self._refuse(stream)
            return
        if not head.refusal:
            self._events.append((CALL, stream))
        if ends:
            self._on_end(stream)

    def _on_trailers(self, stream_id: int, fields: headers.Fields, *, ends: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id in self._left:
                self._note_noise()
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

    def _forget(self, stream: Stream) -> None:
        super()._forget(stream)
        stream.open = False
        stream.rest = None
        self._held -= stream.held
        self._allow_all(self._loans.forget(stream))
