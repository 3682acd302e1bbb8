"""Whose bytes are handled next, of connections that have sent only a few messages so far."""

import asyncio

from adapter.runtime.serving.http2.admission import FIRST_BYTES, SLICE, AdmissionQueue


class Connection:
    """A connection whose slices are noted."""

    def __init__(self, name: str, handled: list[str]) -> None:
        self.name = name
        self.unread = bytearray()
        self.lacks = 0
        self.handled = 0
        self.is_proven = False
        self._handled = handled

    def handle(self, data: bytes) -> None:
        """Note it."""
        assert len(data) <= SLICE
        self._handled.append(self.name)

    def is_gone(self) -> bool:
        """It is there."""
        return False

    def hang_up(self, *, at_once: bool = False) -> None:
        """Nobody does."""
        raise AssertionError(at_once)


async def test_a_storm_of_new_connections_does_not_stop_those_behind_their_first_bytes() -> None:
    """Most of the time is for the first bytes of each, and some for what follows: an honest client has more than a request."""
    handled: list[str] = []
    seconds = iter(range(10_000))
    queue = AdmissionQueue(lambda: next(seconds) / 1_000)
    honest = Connection("honest", handled)
    honest.handled = FIRST_BYTES
    queue.add(honest, bytes(10 * SLICE))
    while honest.unread and len(handled) < 200:
        for _ in range(10):
            queue.add(Connection("new", handled), bytes(FIRST_BYTES))
        await asyncio.sleep(0)
    assert not honest.unread
    assert handled.count("new") >= 2 * handled.count("honest")
