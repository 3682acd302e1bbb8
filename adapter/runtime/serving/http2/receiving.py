"""The receive windows of a connection: what its peer may send. Without I/O.

A message that the servicer has not taken keeps its bytes in its stream's window, and so stops the sender. All streams have the
default window. For a message that is larger, its stream gets credit beyond it: a bounded number of bytes in all, in the order in
which the messages began.
"""

from adapter.runtime.serving.http2 import frames
from adapter.runtime.serving.http2.frames import PREFIX, Code, ConnectionFailedError
from adapter.runtime.serving.http2.streams import Stream

CREDIT = 2**20  # bytes of all streams that may be on their way: the connection's window
HELD_MAX = 200_000  # messages of a connection that servicers have not taken
# Bytes beyond the windows that are granted at a time, to all streams of a connection together; more if a message may have more.
EXTRA_CREDIT_MAX = 32 * 2**20


class Receiver:
    """Accounts for what came in, and appends the WINDOW_UPDATE frames that allow more to `out`."""

    def __init__(self, streams: dict[int, Stream], out: list[bytes], largest: int) -> None:
        self.held = 0  # messages that servicers have not taken
        self._streams = streams
        self._out = out
        self.granted = 0  # bytes of extra credit that streams have now
        self._most = max(largest, EXTRA_CREDIT_MAX)  # that may be granted
        self._waiting: dict[Stream, None] = {}  # for extra credit, in order
        self._unreported = 0  # bytes that arrived since the last WINDOW_UPDATE of the connection

    def data_arrived(self, size: int) -> None:
        """Open the connection's window again. It does not wait for servicers: the streams' windows hold a peer back."""
        self._unreported += size
        if self._unreported >= CREDIT // 2:
            self._out.append(frames.window_update(0, self._unreported))
            self._unreported = 0

    def message_arrived(self, stream: Stream) -> None:
        """Count a message until it is consumed. Raises ConnectionFailedError when too many wait."""
        stream.held += 1
        self.held += 1
        if self.held > HELD_MAX:
            raise ConnectionFailedError(Code.ENHANCE_YOUR_CALM, "too many messages that nobody has taken")

    def consumed(self, stream: Stream, message: bytes) -> None:
        """A servicer has taken a message: the peer may send as much again. Does nothing for a stream that has ended."""
        if stream.id not in self._streams:
            return
        stream.held -= 1
        self.held -= 1
        size = len(message) + PREFIX.size
        extra = min(stream.extra_credit, size)
        stream.returned += size - extra
        if extra:
            self._give_back(stream, extra)
        if stream.open and stream.returned and (stream.returned > frames.WINDOW // 2 or stream.missing > stream.room):
            self.allow(stream, stream.returned)
            stream.returned = 0
            self.request_credit(stream)

    def passed_on(self, stream: Stream, size: int) -> None:
        """So many bytes of a relayed stream were passed on: the peer may send as many again. Does nothing once it has ended."""
        if stream.id not in self._streams:
            return
        stream.returned += size
        if stream.open and stream.returned > frames.WINDOW // 2:
            self.allow(stream, stream.returned)
            stream.returned = 0

    def allow(self, stream: Stream, size: int) -> None:
        """Let the peer send `size` bytes more on a stream."""
        stream.room += size
        self._out.append(frames.window_update(stream.id, size))

    def request_credit(self, stream: Stream) -> None:
        """Request credit if the current message is larger than the window. One behind messages that are held waits for those."""
        if stream.missing > stream.room and not stream.held:
            self._waiting[stream] = None
            self._grant()

    def release(self, stream: Stream) -> None:
        """Drop what a stream that has ended holds."""
        stream.open = False
        stream.rest = None
        self.held -= stream.held
        self._waiting.pop(stream, None)
        self._give_back(stream, stream.extra_credit)

    def _give_back(self, stream: Stream, size: int) -> None:
        """Free `size` bytes of a stream's extra credit: a message that needed them was taken."""
        stream.extra_credit -= size
        self.granted -= size
        self._grant()

    def _grant(self) -> None:
        """Grant the streams that wait what their messages are missing, as far as it goes."""
        while self._waiting:
            stream = next(iter(self._waiting))
            need = stream.missing - stream.room
            if need > 0:
                if self.granted + need > self._most:
                    return
                self.granted += need
                stream.extra_credit += need
                self.allow(stream, need)
            del self._waiting[stream]
