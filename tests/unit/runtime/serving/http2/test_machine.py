"""An honest client of h2, which raises at every broken rule, does at random what clients do; a servicer answers at random.

Each call ends once, each message arrives whole and in order, both ways; windows hold; at the end nothing is kept.
"""

import os
from random import Random

import pytest
from h2.exceptions import StreamClosedError
from h2.settings import SettingCodes
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from adapter.runtime.serving.http2.connection import Connection
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.receiving import EXTRA_CREDIT_MAX
from adapter.runtime.serving.http2.streams import CALL, ENDED, MESSAGE, RESET, Stream
from tests.http2_client import Client, message

EXAMPLES = int(os.environ.get("HTTP2_EXAMPLES", "10"))
SIZES = (0, 0, 1, 5, 100, 1_000, 16_379, 16_380, 60_000, 65_530, 65_536, 200_000)
LARGE = 1_500_000
CALLS_MAX = 40


class Request:
    """One call as the client sees it: what it has sent and will send."""

    def __init__(self, random: Random, number: int, *, large: bool) -> None:
        sizes = [LARGE] if large else random.choices(SIZES, k=random.randint(0, 4))
        self.messages = [bytes([number & 255]) * size for size in sizes]
        self.left = b"".join(map(message, self.messages))
        self.ends_by = random.choice(("data", "last", "trailers"))
        self.ended = False
        self.cancelled = False


