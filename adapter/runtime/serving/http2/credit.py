"""Flow-control credit for messages that are larger than a stream's window. Without I/O.

All streams have the default window. A connection grants a bounded number of bytes beyond it, for messages that need them.
"""

from collections.abc import Iterator

from adapter.runtime.serving.http2.streams import Stream

# Bytes beyond the windows that are granted at a time, to all streams of a connection together; more if a message may have more.
EXTRA_CREDIT_MAX = 32 * 2**20


class ReceiveCredit:
    """Grants extra credit in the order of the requests. Each method yields the streams that get some, with the bytes granted."""

    def __init__(self, most: int = EXTRA_CREDIT_MAX) -> None:
        self._most = max(most, EXTRA_CREDIT_MAX)
        self.granted = 0  # bytes that streams have now
        self._waiting: dict[Stream, None] = {}

    def request(self, stream: Stream) -> Iterator[tuple[Stream, int]]:
        """Queue a stream for what its current message is missing."""
        self._waiting[stream] = None
        return self._grant()

    def give_back(self, stream: Stream, size: int) -> Iterator[tuple[Stream, int]]:
        """Free `size` bytes of a stream's extra credit: a message that needed them was taken."""
        stream.extra_credit -= size
        self.granted -= size
        return self._grant()

    def forget(self, stream: Stream) -> Iterator[tuple[Stream, int]]:
        """Free all of a stream that has ended."""
        self._waiting.pop(stream, None)
        return self.give_back(stream, stream.extra_credit)

    def _grant(self) -> Iterator[tuple[Stream, int]]:
        while self._waiting:
            stream = next(iter(self._waiting))
            need = stream.missing - stream.room
            if need > 0:
                if self.granted + need > self._most:
                    return
                self.granted += need
                stream.extra_credit += need
                yield stream, need
            del self._waiting[stream]
