"""A client of gRPC to which every frame of HTTP/2 shows. It keeps the protocol; what it never does is close of its own accord."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream
from hpack import Decoder, Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, PingFrame, RstStreamFrame, SettingsFrame

from tests.integration.helpers import PATIENCE_S

HEADER_BYTES = 9  # of a frame


class Peer:
    """One connection. It acknowledges SETTINGS and PING."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._received = BufferedByteReceiveStream(stream)
        self._encoder, self._decoder = Encoder(), Decoder()
        self._last = -1

    async def call(self, path: str, message: bytes, *headers: tuple[str, str]) -> int:
        """Begin a call with its only message; returns the stream."""
        self._last += 2
        http = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
        block = self._encoder.encode([*http, ("te", "trailers"), ("content-type", "application/grpc"), *headers])
        await self.send(
            HeadersFrame(self._last, block, flags=["END_HEADERS"]),
            DataFrame(self._last, b"\0" + len(message).to_bytes(4, "big") + message, flags=["END_STREAM"]),
        )
        return self._last

    async def send(self, *frames: Frame) -> None:
        """Send frames."""
        await self._stream.send(b"".join(frame.serialize() for frame in frames))

    async def frame(self) -> Frame:
        """The next frame. Raises anyio.IncompleteRead at the end of the connection."""
        frame, size = Frame.parse_frame_header(memoryview(await self._received.receive_exactly(HEADER_BYTES)))
        frame.parse_body(memoryview(await self._received.receive_exactly(size) if size else b""))
        if isinstance(frame, SettingsFrame | PingFrame) and "ACK" not in frame.flags:
            answer = SettingsFrame(0) if isinstance(frame, SettingsFrame) else PingFrame(0, frame.opaque_data)
            answer.flags.add("ACK")
            await self.send(answer)
        return frame

    async def next(self, kind: type[Frame], stream: int = 0) -> Any:
        """The next frame of a kind on a stream; those before it are passed over."""
        with anyio.fail_after(PATIENCE_S):
            while not (isinstance(frame := await self.frame(), kind) and frame.stream_id == stream):
                pass
        return frame

    async def status(self, stream: int) -> int:
        """The status that a call ends with."""
        fields: dict[str, str] = {}
        with anyio.fail_after(PATIENCE_S):
            while "grpc-status" not in fields:
                frame = await self.frame()
                if isinstance(frame, HeadersFrame):
                    found = {str(name): str(value) for name, value in self._decoder.decode(frame.data)}
                    fields |= found if frame.stream_id == stream else {}
                assert not (isinstance(frame, RstStreamFrame) and frame.stream_id == stream)
        return int(fields["grpc-status"])


@asynccontextmanager
async def peer(address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    """A connection to an address of a sidecar, with the preface said."""
    path = address.removeprefix("unix:")
    host, _, port = address.rpartition(":")
    stream: ByteStream
    if path != address:
        stream = await anyio.connect_unix(path)
    elif tls:
        stream = await anyio.connect_tcp(host, int(port), ssl_context=tls, tls_standard_compatible=False)
    else:
        stream = await anyio.connect_tcp(host, int(port))
    async with stream:
        await stream.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize())
        yield Peer(stream)
