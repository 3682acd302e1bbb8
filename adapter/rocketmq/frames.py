"""Frames of RocketMQ's remoting protocol: requests to bytes, and bytes to replies.

A frame is its length (4 bytes, big-endian, of what follows), the form and length of the header (1 and 3 bytes), the header, the
body. Requests have a JSON header, which every broker reads. Replies are read in both forms: JSON, and RocketMQ's binary form, in
which some brokers answer (`SerializeType`). Source: RemotingCommand and RocketMQSerializable of RocketMQ 4.9 and 5.3.
"""

import json
import struct
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from adapter.rocketmq.errors import BrokerError

# A broker's own clients and slaves accept no larger frame (NettySystemConfig: com.rocketmq.remoting.socket.frameMaxLength).
MAX_FRAME_BYTES = 16 * 2**20
LENGTH = struct.Struct(">I")
VERSION = 477  # MQVersion.V5_3_1; brokers log it, and sign over nothing of it
SUCCESS = 0

_JSON, _BINARY = 0, 1
_IS_REPLY = 1  # bit of `flag`
_BINARY_HEAD = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_LARGEST_INT = 2**31 - 1
_MAX_FIELDS = 1_000  # of a header; brokers send fewer than 50


class Reply(NamedTuple):
    """What a broker answered. `remark` is its text for a person, often empty."""

    code: int
    opaque: int
    is_reply: bool
    remark: str
    fields: Mapping[str, str]
    body: bytes


def encode_request(code: int, opaque: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request as a frame. Raises BrokerError if it is larger than a broker accepts."""
    header = json.dumps(
        {
            "code": code,
            "extFields": dict(fields),
            "flag": 0,
            # Brokers choose by it how they reset a consumer (CPP), so it has to be one that they know.
            "language": "PYTHON",
            "opaque": opaque,
            "serializeTypeCurrentRPC": "JSON",
            "version": VERSION,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()
    size = LENGTH.size + len(header) + len(body)
    if size > MAX_FRAME_BYTES:
        raise BrokerError(f"a request of {size:,} bytes is larger than the {MAX_FRAME_BYTES:,} that a broker accepts")
    return LENGTH.pack(size) + LENGTH.pack(_JSON << 24 | len(header)) + header + body


def check_length(length: int) -> int:
    """The length of a frame as its first four bytes say. Raises BrokerError for one that no broker sends."""
    if not LENGTH.size <= length <= MAX_FRAME_BYTES:
        reject(f"a frame of {length:,} bytes; 4 to {MAX_FRAME_BYTES:,} are possible. Is this the port of a RocketMQ broker?")
    return length


def decode_reply(frame: bytes) -> Reply:
    """A frame without its length. Raises BrokerError that says what is wrong with it."""
    if len(frame) < LENGTH.size:
        reject("a frame without a header")
    (head,) = LENGTH.unpack_from(frame)
    form, size = head >> 24, head & 0xFFFFFF
    end = LENGTH.size + size
    if end > len(frame):
        reject(f"a header of {size:,} bytes in a frame of {len(frame):,}")
    header, body = frame[LENGTH.size : end], frame[end:]
    if form == _JSON:
        return _from_json(header, body)
    if form != _BINARY:
        reject(f"a header of the unknown form {form}")
    return _from_binary(header, body)


def _from_json(header: bytes, body: bytes) -> Reply:
    try:
        values = json.loads(header)
    except (ValueError, RecursionError):
        reject("a header that is not JSON")
    if not isinstance(values, dict):
        reject("a header that is not a JSON object")
    remark, fields = values.get("remark"), values.get("extFields")
    code, opaque, flag = (_int(values, name) for name in ("code", "opaque", "flag"))
    if not (remark is None or isinstance(remark, str)):
        reject("a header with a remark that is no text")
    if not (fields is None or isinstance(fields, dict)) or len(fields or ()) > _MAX_FIELDS:
        reject("a header with extFields that are no map of a few fields")
    found = {name: str(value) for name, value in (fields or {}).items() if value is not None}
    return Reply(code, opaque, bool(flag & _IS_REPLY), remark or "", found, body)


def _int(values: Mapping[str, object], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _LARGEST_INT:
        reject(f"a header without a valid {name}")
    return value


def _from_binary(header: bytes, body: bytes) -> Reply:
    try:
        code, _, _, opaque, flag, size = _BINARY_HEAD.unpack_from(header)
        remark, at = _text(header, _BINARY_HEAD.size, size)
        (length,) = _INT.unpack_from(header, at)
        fields: dict[str, str] = {}
        at += _INT.size
        end = at + length
        if length < 0 or end > len(header):
            reject("a binary header whose fields are longer than it")
        while at < end:
            (size,) = _SHORT.unpack_from(header, at)
            name, at = _text(header, at + _SHORT.size, size)
            (size,) = _INT.unpack_from(header, at)
            fields[name], at = _text(header, at + _INT.size, size)
            if len(fields) > _MAX_FIELDS:
                reject(f"a binary header of more than {_MAX_FIELDS:,} fields")
    except (struct.error, UnicodeDecodeError):
        reject("a binary header that ends too early, or is not UTF-8")
    return Reply(code, opaque, bool(flag & _IS_REPLY), remark, fields, body)


def _text(header: bytes, at: int, size: int) -> tuple[str, int]:
    """The text of `size` bytes at this place, and the place behind it."""
    end = at + size
    if size < 0 or end > len(header):
        reject("a binary header with a text that is longer than it")
    return header[at:end].decode(), end


def reject(problem: str) -> NoReturn:
    """Raise the error for an answer that cannot be right."""
    raise BrokerError(f"the answer is not RocketMQ's remoting protocol: {problem}")
