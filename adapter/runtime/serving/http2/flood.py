"""Limits on overhead: frames that carry no message, such as PING, SETTINGS and RST_STREAM. Without I/O.

A client may send some of them, and more of them the more messages it sends. A flood of them ends the connection.
"""

from adapter.runtime.serving.http2.frames import Code, ConnectionFailedError

OVERHEAD_MAX = 2_000.0  # overhead frames at once, for a connection that has sent many messages
OVERHEAD_FIRST = 300.0  # of them before the first message
OVERHEAD_PER_MESSAGE = 20.0  # more for each message, up to OVERHEAD_MAX
OVERHEAD_PER_S = 200.0  # the rate that is allowed for ever
FIELDS = 50  # header fields that count as one overhead frame: each may be a single byte, and is decoded as long as many
EARLY_RESET = 5.0  # what the reset of a call counts on a connection that has not sent any message yet


class FloodGuard:
    """Counts the overhead frames of one connection, as a bucket that drains by time and by each message."""

    __slots__ = ("_now", "_overhead", "messages")

    def __init__(self, now: float) -> None:
        self.messages = 0  # received on this connection
        self._overhead = 0.0
        self._now = now

    def pass_time(self, now: float) -> None:
        """Drain what `now` (monotonic seconds) allows."""
        if self._overhead:
            self._overhead = max(0.0, self._overhead - (now - self._now) * OVERHEAD_PER_S)
        self._now = now

    def count(self, amount: float = 1.0) -> None:
        """Count an overhead frame, or `amount` of them. Raises ConnectionFailedError when they are too many."""
        self._overhead += amount
        if self._overhead > min(OVERHEAD_FIRST + self.messages * OVERHEAD_PER_MESSAGE, OVERHEAD_MAX):
            raise ConnectionFailedError(Code.ENHANCE_YOUR_CALM, "too many frames that carry no message")

    def count_reset(self) -> None:
        """Count a call that the client gave up. Raises ConnectionFailedError as `count` does."""
        self.count(1.0 if self.messages else EARLY_RESET)

    def count_fields(self, fields: int) -> None:
        """Count header fields that were decoded. Raises ConnectionFailedError as `count` does."""
        self.count(fields / FIELDS)

    def message(self) -> None:
        """A message was received: it makes room for one overhead frame."""
        self.messages += 1
        if self._overhead:
            self._overhead = max(0.0, self._overhead - 1.0)

    def answered(self) -> None:
        """A call was answered: the client may have cancelled others of as many that it sent."""
        if self._overhead:
            self._overhead = max(0.0, self._overhead - 1.0)
