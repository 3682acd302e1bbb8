"""Room for large messages: beyond the window that each stream has, a connection lends a bounded number of bytes. Pure."""

from collections.abc import Iterator

from adapter.runtime.http2.streams import Stream

LENT_MAX = 32 * 2**20  # bytes of a connection's large messages that may come in together


class ReceiveCredit:
    """Who waits is served in turn. Each call gives who may send how many bytes more."""

    def __init__(self) -> None:
        self._lent = 0
        self._waiting: dict[Stream, None] = {}

    def ask(self, stream: Stream) -> Iterator[tuple[Stream, int]]:
        """A stream needs room for what its message is missing."""
        self._waiting[stream] = None
        return self._lend()

    def pay_back(self, stream: Stream, size: int) -> Iterator[tuple[Stream, int]]:
        """So many bytes of a stream's loan are free again."""
        stream.lent -= size
        self._lent -= size
        return self._lend()

    def forget(self, stream: Stream) -> Iterator[tuple[Stream, int]]:
        """A stream has ended."""
        self._waiting.pop(stream, None)
        return self.pay_back(stream, stream.lent)

    def _lend(self) -> Iterator[tuple[Stream, int]]:
        while self._waiting:
            stream = next(iter(self._waiting))
            need = stream.missing - stream.room
            if need > 0:
                if self._lent + need > LENT_MAX:
                    return
                self._lent += need
                stream.lent += need
                yield stream, need
            del self._waiting[stream]
