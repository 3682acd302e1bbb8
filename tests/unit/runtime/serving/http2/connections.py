"""The server's side of an open HTTP/2 connection, for tests: bytes go in; frames and events come out."""

from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame, WindowUpdateFrame

from adapter.runtime.serving.http2.connection import Connection
from adapter.runtime.serving.http2.streams import CALL, ENDED, MESSAGE, RESET, WRITABLE, Stream
from tests.http2_client import Answer, answers_of, block, data, frames_of, head, message, opening, request

NAMES = {CALL: "call", MESSAGE: "message", ENDED: "ended", RESET: "reset", WRITABLE: "writable"}
BLOCK = block(request())

Told = list[tuple[str, int] | tuple[str, int, bytes]]


class Server:
    """The server's side of a connection."""

    def __init__(self, settings: dict[int, int] | None = None) -> None:
        self.connection = Connection(0.0)
        self.streams: dict[int, Stream] = {}
        self.greeting = list(frames_of(self.connection.take_output()))
        self.output = b""  # since the connection was opened
        self.feed(opening(settings))
        self.take()

    def feed(self, received: bytes, now: float = 0.0) -> Told:
        """Feed frames to the connection; returns the events."""
        told: Told = []
        for event in self.connection.receive(received, now):
            stream = event[1]
            self.streams[stream.id] = stream
            name = NAMES[event[0]]
            told.append((name, stream.id, event[2]) if len(event) == 3 else (name, stream.id))
        return told

    def call(self, number: int = 1, *more: tuple[str, str], end: bool = False) -> Stream:
        """Begin a call."""
        assert self.feed(head(number, block(request("/s/m", *more)), end=end))[0] == ("call", number)
        return self.streams[number]

    def take(self) -> list[Frame]:
        """The frames that the connection wants to send."""
        taken = self.connection.take_output()
        self.output += taken
        return list(frames_of(taken))

    def answer(self, number: int = 1) -> Answer:
        """Everything that was sent in a stream."""
        self.take()
        return answers_of(self.output).get(number, Answer())

    @property
    def resets(self) -> dict[int, int]:
        """Streams with the error codes of their RST_STREAM frames."""
        return {frame.stream_id: int(frame.error_code) for frame in self.take() if isinstance(frame, RstStreamFrame)}

    @property
    def gone(self) -> tuple[int, int] | None:
        """The last stream id and the error code of a GOAWAY."""
        for frame in self.take():
            if isinstance(frame, GoAwayFrame):
                return int(frame.last_stream_id), int(frame.error_code)
        return None

    @property
    def windows(self) -> dict[int, int]:
        """By stream, how many more bytes the client may send."""
        more: dict[int, int] = {}
        for frame in self.take():
            if isinstance(frame, WindowUpdateFrame):
                more[frame.stream_id] = more.get(frame.stream_id, 0) + frame.window_increment
        return more


__all__ = ["BLOCK", "Server", "block", "data", "head", "message", "request"]