class Served:
    """The same call as the servicer sees it."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.taken: list[bytes] = []  # all of them
        self.waiting: list[bytes] = []  # not consumed
        self.replies: list[bytes] = []
        self.ended = False
        self.over = False  # by this side, or because RESET said so
        self.status: int | None = None


class Play:
    """One run. All random choices come from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.connection = Connection(0.0)
        first = self.random.choice([None, {}, {4: 0}, {4: 100}, {4: 1_000_000}, {1: 0}])
        self.client = Client(first)
        self.requests: dict[int, Request] = {}
        self.served: dict[int, Served] = {}
        self.wire = bytearray()  # to the server, not yet there
        self.now = 0.0

    def run(self, steps: int) -> None:
        """Do this many random steps, then bring everything to its end."""
        doings = [self.begin] * 2 + [self.send] * 8 + [self.cancel, self.resize, self.read_or_not, self.ping]
        doings += [self.serve] * 6 + [self.deliver] * 6 + [self.answer] * 4
        for _ in range(steps):
            self.random.choice(doings)()
            self.now += 0.01
        self.settle()
        self.check()

    def begin(self) -> None:
        """The client begins a call."""
        if len(self.requests) < CALLS_MAX:
            number = self.client.begin("/s/m", ("x-seed", str(self.random.randint(0, 3))))
            self.requests[number] = Request(self.random, number, large=self.random.random() < 0.1)

    def send(self, most: int | None = None) -> None:
        """The client sends a piece of one of its calls, as far as the windows allow."""
        for number in self._open_requests():
            request = self.requests[number]
            size = most or self.random.choice((1, 4, 6, 100, 5_000, 16_384))
            pad = self.random.choice((None, None, None, 0, 1, 50, 255))
            cost = 0 if pad is None else pad + 1
            size = min(size, self.client.room(number) - cost, len(request.left))
            if request.left and size <= 0:
                continue
            piece, request.left = request.left[:size], request.left[size:]
            last = not request.left
            if last and request.ends_by == "trailers":
                if piece:
                    self.client.send(number, piece, pad=pad)
                self.client.h2.send_headers(number, [("x-trailer", "1")], end_stream=True)
            elif last and request.ends_by == "data" and piece:
                self.client.send(number, piece, pad=pad)
                self.client.send(number, b"", end=True)
            elif self.client.room(number) >= len(piece) + cost:
                self.client.send(number, piece, end=last, pad=pad)
            else:
                self.client.send(number, piece, end=last)
            request.ended = last
            return

    def cancel(self) -> None:
        """The client gives up a call."""
        for number in self._unanswered() if self.random.random() < 0.3 else ():
            self.client.h2.reset_stream(number, 8)
            self.requests[number].cancelled = True
            return

    def resize(self) -> None:
        """The client changes INITIAL_WINDOW_SIZE."""
        if self.client.greeted:
            size = self.random.choice((0, 1, 100, 65_535, 500_000))
            self.client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: size})

    def read_or_not(self) -> None:
        """The client stops updating windows, or sends all updates that it owes."""
        self.client.reads = not self.client.reads
        if self.client.reads:
            self.widen()

    def widen(self) -> None:
        """The client sends window updates that it held back."""
        owed = 65_535 - self.client.h2.inbound_flow_control_window
        if owed > 0:
            self.client.h2.increment_flow_control_window(owed)
        for number in self._unanswered():
            for_stream = 300_000 - self.client.h2.remote_flow_control_window(number)
            if for_stream > 0:
                self.client.h2.increment_flow_control_window(for_stream, number)

    def ping(self) -> None:
        """The client sends a PING."""
        self.client.h2.ping(bytes(8))

    def serve(self) -> None:
        """The servicer takes the messages that have arrived."""
        for served in self.served.values():
            if served.waiting:
                self.connection.consumed(served.stream, served.waiting.pop(0))
                return

    def answer(self) -> None:
        """The servicer sends all or part of a reply."""
        calls = [served for served in self.served.values() if not served.over]
        if not calls:
            return
        served = self.random.choice(calls)
        reply = bytes([served.stream.id & 255]) * self.random.choice(SIZES)
        kind = self.random.random()
        if kind < 0.5:
            served.replies.append(reply)
            self.connection.send_message(served.stream, reply)
        elif served.ended and kind < 0.8 and not served.replies:
            served.replies.append(reply)
            self._over(served, 0)
            self.connection.answer(served.stream, reply)
        elif served.ended or kind > 0.95:
            status = self.random.choice((0, 5, 13))
            self._over(served, status)
            self.connection.finish(served.stream, status, "t\u00e9xt" * self.random.choice((0, 1, 500)))
        elif kind > 0.93:
            self._over(served, None)
            self.connection.cut_off(served.stream, Code.CANCEL)

    def deliver(self) -> None:
        """Some of the bytes in flight arrive, in both directions."""
        self.wire += self.client.take_output()
        size = self.random.choice((1, 9, 100, 5_000, 70_000, 10**7))
        piece = bytes(self.wire[:size])
        del self.wire[:size]
        for event in self.connection.receive(piece, self.now):
            self._take(event[0], event[1], event[2] if len(event) == 3 else b"")
        output = self.connection.take_output()
        while output:
            size = self.random.choice((1, 9, 5_000, 10**7))
            self.client.receive(output[:size])
            output = output[size:]

    def settle(self) -> None:
        """Bring every call to its end."""
        self.client.reads = True
        for _ in range(3_000):
            self.widen()
            self.send(16_384)
            self.deliver()
            for served in self.served.values():
                while served.waiting:
                    self.connection.consumed(served.stream, served.waiting.pop())
                if served.ended and not served.over:
                    self._over(served, 0)
                    self.connection.finish(served.stream, 0)
            if not (self.wire or self.connection.streams or list(self._open_requests())):
                break
        self.deliver()

    def check(self) -> None:
        """No call was cut off, nothing is lost, and nothing is left in memory."""
        assert not self.connection.closed
        assert self.client.error is None
        assert not self.connection.streams
        assert not self.connection._sender._blocked
        assert not self.connection._sender.left.keys() - self.requests.keys()
        assert (self.connection._receiver.granted, self.connection._receiver.held, self.connection.held_back) == (0, 0, 0)
        assert not self.connection._receiver._waiting
        for number, served in self.served.items():
            request, answer = self.requests[number], self.client.answers[number]
            assert request.messages[: len(served.taken)] == served.taken
            assert len(served.taken) == len(request.messages) or served.over
            if not request.cancelled and served.status is not None:
                assert (answer.status, answer.ended, answer.messages) == (served.status, True, served.replies)
            elif not request.cancelled:
                assert answer.reset == Code.CANCEL
        assert all(number in self.served or request.cancelled for number, request in self.requests.items())

    def _take(self, kind: int, stream: Stream, payload: bytes) -> None:
        if kind == CALL:
            assert stream.id not in self.served
            self.served[stream.id] = Served(stream)
            return
        served = self.served[stream.id]
        if kind == MESSAGE:
            assert not served.ended
            served.taken.append(payload)
            served.waiting.append(payload)
        elif kind == ENDED:
            assert not served.ended
            served.ended = True
        elif kind == RESET:
            assert self.requests[stream.id].cancelled
            served.over = True
        assert 0 <= self.connection._receiver.granted <= EXTRA_CREDIT_MAX

    def _over(self, served: Served, status: int | None) -> None:
        served.over = True
        served.status = status

    def _unanswered(self) -> list[int]:
        """Calls whose reply is not complete, in random order."""
        found = [
            number
            for number, request in self.requests.items()
            if not request.cancelled and not self.client.answers[number].ended and self.client.answers[number].reset is None
        ]
        self.random.shuffle(found)
        return found

    def _open_requests(self) -> list[int]:
        """Calls in which the client may still send."""
        return [number for number in self._unanswered() if not self.requests[number].ended and self._is_open(number)]

    def _is_open(self, number: int) -> bool:
        try:
            return self.client.room(number) >= 0
        except StreamClosedError:
            return False


@pytest.mark.no_cover
@given(seed=st.integers(0, 2**32), steps=st.sampled_from((20, 100, 400)))
@settings(max_examples=EXAMPLES, phases=(Phase.reuse, Phase.generate))  # a smaller seed is no simpler run
def test_whatever_an_honest_client_does_each_call_gets_what_is_its(seed: int, steps: int) -> None:
    """Set HTTP2_EXAMPLES=1000 for more examples."""
    Play(seed).run(steps)
