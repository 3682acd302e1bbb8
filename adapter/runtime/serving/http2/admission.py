"""Limits the work for unproven connections: those that have sent only a few messages so far.

Their bytes are queued and handled in small slices, in turn, for a bounded time in each iteration of the event loop. A proven
connection is read without a queue. So a storm of new connections delays neither proven connections nor, for long, an honest new
one: most slices are of connections within their first kilobyte, and every fourth is of what follows in others. The bytes of a
client that has disconnected are dropped.
"""

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

PROVEN_MESSAGES = 16  # messages after which a connection is proven
FIRST_BYTES = 1_024  # of a connection: its preface and a request; they are handled before the rest of other connections
MORE_EVERY = 4  # slices, of which one is of such a rest: else a storm of new connections would keep it waiting for ever
SLICE = 1_024  # bytes of an unproven connection that are handled at a time
SHARE_S = 0.005  # seconds of an iteration of the event loop
QUEUED_MAX = 32 * 2**20  # bytes of all unproven connections; beyond, those that have sent more than a request are closed
TCP_CLOSE = 7  # the kernel's state of a connection that was reset, or closed on both sides


class UnprovenConnection(Protocol):
    """What the queue needs of a connection: the bytes that wait, and how many have been handled."""

    unread: bytearray
    handled: int

    @property
    def is_proven(self) -> bool:
        """True once it has sent PROVEN_MESSAGES messages."""

    @property
    def lacks(self) -> int:
        """Bytes that the frame lacks that is being received; 0 if that is not known."""

    def handle(self, data: bytes) -> None:
        """Handle bytes that were received."""

    def is_gone(self) -> bool:
        """True when the client cannot receive an answer any more."""

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close the connection, with `at_once` without sending what is pending."""


class AdmissionQueue:
    """The unproven connections whose bytes wait to be handled."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: deque[UnprovenConnection] = deque()  # within their first bytes
        self._more: deque[UnprovenConnection] = deque()
        self._slices = 0  # so far
        self._scheduled = False
        self._bytes = 0

    def add(self, peer: UnprovenConnection, data: bytes) -> None:
        """Queue bytes that an unproven connection has received."""
        is_queued = bool(peer.unread)
        peer.unread += data
        self._bytes += len(data)
        if self._bytes > QUEUED_MAX and len(peer.unread) > FIRST_BYTES:
            peer.hang_up(at_once=True)
        if not is_queued:
            self._queue(peer).append(peer)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._handle_slices)

    def forget(self, peer: UnprovenConnection) -> None:
        """Drop the bytes of a connection that has ended. Its place in the queue is skipped later."""
        self._bytes -= len(peer.unread)
        peer.unread.clear()

    def _handle_slices(self) -> None:
        """Handle slices for this iteration's share of time."""
        until = self._clock() + SHARE_S
        while self._first or self._more:
            self._slices += 1
            turn = self._more if self._more and not self._slices % MORE_EVERY else self._first or self._more
            self._handle_slice(turn.popleft())
            if self._clock() >= until:
                break
        self._scheduled = bool(self._first or self._more)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._handle_slices)

    def _handle_slice(self, peer: UnprovenConnection) -> None:
        if not peer.unread:
            return
        if peer.is_gone():
            peer.hang_up(at_once=True)
            return
        size = len(peer.unread) if peer.is_proven else max(SLICE, peer.lacks)  # a frame is handled as a whole in any case
        data = bytes(peer.unread[:size])
        del peer.unread[:size]
        self._bytes -= len(data)
        peer.handled += len(data)
        peer.handle(data)
        if peer.unread:
            self._queue(peer).append(peer)

    def _queue(self, peer: UnprovenConnection) -> deque[UnprovenConnection]:
        return self._first if peer.handled < FIRST_BYTES else self._more


def is_closed(connection: socket.socket | None) -> bool:
    """True when a TCP connection is closed in both directions: nobody can receive an answer."""
    if connection is None or connection.family == socket.AF_UNIX:
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
