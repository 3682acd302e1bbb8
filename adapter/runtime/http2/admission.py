"""Connections that have not shown yet what they are for: their bytes are handled in small slices, in turn, a share of each turn.

Who has sent a few messages is read at once. So a storm of connections holds up neither them nor, for long, an honest newcomer:
what fits in its first kilobyte goes before what comes behind those of others. What a peer leaves that is gone is dropped unread.
"""

import asyncio
import socket
import time
from collections import deque
from typing import Protocol

PROVEN = 16  # messages after which a connection is no newcomer
FIRST_BYTES = 1_024  # of a connection: its preface and a request; they go before what comes behind
SLICE = 1_024  # bytes
SHARE_S = 0.005  # of a turn of the event loop
WAITING_MAX = 32 * 2**20  # bytes of all newcomers; beyond, those that sent more than a request are hung up on
TCP_CLOSE = 7  # a state of the kernel's: reset, or closed on both sides


class Newcomer(Protocol):
    """What is needed of a connection: the bytes that wait, how many were handled, and whether it may have as many as it sends."""

    unread: bytearray
    handled: int

    @property
    def is_proven(self) -> bool:
        """True once it has sent as many messages as a newcomer does not."""

    def handle(self, data: bytes) -> None:
        """Take in bytes of it."""

    def is_gone(self) -> bool:
        """True when nobody is there to be answered."""

    def hang_up(self, *, at_once: bool = False) -> None:
        """Close it."""


class Newcomers:
    """Those whose bytes wait."""

    def __init__(self) -> None:
        self._first: deque[Newcomer] = deque()
        self._more: deque[Newcomer] = deque()
        self._due = False
        self._bytes = 0

    def add(self, peer: Newcomer, data: bytes) -> None:
        """Bytes of a newcomer have come."""
        waits = bool(peer.unread)
        peer.unread += data
        self._bytes += len(data)
        if self._bytes > WAITING_MAX and len(peer.unread) > FIRST_BYTES:
            peer.hang_up(at_once=True)
        if not waits:
            self._queue(peer).append(peer)
            if not self._due:
                self._due = True
                asyncio.get_running_loop().call_soon(self._turn)

    def forget(self, peer: Newcomer) -> None:
        """One has gone; its place in the queue is passed over."""
        self._bytes -= len(peer.unread)
        peer.unread.clear()

    def _turn(self) -> None:
        """Handle slices for a share of this turn."""
        until = time.monotonic() + SHARE_S
        while self._first or self._more:
            peer = (self._first or self._more).popleft()
            self._serve(peer)
            if time.monotonic() >= until:
                break
        self._due = bool(self._first or self._more)
        if self._due:
            asyncio.get_running_loop().call_soon(self._turn)

    def _serve(self, peer: Newcomer) -> None:
        if not peer.unread:
            return
        if peer.is_gone():
            peer.hang_up(at_once=True)
            return
        size = len(peer.unread) if peer.is_proven else SLICE
        data = bytes(peer.unread[:size])
        del peer.unread[:size]
        self._bytes -= len(data)
        peer.handled += len(data)
        peer.handle(data)
        if peer.unread:
            self._queue(peer).append(peer)

    def _queue(self, peer: Newcomer) -> deque[Newcomer]:
        return self._first if peer.handled < FIRST_BYTES else self._more


def is_closed(connection: socket.socket | None) -> bool:
    """True when a TCP connection has come to its end in both directions: nobody is there to be answered."""
    if connection is None or connection.family == socket.AF_UNIX:
        return False
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
