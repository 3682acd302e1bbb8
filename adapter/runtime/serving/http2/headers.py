"""Header blocks: parses and checks those that are received (RFC 9113, section 8; gRPC over HTTP/2), makes those sent. No I/O.

The `hpack` library implements HPACK. Answers use no dynamic table, so that their blocks are constants.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import quote

from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from adapter.runtime.serving.http2.frames import Code, ConnectionFailedError, StreamFailedError

Fields = Iterable[tuple[bytes, bytes]]
Metadata = tuple[tuple[str, str], ...]

LIST_MAX = 8_192  # bytes of a request's fields, plus 32 for each (as RFC 9113 counts); more are refused
LIST_HARD_MAX = 65_536  # bytes; more end the connection, without being decoded
TEXT_MAX = 6_000  # bytes of a status's text, as they are sent: clients refuse headers of over 8 KiB
KNOWN_MAX = 256  # header blocks of a connection that are cached
KNOWN_BYTES = 1_024  # bytes of fields of a block that is cached, at most
RESIZES_MAX = 2  # dynamic table size updates in a block (RFC 7541, 4.2)

_RESIZE = 0x20
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\0\r\n]")  # blanks around a value are refused by RFC 9113, but sent by gRPC clients
_LENGTH = re.compile(r"[0-9]{1,18}")
_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_NEEDED = {b":method", b":scheme", b":path"}
_OF_CONNECTIONS = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_S = {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_HTTP_STATUS = re.compile(rb"[1-5][0-9][0-9]")
_GRPC_STATUS = re.compile(rb"[0-9]{1,3}")
_GRPC = re.compile(rb"application/grpc(?:[+;].*)?")
_ENCODER = Encoder()  # used only for fields that are never indexed: it has no state

HTTP_OK = 200
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 8, 12, 13  # gRPC statuses


class Refusal(NamedTuple):
    """The answer to a request whose headers are not those of a call: an HTTP status, and with 200 a gRPC status."""

    http: int
    code: int
    text: str


class Head(NamedTuple):
    """The headers of a request."""

    path: str
    timeout_s: float | None
    metadata: Metadata
    length: int | None  # content-length
    compressed: bool  # its messages may be compressed
    size: int  # as LIST_MAX counts
    refusal: Refusal | None


class Answer(NamedTuple):
    """A header block of an answer, for passing it on: its headers, or its trailers."""

    http: int  # the status; 0 of trailers
    status: int | None  # grpc-status
    block: bytes  # all of it, encoded for another connection
    size: int  # as LIST_MAX counts


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


B = TypeVar("B", bound=_Sized)


class _Table(HeaderTable):
    """A dynamic table that notes when it gets an entry. `HeaderReader` notes new sizes."""

    changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.changed = True
        super().add(name, value)


class HeaderReader(Generic[B]):
    """Decodes the header blocks of one connection, in their order; `check` checks one, and says what it is.

    Most calls repeat a block. Such a block is decoded once, for as long as the dynamic table does not change. `count` is called
    with the number of fields of each block that is decoded; it raises ConnectionFailedError when they are too many.
    """

    def __init__(self, check: Callable[[Fields], B], count: Callable[[int], None] = lambda _: None) -> None:
        self._check = check
        self._count = count
        self._decoder = Decoder(LIST_HARD_MAX)
        self._table = self._decoder.header_table = _Table()
        self._known: dict[bytes, B] = {}

    def read(self, block: bytes) -> B:
        """Decode and check a block. Raises StreamFailedError for a malformed one, ConnectionFailedError."""
        known = self._known.get(block)
        if known is not None:
            return known
        head = self._check(self.fields(block))
        if not self._table.changed and head.size <= KNOWN_BYTES:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[block] = head
        return head

    def fields(self, block: bytes) -> Fields:
        """Decode any block. All blocks have to be decoded, each may depend on those before it. Raises ConnectionFailedError."""
        self._table.changed = False
        resizes = _resizes(block)
        if resizes > RESIZES_MAX:
            raise ConnectionFailedError(Code.COMPRESSION_ERROR, "the table is resized too often")
        try:
            found = cast("Sequence[tuple[bytes, bytes]]", self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise ConnectionFailedError(Code.ENHANCE_YOUR_CALM, f"the headers take over {LIST_HARD_MAX} bytes") from None
        except HPACKError as error:
            raise ConnectionFailedError(Code.COMPRESSION_ERROR, "a header block cannot be decoded") from error
        else:
            self._count(len(found))
            return found
        finally:
            self._table.changed |= bool(resizes)
            if self._table.changed:
                self._known.clear()


def check_trailers(fields: Fields) -> None:
    """Check the trailers of a request. Raises StreamFailedError."""
    for name, value in fields:
        if not _NAME.fullmatch(name) or name in _OF_CONNECTIONS or _BAD_VALUE.search(value):
            raise StreamFailedError(Code.PROTOCOL_ERROR)


def _resizes(block: bytes) -> int:
    """Count the table size updates at the start of a block, the only place where they are valid. Stops at RESIZES_MAX + 1."""
    at = count = 0
    while count <= RESIZES_MAX and at < len(block) and block[at] & 0xE0 == _RESIZE:
        more = block[at] & 0x1F == 0x1F  # noqa: PLR2004 - the number continues in the next bytes
        at += 1
        while more and at < len(block):
            more = bool(block[at] & 0x80)
            at += 1
        count += 1
    return count


def head_of(fields: Fields) -> Head:
    """Check the block of a request. Raises StreamFailedError."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[tuple[str, str]] = []
    size = 0
    for name, value in fields:
        size += len(name) + len(value) + 32
        if size > LIST_MAX and name[:1] != b":":
            continue  # the request is refused in any case: do not decode more
        if name[:1] == b":":
            if regular or name in pseudo or name not in _PSEUDO:
                raise StreamFailedError(Code.PROTOCOL_ERROR)
            pseudo[name] = value
        elif not _NAME.fullmatch(name) or name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        else:
            regular.append((name.decode(), value.decode(errors="replace")))
        if _BAD_VALUE.search(value):
            raise StreamFailedError(Code.PROTOCOL_ERROR)
    if not pseudo.keys() >= _NEEDED or not pseudo[b":path"]:
        raise StreamFailedError(Code.PROTOCOL_ERROR)
    return _meaning(pseudo, tuple(regular), size)


