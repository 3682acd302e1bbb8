"""The state of one stream, which the parts of a connection share, and the events of a stream."""

from adapter.runtime.serving.http2 import frames
from adapter.runtime.serving.http2.headers import Head

# Kinds of events. Each is a tuple: its kind, its stream, and of a message its bytes.
# RESET: the call has ended early, by either side. WRITABLE: all output of the stream has been sent.
CALL, MESSAGE, ENDED, RESET, WRITABLE = range(5)


class Stream:
    """One stream, which carries one call. `call` belongs to the server: its object for the call."""

    __slots__ = (
        "answering", "call", "extra_credit", "final", "head", "held", "id", "missing", "open", "out", "rest", "returned", "room",
        "still_due", "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, head: Head, window: int) -> None:
        self.id = stream_id
        self.head = head
        self.call: object = None
        # Receiving.
        self.open = True  # the peer may send more
        self.still_due = head.length  # bytes, if the headers have a content-length
        self.room = frames.WINDOW  # bytes that the peer may send
        self.held = 0  # messages that the servicer has not taken
        self.returned = 0  # bytes taken for which no WINDOW_UPDATE has been sent yet
        self.extra_credit = 0  # bytes of `room` beyond the default window, see `credit`
        self.rest: bytearray | None = None  # an incomplete message
        self.missing = 0  # bytes that it lacks, at least
        # Sending.
        self.window = window  # bytes that the peer accepts
        self.answering = False  # the headers have been sent
        self.out: bytearray | None = None  # waits for a window
        self.final = b""  # the frame that ends the stream, after `out`


Event = tuple[int, Stream] | tuple[int, Stream, bytes]
