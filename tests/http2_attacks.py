"""What a hostile peer sends to a gRPC server, as bytes made beforehand: an attack costs its sender next to nothing.

Each is made for a connection of its own. `Attacker` is the raw end of one.
"""

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from hpack import Encoder
from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame

from adapter.runtime.settings.addresses import split_address
from adapter.testing.waiting import PATIENCE_S
from tests.http2_client import PREFACE, message, request

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM = 0, 1, 3, 5, 6, 7
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11
COMMIT = "/offsets.v1.OffsetStore/CommitOffsets"
STREAM = "/offsets.v1.OffsetStore/StreamCommits"
READ = "/offsets.v1.OffsetStore/ReadOffsets"
EXPORT = "/offsets.v1.OffsetAdmin/ExportOffsets"
SNAPSHOT = "/offsets.v1.OffsetAdmin/SnapshotOffsets"
SAVE = "/meta.service.common.MetaServiceService/SaveOffsetData"
WAIT_S = PATIENCE_S


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *item) for item in values.items()))


NO_WINDOW = settings({4: 0})  # INITIAL_WINDOW_SIZE: the server may send no DATA
WIDE = settings({4: 2**31 - 1}) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 2**30))  # all that it may ever send


class Calls:
    """Calls of one connection, made as bytes. Blocks after the first of a path are nothing but indices."""

    def __init__(self) -> None:
        self._encoder = Encoder()
        self.last = -1

    def open(self, path: str = COMMIT, *more: tuple[str, str], flags: int = END_HEADERS) -> bytes:
        """Its HEADERS, on the next stream."""
        self.last += 2
        return frame(HEADERS, flags, self.last, self._encoder.encode(request(path, *more)))

    def whole(self, path: str = COMMIT, body: bytes = b"") -> bytes:
        """A call with its only message."""
        return self.open(path) + frame(DATA, END_STREAM, self.last, message(body))


class Ended(NamedTuple):
    """How a connection ended, and what was said of its streams: GOAWAY's code (None: none), RST_STREAM's by stream."""

    code: int | None
    resets: dict[int, int]
    frames: list[Frame]


class Attacker:
    """A blocking connection whose bytes are the caller's. With a `context`, those over TCP have TLS."""

    context: ClassVar[ssl.SSLContext | None] = None

    def __init__(self, address: str, *, greets: bool = True, buffer: int = 0) -> None:
        path = address.removeprefix("unix:")
        self._rest = b""
        self.socket = socket.socket(socket.AF_UNIX if path != address else socket.AF_INET)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.connect(path if path != address else split_address(address))
        self.socket.settimeout(WAIT_S)
        if self.context and path == address:
            self.socket = self.context.wrap_socket(self.socket)
        if greets:
            self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Hang up."""
        self.socket.close()

    def send(self, *data: bytes) -> bool:
        """Send all of it; False when the server hung up before its end."""
        try:
            for some in data:
                self.socket.sendall(some)
        except (ConnectionResetError, BrokenPipeError, ssl.SSLError):
            return False
        return True

    def vanish(self) -> None:
        """Hang up with a reset, in the middle of whatever is under way."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def read_until(self, enough: Callable[[Ended], bool] = lambda _: False) -> Ended:
        """Read frames until it is enough, or the connection ends. Raises TimeoutError."""
        found = Ended(None, {}, [])
        deadline = time.monotonic() + WAIT_S
        while not enough(found):
            if time.monotonic() > deadline:
                raise TimeoutError
            try:
                data = self.socket.recv(262_144)
            except (ConnectionResetError, ssl.SSLEOFError):
                data = b""
            if not data:
                return found
            read, self._rest = _frames(self._rest + data)
            found.frames.extend(read)
            found.resets.update((each.stream_id, each.error_code) for each in read if isinstance(each, RstStreamFrame))
            codes = [each.error_code for each in read if isinstance(each, GoAwayFrame)]
            found = found._replace(code=codes[-1] if codes else found.code)
        return found

    def crawl(self, size: int) -> None:
        """Read so many bytes, one at a time; `read_until` goes on from there."""
        self._rest += b"".join(self.socket.recv(1) for _ in range(size))

    def end(self) -> Ended:
        """Read to the end of the connection."""
        return self.read_until()


