"""The built-in server of a model's process, without sockets: bytes go through memory, and the h2 library speaks for the client.

Promises that what comes in one `send` is read in one go. Never waits: what is answered is told to whoever called.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamEnded, StreamReset, TrailersReceived

from adapter.runtime.serving.http2.server import Http2Server
from tests.model.order import PlacedPeer

COMMIT = "/offsets.v1.OffsetStore/CommitOffsets"
STREAM = "/offsets.v1.OffsetStore/StreamCommits"
PREFIX_BYTES = 5  # before each message: compressed, length
FRAME_HEAD_BYTES = 9
GO_AWAY = 7
GONE = -1  # instead of a status: the stream or its connection ended without one

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "a"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Ended(NamedTuple):
    """The end of a call: its gRPC status, or GONE."""

    status: int
    text: str = ""


Told = Callable[[bytes | Ended], None]  # each message, and at last the end


class Descriptor:
    """What the server looks at of a socket."""

    family = socket.AF_UNIX

    def fileno(self) -> int:
        """One of the lowest: no descriptor is short in memory."""
        return 3


class Wire(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self, client: "Client") -> None:
        super().__init__({"socket": Descriptor()})
        self._client = client
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """What the server sends is with the client at once."""
        self._client.received(bytes(data))

    def deliver(self, data: bytes) -> None:
        """What the client sends is with the server at once."""
        self._client.peer.data_received(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Both ends hear of it."""
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._client.peer.connection_lost, None)
            self._client.lost()

    def abort(self) -> None:
        self.close()

    def write_eof(self) -> None:
        """The client closes the connection when the server has said all."""
        asyncio.get_running_loop().call_soon(self.close)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Never asked for: nothing waits to be written."""

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no buffer."""


class Client:
    """One connection to a server. Calls are collected until `send`."""

    wire_type: ClassVar[type[Wire]] = Wire

    def __init__(self, server: Http2Server) -> None:
        self._calls: dict[int, Told] = {}
        self._begun: dict[int, bytes] = {}  # what came of a message that is not complete
        self._ends: dict[int, Ended] = {}
        self._http = H2Connection(H2Configuration(client_side=True))
        self._http.initiate_connection()
        self.open = True  # for new calls
        self.closed = False
        self.peer = PlacedPeer(server, "unix:")
        self.wire = self.wire_type(self)
        self.peer.connection_made(self.wire)
        self.send()

    def call(self, path: str, messages: Sequence[bytes], told: Told, *, ends: bool = True) -> int:
        """Begin a call with some messages, and with `ends` no more. Returns its stream."""
        stream = self._http.get_next_available_stream_id()
        self._calls[stream] = told
        self._http.send_headers(stream, [(":path", path), *HEADERS])
        framed = b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)
        self._http.send_data(stream, framed, end_stream=ends)
        return stream

    def cancel(self, stream: int) -> None:
        """Be told nothing more of a call."""
        self._calls.pop(stream)
        self._http.reset_stream(stream, 8)

    def send(self) -> None:
        """Let the server read all that was begun."""
        data = self._http.data_to_send()
        if data and not self.closed:
            self.wire.deliver(data)

    def received(self, data: bytes) -> None:
        """What the server sent."""
        for frame in _frames(data):
            if frame[3] == GO_AWAY:
                # Not for h2, to which every GOAWAY is the end of the calls that have begun, too.
                error = int.from_bytes(frame[FRAME_HEAD_BYTES + 4 : FRAME_HEAD_BYTES + 8], "big")
                assert not error, f"the server sent GOAWAY: {error}"
                self.open = False
                continue
            for event in self._http.receive_data(frame):
                self._on_event(event)
        if not self.closed:
            asyncio.get_running_loop().call_soon(self.send)  # acknowledgements

    def lost(self) -> None:
        """The connection is gone."""
        self.open, self.closed = False, True
        calls, self._calls = self._calls, {}
        for told in calls.values():
            told(Ended(GONE))

    def _on_event(self, event: Event) -> None:
        found = cast("Any", event)
        if isinstance(event, DataReceived):
            self._http.acknowledge_received_data(found.flow_controlled_length, found.stream_id)
            self._on_data(found.stream_id, found.data)
        elif isinstance(event, ResponseReceived | TrailersReceived):
            fields = {name.decode(): value.decode() for name, value in found.headers}
            if "grpc-status" in fields:
                self._ends[found.stream_id] = Ended(int(fields["grpc-status"]), fields.get("grpc-message", ""))
        elif isinstance(event, StreamEnded | StreamReset):
            told = self._calls.pop(found.stream_id, None)
            if told:
                told(self._ends.pop(found.stream_id, Ended(GONE)))

    def _on_data(self, stream: int, data: bytes) -> None:
        data = self._begun.pop(stream, b"") + data
        while len(data) >= PREFIX_BYTES and len(data) >= (end := PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")):
            if stream in self._calls:
                self._calls[stream](data[PREFIX_BYTES:end])
            data = data[end:]
        if data:
            self._begun[stream] = data


def _frames(data: bytes) -> Iterator[bytes]:
    """The server sends whole ones."""
    while data:
        end = FRAME_HEAD_BYTES + int.from_bytes(data[:3], "big")
        yield data[:end]
        data = data[end:]
