"""A stream, as both halves of a connection see it, and what can happen to it. Pure."""

from adapter.runtime.http2 import frames
from adapter.runtime.http2.headers import Head

# Kinds of events. Each is a tuple: its kind, its stream, and of a message its bytes.
# RESET: the call is over, whoever ended it. WRITABLE: what was to be sent is out.
CALL, MESSAGE, ENDED, RESET, WRITABLE = range(5)


class Stream:
    """One call. `call` is for whoever handles it."""

    __slots__ = (
        "answering", "call", "final", "head", "held", "id", "lent", "missing", "open", "out", "rest", "returned", "room",
        "still_due", "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, head: Head, window: int) -> None:
        self.id = stream_id
        self.head = head
        self.call: object = None
        # What comes in.
        self.open = True  # the peer may send more
        self.still_due = head.length  # bytes, where the headers say so
        self.room = frames.WINDOW  # bytes that the peer may send
        self.held = 0  # messages that nobody has taken yet
        self.returned = 0  # bytes that it may send again, and does not know yet
        self.lent = 0  # bytes of `room` that are beyond what each stream has
        self.rest: bytearray | None = None  # the beginning of a message
        self.missing = 0  # bytes that it lacks, at least
        # What goes out.
        self.window = window  # bytes that the peer takes
        self.answering = False  # the headers are out
        self.out: bytearray | None = None  # waits for a window
        self.final = b""  # the frame behind it


Event = tuple[int, Stream] | tuple[int, Stream, bytes]
