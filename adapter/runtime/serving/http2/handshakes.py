"""TLS before HTTP/2: accepts connections, bounds their handshakes, and hands over those that ended well.

A handshake takes up to a millisecond of CPU, and its peer may leave it half open. So one begins in an iteration of the event
loop, and HANDSHAKES_MAX are under way. Who comes then waits in the backlog until one has ended, or until the oldest has had
HANDSHAKE_LEAST_S, which is closed then: 1,000 half-open handshakes keep an honest client waiting for two seconds.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable

import structlog

from adapter.runtime import descriptors

log = structlog.get_logger(__name__)

BACKLOG = 1_024
HANDSHAKES_MAX = 256  # should all their peers go on at the same instant, the event loop is held for 0.08 s
HANDSHAKE_S = 10.0
HANDSHAKE_LEAST_S = 0.5  # honest ones end sooner, also if many come together
FULL_S = 0.01  # seconds between two looks for room
GOODBYE_S = 1.0  # seconds that a client has to answer the end of its connection (close_notify), and to read what comes before it
RETRY_S = 1.0  # seconds until connections are accepted again, after the kernel had no descriptor for one
TELL_S = 10.0  # seconds between two log lines about handshakes that failed

TlsContext = Callable[[], ssl.SSLContext]


class Handshakes:
    """The connections of a server that have no TLS so far. `refuse` is called for one that may have no file descriptor."""

    def __init__(self, make_peer: Callable[[], asyncio.BaseProtocol], refuse: Callable[[], None]) -> None:
        self._make_peer = make_peer
        self._refuse = refuse
        self._listening: dict[socket.socket, TlsContext] = {}
        self._under_way: dict[asyncio.Task[None], float] = {}  # when each began, the oldest first
        self._failed = Counter[str]()  # by reason, since the last log line about it
        self._told: dict[str, float] = {}  # when

    def __len__(self) -> int:
        """How many handshakes are under way."""
        return len(self._under_way)

    def listen(self, listener: socket.socket, context: TlsContext) -> None:
        """Accept on a bound socket; `context` is asked at each handshake, since certificates are renewed."""
        listener.listen(BACKLOG)
        listener.setblocking(False)  # noqa: FBT003 - the function has no such keyword
        self._listening[listener] = context
        self._accept_on(listener)

    def close(self) -> None:
        """Accept no more connections. Handshakes that are under way go on."""
        for listener in self._listening:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listening.clear()

    async def end(self) -> None:
        """End the handshakes that are under way."""
        for _ in range(2 if self._under_way else 0):
            await asyncio.sleep(0)  # one that was accepted a moment ago has nothing so far that its cancellation would close
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _accept_on(self, listener: socket.socket) -> None:
        if listener in self._listening:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept_later(self, listener: socket.socket, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener)
        loop.call_later(wait_s, self._accept_on, listener)

    def _accept(self, listener: socket.socket) -> None:
        """Accept one connection; called again in the next iteration of the event loop if others wait."""
        loop = asyncio.get_running_loop()
        if not self._has_room(loop.time()):
            self._accept_later(listener, FULL_S)
            return
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # it has gone
        except OSError as error:  # no descriptor, or no memory
            log.error("connections.not_accepted", error=str(error))
            self._accept_later(listener, RETRY_S)
            return
        if descriptors.is_reserved(accepted.fileno()):
            accepted.close()
            self._refuse()
            return
        accepted.setblocking(False)  # noqa: FBT003 - as above
        task = loop.create_task(self._shake_hands(accepted, self._listening[listener]()), name="tls.handshake")
        self._under_way[task] = loop.time()
        task.add_done_callback(lambda task: self._under_way.pop(task, None))

    def _has_room(self, now: float) -> bool:
        """True if one more may begin, for which the oldest is closed if it has had its time."""
        if len(self._under_way) < HANDSHAKES_MAX:
            return True
        oldest, began = next(iter(self._under_way.items()))
        if now - began < HANDSHAKE_LEAST_S:
            return False
        del self._under_way[oldest]
        oldest.cancel()
        return True

    async def _shake_hands(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        """The peer that is made takes the connection over as soon as the handshake has ended."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_peer, accepted, ssl=context, ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=GOODBYE_S
            )
        except ConnectionResetError:
            return  # the client has gone, as those do that only look whether the port is open
        except OSError as error:  # also of ssl, and when the time is up
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        """Log a handshake that failed, of each reason one in TELL_S: uvloop and asyncio tell the client nothing."""
        reason, now = str(getattr(error, "reason", None) or error), asyncio.get_running_loop().time()
        self._failed[reason] += 1
        if now - self._told.get(reason, -TELL_S) >= TELL_S:
            log.warning(
                "tls.handshake_failed", reason=reason, failed=self._failed.pop(reason), help="`failed`: since the last line"
            )
            self._told[reason] = now
