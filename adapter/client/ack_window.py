"""The offset that a consumer may commit while its messages finish out of order: one window for each shard that it reads.

The window holds which offsets were taken and which of them are finished. Every message below `committable` is finished. It does
not commit: the consumer does. Any thread may acknowledge; a single task or thread takes messages.
"""

import asyncio
import math
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future
from operator import itemgetter
from threading import Lock
from typing import NamedTuple

from adapter.errors import PermanentError
from adapter.model.records import U64_MAX

DEFAULT_MAX_SPAN = 2_000  # RocketMQ's consumeConcurrentlyMaxSpan
AGE_STEP_S = 0.1  # resolution of ages: messages taken within one step share a time

_ABSENT, _TAKEN, _FINISHED = 0, 1, 2
_FINISH = bytes.maketrans(bytes([_TAKEN]), bytes([_FINISHED]))


class WindowClosedError(PermanentError):
    """The window was closed, or replaced by `reset`. It takes no more messages."""


class WindowStatus(NamedTuple):
    """A snapshot of a window, for metrics and alerts. A message that never finishes shows as a growing `oldest_age_s`."""

    committable: int  # the next offset to read; every message below it is finished
    next_offset: int  # one above the newest taken message
    unfinished: int
    ahead: int  # finished above `committable`; delivered again after a crash
    oldest: int | None  # the lowest unfinished offset, at which `committable` stays; None if all are finished
    oldest_age_s: float  # seconds since `oldest` was taken, up to AGE_STEP_S too many; 0 if there is none
    late: int  # acknowledgements after the window was closed, which had no effect


