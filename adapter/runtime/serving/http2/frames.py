"""HTTP/2 frames (RFC 9113, sections 4, 6 and 7): their numbers, and the bytes of those that are sent here. Without I/O."""

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">HBBBL")  # length (its 16 upper bits, its 8 lower), type, flags, stream
HEADER_BYTES = HEADER.size
FRAME_MAX = 16_384  # bytes of payload, in both directions: the least that every peer has to accept
ID_MAX = 2**31 - 1
WINDOW = 65_535  # bytes that a stream or a connection begins with
WINDOW_MAX = 2**31 - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = range(2, 7)
SETTING = struct.Struct(">HL")

PREFIX = struct.Struct(">BL")  # before each gRPC message: whether it is compressed, its length


class Code(IntEnum):
    """Error codes (RFC 9113, section 7): why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFailedError(Exception):
    """A connection error (RFC 9113, 5.4.1): the connection ends with a GOAWAY frame."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFailedError(Exception):
    """A stream error (RFC 9113, 5.4.2): one stream ends with an RST_STREAM frame, the connection goes on."""

    def __init__(self, code: Code, text: str = "") -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    size = len(payload)
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Encode a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream_id: int, size: int) -> bytes:
    """Encode a WINDOW_UPDATE frame: the peer may send `size` bytes more. Stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def header_block(flags: int, stream_id: int, block: bytes) -> bytes:
    """Encode a header block: a HEADERS frame, with CONTINUATION frames if it is long."""
    if len(block) <= FRAME_MAX:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + FRAME_MAX] for at in range(0, len(block), FRAME_MAX)]
    first, *between, last = parts
    middle = b"".join(frame(CONTINUATION, 0, stream_id, part) for part in between)
    return frame(HEADERS, flags, stream_id, first) + middle + frame(CONTINUATION, END_HEADERS, stream_id, last)


def reset(stream_id: int, code: int) -> bytes:
    """Encode an RST_STREAM frame, with a `Code` or another peer's code."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def go_away(last_id: int, code: Code, text: str = "") -> bytes:
    """Encode a GOAWAY frame: streams above `last_id` were not processed and will not be."""
    return frame(GOAWAY, 0, 0, last_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode())


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return the payload of DATA or HEADERS without its padding. Raises ConnectionFailedError."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailedError(Code.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]