def _frames(data: bytes) -> tuple[list[Frame], bytes]:
    """Those that are whole, and the rest."""
    found: list[Frame] = []
    at = 0
    while len(data) - at >= 9:
        each, size = Frame.parse_frame_header(memoryview(data[at : at + 9]))
        if len(data) - at - 9 < size:
            break
        each.parse_body(memoryview(data[at + 9 : at + 9 + size]))
        found.append(each)
        at += 9 + size
    return found, data[at:]


def rapid_resets(count: int) -> Iterable[bytes]:
    """Calls that are given up as soon as they begin (CVE-2023-44487)."""
    calls = Calls()
    yield b"".join(calls.open(STREAM) + frame(RST_STREAM, 0, calls.last, b"\0\0\0\x08") for _ in range(count))


def made_resets(count: int) -> Iterable[bytes]:
    """Calls that the server has to reset, for a rule that each breaks (CVE-2025-8671)."""
    calls = Calls()
    yield b"".join(calls.open(STREAM) + frame(WINDOW_UPDATE, 0, calls.last, bytes(4)) for _ in range(count))


def continuations(count: int) -> Iterable[bytes]:
    """A header block that never ends (CVE-2024-27316)."""
    yield Calls().open(flags=0)
    yield frame(CONTINUATION, 0, 1) * count


def full_continuations(count: int) -> Iterable[bytes]:
    """The same, of large frames."""
    yield Calls().open(flags=0)
    yield frame(CONTINUATION, 0, 1, b"\0\1x\1y" * 3_000) * (count // 1_000)


def empty_settings(count: int) -> Iterable[bytes]:
    """SETTINGS, each to be acknowledged."""
    yield frame(SETTINGS, 0, 0) * count


def turning_windows(count: int) -> Iterable[bytes]:
    """SETTINGS that change the windows of many streams, to and fro."""
    calls = Calls()
    yield b"".join(calls.open(STREAM) for _ in range(900))
    yield (settings({4: 0}) + settings({4: 65_535})) * (count // 2)


def pings(count: int) -> Iterable[bytes]:
    """PING, each to be answered."""
    yield frame(PING, 0, 0, bytes(8)) * count


def ping_answers(count: int) -> Iterable[bytes]:
    """Answers to what was not asked."""
    yield frame(PING, ACK, 0, bytes(8)) * count


def empty_data(count: int) -> Iterable[bytes]:
    """DATA without data, on an open stream."""
    yield Calls().open(STREAM)
    yield frame(DATA, 0, 1) * count


def late_data(count: int) -> Iterable[bytes]:
    """DATA for a call that the server has refused."""
    yield Calls().open("/no/such")
    yield frame(DATA, 0, 1) * count


def priorities(count: int) -> Iterable[bytes]:
    """PRIORITY, which means nothing any more."""
    yield frame(PRIORITY, 0, 1, struct.pack(">LB", 3, 1)) * count


def unknown_frames(count: int) -> Iterable[bytes]:
    """Of a kind that nobody knows."""
    yield frame(0xBE, 0, 0) * count


def go_aways(count: int) -> Iterable[bytes]:
    """GOAWAY, again and again."""
    yield frame(GOAWAY, 0, 0, bytes(8)) * count


def too_many_streams(count: int) -> Iterable[bytes]:
    """Calls far beyond the number that was allowed, none of which ends."""
    calls = Calls()
    yield b"".join(calls.open(STREAM) for _ in range(count))


def index_bomb(_: int) -> Iterable[bytes]:
    """A few bytes that stand for a long header, over and over."""
    encoder = Encoder()
    first = encoder.encode([*request(COMMIT), ("x", "y" * 3_500)])
    index = encoder.encode([("x", "y" * 3_500)])
    yield frame(HEADERS, END_HEADERS, 1, first) + frame(HEADERS, END_HEADERS, 3, encoder.encode(request(COMMIT)) + index * 10_000)


def many_headers(_: int) -> Iterable[bytes]:
    """A list of more than 64 KiB, of many small ones, in 12 KiB."""
    block = Encoder().encode([*request(COMMIT), ("a", "b")])
    yield frame(HEADERS, END_HEADERS, 1, block + b"\xbe" * 12_000)


def small_headers(count: int) -> Iterable[bytes]:
    """Calls with as many headers of a byte each as are decoded, over and over: a millisecond and more for each."""
    encoder, fields = Encoder(), [*request(COMMIT), ("a", "b")]
    for at in range(min(count, 1_000)):
        yield frame(HEADERS, END_HEADERS | END_STREAM, 2 * at + 1, encoder.encode(fields) + b"\xbe" * 1_500)


def long_header(_: int) -> Iterable[bytes]:
    """More than 64 KiB as one header."""
    block = Encoder().encode([*request(COMMIT), ("x", "y" * 70_000)], huffman=False)
    pieces = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    yield frame(HEADERS, 0, 1, pieces[0])
    for piece in pieces[1:-1]:
        yield frame(CONTINUATION, 0, 1, piece)
    yield frame(CONTINUATION, END_HEADERS, 1, pieces[-1])


def wide_connection(_: int) -> Iterable[bytes]:
    """A window of more than 2^31 - 1 bytes, for the connection."""
    yield frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 2**31 - 1)) * 2


