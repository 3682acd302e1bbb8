"""Frames of HTTP/2 as a broken or merely unusual client sends them, and a connection on which they are sent as they are."""

from collections.abc import Sequence

from hpack import Encoder

from adapter.rpc import offsets_pb
from adapter.runtime.serving.http2.server import Http2Server
from tests.model.http2_client import COMMIT, HEADERS, STREAM, Wire
from tests.model.machines import GROUPS
from tests.model.order import PlacedPeer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADER, PRIORITY, RESET, SETTINGS, PUSH, PING, AWAY, WINDOW, MORE, UNKNOWN = range(11)
END, ENDS_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 32
STREAMS = (1, 3, 5)

SMALL_COMMIT = offsets_pb.CommitOffsetsRequest(
    groups=[offsets_pb.GroupCommits(group=GROUPS[1].group, shards=[offsets_pb.ShardCommit(shard="a", offset=0)])]
).SerializeToString()
LIST = "/offsets.v1.OffsetStore/ListOffsets"
WATCH = "/offsets.v1.OffsetStore/WatchOffsets"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def message(content: bytes, *, compressed: int = 0, more: int = 0) -> bytes:
    """A message of gRPC; `more`: bytes that do not come."""
    return bytes([compressed]) + (len(content) + more).to_bytes(4, "big") + content


def block(path: str = COMMIT, without: str = "", *, indexed: bool = True, **fields: str) -> bytes:
    """The header block of a call, with other fields than usual."""
    named = [(name.replace("_", "-"), value) for name, value in fields.items()]
    usual = [(name, value) for name, value in [(":path", path), *HEADERS] if name != without and name not in dict(named)]
    encoder = Encoder()
    if not indexed:
        encoder.header_table_size = 0
    return encoder.encode([*usual, *named])


def _setting(name: int, value: int) -> bytes:
    return name.to_bytes(2, "big") + value.to_bytes(4, "big")


