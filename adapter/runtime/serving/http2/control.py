"""The frames that concern the connection, not a call: settings, pings, windows, resets, and its end. Without I/O."""

from collections.abc import Callable

from adapter.runtime.serving.http2 import frames
from adapter.runtime.serving.http2.flood import FloodGuard
from adapter.runtime.serving.http2.frames import Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.serving.http2.sending import Sender
from adapter.runtime.serving.http2.streams import RESET, Event, Stream

DRAINING = b"draining"
ROUNDS = 2  # PINGs of a drain: h2 (hyper, tonic) answers the first one before it sends calls that it has begun already
PRIORITY_BYTES = 5

Handler = Callable[[int, int, bytes], None]  # takes a frame: its flags, its stream, its payload


class Control:
    """Handles the control frames of a connection, and ends it.

    `streams`, `out` and `events` are shared with the other parts of the connection.
    """

    def __init__(
        self, streams: dict[int, Stream], out: list[bytes], events: list[Event], sender: Sender, guard: FloodGuard
    ) -> None:
        self.closed = False
        self.last = 0  # the highest stream that has begun
        self.limit = frames.ID_MAX  # the highest stream that is accepted
        self.streams_max = frames.ID_MAX  # that the peer lets be open
        self._streams = streams
        self._out = out
        self._events = events
        self._sender = sender
        self._guard = guard
        self._rounds = 0  # of a drain: PINGs that are still to be answered

    def handlers(self) -> tuple[Handler, ...]:
        """Return the handlers of frame types PRIORITY to WINDOW_UPDATE; they raise ConnectionFailedError or StreamFailedError."""
        # Not an attribute: it would be a reference cycle, and cycles are not collected (see `runtime.process`).
        return (
            self._on_priority, self._on_reset, self._on_settings, self._on_push,
            self._on_ping, self._on_go_away, self._on_window_update,
        )  # fmt: skip

    def drain(self) -> None:
        """Announce that the connection will close. Calls that arrive until the peer has acknowledged this twice are accepted."""
        self._rounds = ROUNDS
        self._out.append(frames.go_away(frames.ID_MAX, Code.NO_ERROR))
        self._ask()

    def _ask(self) -> None:
        self._out.append(frames.frame(frames.PING, 0, 0, DRAINING))

    def go_away(self) -> None:
        """Accept no call from here on."""
        if self.limit == frames.ID_MAX and not self.closed:
            self.limit = self.last
            self._out.append(frames.go_away(self.limit, Code.NO_ERROR))

    def give_up(self, error: ConnectionFailedError) -> None:
        """End the connection with an error: send GOAWAY and set `closed`."""
        self._out.append(frames.go_away(min(self.last, self.limit), error.code, str(error)))
        self.closed = True

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        self._guard.count()
        _check_size("PRIORITY", payload, PRIORITY_BYTES)
        check_dependency(stream_id, payload)

    def _on_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        _check_size("RST_STREAM", payload, 4)
        self.check_known(stream_id)
        self._guard.count_reset()
        stream = self._streams.get(stream_id)
        if stream:
            stream.code = int.from_bytes(payload, "big")
            self._break_off(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if len(payload) % frames.SETTING.size or (flags & frames.ACK and payload):
            raise ConnectionFailedError(Code.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self._guard.count(1 + len(self._streams) / 50)  # a new window size touches each stream
        if flags & frames.ACK:
            return
        values = dict(frames.SETTING.iter_unpack(payload))
        if values.get(frames.ENABLE_PUSH, 0) > 1:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if not frames.FRAME_MAX <= values.get(frames.MAX_FRAME_SIZE, frames.FRAME_MAX) < 2**24:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE is not from 16,384 to 16,777,215")
        window = values.get(frames.INITIAL_WINDOW_SIZE, self._sender.stream_window)
        if window > frames.WINDOW_MAX:
            raise ConnectionFailedError(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is over 2^31 - 1")
        self.streams_max = values.get(frames.MAX_CONCURRENT_STREAMS, self.streams_max)
        self._out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._sender.resize_streams(window)

    def _on_push(self, _: int, stream_id: int, __: bytes) -> None:
        raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"PUSH_PROMISE, on stream {stream_id}")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        _check_size("PING", payload, 8)
        self._guard.count()
        if not flags & frames.ACK:
            self._out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif self._rounds and payload == DRAINING:
            self._rounds -= 1
            if self._rounds:
                self._ask()
            else:
                self.go_away()

    def _on_go_away(self, _: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        _check_size("GOAWAY", payload[:8], 8)
        self._guard.count()

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        _check_size("WINDOW_UPDATE", payload, 4)
        size = int.from_bytes(payload, "big") & frames.WINDOW_MAX
        if not stream_id:
            if not size:
                raise ConnectionFailedError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            self._sender.widen_all(size)
            return
        self.check_known(stream_id)
        if not size:
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        stream = self._streams.get(stream_id)
        if stream:
            self._sender.widen(stream, size)

    def begin_stream(self, stream_id: int) -> None:
        """Note the highest stream that has begun."""
        self.last = stream_id

    def check_known(self, stream_id: int) -> None:
        """Raise ConnectionFailedError for a stream that has never begun."""
        if stream_id > self.last or not stream_id & 1:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"stream {stream_id} has not begun")

    def fail_stream(self, stream_id: int, error: StreamFailedError) -> None:
        """Reset a stream after a stream error. Raises ConnectionFailedError when there are too many of them."""
        self._guard.count()
        self._sender.reset(stream_id, error.code)
        stream = self._streams.get(stream_id)
        if stream:
            self._break_off(stream)

    def _break_off(self, stream: Stream) -> None:
        self._sender.forget(stream)
        if not stream.head.refusal:
            self._events.append((RESET, stream))


def _check_size(kind: str, payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ConnectionFailedError(Code.FRAME_SIZE_ERROR, f"{kind} of {len(payload)} bytes")


def check_dependency(stream_id: int, priority: bytes) -> None:
    """Raise ConnectionFailedError for a stream that depends on itself, and for stream 0. Priorities are otherwise ignored."""
    if int.from_bytes(priority[:4], "big") & frames.ID_MAX == stream_id or not stream_id:
        raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"a priority of stream {stream_id} that cannot be")