def wide_setting(_: int) -> Iterable[bytes]:
    """The same for all streams that come."""
    yield settings({4: 2**31})


def table_sizes(_: int) -> Iterable[bytes]:
    """A header block that changes the size of its table with each byte; a server has to allow two (RFC 7541, section 4.2)."""
    yield frame(HEADERS, END_HEADERS, 1, b"\x20" * 16_000) * 100


def bad_block(_: int) -> Iterable[bytes]:
    """An index that nothing has."""
    yield frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\x0f")


def endless_number(_: int) -> Iterable[bytes]:
    """A number of thousands of digits in a header block."""
    yield frame(HEADERS, END_HEADERS, 1, b"\xff" * 16_000)


def large_frame(_: int) -> Iterable[bytes]:
    """A frame of 16 MiB."""
    yield struct.pack(">HBBBL", 0xFFFF, 0xFF, DATA, 0, 1)


# Each with how a server ends it.
FLOODS: dict[Callable[[int], Iterable[bytes]], int] = {
    rapid_resets: ENHANCE_YOUR_CALM,
    made_resets: ENHANCE_YOUR_CALM,
    continuations: ENHANCE_YOUR_CALM,
    full_continuations: ENHANCE_YOUR_CALM,
    empty_settings: ENHANCE_YOUR_CALM,
    turning_windows: ENHANCE_YOUR_CALM,
    pings: ENHANCE_YOUR_CALM,
    ping_answers: ENHANCE_YOUR_CALM,
    empty_data: ENHANCE_YOUR_CALM,
    late_data: ENHANCE_YOUR_CALM,
    priorities: ENHANCE_YOUR_CALM,
    unknown_frames: ENHANCE_YOUR_CALM,
    go_aways: ENHANCE_YOUR_CALM,
    too_many_streams: ENHANCE_YOUR_CALM,
    index_bomb: ENHANCE_YOUR_CALM,
    many_headers: ENHANCE_YOUR_CALM,
    small_headers: ENHANCE_YOUR_CALM,
    long_header: ENHANCE_YOUR_CALM,
    wide_connection: FLOW_CONTROL_ERROR,
    wide_setting: FLOW_CONTROL_ERROR,
    table_sizes: COMPRESSION_ERROR,
    bad_block: COMPRESSION_ERROR,
    endless_number: COMPRESSION_ERROR,
    large_frame: FRAME_SIZE_ERROR,
}


def attack(address: str, flood: Callable[[int], Iterable[bytes]], count: int) -> Ended:
    """Send a flood over a connection of its own and read to its end: the server has to hang up."""
    with Attacker(address) as attacker:
        attacker.send(*flood(count))
        if not attacker.context:  # TLS has no end of one direction alone
            with suppress(OSError):
                attacker.socket.shutdown(socket.SHUT_WR)
        return attacker.end()
