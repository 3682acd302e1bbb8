"""Incoming messages: complete, no faster than they are taken, with extra credit for those larger than a window."""

from collections.abc import Iterable
from random import Random

import pytest
from hyperframe.frame import HeadersFrame, RstStreamFrame, WindowUpdateFrame

from adapter.runtime.serving.http2.connection import MESSAGE_MAX
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.receiving import EXTRA_CREDIT_MAX
from tests.unit.runtime.serving.http2.connections import Server, Told, data, message

WINDOW = 65_535
MIB = 2**20


def window(number: int, size: int) -> bytes:
    """The client's WINDOW_UPDATE of this many bytes."""
    return WindowUpdateFrame(number, window_increment=size).serialize()


class Sender:
    """A client that sends messages as far as the windows allow, in frames of at most 16 KiB."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.rooms = {0: WINDOW + sum(getattr(frame, "window_increment", 0) for frame in server.greeting)}
        self.left: dict[int, bytes] = {}
        self.told: Told = []

    def send(self, number: int, most: int = 16_384, *, pad: int | None = None) -> int:
        """Send one frame, if there is room; returns how much of the stream's data was sent."""
        self.look()
        cost = 0 if pad is None else pad + 1
        size = min(most, len(self.left[number]), self.rooms[0] - cost, self.rooms.setdefault(number, WINDOW) - cost)
        if size <= 0:
            return 0
        piece, self.left[number] = self.left[number][:size], self.left[number][size:]
        self.rooms[0] -= size + cost
        self.rooms[number] -= size + cost
        self.told += self.server.feed(data(number, piece, pad=pad))
        return size

    def send_all(self, numbers: Iterable[int], pad: int | None = None) -> None:
        """Send as much as the windows allow."""
        going = list(numbers)
        while sum(self.send(number, 16_384 - 256, pad=pad) for number in going):
            pass

    def look(self) -> None:
        """Read the server's WINDOW_UPDATE frames."""
        for number, more in self.server.windows.items():
            assert more > 0
            self.rooms[number] = self.rooms.get(number, WINDOW) + more


@pytest.fixture
def server() -> Server:
    """A connection that is open."""
    return Server()


def test_a_message_arrives_whole_wherever_it_is_cut(server: Server) -> None:
    """The cut may be within its prefix of five bytes."""
    number = 1
    for at in range(len(message(b"hello"))):
        server.call(number)
        sent = message(b"hello")
        told = server.feed(data(number, sent[:at])) + server.feed(data(number, sent[at:], end=True))
        assert told == [("message", number, b"hello"), ("ended", number)]
        number += 2


def test_a_frame_may_hold_many_messages_and_parts_of_others(server: Server) -> None:
    """They arrive in order, empty ones included."""
    server.call()
    sent = message(b"a") + message(b"") + message(b"bc") + message(b"def")
    told = server.feed(data(1, sent[:-2])) + server.feed(data(1, sent[-2:] + message(b"")))
    assert [each[2] for each in told if len(each) == 3] == [b"a", b"", b"bc", b"def", b""]


def test_trailers_end_a_request(server: Server) -> None:
    """As a DATA frame with END_STREAM does."""
    server.call()
    trailers = HeadersFrame(1, b"\x10\x01x\x011", flags=["END_HEADERS", "END_STREAM"]).serialize()
    assert server.feed(data(1, message(b"x")) + trailers) == [("message", 1, b"x"), ("ended", 1)]


@pytest.mark.parametrize(
    ("more", "sent", "status"),
    [
        ([("grpc-encoding", "gzip")], message(b"x", compressed=1), 12),
        ([], message(b"x", compressed=1), 13),
        ([("grpc-encoding", "identity")], message(b"x", compressed=1), 13),
        ([("grpc-encoding", "gzip")], message(b"x", compressed=2), 13),
        ([], b"\0" + (MESSAGE_MAX + 1).to_bytes(4, "big"), 8),
        ([], b"\0\xff\xff\xff\xff", 8),
    ],
    ids=["compressed", "unannounced", "not compressed", "an unknown mark", "over 4 MiB", "4 GiB"],
)
@pytest.mark.parametrize("ends", [False, True])
def test_a_message_that_is_not_taken_ends_its_call_with_a_status(
    server: Server, more: list[tuple[str, str]], sent: bytes, status: int, ends: bool
) -> None:
    """Immediately, without waiting for the rest of the request."""
    server.call(1, *more)
    assert server.feed(data(1, sent, end=ends)) == [("reset", 1)]
    answer = server.answer()
    assert (answer.status, answer.reset, answer.ended) == (status, Code.NO_ERROR, True)
    assert (answer.headers.get("grpc-accept-encoding") == "identity") is (status == 12)
    assert server.feed(data(1, message(b"x"), end=True)) == []


def test_compression_may_be_announced_and_not_used(server: Server) -> None:
    """Clients do that for small messages."""
    server.call(1, ("grpc-encoding", "gzip"))
    assert server.feed(data(1, message(b"x"))) == [("message", 1, b"x")]


def test_a_request_that_ends_within_a_message_is_an_error(server: Server) -> None:
    """The call ends with INTERNAL; the servicer gets neither the message nor the end."""
    server.call()
    assert server.feed(data(1, message(b"hello")[:-1], end=True)) == [("reset", 1)]
    assert server.answer().status == 13


