"""The state of one stream, which the parts of a connection share, and the events of a stream."""

from adapter.runtime.serving.http2 import frames
from adapter.runtime.serving.http2.headers import Head

# Kinds of events. Each is a tuple: its kind, its stream, and of a message its bytes, of an answer its headers.
# RESET: the call has ended early, by either side. WRITABLE: all output of the stream has been sent. ANSWER and TRAILERS are
# of a client's connection; a stream ends with its TRAILERS, with ENDED, or with RESET.
CALL, MESSAGE, ENDED, RESET, WRITABLE, ANSWER, TRAILERS = range(7)


class Stream:
    """One stream, which carries one call. `call` belongs to the server, or the client: its object for the call.

    Of one that is `relayed`, the events have its bytes as they come, in place of messages.
    """

    __slots__ = (
        "answered", "answering", "call", "code", "extra_credit", "final", "head", "held", "id", "missing", "open", "out",
        "relayed", "rest", "returned", "room", "still_due", "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, head: Head, window: int, *, relayed: bool = False) -> None:
        self.id = stream_id
        self.head = head
        self.call: object = None
        self.relayed = relayed
        self.answered = False  # of a client: the headers of the answer have come
        self.code = 0  # why the peer has reset it
        # Receiving.
        self.open = True  # the peer may send more
        self.still_due = head.length  # bytes, if the headers have a content-length
        self.room = frames.WINDOW  # bytes that the peer may send
        self.held = 0  # messages that the servicer has not taken
        self.returned = 0  # bytes taken for which no WINDOW_UPDATE has been sent yet
        self.extra_credit = 0  # bytes of `room` beyond the default window, see `receiving`
        self.rest: bytearray | None = None  # an incomplete message
        self.missing = 0  # bytes that it lacks, at least
        # Sending.
        self.window = window  # bytes that the peer accepts
        self.answering = False  # the headers have been sent
        self.out: bytearray | None = None  # waits for a window
        self.final = b""  # the frame that ends the stream, after `out`


Event = tuple[int, Stream] | tuple[int, Stream, bytes]