class AckWindow:
    """The messages of one shard that were taken and are not yet below the committable offset.

    Offsets are taken in ascending order, with gaps where the log has them (compaction, transaction markers, filters), and
    acknowledged in any order. The newest taken offset is at most `max_span` above the lowest unfinished one. RocketMQ limits only
    the span of unfinished offsets, so a single stuck message limits nothing (apache/rocketmq#1404). Here finished offsets count
    too, because they are delivered again after a crash. Pulsar (individualDeletedMessages) and Confluent's parallel-consumer
    store the acknowledgements above the committable offset; this window does not, so up to `max_span` messages are delivered
    twice.

    A window belongs to one pass over the shard, like RocketMQ's ProcessQueue. After a seek, a rewind or a reset, `reset` returns
    the next window. Acknowledge on the window that took the message: a late acknowledgement then has no effect on the next one.
    `epoch` is the epoch that was read with the start offset (0: unknown); commit `committable` with it.

    Memory: one byte for each offset of the span. `ack` takes amortized O(1) time.
    """

    def __init__(
        self, start: int, max_span: int = DEFAULT_MAX_SPAN, *, epoch: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin at `start`, the next offset to read. Raises ValueError if `start` or `max_span` is out of range."""
        if not 0 <= start <= U64_MAX:
            raise ValueError(f"start {start} is not an offset: 0 to {U64_MAX}")
        if max_span < 1:
            raise ValueError(f"max_span is {max_span}; at least 1 is needed")
        self.epoch = epoch
        self._start = start
        self._max_span = max_span
        self._clock = clock
        self._committable = start
        self._next = start
        # The state of each offset from `_committable` on. Empty, or the first one is unfinished.
        self._states = bytearray()
        self._times: list[tuple[int, float]] = [(start, -math.inf)]  # (offset, when it and the following ones were taken)
        self._waiting: list[Future[None]] = []
        self._closed = False
        self._late = 0
        self._lock = Lock()
        # Bound once: `with self._lock` costs 80 ns more in each call (measured with CPython 3.11).
        self._acquire, self._release = self._lock.acquire, self._lock.release

    @property
    def committable(self) -> int:
        """The offset to commit, that is, the next one to read: every message below it is finished.

        `start` at first; never decreases.
        """
        return self._committable

    def try_take(self, offset: int) -> bool:
        """Take a message. Returns False, without effect, if it is more than `max_span` above the lowest unfinished one.

        Raises ValueError for an offset that is not above all taken ones, and WindowClosedError.
        """
        self._acquire()
        try:
            if offset < self._next or self._closed:
                raise self._not_taken(offset)
            states = self._states
            ahead = offset - self._committable
            if not states:
                self._committable = offset  # a gap before it, however wide, takes no memory
            elif ahead > self._max_span:
                return False
            elif ahead > len(states):
                states.extend(bytes(ahead - len(states)))
            states.append(_TAKEN)
            self._next = offset + 1
            now = self._clock()
            if now - self._times[-1][1] >= AGE_STEP_S:
                self._note(offset, now)
            return True
        finally:
            self._release()

    async def take(self, offset: int) -> None:
        """Take a message, waiting until it fits. Raises as `try_take` does, also if the window is closed meanwhile."""
        while not self.try_take(offset):
            await asyncio.wrap_future(self._room(offset))

    def take_blocking(self, offset: int, timeout_s: float | None = None) -> bool:
        """`take` for consumers without an event loop. Returns False if it did not fit within `timeout_s`; None waits forever."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self.try_take(offset):
            room = self._room(offset)
            try:
                room.result(None if timeout_s is None else max(deadline - time.monotonic(), 0))
            except TimeoutError:
                room.cancel()
                return False
        return True

    def ack(self, offset: int) -> bool:
        """Mark a message as finished. Returns False, without effect, if it already was, or if the window is closed.

        Raises ValueError for an offset that was never taken.
        """
        self._acquire()
        try:
            at = offset - self._committable
            states = self._states
            if 0 <= at < len(states) and states[at] == _TAKEN:
                states[at] = _FINISHED
                if at == 0:
                    self._advance()
                return True
            return self._ack_again(offset, at)
        finally:
            self._release()

    def ack_range(self, first: int, end: int) -> int:
        """Mark every taken message from `first` up to, but without, `end` as finished; returns how many were unfinished.

        `ack_range(window.committable, offset + 1)` is a cumulative acknowledgement. Gaps in the range are ignored. Raises
        ValueError for a range that reaches beyond the taken messages.
        """
        with self._lock:
            if self._closed:
                self._late += max(end - first, 0)
                return 0
            if not self._start <= first <= end <= self._next:
                raise ValueError(f"offsets {first} to {end - 1} were not all taken; {self._taken()}")
            low, high = (max(offset - self._committable, 0) for offset in (first, end))
            chosen = self._states[low:high]
            self._states[low:high] = chosen.translate(_FINISH)
            if chosen and low == 0:
                self._advance()
            return chosen.count(_TAKEN)

    def skip_to(self, offset: int) -> None:
        """Note that the log has no message between the newest taken one and `offset`, the consumer's position.

        With it, the lag can reach 0 when transaction markers end a log (KAFKA-10683). Raises as `try_take` does.
        """
        with self._lock:
            if offset < self._next or self._closed:
                raise self._not_taken(offset)
            self._next = offset
            if not self._states:
                self._committable = offset

    def status(self) -> WindowStatus:
        """A consistent snapshot. Its time is proportional to the span: some microseconds."""
        with self._lock:
            oldest = self._committable if self._states else None
            age = 0.0 if oldest is None else self._clock() - self._times[self._time_of(oldest)][1]
            unfinished, ahead = self._states.count(_TAKEN), self._states.count(_FINISHED)
            return WindowStatus(self._committable, self._next, unfinished, ahead, oldest, age, self._late)

    def close(self) -> None:
        """Close the window. `committable` stays as it is; later acknowledgements are counted, but have no effect.

        A waiting `take` raises WindowClosedError.
        """
        with self._lock:
            self._closed = True
            self._states.clear()
            self._wake()

    def reset(self, start: int, *, epoch: int = 0) -> "AckWindow":
        """Close this window and return the next one, which begins at `start`.

        Raises ValueError for an epoch below this window's: the offset was read before the reset.
        """
        if 0 < epoch < self.epoch:
            raise ValueError(f"offset {start} was read at epoch {epoch}; this window is of epoch {self.epoch} already")
        successor = AckWindow(start, self._max_span, epoch=epoch, clock=self._clock)
        self.close()
        return successor

    def _advance(self) -> None:
        """Advance `committable` beyond the finished messages at the start of the window."""
        passed = self._states.find(_TAKEN)
        if passed < 0:
            self._states.clear()
            self._committable = self._next
        else:
            # Deleting the front of a bytearray does not move the rest.
            del self._states[:passed]
            self._committable += passed
        if self._waiting:
            self._wake()

    def _ack_again(self, offset: int, at: int) -> bool:
        if self._closed:
            self._late += 1
            return False
        # Below `committable`, gaps and finished messages can no longer be told apart.
        if offset < self._start or at >= len(self._states) or (at >= 0 and self._states[at] == _ABSENT):
            raise ValueError(f"offset {offset} was never taken; {self._taken()}")
        return False

    def _not_taken(self, offset: int) -> Exception:
        if self._closed:
            return WindowClosedError(
                f"offset {offset} was not taken: the window is closed; go on with the one that `reset` returned"
            )
        return ValueError(f"offset {offset} is not above those before it; {self._taken()}. To read again, `reset` the window")

    def _taken(self) -> str:
        return f"the window began at {self._start}, and the next offset is {self._next}"

    def _note(self, offset: int, now: float) -> None:
        del self._times[: self._time_of(self._committable)]
        self._times.append((offset, now))

    def _time_of(self, offset: int) -> int:
        """The index in `_times` of the entry that covers an offset."""
        return max(bisect_right(self._times, offset, key=itemgetter(0)) - 1, 0)

    def _room(self, offset: int) -> Future[None]:
        """A future that is done when `try_take(offset)` may succeed, or will raise."""
        room: Future[None] = Future()
        with self._lock:
            if self._closed or not self._states or offset - self._committable <= self._max_span:
                room.set_result(None)
            else:
                # Drop cancelled waiters here: nothing else does as long as a message is stuck.
                self._waiting = [other for other in self._waiting if not other.cancelled()] + [room]
        return room

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for room in waiting:
            if room.set_running_or_notify_cancel():
                room.set_result(None)