def _meaning(pseudo: dict[bytes, bytes], regular: Metadata, size: int) -> Head:
    named = dict(regular)
    lengths = {value for name, value in regular if name == "content-length"}
    if len(lengths) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise StreamFailedError(Code.PROTOCOL_ERROR)
    length = int(lengths.pop()) if lengths else None
    timeout = named.get("grpc-timeout")
    matched = _TIMEOUT.fullmatch(timeout) if timeout else None
    method = pseudo[b":method"]
    refusal = None
    if method != b"POST":
        refusal = Refusal(405, 0, "" if method == b"HEAD" else "this is a gRPC server: its calls are POST\n")
    elif size > LIST_MAX:
        refusal = Refusal(HTTP_OK, RESOURCE_EXHAUSTED, f"the metadata takes {size} bytes; at most {LIST_MAX} are taken")
    elif not _GRPC.fullmatch(named.get("content-type", "").encode()):
        refusal = Refusal(415, 0, "this is a gRPC server: content-type has to be application/grpc\n")
    elif timeout is not None and not matched:
        refusal = Refusal(HTTP_OK, INTERNAL, f"grpc-timeout: {timeout[:20]!r} is malformed")
    if refusal:
        return Head("", None, (), length, compressed=False, size=size, refusal=refusal)
    return Head(
        path=pseudo[b":path"].decode(errors="replace"),
        timeout_s=int(matched[1]) * _UNIT_S[matched[2]] if matched else None,
        metadata=regular,
        length=length,
        compressed=named.get("grpc-encoding", "identity") != "identity",
        size=size,
        refusal=None,
    )


def answer_of(fields: Fields) -> Answer:
    """Check a block of an answer. Raises StreamFailedError."""
    found = list(fields)
    http = size = 0
    status: int | None = None
    for at, (name, value) in enumerate(found):
        size += len(name) + len(value) + 32
        if name[:1] == b":":
            if at or name != b":status" or not _HTTP_STATUS.fullmatch(value):
                raise StreamFailedError(Code.PROTOCOL_ERROR)
            http = int(value)
        elif not _NAME.fullmatch(name) or name in _OF_CONNECTIONS or _BAD_VALUE.search(value):
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        elif name == b"grpc-status":
            status = int(value) if _GRPC_STATUS.fullmatch(value) else None
    return Answer(http, status, _ENCODER.encode((name, value, True) for name, value in found), size)


def encoded(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encode fields as a block that does not depend on others."""
    return _ENCODER.encode((name, value, True) for name, value in fields)


# Sets the size of the dynamic table to 0. Sent once, before the first block: no setting of the peer can be lower.
NO_TABLE = b"\x20"
_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
START = encoded(_HEADERS)
OK = encoded([("grpc-status", "0")])
_READABLE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # in a grpc-message; the rest is escaped as in a URL


def trailers(code: int, text: str, metadata: Iterable[tuple[str, str]], *, alone: bool) -> bytes:
    """Encode the trailers of an answer. With `alone` they are its only block, and include its headers."""
    if not code and not alone:
        return OK
    told = [("grpc-message", quote(text[:TEXT_MAX], safe=_READABLE, errors="replace")[:TEXT_MAX])] if text else []
    return encoded([*(_HEADERS if alone else ()), ("grpc-status", str(code)), *told, *metadata])


def plain(http: int, size: int) -> bytes:
    """Encode the headers of an answer to a request that is not gRPC, with a text of `size` bytes."""
    return encoded([(":status", str(http)), ("content-type", "text/plain"), ("content-length", str(size))])
