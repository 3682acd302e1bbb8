"""Which offset a consumer may commit while its messages finish out of order: one window for each shard that it reads.

Owns what was taken and what of it is finished; promises that everything below `committable` is finished. Never commits: the
consumer does that. Any thread may acknowledge; one task or thread takes.
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
AGE_STEP_S = 0.1  # takes within one step share its time: ages need no more, and the window keeps few times

_ABSENT, _TAKEN, _FINISHED = 0, 1, 2
_FINISH = bytes.maketrans(bytes([_TAKEN]), bytes([_FINISHED]))


class WindowClosedError(PermanentError):
    """The shard was given up, or its window replaced by `reset`: this one takes no more messages."""


class WindowStatus(NamedTuple):
    """A window at one moment, for metrics and alerts. A message that never finishes shows as an `oldest_age_s` that grows."""

    committable: int  # the next offset to read, below which everything is finished
    next_offset: int  # after the newest taken message
    unfinished: int
    ahead: int  # finished above `committable`: delivered again after a crash. Pulsar's acknowledgement holes lie among them
    oldest: int | None  # the lowest unfinished offset: what holds `committable` back; None when everything is finished
    oldest_age_s: float  # since it was taken, at most AGE_STEP_S too much; 0 when there is none
    late: int  # acknowledgements that came after the window was closed, and changed nothing


class AckWindow:
    """The messages of one shard that were taken and are not yet below the committable offset.

    Offsets are taken in ascending order, with gaps where the log has them (compaction, transaction markers, filters), and
    acknowledged in any order. The newest taken offset is at most `max_span` above the lowest unfinished one. RocketMQ compares
    only unfinished offsets, so that a single stuck message limits nothing (apache/rocketmq#1404); here finished ones count too,
    since they are what is delivered again after a crash. Not stored: Pulsar (individualDeletedMessages) and Confluent's
    parallel-consumer save what finished ahead, here it comes twice, and never more of it than the span.

    A window belongs to one reading of the shard, as RocketMQ's ProcessQueue does. After a seek, a rewind or a reset `reset` gives
    the next one: acknowledge on the window that took the message, and a late acknowledgement cannot finish its successor's.
    `epoch` is the one that came with the offset when it was read (0: unknown); commit `committable` with it.

    Kept as one byte for each offset of the span. Acknowledging is O(1), amortized.
    """

    def __init__(
        self, start: int, max_span: int = DEFAULT_MAX_SPAN, *, epoch: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin at `start`, the next offset to read. Raises ValueError for numbers that cannot be."""
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
        # What became of the offsets from `_committable` on. Empty, or begins with the lowest unfinished one.
        self._states = bytearray()
        self._times: list[tuple[int, float]] = [(start, -math.inf)]  # (offset, when it and those after it were taken)
        self._waiting: list[Future[None]] = []
        self._closed = False
        self._late = 0
        self._lock = Lock()
        # Not `with`: it looks both ends of the lock up anew each time, 80 ns of every call in CPython 3.11 (measured).
        self._acquire, self._release = self._lock.acquire, self._lock.release

    @property
    def committable(self) -> int:
        """The next offset to read: every message below it is finished. Never goes back; `start` at first."""
        return self._committable

    def try_take(self, offset: int) -> bool:
        """Take a message, unless it lies too far above the lowest unfinished one: then False, and nothing happened.

        Raises ValueError for an offset that is not above all that were taken, and WindowClosedError.
        """
        self._acquire()
        try:
            if offset < self._next or self._closed:
                raise self._not_taken(offset)
            states = self._states
            ahead = offset - self._committable
            if not states:
                self._committable = offset  # nothing is between: however wide a gap is, it takes no room
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
        """Take a message, as soon as there is room. Raises what `try_take` does, also when the window closes meanwhile."""
        while not self.try_take(offset):
            await asyncio.wrap_future(self._room(offset))

    def take_blocking(self, offset: int, timeout_s: float | None = None) -> bool:
        """`take` for consumers without an event loop. False when there was no room in time; None waits without an end."""
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
        """A message is finished. False when it was before, or when the window is closed: nothing happened.

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
        """Every taken message from `first` up to, without, `end` is finished; returns how many were not before.

        `ack_range(window.committable, offset + 1)` is a cumulative acknowledgement. Raises ValueError for a range that reaches
        beyond what was taken; gaps within it are none of its business.
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
        """The log has no message between the newest taken one and `offset`, the consumer's position.

        Lets the lag become 0 behind the transaction markers that end a log (KAFKA-10683). Raises as `try_take` does.
        """
        with self._lock:
            if offset < self._next or self._closed:
                raise self._not_taken(offset)
            self._next = offset
            if not self._states:
                self._committable = offset

    def status(self) -> WindowStatus:
        """All of it at one moment. Takes time with the span: some microseconds."""
        with self._lock:
            oldest = self._committable if self._states else None
            age = 0.0 if oldest is None else self._clock() - self._times[self._time_of(oldest)][1]
            unfinished, ahead = self._states.count(_TAKEN), self._states.count(_FINISHED)
            return WindowStatus(self._committable, self._next, unfinished, ahead, oldest, age, self._late)

    def close(self) -> None:
        """Give the shard up. What is unfinished stays so: `committable` is final, and acknowledgements are only counted.

        A `take` that waits gets WindowClosedError.
        """
        with self._lock:
            self._closed = True
            self._states.clear()
            self._wake()

    def reset(self, start: int, *, epoch: int = 0) -> "AckWindow":
        """Close this window and return the next, for reading on from `start`.

        Raises ValueError for an epoch below this one's: the offset comes from a read before the reset.
        """
        if 0 < epoch < self.epoch:
            raise ValueError(f"offset {start} was read at epoch {epoch}; this window is of epoch {self.epoch} already")
        successor = AckWindow(start, self._max_span, epoch=epoch, clock=self._clock)
        self.close()
        return successor

    def _advance(self) -> None:
        """The lowest unfinished message has finished: pass it, and what had finished before it."""
        passed = self._states.find(_TAKEN)
        if passed < 0:
            self._states.clear()
            self._committable = self._next
        else:
            # A bytearray gives its front up without moving the rest.
            del self._states[:passed]
            self._committable += passed
        if self._waiting:
            self._wake()

    def _ack_again(self, offset: int, at: int) -> bool:
        if self._closed:
            self._late += 1
            return False
        # Below `committable` a gap is no longer known from a finished message.
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
        """Where in `_times` an offset's time is."""
        return max(bisect_right(self._times, offset, key=itemgetter(0)) - 1, 0)

    def _room(self, offset: int) -> Future[None]:
        """Done when it is worth to try again."""
        room: Future[None] = Future()
        with self._lock:
            if self._closed or not self._states or offset - self._committable <= self._max_span:
                room.set_result(None)
            else:
                # Those that gave up (a cancelled task, a timeout) would stay for as long as a message is stuck.
                self._waiting = [other for other in self._waiting if not other.cancelled()] + [room]
        return room

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for room in waiting:
            if room.set_running_or_notify_cancel():
                room.set_result(None)