COMMITTED = message(SMALL_COMMIT)
STREAMED = offsets_pb.StreamCommitsRequest(
    id=1, commit=offsets_pb.CommitOffsetsRequest.FromString(SMALL_COMMIT)
).SerializeToString()
BLOCKS = [
    block(),
    block(STREAM),
    block(LIST),
    block(WATCH),
    block("/offsets.v1.OffsetStore/Nothing"),
    block(indexed=False),
    block(grpc_timeout="1m"),
    block(grpc_timeout="5S"),
    block(grpc_timeout="x"),
    block(grpc_encoding="gzip"),
    block(content_type="text/plain"),
    block(content_type="application/grpc+proto"),
    block(without="te"),
    block(without=":path"),
    block(without=":method"),
    block(without="content-type"),
    block(Connection="close"),
    block(connection="close"),
    block(x_long="x" * 9_000),
    block(user_agent="a", traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
    bytes.fromhex("20") + block(),
    bytes.fromhex("202020") + block(),
    b"\x3f\xff\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\x00",
    b"\x80",
    b"\x40\x01",
    b"",
]
CALLS = [frame(HEADER, ENDS_HEADERS, stream, BLOCKS[at]) for stream in STREAMS for at in (0, 1)]
FRAMES: Sequence[bytes] = [
    *CALLS,
    *(frame(DATA, END, stream, COMMITTED) for stream in STREAMS),
    *(frame(DATA, 0, stream, COMMITTED) for stream in STREAMS),
    *(frame(HEADER, ENDS_HEADERS, 1, one) for one in BLOCKS[2:]),
    *(frame(HEADER, ENDS_HEADERS | END, 3, one) for one in BLOCKS[:6]),
    frame(HEADER, 0, 1, block()[:9]),
    frame(MORE, ENDS_HEADERS, 1, block()[9:]),
    frame(MORE, 0, 1, block()[9:20]),
    frame(MORE, ENDS_HEADERS, 3, b""),
    frame(HEADER, ENDS_HEADERS | PADDED, 1, b"\x03" + block() + b"\0\0\0"),
    frame(HEADER, ENDS_HEADERS | PADDED, 1, b"\xff" + block()[:20]),
    frame(HEADER, ENDS_HEADERS | PADDED, 1, b""),
    frame(HEADER, ENDS_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\0\x10" + block()),
    frame(HEADER, ENDS_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\1\x10" + block()),
    frame(HEADER, ENDS_HEADERS | HAS_PRIORITY, 1, b"\0"),
    frame(HEADER, ENDS_HEADERS, 0, block()),
    frame(HEADER, ENDS_HEADERS, 2, block()),
    frame(HEADER, ENDS_HEADERS | END, 1, Encoder().encode([("trailer", "x")])),
    frame(HEADER, ENDS_HEADERS, 1, Encoder().encode([("trailer", "x")])),
    *(frame(DATA, 0, 1, one) for one in (b"", b"\0", COMMITTED[:3], COMMITTED[:9], COMMITTED[9:], COMMITTED + COMMITTED)),
    *(frame(DATA, END, 1, one) for one in (b"", message(b"\xff\xff"), message(b"", compressed=1), message(b"", compressed=7))),
    frame(DATA, END, 1, message(SMALL_COMMIT, more=4)),
    frame(DATA, 0, 1, message(b"", more=2**31)),
    frame(DATA, PADDED | END, 1, b"\x02" + COMMITTED + b"\0\0"),
    frame(DATA, PADDED, 1, b"\xff" + COMMITTED),
    frame(DATA, PADDED, 1, b""),
    frame(DATA, 0, 0, COMMITTED),
    frame(DATA, 0, 9, COMMITTED),
    frame(DATA, 0, 1, message(offsets_pb.StreamCommitsRequest(id=1).SerializeToString())),
    frame(DATA, 0, 1, b"\0" * 16_384),
    frame(DATA, 0, 1, message(b"\0" * 16_000, more=2**20)),
    *(frame(PRIORITY, 0, stream, b"\0\0\0\0\0") for stream in (0, 1, 7)),
    frame(PRIORITY, 0, 1, b"\0\0\0\1\0"),
    frame(PRIORITY, 0, 1, b"\0"),
    *(frame(RESET, 0, stream, b"\0\0\0\x08") for stream in (0, 1, 3, 9)),
    frame(RESET, 0, 1, b"\0"),
    frame(SETTINGS, 0, 0),
    frame(SETTINGS, 1, 0),
    frame(SETTINGS, 1, 0, b"\0" * 6),
    frame(SETTINGS, 0, 1),
    frame(SETTINGS, 0, 0, b"\0" * 5),
    *(
        frame(SETTINGS, 0, 0, _setting(name, value))
        for name, value in (
            *((1, 0), (1, 2**20), (2, 0), (2, 1), (2, 2), (3, 1), (4, 0), (4, 5), (4, 65_535), (4, 2**31 - 1), (4, 2**31)),
            *((5, 16_384), (5, 100), (5, 2**24), (6, 10), (99, 1)),
        )
    ),
    frame(PUSH, ENDS_HEADERS, 1, b"\0\0\0\2" + block()),
    frame(PING, 0, 0, b"\1" * 8),
    frame(PING, 0, 0, b"\1" * 8) * 20,
    frame(PING, 1, 0, b"\0" * 8),
    frame(PING, 0, 1, b"\1" * 8),
    frame(PING, 0, 0, b"\1"),
    frame(AWAY, 0, 0, b"\0" * 8),
    frame(AWAY, 0, 0, b"\0" * 7 + b"\1" + b"why"),
    frame(AWAY, 0, 1, b"\0" * 8),
    frame(AWAY, 0, 0, b"\0"),
    *(frame(WINDOW, 0, stream, change.to_bytes(4, "big")) for stream in (0, 1, 3, 9) for change in (0, 1, 10, 60_000, 2**31 - 1)),
    frame(WINDOW, 0, 0, b"\0"),
    frame(UNKNOWN, 0, 1, b"x"),
    frame(SETTINGS, 0, 0) * 320,
    frame(DATA, 0, 1) * 320,
    b"\xff\xff\xff" + bytes([DATA, 0, 0, 0, 0, 1]),
]
# What a connection sends before it sends any of these.
_BEGUN = PREFACE + frame(SETTINGS, 0, 0)
BEGINNINGS: Sequence[bytes] = [
    _BEGUN,
    _BEGUN + CALLS[0],
    _BEGUN + CALLS[1],
    _BEGUN + CALLS[0] + frame(DATA, 0, 1, COMMITTED[:9]),
    _BEGUN + CALLS[0] + frame(DATA, END, 1, COMMITTED),
    _BEGUN + CALLS[1] + frame(DATA, 0, 1, message(STREAMED)) + CALLS[2],
    _BEGUN + frame(HEADER, 0, 1, block()[:9]),
    _BEGUN + frame(HEADER, ENDS_HEADERS, 1, BLOCKS[4]),
    _BEGUN + frame(HEADER, ENDS_HEADERS | END, 1, block(LIST)),
    PREFACE + frame(SETTINGS, 0, 0, _setting(4, 0)) + CALLS[0] + frame(DATA, END, 1, COMMITTED),
    PREFACE + frame(SETTINGS, 0, 0, _setting(4, 0)) + CALLS[1] + frame(DATA, 0, 1, message(STREAMED)),
    _BEGUN + frame(HEADER, ENDS_HEADERS, 1, BLOCKS[10]),
    _BEGUN + frame(HEADER, ENDS_HEADERS, 1, BLOCKS[9]),
    _BEGUN + frame(HEADER, ENDS_HEADERS, 1, BLOCKS[7]) + frame(DATA, END, 1, COMMITTED),
    PREFACE + frame(SETTINGS, 0, 0, _setting(4, 5)) + CALLS[0] + frame(DATA, END, 1, COMMITTED),
    PREFACE,
    PREFACE[:9],
    b"GET / HTTP/1.1\r\n\r\n",
    PREFACE + frame(PING, 0, 0, b"\1" * 8),
    b"",
]


class RawClient:
    """A connection that sends what it is told to, and reads what it is answered to no purpose."""

    def __init__(self, server: Http2Server) -> None:
        self.open = False  # for calls of other clients
        self.closed = False
        self.peer = PlacedPeer(server, "unix:")
        self.wire = Wire(self)  # type: ignore[arg-type]
        self.peer.connection_made(self.wire)

    def send(self, data: bytes) -> None:
        """Let the server read this at once."""
        if data and not self.closed and not self.wire.is_closing():
            self.wire.deliver(data)

    def received(self, data: bytes) -> None:
        """What the server sent."""

    def lost(self) -> None:
        """The connection is gone."""
        self.closed = True
