"""The frames that are about the connection, not about a call: settings, pings, windows, and its end. Pure.

Keeps account of frames that bring nothing: a peer may send some, not a flood.
"""

from adapter.runtime.http2 import frames
from adapter.runtime.http2.frames import Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.http2.sending import Sending
from adapter.runtime.http2.streams import RESET, Stream

NOISE_MAX = 2_000.0  # frames that bring nothing: so many at once, and
NOISE_FIRST = 300.0  # of them before the first message, and
NOISE_EARNED = 20.0  # more for each message
NOISE_PER_S = 200.0  # so many in the long run
EARLY_RESET = 5.0  # as so many of them counts a call that is given up before the connection has brought any message
DRAINING = b"draining"
PRIORITY_BYTES = 5


class Control(Sending):
    """What a connection does about itself."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self.closed = False
        self.messages = 0  # that have come
        self._last = 0  # the highest stream that has begun
        self._limit = frames.ID_MAX  # and the highest that is still taken
        self._draining = False
        self._noise = 0.0
        self._now = now

    def drain(self) -> None:
        """Ask for no more calls; those that come before the peer knows are still taken."""
        self._draining = True
        self._out.append(frames.go_away(frames.ID_MAX, Code.NO_ERROR))
        self._out.append(frames.frame(frames.PING, 0, 0, DRAINING))

    def go_away(self) -> None:
        """Take no call from here on."""
        if self._limit == frames.ID_MAX and not self.closed:
            self._limit = self._last
            self._out.append(frames.go_away(self._limit, Code.NO_ERROR))

    def _give_up(self, error: ConnectionFailedError) -> None:
        self._out.append(frames.go_away(min(self._last, self._limit), error.code, str(error)))
        self.closed = True

    def _pass_time(self, now: float) -> None:
        self._noise = max(0.0, self._noise - (now - self._now) * NOISE_PER_S)
        self._now = now

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        self._note_noise()
        _check_size("PRIORITY", payload, PRIORITY_BYTES)
        check_dependency(stream_id, payload)

    def _on_reset(self, _: int, stream_id: int, payload: bytes) -> None:
        _check_size("RST_STREAM", payload, 4)
        self._check_known(stream_id)
        self._note_noise(1.0 if self.messages else EARLY_RESET)
        stream = self.streams.get(stream_id)
        if stream:
            self._break_off(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if len(payload) % frames.SETTING.size or (flags & frames.ACK and payload):
            raise ConnectionFailedError(Code.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        self._note_noise(1 + len(self.streams) / 50)  # each of them may have to be looked at
        if flags & frames.ACK:
            return
        values = dict(frames.SETTING.iter_unpack(payload))
        if values.get(frames.ENABLE_PUSH, 0) > 1:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if not frames.FRAME_MAX <= values.get(frames.MAX_FRAME_SIZE, frames.FRAME_MAX) < 2**24:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE is not from 16,384 to 16,777,215")
        window = values.get(frames.INITIAL_WINDOW_SIZE, self._stream_window)
        if window > frames.WINDOW_MAX:
            raise ConnectionFailedError(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is over 2^31 - 1")
        self._out.append(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._resize_streams(window)

    def _on_push(self, _: int, stream_id: int, __: bytes) -> None:
        raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"PUSH_PROMISE by a client, on stream {stream_id}")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        _check_size("PING", payload, 8)
        self._note_noise()
        if not flags & frames.ACK:
            self._out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif self._draining and payload == DRAINING:
            self.go_away()

    def _on_go_away(self, _: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        _check_size("GOAWAY", payload[:8], 8)
        self._note_noise()

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        _check_size("WINDOW_UPDATE", payload, 4)
        size = int.from_bytes(payload, "big") & frames.WINDOW_MAX
        if not stream_id:
            if not size:
                raise ConnectionFailedError(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
            self._widen_all(size)
            return
        self._check_known(stream_id)
        if not size:
            raise StreamFailedError(Code.PROTOCOL_ERROR)
        stream = self.streams.get(stream_id)
        if stream:
            self._widen(stream, size)

    def _check_known(self, stream_id: int) -> None:
        if stream_id > self._last or not stream_id & 1:
            raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"stream {stream_id} has not begun")

    def _note_noise(self, amount: float = 1.0) -> None:
        self._noise += amount
        if self._noise > min(NOISE_FIRST + self.messages * NOISE_EARNED, NOISE_MAX):
            raise ConnectionFailedError(Code.ENHANCE_YOUR_CALM, "too many frames that bring nothing")

    def _fail(self, stream_id: int, error: StreamFailedError) -> None:
        self._note_noise()
        self._reset(stream_id, error.code)
        stream = self.streams.get(stream_id)
        if stream:
            self._break_off(stream)

    def _close(self, stream: Stream) -> None:
        super()._close(stream)
        self._forgive()

    def _forgive(self) -> None:
        """A message came, or a call was answered: who asks for much may also take much back."""
        self._noise = max(0.0, self._noise - 1.0)

    def _break_off(self, stream: Stream) -> None:
        self._forget(stream)
        if not stream.head.refusal:
            self._events.append((RESET, stream))


def _check_size(kind: str, payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ConnectionFailedError(Code.FRAME_SIZE_ERROR, f"{kind} of {len(payload)} bytes")


def check_dependency(stream_id: int, priority: bytes) -> None:
    """Raise ConnectionFailedError for what depends on itself, or is about no stream. Priorities themselves are not looked at."""
    if int.from_bytes(priority[:4], "big") & frames.ID_MAX == stream_id or not stream_id:
        raise ConnectionFailedError(Code.PROTOCOL_ERROR, f"a priority of stream {stream_id} that cannot be")
