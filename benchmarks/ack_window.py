"""The speed of AckWindow compared to other data structures: `python -m benchmarks.ack_window`. In memory, no server.

Rates are messages per second of this process's CPU time, the best of several alternating rounds: wall clock time would depend on
other processes. All structures use the same lock, unless the name says otherwise.
"""

import heapq
import random
import sys
import threading
import time
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

from rich.console import Console
from rich.progress import Progress

from adapter.client.ack_window import DEFAULT_MAX_SPAN, AckWindow
from benchmarks import machine
from benchmarks.report import Bar, Cell, Result, Table, show
from benchmarks.scale import Scale, chosen

MAX_SPANS = (DEFAULT_MAX_SPAN, 65_535)  # RocketMQ's default and its maximum
WORKERS = 8
RANGE = 100
ORDERS = ("in order", "shuffled", "in order, read", "shuffled, read")  # read: ask for `committable` after each
BAR_US = 1.0  # 1,000,000 acknowledgements a second


class Window(Protocol):
    """The interface of the measured structures."""

    @property
    def committable(self) -> int:
        """The next offset to read."""
        ...

    def try_take(self, offset: int) -> object:
        """Note a taken message."""
        ...

    def ack(self, offset: int) -> object:
        """Note a finished message."""
        ...


class SortedWindow:
    """A sorted list of the unfinished offsets, as RocketMQ's TreeMap."""

    def __init__(self, start: int, max_span: int) -> None:
        self._next, self._max_span = start, max_span
        self._unfinished: list[int] = []
        self._lock = Lock()

    @property
    def committable(self) -> int:
        """The first of them."""
        with self._lock:
            return self._unfinished[0] if self._unfinished else self._next

    def try_take(self, offset: int) -> bool:
        """Insert the offset into the sorted list."""
        with self._lock:
            if self._unfinished and offset - self._unfinished[0] > self._max_span:
                return False
            insort(self._unfinished, offset)
            self._next = offset + 1
            return True

    def ack(self, offset: int) -> bool:
        """Find the offset in the sorted list and delete it."""
        with self._lock:
            at = bisect_left(self._unfinished, offset)
            if at == len(self._unfinished) or self._unfinished[at] != offset:
                return False
            del self._unfinished[at]
            return True


class HeapWindow:
    """A heap of taken offsets and a set of finished ones. A finished offset is removed when it reaches the top of the heap."""

    def __init__(self, start: int, max_span: int) -> None:
        self._next, self._max_span = start, max_span
        self._taken: list[int] = []
        self._finished: set[int] = set()
        self._lock = Lock()

    @property
    def committable(self) -> int:
        """The top that is not finished."""
        with self._lock:
            return self._lowest()

    def try_take(self, offset: int) -> bool:
        """Push the offset onto the heap."""
        with self._lock:
            if offset - self._lowest() > self._max_span:
                return False
            heapq.heappush(self._taken, offset)
            self._next = offset + 1
            return True

    def ack(self, offset: int) -> bool:
        """Add the offset to the finished ones."""
        with self._lock:
            if offset in self._finished:
                return False
            self._finished.add(offset)
            return True

    def _lowest(self) -> int:
        while self._taken and self._taken[0] in self._finished:
            self._finished.discard(heapq.heappop(self._taken))
        return self._taken[0] if self._taken else self._next


class OrderedWindow:
    """An OrderedDict of unfinished offsets with their times. Taken in order, so the first is the lowest."""

    def __init__(self, start: int, max_span: int) -> None:
        self._next, self._max_span = start, max_span
        self._unfinished: OrderedDict[int, float] = OrderedDict()
        self._lock = Lock()

    @property
    def committable(self) -> int:
        """The first of them."""
        with self._lock:
            return next(iter(self._unfinished), self._next)

    def try_take(self, offset: int) -> bool:
        """Append the offset with its time."""
        with self._lock:
            if offset - next(iter(self._unfinished), self._next) > self._max_span:
                return False
            self._unfinished[offset] = time.monotonic()
            self._next = offset + 1
            return True

    def ack(self, offset: int) -> bool:
        """Delete the offset, if it is there."""
        with self._lock:
            return self._unfinished.pop(offset, None) is not None


class UnlockedWindow(AckWindow):
    """AckWindow without its lock, to show the cost of thread safety."""

    def try_take(self, offset: int) -> bool:
        """The same as in AckWindow, without the lock."""
        if offset < self._next or self._closed:
            raise self._not_taken(offset)
        states = self._states
        ahead = offset - self._committable
        if not states:
            self._committable = offset
        elif ahead > self._max_span:
            return False
        elif ahead > len(states):
            states.extend(bytes(ahead - len(states)))
        states.append(1)
        self._next = offset + 1
        now = self._clock()
        if now - self._times[-1][1] >= 0.1:
            self._note(offset, now)
        return True

    def ack(self, offset: int) -> bool:
        """The same as in AckWindow, without the lock."""
        at = offset - self._committable
        states = self._states
        if 0 <= at < len(states) and states[at] == 1:
            states[at] = 2
            if at == 0:
                self._advance()
            return True
        return self._ack_again(offset, at)


