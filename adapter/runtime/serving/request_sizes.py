"""How large a request may be, checked on its bytes: before anything is made of it.

Parsing blocks the event loop, and what is made takes up to 60 times the bytes: 4 MiB of empty entries are two million objects and
half a second. So a request takes 64 KiB unless its method takes lists (`Sizes.large`); beyond that the fields in its bytes are
counted first. Which lists and texts are allowed in what is small enough is the servicers' to say.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor

from adapter.errors import InvalidInputError, TooLargeError

SMALL = 65_536  # bytes of a request whose method takes no lists: far more than its names, tokens and triggers may take
NAMES = 160_000  # fields of a request that names things: 50,000 groups (`large_calls.MAX_NAMED`), each with namespace and name

Parse = Callable[[bytes], Any]
Shape = Mapping[int, Any]  # the tag of a field that is a message with lists in it -> the shape of that message

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types (protobuf.dev/programming-guides/encoding)
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MORE = 0x80  # the bit of a byte after which a number goes on


class Sizes(NamedTuple):
    """How many bytes the requests of each method may have. `large`: the paths of methods that take lists, and how many fields."""

    large: Mapping[str, int] = MappingProxyType({})
    most: int = 4 * 2**20

    def of(self, path: str) -> int:
        """The most bytes of a request to a method."""
        return self.most if path in self.large else SMALL

    def parse(self, path: str, parse: Parse) -> Parse:
        """A parser of the requests to a method, which raises InvalidInputError or TooLargeError instead of parsing too much."""
        most = self.of(path)

        def checked(data: bytes) -> Any:  # noqa: ANN401 - whatever the method takes
            try:
                if len(data) > SMALL:
                    _check_size(len(data), path, most)
                    _check_fields(data, _shape(path), self.large[path])
                return parse(data)
            except Exception:
                data = b""  # what is raised keeps this frame and its variables until a collection: megabytes for each request
                raise

        return checked


NO_LISTS = Sizes()


@cache
def _shape(path: str) -> Shape:
    """The shape of a method's request."""
    service, _, name = path[1:].rpartition("/")
    method = descriptor_pool.Default().FindMethodByName(f"{service}.{name}")
    return _shape_of(method.input_type) or {}


def _shape_of(message: Descriptor) -> Shape | None:
    """The shape of a message; None if there are no lists in it."""
    found = {field.number << 3 | _BYTES: _shape_of(field.message_type) for field in message.fields if field.message_type}
    lists = any(field.is_repeated for field in message.fields)
    inner = {tag: shape for tag, shape in found.items() if shape is not None}
    return inner if inner or lists else None


def _check_size(size: int, path: str, most: int) -> None:
    if size > most:
        raise TooLargeError(f"the request has {size:,} bytes; {path} takes {most:,}")


def _check_fields(data: bytes, shape: Shape, most: int) -> None:
    """Raise InvalidInputError for more than `most` fields. A message that is cut off or broken is the parser's to refuse."""
    try:
        left = _count(data, 0, len(data), shape, most)
    except IndexError:
        return
    finally:
        data = b""  # as in `Sizes.parse`
    if left < 0:
        raise InvalidInputError(f"the request has more than {most:,} fields and list entries; send several requests")


def _count(data: bytes, at: int, end: int, shape: Shape, left: int) -> int:
    """Return `left`, less the fields of a message and of those in it that have lists. Raises IndexError at its end."""
    while at < end:
        left -= 1
        if left < 0:
            break
        tag = data[at]
        at += 1
        if tag >= _MORE:
            tag, at = _number(data, at - 1)
        kind = tag & 7
        if kind == _BYTES:
            size = data[at]
            at += 1
            if size >= _MORE:
                size, at = _number(data, at - 1)
            if size and tag in shape:
                left = _count(data, at, min(at + size, end), shape[tag], left)
            at += size
        elif kind == _VARINT:
            while data[at] >= _MORE:
                at += 1
            at += 1
        else:  # of a group, which no message here has, the fields are counted as if they were this message's
            at += _FIXED.get(kind, 0)
    return left


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number in up to ten bytes, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, at
    raise IndexError
