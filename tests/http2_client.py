"""The client's side of HTTP/2 and gRPC for tests, on `h2`, `hyperframe` and `hpack`: no code of adapter/runtime/serving/http2.

Frames one by one for what no honest client sends; `Client` for what one does: h2 raises wherever the server breaks a rule.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    PingReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes, Settings
from hpack import Decoder, Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame, SettingsFrame

Fields = list[tuple[str, str]]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES = 16_384
HEADER_BYTES = 9


def request(path: str = "/s/m", *more: tuple[str, str], method: str = "POST", kind: str = "application/grpc") -> Fields:
    """The headers of a call."""
    fixed = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "a")]
    return [*fixed, ("te", "trailers"), *([("content-type", kind)] if kind else []), *more]


def block(fields: Iterable[tuple[str | bytes, str | bytes]], encoder: Encoder | None = None) -> bytes:
    """A header block; without an encoder of the connection's it stands for itself."""
    if encoder:
        return encoder.encode(list(fields), huffman=False)
    return Encoder().encode([(name, value, True) for name, value in fields], huffman=False)


def message(payload: bytes, *, compressed: int = 0) -> bytes:
    """A message of gRPC."""
    return bytes([compressed]) + len(payload).to_bytes(4, "big") + payload


def opening(settings: dict[int, int] | None = None) -> bytes:
    """What a client sends first."""
    return PREFACE + SettingsFrame(settings=settings or {}).serialize()


def head(stream_id: int, fields: bytes, *, end: bool = False, most: int = FRAME_BYTES) -> bytes:
    """A header block as HEADERS and CONTINUATION of at most so many bytes each."""
    pieces = [fields[at : at + most] for at in range(0, len(fields), most)] or [b""]
    frames: list[Frame] = [HeadersFrame(stream_id, pieces[0], flags=["END_STREAM"] if end else [])]
    frames += [ContinuationFrame(stream_id, piece) for piece in pieces[1:]]
    frames[-1].flags.add("END_HEADERS")
    return b"".join(frame.serialize() for frame in frames)


def data(stream_id: int, payload: bytes, *, end: bool = False, pad: int | None = None) -> bytes:
    """A DATA frame."""
    flags = (["END_STREAM"] if end else []) + (["PADDED"] if pad is not None else [])
    return DataFrame(stream_id, payload, pad_length=pad or 0, flags=flags).serialize()


def frames_of(output: bytes) -> Iterator[Frame]:
    """All frames of what a server sent. Raises what hyperframe does, and ValueError for a frame that is cut off or too large."""
    at = 0
    while at < len(output):
        frame, size = Frame.parse_frame_header(memoryview(output[at : at + HEADER_BYTES]))
        at += HEADER_BYTES + size
        if at > len(output) or size > FRAME_BYTES:
            raise ValueError(f"a frame of {size} bytes, {at - len(output)} of them missing")
        frame.parse_body(memoryview(output[at - size : at]))
        yield frame


@dataclass
class Answer:
    """What came back in one stream."""

    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None  # its code

    @property
    def status(self) -> int | None:
        """Of gRPC."""
        found = {**self.headers, **self.trailers}.get("grpc-status")
        return None if found is None else int(found)

    @property
    def text(self) -> str:
        """Of gRPC, as it was sent."""
        return {**self.headers, **self.trailers}.get("grpc-message", "")

    @property
    def messages(self) -> list[bytes]:
        """Those that are whole. Raises AssertionError when the answer has ended within one."""
        found, at = [], 0
        while len(self.data) - at >= 5:
            size = int.from_bytes(self.data[at + 1 : at + 5], "big")
            if len(self.data) < at + 5 + size:
                break
            assert not self.data[at], "compressed"
            found.append(bytes(self.data[at + 5 : at + 5 + size]))
            at += 5 + size
        assert at == len(self.data) or not self.ended, "it ends within a message"
        return found


def answers_of(output: bytes) -> dict[int, Answer]:
    """What a server said in each stream, without a client that checks it."""
    decoder, answers = Decoder(), dict[int, Answer]()
    for frame in frames_of(output):
        answer = answers.setdefault(frame.stream_id, Answer())
        if isinstance(frame, HeadersFrame):
            assert "END_HEADERS" in frame.flags
            into = answer.trailers if answer.headers else answer.headers
            into.update((_text(name), _text(value)) for name, value in decoder.decode(frame.data))
        elif isinstance(frame, DataFrame):
            answer.data += frame.data
        elif frame.type == 3:
            answer.reset = getattr(frame, "error_code", None)
        answer.ended |= frame.stream_id > 0 and "END_STREAM" in frame.flags
    answers.pop(0, None)
    return answers


class Client:
    """An honest client, without I/O: `take_output` is for the server, `receive` takes what it says."""

    def __init__(self, settings: dict[int, int] | None = None) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.local_settings = Settings(initial_values={SettingCodes(code): value for code, value in (settings or {}).items()})
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.last: int | None = None  # what GOAWAY said
        self.error: int | None = None
        self.pings: list[bytes] = []
        self.greeted = False  # h2 mixes up its settings when others are sent before the first are acknowledged
        self.reads = True  # what comes gives the server its windows back at once

    def begin(self, path: str = "/s/m", *more: tuple[str, str], end: bool = False) -> int:
        """Begin a call; returns its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream_id, request(path, *more), end_stream=end)
        self.answers[stream_id] = Answer()
        return stream_id

    def room(self, stream_id: int) -> int:
        """Bytes that may be sent now."""
        return min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)

    def send(self, stream_id: int, payload: bytes, *, end: bool = False, pad: int | None = None) -> None:
        """One DATA frame."""
        self.h2.send_data(stream_id, payload, end_stream=end, pad_length=pad)

    def take_output(self) -> bytes:
        """What is for the server."""
        return self.h2.data_to_send()

    def receive(self, output: bytes) -> None:
        """Take what the server said. Raises h2's errors."""
        for event in self.h2.receive_data(output):
            if isinstance(event, ConnectionTerminated):
                self.last, self.error = event.last_stream_id, int(event.error_code or 0)
            elif isinstance(event, SettingsAcknowledged):
                self.greeted = True
            elif isinstance(event, PingReceived):
                self.pings.append(event.ping_data)
            elif isinstance(event, (ResponseReceived, TrailersReceived, DataReceived, StreamEnded, StreamReset)):
                self._take(self.answers[event.stream_id], event)

    def _take(
        self, answer: Answer, event: ResponseReceived | TrailersReceived | DataReceived | StreamEnded | StreamReset
    ) -> None:
        if isinstance(event, ResponseReceived):
            answer.headers.update((_text(name), _text(value)) for name, value in event.headers)
        elif isinstance(event, TrailersReceived):
            answer.trailers.update((_text(name), _text(value)) for name, value in event.headers)
        elif isinstance(event, DataReceived):
            answer.data += event.data
            if self.reads and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            answer.ended = True
        elif not answer.ended:  # the end of a request that was answered before is no matter
            answer.reset = int(event.error_code)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()
