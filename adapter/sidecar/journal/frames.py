"""The form of an open segment: the schema, then batches of rows, each behind its length and checksum.

Not a stream of Arrow as such: a power cut leaves zeros in a file, and a reader of Arrow takes them for rows.
"""

import os
import struct
import zlib
from typing import NamedTuple

import pyarrow as pa
import pyarrow.ipc

_HEAD = struct.Struct("<II")  # length and CRC-32; 8 bytes, so that Arrow finds its numbers aligned


class Found(NamedTuple):
    """The rows before the first incomplete frame (None: there are none), and the number of bytes after them."""

    rows: pa.Table | None
    torn: int


def framed(message: pa.Buffer) -> bytes:
    """A schema or batch, serialized by Arrow, in the form of the file."""
    return _HEAD.pack(message.size, zlib.crc32(message)) + memoryview(message)


def read(data: bytes) -> Found:
    """Read what a killed process left of an open segment."""
    whole = pa.py_buffer(data)
    messages: list[pa.Buffer] = []
    at = 0
    while at + _HEAD.size < len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        if not 0 < length <= len(data) - at - _HEAD.size:
            break
        message = whole.slice(at + _HEAD.size, length)
        if zlib.crc32(message) != checksum:
            break
        messages.append(message)
        at += _HEAD.size + length
    if len(messages) < 2:  # noqa: PLR2004 - the schema comes first
        return Found(None, len(data) - at)
    schema = pa.ipc.read_schema(messages[0])
    batches = [pa.ipc.read_record_batch(message, schema) for message in messages[1:]]
    return Found(pa.Table.from_batches(batches, schema), len(data) - at)


def write_all(file: int, data: bytes | pa.Buffer, at: int) -> None:
    """Write all of the bytes at this position of a file. Raises OSError; some of them may then be written."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written
