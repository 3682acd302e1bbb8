"""Header blocks: what a request's says, checked (RFC 9113, section 8; gRPC over HTTP/2), and those of answers. Pure.

HPACK is the `hpack` library's. What this side sends uses no dynamic table, so that its blocks are constants.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple, cast
from urllib.parse import quote

from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from adapter.runtime.http2.frames import Code, ConnectionFailedError, StreamFailedError

Fields = Iterable[tuple[bytes, bytes]]
Metadata = tuple[tuple[str, str], ...]

LIST_MAX = 8_192  # bytes of a request's fields, 32 for each added; more of them are refused
LIST_HARD_MAX = 65_536  # more end the connection: they are not even decoded
TEXT_MAX = 1_000  # characters of a status
KNOWN_MAX = 256  # blocks of one connection that are remembered,
KNOWN_BYTES = 1_024  # with so many bytes of fields
RESIZES_MAX = 2  # RFC 7541, 4.2

_RESIZE = 0x20
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE = re.compile(rb"[\0\r\n]")  # blanks around a value are refused by RFC 9113, but sent by gRPC clients
_LENGTH = re.compile(r"[0-9]{1,18}")
_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_NEEDED = {b":method", b":scheme", b":path"}
_OF_CONNECTIONS = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_S = {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GRPC = re.compile(rb"application/grpc(?:[+;].*)?")
_ENCODER = Encoder()  # never given anything that it may keep

HTTP_OK = 200
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 8, 12, 13  # gRPC statuses


class Refusal(NamedTuple):
    """What answers a request that is no call, by its headers alone: an HTTP status, or with 200 a gRPC status."""

    http: int
    code: int
    text: str


class Head(NamedTuple):
    """A request's headers."""

    path: str
    timeout_s: float | None
    metadata: Metadata
    length: int | None  # content-length
    compressed: bool  # its messages may be
    size: int  # as LIST_MAX counts
    refusal: Refusal | None


class _Table(HeaderTable):
    """A dynamic table that tells when it gets an entry. A new size has to be noted by others."""

    changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.changed = True
        super().add(name, value)


class HeaderReader:
    """The header blocks of one connection, in their order.

    Most calls come with a block that has come before. It is decoded once, while the table stays as it is.
    """

    def __init__(self) -> None:
        self._decoder = Decoder(LIST_HARD_MAX)
        self._table = self._decoder.header_table = _Table()
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """A request's. Raises StreamFailedError for a malformed one, ConnectionFailedError."""
        known = self._known.get(block)
        if known is not None:
            return known
        head = _head_of(self.fields(block))
        if not self._table.changed and head.size <= KNOWN_BYTES:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[block] = head
        return head

    def fields(self, block: bytes) -> Fields:
        """Any. What each block means depends on those before it: all have to go through here."""
        self._table.changed = False
        resizes = _resizes(block)
        if resizes > RESIZES_MAX:
            raise ConnectionFailedError(Code.COMPRESSION_ERROR, "the table is resized too often")
        try:
            return cast("Fields", self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise ConnectionFailedError(Code.ENHANCE_YOUR_CALM, f"the headers take over {LIST_HARD_MAX} bytes") from None
        except HPACKError as error:
            raise ConnectionFailedError(Code.COMPRESSION_ERROR, "a header block cannot be decoded") from error
        finally:
            self._table.changed |= bool(resizes)
            if self._table.changed:
                self._known.clear()


def check_trailers(fields: Fields) -> None:
    """Raise StreamFailedError unless they can end a request."""
    for name, value in fields:
        if not _NAME.fullmatch(name) or name in _OF_CONNECTIONS or _BAD_VALUE.search(value):
            raise StreamFailedError(Code.PROTOCOL_ERROR)


def _resizes(block: bytes) -> int:
    """With how many new sizes of the table it begins, where alone they can stand; one more than is allowed is as good as many."""
    at = count = 0
    while count <= RESIZES_MAX and at < len(block) and block[at] & 0xE0 == _RESIZE:
        more = block[at] & 0x1F == 0x1F  # noqa: PLR2004 - the number goes on behind
        at += 1
        while more and at < len(block):
            more = bool(block[at] & 0x80)
            at += 1
        count += 1
    return count


def _head_of(fields: Fields) -> Head:
    pseudo: dict[bytes, bytes] = {}
    regular: list[tuple[str, str]] = []
    size = 0
    for name, value in fields:
        size += len(name) + len(value) + 32
        if size > LIST_MAX and name[:1] != b":":
            continue  # it is refused whatever this is: no work for it
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


def encoded(fields: Iterable[tuple[str, str]]) -> bytes:
    """A block that stands for itself, wherever it is sent."""
    return _ENCODER.encode((name, value, True) for name, value in fields)


# A table of 0 bytes: said once, before anything else, no setting of the peer's can be below it.
NO_TABLE = b"\x20"
_HEADERS = [(":status", "200"), ("content-type", "application/grpc")]
START = encoded(_HEADERS)
OK = encoded([("grpc-status", "0")])
_READABLE = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"  # in a grpc-message; the rest is escaped as in a URL


def trailers(code: int, text: str, metadata: Iterable[tuple[str, str]], *, alone: bool) -> bytes:
    """The end of an answer. With `alone` it is all there is of it."""
    if not code and not alone:
        return OK
    told = [("grpc-message", quote(text[:TEXT_MAX], safe=_READABLE, errors="replace"))] if text else []
    return encoded([*(_HEADERS if alone else ()), ("grpc-status", str(code)), *told, *metadata])


def plain(http: int, size: int) -> bytes:
    """The headers of an answer to what is not gRPC, with a text of so many bytes."""
    return encoded([(":status", str(http)), ("content-type", "text/plain"), ("content-length", str(size))])