def test_a_message_of_the_greatest_size_comes_in(server: Server) -> None:
    """Its stream gets as much extra credit as its window lacks, and no byte more."""
    server.call()
    sender = Sender(server)
    sender.left[1] = message(bytes(MESSAGE_MAX))
    sender.send_all([1])
    (told,) = sender.told
    assert len(told[-1]) == MESSAGE_MAX if isinstance(told[-1], bytes) else False
    assert sender.rooms[1] == 0
    server.connection.consumed(server.streams[1], bytes(MESSAGE_MAX))
    sender.look()
    assert sender.rooms[1] == WINDOW


def test_64_messages_of_1_mib_come_in_in_any_order(server: Server) -> None:
    """They exceed the connection's extra credit: each gets credit once others are taken; none starves."""
    random = Random(8)
    sender = Sender(server)
    numbers = range(1, 129, 2)
    for number in numbers:
        server.call(number)
        sender.left[number] = message(bytes(MIB)) + message(b"last")
    while any(sender.left.values()):
        order = [number for number in numbers if sender.left[number]]
        random.shuffle(order)
        moved = sum(sender.send(number) for number in order)
        assert server.connection._receiver.granted <= EXTRA_CREDIT_MAX
        taken = [each for each in sender.told if len(each) == 3]
        assert moved or taken, "a deadlock"
        sender.told.clear()
        for each in taken:
            assert isinstance(each[-1], bytes)
            server.connection.consumed(server.streams[each[1]], each[-1])
    assert server.connection._receiver.granted == 0


def test_extra_credit_is_granted_in_turn(server: Server) -> None:
    """A small message does not overtake a large one that waits; a cancelled one frees its credit."""
    sender = Sender(server)
    for number in range(1, 21, 2):
        server.call(number)
        sender.left[number] = b"\0" + MESSAGE_MAX.to_bytes(4, "big")
        sender.send(number)
    server.call(21)
    sender.left[21] = b"\0" + (WINDOW + 10).to_bytes(4, "big")
    sender.send(21)
    sender.look()
    lent = [number for number, room in sender.rooms.items() if number and room > WINDOW]
    assert lent == list(range(1, 17, 2))
    server.feed(RstStreamFrame(3, error_code=8).serialize())
    assert list(server.windows) == [17]
    server.feed(RstStreamFrame(19, error_code=8).serialize())
    assert list(server.windows) == [21]


def test_who_takes_nothing_stops_the_sender(server: Server) -> None:
    """Extra credit is for one message above the window, not for many that the servicer does not take."""
    server.call()
    sender = Sender(server)
    sender.left[1] = message(bytes(95)) * 900
    sender.send_all([1])
    assert len(sender.told) == WINDOW // 100
    for told in sender.told:
        assert isinstance(told[-1], bytes)
        server.connection.consumed(server.streams[1], told[-1])
    sender.send_all([1])
    assert len(sender.told) == 900


def test_a_large_message_behind_others_waits_until_they_are_taken(server: Server) -> None:
    """Only then does it get the credit that it lacks."""
    stream = server.call()
    sender = Sender(server)
    sender.left[1] = message(bytes(10)) + message(bytes(MIB))
    sender.send_all([1])
    assert sender.told == [("message", 1, bytes(10))]
    assert server.connection._receiver.granted == 0
    server.connection.consumed(stream, bytes(10))
    sender.send_all([1])
    assert sender.told[1:] == [("message", 1, bytes(MIB))]


@pytest.mark.parametrize("ends", ["by the client", "by an answer"])
def test_a_call_that_is_over_holds_nothing(server: Server, ends: str) -> None:
    """Its partial messages, unsent reply and extra credit are freed, even if something still refers to it."""
    stream = server.call()
    server.feed(data(1, b"\0" + MIB.to_bytes(4, "big") + bytes(100)))
    assert server.connection._receiver.granted
    if ends == "by the client":
        server.feed(window(1, 10**6))  # what waits, waits for the connection's
        server.connection.send_message(stream, bytes(10**5))
        server.feed(RstStreamFrame(1, error_code=8).serialize())
    else:
        server.connection.answer(stream, b"")
    assert stream.rest is None
    assert not stream.out
    assert not server.connection._sender._blocked
    assert (server.connection._receiver.granted, server.connection.held_back) == (0, 0)
    server.connection.consumed(stream, b"late")
    assert not server.connection._receiver.held


def test_padding_takes_no_room(server: Server) -> None:
    """Its bytes are returned to the windows immediately, also those of extra credit."""
    stream = server.call()
    sender = Sender(server)
    sender.left[1] = message(bytes(300_000))
    while sender.left[1]:
        assert sender.send(1, 1_000, pad=255) or sender.send(1, 1_000)  # a frame need not be padded
    assert sender.told == [("message", 1, bytes(300_000))]
    server.connection.consumed(stream, bytes(300_000))
    sender.look()
    assert sender.rooms[1] == WINDOW


def test_the_connections_window_is_given_back_for_calls_that_are_over(server: Server) -> None:
    """Otherwise the other calls would run out of window."""
    server.connection.finish(server.call(), 12, "no")
    sender = Sender(server)
    for _ in range(200):
        sender.left[1], sender.rooms[1] = bytes(16_000), WINDOW
        assert sender.send(1) == 16_000
