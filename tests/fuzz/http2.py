"""The target for the built-in server's protocol object: whatever comes in, it answers by the rules, wherever the input is cut."""

from collections import deque
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from hpack import Decoder
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame

from adapter.runtime.serving.http2.connection import MESSAGE_MAX, STREAMS_MAX, Connection
from adapter.runtime.serving.http2.receiving import EXTRA_CREDIT_MAX
from adapter.runtime.serving.http2.streams import CALL, ENDED, MESSAGE, RESET, WRITABLE, Stream
from tests.http2_client import frames_of, opening

# Bytes of all that a connection holds, beyond what its servicers have not taken and not read: see `held`.
FIXED_MAX = 2**20
OF_STREAM = 200_000  # a head of 8 KiB, the beginning of a message, and what waits of an answer here

Seen = tuple[int, int, bytes]


class Watched:
    """A connection of which everything that comes out is checked. `manner` says how its servicer behaves."""

    def __init__(self, manner: int) -> None:
        self.connection = Connection(0.0)
        self.manner = manner
        self.events: list[Seen] = []
        self.output: list[Frame] = []
        self._decoder = Decoder()
        self._calls: dict[int, int] = {}  # the last event of each
        self._ended: set[int] = set()  # by this side
        self._look()

    def receive(self, data: bytes) -> None:
        """Take a piece of input."""
        was_closed = self.connection.closed
        events = self.connection.receive(data, 0.0)
        self._look(nothing=was_closed)
        for event in events:
            kind, stream = event[0], event[1]
            self.events.append((kind, stream.id, event[2] if len(event) == 3 else b""))
            self._check(kind, stream.id)
            self._serve(kind, stream, event[2] if len(event) == 3 else b"")
        self._look()

    def weigh(self) -> None:
        """Check what is held."""
        assert len(self.connection.streams) <= STREAMS_MAX
        most = FIXED_MAX + EXTRA_CREDIT_MAX + MESSAGE_MAX + OF_STREAM * len(self.connection.streams)
        assert held(self.connection) <= most

    def _check(self, kind: int, number: int) -> None:
        last = self._calls.get(number)
        assert (last is None) == (kind == CALL), (number, last, kind)
        assert last != RESET, "an event of a call that was over"
        assert not (last == ENDED and kind in {MESSAGE, ENDED})
        if kind != WRITABLE:
            self._calls[number] = kind

    def _serve(self, kind: int, stream: Stream, message: bytes) -> None:
        connection = self.connection
        if self.manner & 1 and kind == MESSAGE:
            connection.consumed(stream, message)
        if self.manner & 2 and kind == MESSAGE:
            connection.send_message(stream, message)
        if self.manner & 4 and kind == ENDED:
            connection.answer(stream, bytes(self.manner & 8 and 100_000))
        if self.manner & 16 and kind == CALL:
            connection.finish(stream, 12, "no\u00e9")

    def _look(self, *, nothing: bool = False) -> None:
        output = self.connection.take_output()
        assert not (nothing and output), "there is nothing to say any more"
        for frame in frames_of(output):
            self.output.append(frame)
            number = frame.stream_id
            if isinstance(frame, HeadersFrame):
                assert dict(self._decoder.decode(frame.data))
            if isinstance(frame, (HeadersFrame, DataFrame)):
                assert number & 1
                assert number not in self._ended, frame
            if isinstance(frame, RstStreamFrame):
                assert number
            if isinstance(frame, RstStreamFrame) or "END_STREAM" in frame.flags:
                self._ended.add(number)
            if isinstance(frame, GoAwayFrame):
                assert len(frame.additional_data) < 200


def http2(data: bytes) -> None:
    """The first byte says in what form the rest is: as it is sent, or as short records that become frames."""
    wire = bytes(_wire(data)) if data and data[0] & 1 else data[1:]
    if not data or data[0] & 2:
        wire = opening() + wire
    check(wire, crc32(data) & 31, 1 + crc32(wire) % 50)


def check(wire: bytes, manner: int, piece: int) -> None:
    """All promises on an input, cut or not. Raises AssertionError."""
    whole, cut = Watched(0), Watched(0)
    whole.receive(wire)
    for at in range(0, len(wire), piece):
        cut.receive(wire[at : at + piece])
    assert cut.events == whole.events
    assert list(map(_told, cut.output)) == list(map(_told, whole.output))
    assert cut.connection.closed == whole.connection.closed
    served = Watched(manner)
    for at in range(0, len(wire), piece * 20):
        served.receive(wire[at : at + piece * 20])
    cut.weigh()
    served.weigh()


def held(connection: Connection) -> int:
    """Bytes of what a connection holds: of buffers their size, of all else about what Python takes."""
    total, seen, waiting = 0, set[int](), deque[Any]([vars(connection)])
    while waiting:
        found = waiting.popleft()
        if id(found) in seen or callable(found) or isinstance(found, type):
            continue
        seen.add(id(found))
        total += len(found) + 56 if isinstance(found, (bytes, bytearray, str)) else 64
        if isinstance(found, dict):
            waiting.extend(found.keys())
            waiting.extend(found.values())
        elif isinstance(found, (list, tuple, set, deque)):
            waiting.extend(found)
        else:
            waiting.extend(getattr(found, "__dict__", {}).values())
            waiting.extend(getattr(found, name, None) for name in getattr(type(found), "__slots__", ()))
    return total


def _told(frame: Frame) -> bytes:
    return frame.serialize()


def _wire(data: bytes) -> Iterator[int]:
    """Of each record: kind, flags, stream, length of the payload, payload."""
    at = 1
    while len(data) - at >= 4:
        kind, flags, stream, size = data[at : at + 4]
        payload = data[at + 4 : at + 4 + size]
        yield from len(payload).to_bytes(3, "big") + bytes((kind % 12, flags)) + (stream % 32).to_bytes(4, "big") + payload
        at += 4 + size