WAYS: dict[str, Callable[[int, int], Window]] = {
    "AckWindow": AckWindow,
    "the same without its lock": UnlockedWindow,
    "OrderedDict": OrderedWindow,
    "heap and set": HeapWindow,
    "sorted list": SortedWindow,
}


class Rates:
    """Messages per CPU second of the best round."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}

    def note(self, name: str, messages: int, seconds: float) -> None:
        """Note the duration of a round."""
        self.best[name] = max(self.best.get(name, 0.0), messages / seconds)


def whole_span(window: Window, rates: Rates, offsets: Sequence[int], order: Sequence[int], *, read: bool, name: str) -> None:
    """Take as many as fit, then acknowledge them in some order; `read`: ask for the committable offset after each."""
    started = time.process_time()
    for offset in offsets:
        window.try_take(offset)
    taken = time.process_time()
    if read:
        for offset in order:
            window.ack(offset)
            _ = window.committable
    else:
        for offset in order:
            window.ack(offset)
    # Also asked once without `read`, because some structures postpone their work until then.
    assert window.committable == offsets[-1] + 1
    finished = time.process_time()
    rates.note("take", len(offsets), taken - started)
    rates.note(name, len(offsets), finished - taken)


def one_way(make: Callable[[int, int], Window], max_span: int, messages: int, rates: Rates) -> None:
    """One round with full windows: in order and shuffled, each without and with a read after every acknowledgement."""
    shuffle = random.Random(1).shuffle
    for name in ORDERS:
        shuffled, read = name.startswith("shuffled"), name.endswith("read")
        window = make(0, max_span)
        fitting = max_span + 1
        for first in range(0, max(messages // fitting, 1) * fitting, fitting):
            offsets = list(range(first, first + fitting))
            order = offsets.copy()
            if shuffled:
                shuffle(order)
            whole_span(window, rates, offsets, order, read=read, name=name)


def ranges(messages: int, rates: Rates) -> None:
    """Acknowledge ranges, as a batch listener does."""
    window = AckWindow(0, messages)
    for offset in range(messages):
        window.try_take(offset)
    firsts = list(range(0, messages, RANGE))
    random.Random(1).shuffle(firsts)
    started = time.process_time()
    for first in firsts:
        window.ack_range(first, first + RANGE)
    rates.note(f"ranges of {RANGE}", messages, time.process_time() - started)
    assert window.committable == messages


def threads(messages: int, rates: Rates) -> None:
    """Eight threads acknowledge their own messages, contending for the window's lock and the interpreter's."""
    window = AckWindow(0, messages)
    for offset in range(messages):
        window.try_take(offset)
    started = time.process_time()
    workers = [threading.Thread(target=_acknowledge, args=(window, range(at, messages, WORKERS))) for at in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rates.note(f"{WORKERS} threads", messages, time.process_time() - started)
    assert window.committable == messages


def _acknowledge(window: AckWindow, offsets: Sequence[int]) -> None:
    for offset in offsets:
        window.ack(offset)


def measure(rounds: int, messages: int) -> Result:
    """Run all rounds, with `messages` in each part of a round."""
    result = Result("ack_window", "the acknowledgement window")
    ours: dict[str, float] = {}
    for max_span in MAX_SPANS:
        found = {name: Rates() for name in WAYS}
        for _ in range(rounds):
            for name, make in WAYS.items():
                one_way(make, max_span, messages, found[name])
        columns = list(found["AckWindow"].best)
        rows: list[list[Cell]] = [[name, *(rates.best[column] for column in columns)] for name, rates in found.items()]
        result.tables.append(Table(f"messages/s of CPU time, max_span {max_span:,}", ["kept as", *columns], rows))
        ours |= {f"{column}, max_span {max_span:,}": rate for column, rate in found["AckWindow"].best.items() if column != "take"}
    extra = Rates()
    for _ in range(rounds):
        ranges(messages // RANGE * RANGE, extra)
        threads(messages, extra)
    result.tables.append(Table("AckWindow: messages/s of CPU time", ["acknowledged by", "rate"], list(extra.best.items())))
    ours[f"{WORKERS} threads"] = extra.best[f"{WORKERS} threads"]
    result.bars = [Bar(f"CPU microseconds per acknowledgement, {name}", 1e6 / rate, BAR_US) for name, rate in ours.items()]
    result.notes.append(f"best of {rounds} rounds; durability: none, the window is in memory and what it says is then committed")
    return result


async def run(scale: Scale, _directory: Path, _progress: Progress) -> Result:
    """Run the benchmark."""
    return measure(1, 4_000) if scale.short else measure(5, 200_000)


def main() -> None:
    """Run the benchmark and print its result."""
    console = Console(width=None if sys.stdout.isatty() else 130)
    facts = machine.facts()
    console.print(", ".join(f"{name}: {value}" for name, value in facts.items()), style="dim", highlight=False, soft_wrap=True)
    show(console, measure(1, 4_000) if chosen().short else measure(5, 200_000))


if __name__ == "__main__":
    main()
