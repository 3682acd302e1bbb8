"""Limits on what one peer can cost: frames without a message, memory, work per byte. Correct clients are never disconnected."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    GoAwayFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from adapter.runtime.serving.http2.connection import MESSAGE_MAX, STREAMS_MAX
from adapter.runtime.serving.http2.flood import OVERHEAD_FIRST, OVERHEAD_MAX, OVERHEAD_PER_MESSAGE, OVERHEAD_PER_S
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.receiving import EXTRA_CREDIT_MAX
from tests.fuzz.http2 import held
from tests.http2_client import block, request
from tests.unit.runtime.serving.http2.connections import BLOCK, Server, data, head, message

PING = PingFrame().serialize()
UNKNOWN = b"\0\0\0\x63\0\0\0\0\0"
MIB = 2**20


def reset(number: int) -> bytes:
    """Frames that cancel a call."""
    return RstStreamFrame(number, error_code=8).serialize()


def same(frame: bytes) -> Callable[[int], bytes]:
    """The same frames each time."""
    return lambda _: frame


FLOODS: dict[str, Callable[[int], bytes]] = {
    "PING": same(PING),
    "PING that answers": same(PingFrame(flags=["ACK"]).serialize()),
    "SETTINGS": same(SettingsFrame(settings={4: 9}).serialize()),
    "SETTINGS that acknowledge": same(SettingsFrame(flags=["ACK"]).serialize()),
    "RST_STREAM": same(reset(1)),
    "rapid resets": lambda number: head(number, BLOCK) + reset(number),
    "rapid resets by this side": lambda number: head(number, BLOCK) + data(number, message(b"", compressed=1)),
    "PRIORITY": same(PriorityFrame(5).serialize()),
    "empty DATA": same(data(1, b"")),
    "DATA of padding": same(data(1, b"", pad=9)),
    "DATA behind the end": same(data(3, b"")),
    "malformed requests": lambda number: head(number, b""),
    "GOAWAY": same(GoAwayFrame(0).serialize()),
    "unknown frames": same(UNKNOWN),
    "WINDOW_UPDATE of nothing": lambda number: head(number, BLOCK) + b"\0\0\4\x08\0" + number.to_bytes(4, "big") + bytes(4),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_is_told_to_calm_down(flood: Callable[[int], bytes]) -> None:
    """GOAWAY ENHANCE_YOUR_CALM, after at most a known number of frames."""
    server = Server()
    server.call(1)
    server.connection.finish(server.call(3), 12)
    server.take()
    count = 0
    while not server.connection.closed:
        count += 1
        assert count <= OVERHEAD_MAX + 100
        server.feed(flood(2 * count + 3))
        output = server.take()
    assert getattr(output[-1], "error_code", None) == Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("piece", [b"", b"\0"])
def test_a_flood_of_continuation_is_told_to_calm_down(piece: bytes) -> None:
    """A header block that never ends, of full or of empty frames."""
    server = Server()
    server.feed(head(1, b"", most=1)[:4] + b"\0" + head(1, b"")[5:])
    server.feed(ContinuationFrame(1, piece).serialize() * 2_100)
    assert server.gone == (0, Code.ENHANCE_YOUR_CALM)


def test_a_flood_in_the_long_run_counts_by_time() -> None:
    """A rate below the limit may go on for ever, a rate above it may not."""
    quiet, loud = Server(), Server()
    for second in range(100):
        quiet.feed(PING * int(OVERHEAD_PER_S), float(second))
        loud.feed(PING * int(OVERHEAD_PER_S * 1.2), float(second))
    assert not quiet.connection.closed
    assert loud.connection.closed


@pytest.mark.parametrize("cancelled", [0, 5, 2])
def test_an_honest_client_is_never_thrown_out(cancelled: int) -> None:
    """10,000 calls per second with a PING each, some cancelled after their message or before their reply."""
    server = Server()
    call = data(1, message(b"x"), end=True)[9:]
    for count in range(4_000):
        number = 2 * count + 1
        frame = data(number, message(b"x"), end=True)
        assert frame[9:] == call
        server.feed((PING if count % 2 else b"") + head(number, BLOCK) + frame, count / 10_000)
        if cancelled and count % cancelled == 0:
            server.feed(reset(number), count / 10_000)
        else:
            server.connection.answer(server.streams.pop(number), b"")
        server.connection.take_output()
    assert not server.connection.closed
    assert not server.connection.streams


def test_the_window_updates_of_a_client_are_no_noise() -> None:
    """Some clients send two of them for each message that they read."""
    server = Server()
    server.call()
    server.feed(
        (WindowUpdateFrame(1, window_increment=5).serialize() + WindowUpdateFrame(0, window_increment=5).serialize()) * 10_000
    )
    assert not server.connection.closed


def half_messages(server: Server) -> None:
    """Every stream sends as much as it may, and all extra credit is granted."""
    for number in range(1, 2 * STREAMS_MAX, 2):
        server.feed(head(number, BLOCK) + data(number, b"\0" + MESSAGE_MAX.to_bytes(4, "big") + bytes(16_000)))
    for number in range(1, 2 * STREAMS_MAX, 2):
        stream = server.streams[number]
        while stream.room > 1:  # with the last byte it would be whole
            server.feed(data(number, bytes(min(stream.room - 1, 16_384))))
        server.connection.take_output()


def heads_and_resets(server: Server) -> None:
    """The largest allowed headers, cancelled while their replies wait for a window."""
    server.feed(SettingsFrame(settings={4: 0}).serialize())
    for number in range(1, STREAMS_MAX, 2):
        server.feed(head(number, block(request("/s/m", ("x", "y" * 6_000), ("z", str(number))))), float(number))
        if number in server.streams:
            server.connection.send_message(server.streams.pop(number), bytes(1_000))
        server.feed(reset(number), float(number))
        server.connection.take_output()


def bombs(server: Server) -> None:
    """Small header blocks that unpack to large lists, in calls and other requests, open and ended."""
    server.feed(SettingsFrame(settings={4: 0}).serialize())
    for number in range(1, 601, 2):
        kind = b"\x82" if number % 4 == 1 else b"\x83"
        sent = kind + b"\x86\x84\x5f\x10application/grpc" + b"\x8f" * (100 + number % 50)
        server.feed(head(number, sent, end=True), float(number))
        server.connection.take_output()


def waiting_for_credit(server: Server) -> None:
    """Streams that begin and end while others hold all extra credit."""
    begin = b"\0" + MESSAGE_MAX.to_bytes(4, "big")
    for number in range(1, 4 * STREAMS_MAX, 2):
        server.feed(head(number, BLOCK) + data(number, begin + bytes(16_000)), float(number))
        if number > 19:
            server.feed(reset(number), float(number))
        server.connection.take_output()


def tiny_messages(server: Server) -> None:
    """Small messages that the servicer does not take."""
    for number in range(1, 201, 2):
        server.feed(head(number, BLOCK) + data(number, message(b"") * 2_000))
        server.connection.take_output()


def test_messages_that_nobody_takes_are_counted() -> None:
    """The smallest messages use more memory than window."""
    server = Server()
    for number in range(1, 41, 2):
        server.feed(head(number, BLOCK) + data(number, message(b"") * 3_000) * 4)
    assert server.gone == (33, Code.ENHANCE_YOUR_CALM)


# What a peer can make a connection hold, and what it costs: the bound is of DESIGN.md.
ATTACKS: dict[str, tuple[Callable[[Server], None], int]] = {
    "half messages": (half_messages, STREAMS_MAX * 70_000 + EXTRA_CREDIT_MAX),
    "heads and resets": (heads_and_resets, MIB),
    "bombs": (bombs, 300 * 12_000),
    "waiting for credit": (waiting_for_credit, MIB),
    "tiny messages": (tiny_messages, 100 * 2_000),
}


@pytest.mark.no_cover
@pytest.mark.parametrize(("attack", "most"), ATTACKS.values(), ids=ATTACKS)
def test_what_a_connection_holds_is_bounded(attack: Callable[[Server], None], most: int) -> None:
    """The bound depends on streams, windows and extra credit, not on the age of the connection."""
    server = Server()
    attack(server)
    server.streams.clear()
    assert held(server.connection) <= most


def steps_of(work: Callable[[], object]) -> int:
    """The number of Python lines run, in our code and hpack's: a measure that does not depend on the machine."""
    count = 0

    def line(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def blocked(server: Server) -> None:
    """Streams that all wait for the window of the connection."""
    for number in range(1, 1_800, 2):
        server.connection.send_message(server.call(number), bytes(1_000))


def in_pieces(sent: bytes, size: int) -> Iterator[bytes]:
    """The bytes cut into pieces."""
    return (sent[at : at + size] for at in range(0, len(sent), size))


def settings_of(count: int) -> bytes:
    """A SETTINGS frame with this many unknown settings."""
    entries = b"".join((100 + number).to_bytes(2, "big") + bytes(4) for number in range(count))
    return len(entries).to_bytes(3, "big") + b"\4\0\0\0\0\0" + entries


Prepare = Callable[[Server], object]
WORK: dict[str, tuple[Prepare, Callable[[int], bytes], int]] = {
    "SETTINGS with many entries": (blocked, settings_of, 2_600),
    "WINDOW_UPDATE with many blocked": (blocked, lambda n: WindowUpdateFrame(0, window_increment=1).serialize() * n, 1_000),
    "DATA of one byte": (lambda server: server.call(), lambda n: data(1, message(b"12345678")[:1]) * n, 2_000),
    "messages of no byte": (lambda server: server.call(), lambda n: data(1, message(b"") * n), 2_000),
    "requests of eleven bytes": (
        lambda _: None,
        lambda n: b"".join(head(2 * i + 1, b"\x82\x84", end=True) for i in range(n)),
        400,
    ),
    "calls": (lambda _: None, lambda n: b"".join(head(2 * i + 1, BLOCK, end=True) for i in range(n)), 900),
    "fields of one byte": (lambda _: None, lambda n: head(1, b"\x83\x86\x84" + b"\x8f" * n), 1_200),
    "fields of four bytes": (lambda _: None, lambda n: head(1, b"\x83\x86\x84" + b"\0\1a\0" * n), 600),
    "fields that enter the table": (lambda _: None, lambda n: head(1, b"\x83\x86\x84" + b"\x40\1a\0" * n), 600),
    "CONTINUATION": (lambda _: None, lambda n: head(1, b"\x83\x86\x84" + b"\x8f" * n, most=1), 1_200),
}
STEPS_PER_BYTE = 60


@pytest.mark.no_cover
@pytest.mark.parametrize(("prepare", "make", "size"), WORK.values(), ids=WORK)
def test_work_grows_with_the_bytes_alone(prepare: Prepare, make: Callable[[int], bytes], size: int) -> None:
    """Four times the input takes four times the steps, with a bounded number of steps per byte."""
    taken = []
    for count in (size // 4, size):
        server = Server()
        prepare(server)
        server.connection._guard.messages = 1_000  # else it would be ended before
        sent = make(count)
        taken.append(steps_of(partial(server.connection.receive, sent, 0.0)))
        assert taken[-1] <= STEPS_PER_BYTE * len(sent) + 2_000
        assert not server.connection.closed
    assert taken[1] <= 4.4 * taken[0] + 2_000


@pytest.mark.no_cover
def test_reads_of_one_byte_cost_a_few_steps_each() -> None:
    """An incomplete large frame is not parsed again for each byte."""
    server = Server()
    server.call()
    sent = data(1, message(bytes(4_000)))
    assert steps_of(lambda: [server.connection.receive(piece, 0.0) for piece in in_pieces(sent, 1)]) < 40 * len(sent)


@pytest.mark.parametrize("messages", [0, 1, 10, 1_000])
def test_a_connection_may_send_more_that_brings_nothing_the_more_it_has_brought(messages: int) -> None:
    """A new connection is allowed little, so that opening one for this purpose gains nothing."""
    server = Server()
    server.connection._guard.messages = messages
    allowed = int(min(OVERHEAD_FIRST + messages * OVERHEAD_PER_MESSAGE, OVERHEAD_MAX)) - 2  # its settings, and ours acknowledged
    server.feed(PING * allowed)
    assert not server.connection.closed
    server.feed(PING * 10)
    assert server.connection.closed
