"""The server's side of a connection that has been opened, for tests: what is fed to it, and its output as frames and events."""

from hyperframe.frame import Frame, GoAwayFrame, RstStreamFrame, WindowUpdateFrame

from adapter.runtime.http2.connection import Connection
from adapter.runtime.http2.streams import CALL, ENDED, MESSAGE, RESET, WRITABLE, Stream
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
        """What happened."""
        told: Told = []
        for event in self.connection.receive(received, now):
            stream = event[1]
            self.streams[stream.id] = stream
            name = NAMES[event[0]]
            told.append((name, stream.id, event[2]) if len(event) == 3 else (name, stream.id))
        return told

    def call(self, number: int = 1, *more: tuple[str, str], end: bool = False) -> Stream:
        """A call has begun."""
        assert self.feed(head(number, block(request("/s/m", *more)), end=end))[0] == ("call", number)
        return self.streams[number]

    def take(self) -> list[Frame]:
        """The frames that are to be sent now."""
        taken = self.connection.take_output()
        self.output += taken
        return list(frames_of(taken))

    def answer(self, number: int = 1) -> Answer:
        """All that was said in a stream."""
        self.take()
        return answers_of(self.output).get(number, Answer())

    @property
    def resets(self) -> dict[int, int]:
        """Streams and codes."""
        return {frame.stream_id: int(frame.error_code) for frame in self.take() if isinstance(frame, RstStreamFrame)}

    @property
    def gone(self) -> tuple[int, int] | None:
        """The last stream and the code of a GOAWAY."""
        for frame in self.take():
            if isinstance(frame, GoAwayFrame):
                return int(frame.last_stream_id), int(frame.error_code)
        return None

    @property
    def windows(self) -> dict[int, int]:
        """By stream, what the client may send beyond what it might before."""
        more: dict[int, int] = {}
        for frame in self.take():
            if isinstance(frame, WindowUpdateFrame):
                more[frame.stream_id] = more.get(frame.stream_id, 0) + frame.window_increment
        return more


__all__ = ["BLOCK", "Server", "block", "data", "head", "message", "request"]
