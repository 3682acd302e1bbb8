"""Room for large messages: beyond the window that each stream has, a connection lends a bounded number of bytes. Pure."""

from collections import deque
from collections.abc import Callable

from adapter.front.streams import Stream

LENT_MAX = 32 * 2**20  # bytes of a connection's large messages that may come in together


class Loans:
    """Who waits is served in turn. `allow` tells the peer that a stream may send so many bytes more."""

    def __init__(self, allow: Callable[[Stream, int], None]) -> None:
        self._allow = allow
        self._lent = 0
        self._waiting: deque[Stream] = deque()

    def ask(self, stream: Stream) -> None:
        """A stream needs room for what its message is missing."""
        self._waiting.append(stream)
        self._lend()

    def pay_back(self, stream: Stream, size: int) -> None:
        """So many bytes of a stream's loan are free again."""
        stream.lent -= size
        self._lent -= size
        self._lend()

    def _lend(self) -> None:
        while self._waiting:
            stream = self._waiting[0]
            need = stream.missing - stream.room if stream.open else 0
            if need > 0:
                if self._lent + need > LENT_MAX:
                    return
                self._lent += need
                stream.lent += need
                self._allow(stream, need)
            self._waiting.popleft()
