"""HTTP/2 rules for one connection (RFC 9113): what gets a reply, what ends a stream, and what ends the connection."""

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from adapter.runtime.serving.http2 import frames
from adapter.runtime.serving.http2.connection import STREAMS_MAX, Connection
from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.receiving import CREDIT
from tests.http2_client import PREFACE, frames_of, opening
from tests.unit.runtime.serving.http2.connections import BLOCK, Server, block, data, head, message


def raw(kind: int, payload: bytes = b"", stream_id: int = 0, flags: int = 0) -> bytes:
    """A frame that no library would create."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream_id.to_bytes(4, "big") + payload


def test_the_greeting_is_settings_and_a_wider_window() -> None:
    """SETTINGS is the first frame that the server sends, as the RFC demands, and is sent once."""
    first, second = Server().greeting
    assert isinstance(first, SettingsFrame)
    assert first.settings[SettingsFrame.MAX_CONCURRENT_STREAMS] == STREAMS_MAX
    assert isinstance(second, WindowUpdateFrame)
    assert (second.stream_id, second.window_increment) == (0, CREDIT - 65_535)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n", PREFACE[:-1] + b"x", b"\x16\x03\x01", PREFACE + PingFrame().serialize()])
def test_what_is_no_http2_ends_the_connection(sent: bytes) -> None:
    """A GOAWAY is sent first, for a peer that can read it."""
    connection = Connection(0.0)
    connection.receive(sent, 0.0)
    assert connection.closed
    assert goaways(list(frames_of(connection.take_output()))) == [(0, Code.PROTOCOL_ERROR)]


def test_settings_are_acknowledged_each_in_its_turn() -> None:
    """One acknowledgement for each SETTINGS frame."""
    server = Server()
    server.feed(SettingsFrame(settings={4: 9}).serialize() * 3)
    acks = server.take()
    assert [type(frame) for frame in acks] == [SettingsFrame] * 3
    assert all("ACK" in frame.flags for frame in acks)


def test_a_ping_is_answered_with_its_bytes() -> None:
    """A PING that is itself an acknowledgement gets no reply."""
    server = Server()
    server.feed(PingFrame(opaque_data=b"12345678").serialize() + PingFrame(opaque_data=b"x" * 8, flags=["ACK"]).serialize())
    (ping,) = server.take()
    assert isinstance(ping, PingFrame)
    assert (ping.opaque_data, "ACK" in ping.flags) == (b"12345678", True)


BROKEN: dict[str, tuple[bytes, Code]] = {
    "a frame over 16,384 bytes": (raw(0, b"x" * 16_385, 1), Code.FRAME_SIZE_ERROR),
    "an unknown frame over 16,384 bytes": (raw(99, b"x" * 16_385), Code.FRAME_SIZE_ERROR),
    "SETTINGS of 5 bytes": (raw(4, bytes(5)), Code.FRAME_SIZE_ERROR),
    "SETTINGS that acknowledge and say": (raw(4, bytes(6), flags=1), Code.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (raw(4, b"", 1), Code.PROTOCOL_ERROR),
    "ENABLE_PUSH 2": (SettingsFrame(settings={2: 2}).serialize(), Code.PROTOCOL_ERROR),
    "a window of 2^31": (SettingsFrame(settings={4: 2**31}).serialize(), Code.FLOW_CONTROL_ERROR),
    "frames of 16,383": (SettingsFrame(settings={5: 16_383}).serialize(), Code.PROTOCOL_ERROR),
    "frames of 2^24": (SettingsFrame(settings={5: 2**24}).serialize(), Code.PROTOCOL_ERROR),
    "a window that a stream's own makes too large": (
        WindowUpdateFrame(1, window_increment=2**31 - 1 - 65_535).serialize() + SettingsFrame(settings={4: 65_536}).serialize(),
        Code.FLOW_CONTROL_ERROR,
    ),
    "PING of 7 bytes": (raw(6, bytes(7)), Code.FRAME_SIZE_ERROR),
    "PING on a stream": (raw(6, bytes(8), 1), Code.PROTOCOL_ERROR),
    "GOAWAY on a stream": (raw(7, bytes(8), 1), Code.PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (raw(7, bytes(7)), Code.FRAME_SIZE_ERROR),
    "RST_STREAM of 3 bytes": (raw(3, bytes(3), 1), Code.FRAME_SIZE_ERROR),
    "RST_STREAM of a stream to come": (raw(3, bytes(4), 9), Code.PROTOCOL_ERROR),
    "RST_STREAM of no stream": (raw(3, bytes(4), 0), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 3 bytes": (raw(8, bytes(3), 1), Code.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of nothing": (raw(8, bytes(4), 0), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE of a stream to come": (raw(8, b"\0\0\0\1", 9), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE of an even stream": (raw(8, b"\0\0\0\1", 2), Code.PROTOCOL_ERROR),
    "a connection's window over 2^31 - 1": (raw(8, b"\x7f\xff\xff\xff", 0), Code.FLOW_CONTROL_ERROR),
    "PUSH_PROMISE": (
        PushPromiseFrame(1, promised_stream_id=2, data=BLOCK, flags=["END_HEADERS"]).serialize(),
        Code.PROTOCOL_ERROR,
    ),
    "DATA of no stream": (raw(0, b"x", 0), Code.PROTOCOL_ERROR),
    "DATA of a stream to come": (data(9, b"x"), Code.PROTOCOL_ERROR),
    "DATA of an even stream": (data(2, b"x"), Code.PROTOCOL_ERROR),
    "DATA that is all padding and more": (raw(0, b"\x05abcd", 1, 8), Code.PROTOCOL_ERROR),
    "DATA that is padded and empty": (raw(0, b"", 1, 8), Code.PROTOCOL_ERROR),
    "HEADERS of no stream": (raw(1, BLOCK, 0, 5), Code.PROTOCOL_ERROR),
    "HEADERS of an even stream": (head(4, BLOCK), Code.PROTOCOL_ERROR),
    "HEADERS that are all padding and more": (raw(1, b"\x05abcd", 3, 4 | 8), Code.PROTOCOL_ERROR),
    "HEADERS too short for their priority": (raw(1, b"abcd", 3, 4 | 0x20), Code.FRAME_SIZE_ERROR),
    "HEADERS of a stream that was passed over": (head(9, BLOCK) + head(5, BLOCK), Code.PROTOCOL_ERROR),
    "CONTINUATION alone": (ContinuationFrame(1, b"x").serialize(), Code.PROTOCOL_ERROR),
    "CONTINUATION behind a whole block": (head(3, BLOCK) + ContinuationFrame(3, b"x").serialize(), Code.PROTOCOL_ERROR),
    "CONTINUATION of another stream": (raw(1, BLOCK, 3) + ContinuationFrame(5, b"x").serialize(), Code.PROTOCOL_ERROR),
    "a block that is interrupted": (raw(1, BLOCK, 3) + PingFrame().serialize(), Code.PROTOCOL_ERROR),
    "a block that an unknown frame interrupts": (raw(1, BLOCK, 3) + raw(99), Code.PROTOCOL_ERROR),
    "a block that cannot be decoded": (head(3, b"\x80"), Code.COMPRESSION_ERROR),
    "a block of over 64 KiB": (head(3, b"\0\1a\x7f" + bytes(70_000)), Code.ENHANCE_YOUR_CALM),
    "trailers that cannot be decoded": (head(1, b"\x80", end=True), Code.COMPRESSION_ERROR),
    "PRIORITY of no stream": (raw(2, bytes(5), 0), Code.PROTOCOL_ERROR),
}


def test_a_broken_rule_ends_the_connection_with_its_code() -> None:
    """The GOAWAY names the last stream that was processed; later frames are ignored."""
    for rule, (sent, code) in BROKEN.items():
        server = Server()
        server.call()
        server.feed(sent + head(11, BLOCK))
        assert server.connection.closed, rule
        last, told = server.gone or (0, 0)
        assert told == code, rule
        assert last in {1, 3, 9}, rule
        assert server.feed(head(13, BLOCK)) == [], rule
        assert not server.take(), rule


FAILED: dict[str, tuple[bytes, Code]] = {
    "DATA beyond the window": (b"".join(data(1, b"\0\0\1\0\0" + bytes(16_000)) for _ in range(5)), Code.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE of nothing": (raw(8, bytes(4), 1), Code.PROTOCOL_ERROR),
    "a window over 2^31 - 1": (raw(8, b"\x7f\xff\xff\xff", 1), Code.FLOW_CONTROL_ERROR),
    "trailers that do not end it": (head(1, block([("x", "1")])), Code.PROTOCOL_ERROR),
    "trailers with a pseudo-header": (head(1, block([(":path", "/")]), end=True), Code.PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("sent", "code"), FAILED.values(), ids=FAILED)
def test_a_broken_rule_of_a_stream_ends_that_stream_alone(sent: bytes, code: Code) -> None:
    """Other streams continue."""
    server = Server()
    server.call()
    server.call(3)
    assert server.feed(sent)[-1] == ("reset", 1)
    assert server.resets == {1: code}
    assert list(server.connection.streams) == [3]
    assert server.feed(data(3, message(b"x"), end=True)) == [("message", 3, b"x"), ("ended", 3)]


@pytest.mark.parametrize("sent", [data(1, b"x"), head(1, block([("x", "1")]), end=True)], ids=["DATA", "HEADERS"])
def test_what_comes_behind_the_end_of_a_request_fails_its_stream(sent: bytes) -> None:
    """STREAM_CLOSED, before and after the reply."""
    server = Server()
    server.call(end=True)
    assert server.feed(sent) == [("reset", 1)]
    assert server.resets == {1: Code.STREAM_CLOSED}


@pytest.mark.parametrize("sent", [data(1, b"x" * 100), data(1, b"", end=True), head(1, block([("x", "1")]), end=True)])
def test_late_frames_of_a_stream_that_this_side_ended_are_forgiven(sent: bytes) -> None:
    """They were in flight. They still count in the connection's window, and headers in the HPACK table."""
    server = Server()
    server.connection.finish(server.call(), 12, "no")
    assert server.resets == {1: Code.NO_ERROR}
    assert server.feed(sent) == []
    assert not server.take()
    assert not server.connection.closed


def test_headers_of_a_stream_that_has_ended_end_the_connection() -> None:
    """STREAM_CLOSED: the client had ended the stream itself, so this is no late frame."""
    server = Server()
    server.connection.answer(server.call(end=True), b"")
    server.take()
    server.feed(head(1, BLOCK))
    assert server.gone == (1, Code.STREAM_CLOSED)


def test_this_side_may_end_a_call_without_an_answer() -> None:
    """The server may also send a PING to see whether the client is alive."""
    server = Server()
    stream = server.call()
    server.connection.cut_off(stream, Code.CANCEL)
    server.connection.ping()
    reset, ping = server.take()
    assert (reset.stream_id, getattr(reset, "error_code", None)) == (1, Code.CANCEL)
    assert isinstance(ping, PingFrame)
    assert "ACK" not in ping.flags


def test_a_block_may_come_in_pieces_of_any_size() -> None:
    """HEADERS and CONTINUATION frames, with padding and priority."""
    server = Server()
    assert server.feed(head(1, BLOCK, most=1, end=True)) == [("call", 1), ("ended", 1)]
    dressed = HeadersFrame(3, BLOCK, pad_length=9, stream_weight=3, depends_on=1, flags=["PADDED", "PRIORITY", "END_HEADERS"])
    assert server.feed(dressed.serialize()) == [("call", 3)]


@pytest.mark.parametrize("flags", [["END_HEADERS"], []])
def test_a_stream_that_depends_on_itself_never_becomes_a_call(flags: list[str]) -> None:
    """Also if the rest of its headers follows in CONTINUATION frames."""
    server = Server()
    sent = HeadersFrame(3, BLOCK, depends_on=3, flags=["PRIORITY", *flags]).serialize()
    told = server.feed(sent + (b"" if flags else ContinuationFrame(3, b"", flags=["END_HEADERS"]).serialize()))
    assert told in ([], [("call", 3), ("reset", 3)])
    assert not server.connection.streams


def test_frames_that_are_unknown_or_about_priority_are_passed_over() -> None:
    """Unknown flags, settings and the reserved bit are ignored too."""
    server = Server()
    server.feed(raw(99, b"x", 5) + PriorityFrame(7, depends_on=5, stream_weight=9).serialize())
    server.feed(raw(4, b"\0\x99\0\0\0\1"), 0)
    server.take()
    assert server.feed(raw(1, BLOCK, 2**31 + 1, 4 | 0x80)) == [("call", 1)]
    assert not server.take()


def test_a_client_that_ends_a_call_is_heard_once() -> None:
    """One event; nothing more is sent in the stream."""
    server = Server()
    stream = server.call()
    assert server.feed(RstStreamFrame(1, error_code=8).serialize() * 2) == [("reset", 1)]
    server.connection.send_message(stream, b"late")
    server.connection.finish(stream, 0)
    server.connection.answer(stream, b"")
    server.connection.cut_off(stream, Code.CANCEL)
    assert not server.take()


def goaways(taken: list[Frame]) -> list[tuple[int, int]]:
    """The last stream id and the error code of each GOAWAY."""
    return [(int(frame.last_stream_id), int(frame.error_code)) for frame in taken if isinstance(frame, GoAwayFrame)]


def test_a_drain_first_asks_for_no_more_calls_and_then_takes_none() -> None:
    """GOAWAY 2^31 - 1 and two PINGs; streams before the second one's reply are served, later ones refused (RFC 9113, 6.8)."""
    server = Server()
    server.call()
    server.connection.drain()
    first, ping = server.take()
    assert goaways([first]) == [(2**31 - 1, 0)]
    assert isinstance(ping, PingFrame)
    server.call(3)
    answer = PingFrame(opaque_data=ping.opaque_data, flags=["ACK"]).serialize()
    server.feed(answer)
    (again,) = server.take()
    assert again.serialize() == ping.serialize()
    server.call(5)
    server.feed(answer)
    assert goaways(server.take()) == [(5, 0)]
    assert server.feed(head(7, BLOCK)) == []
    assert server.resets == {7: Code.REFUSED_STREAM}
    assert server.feed(data(3, message(b"x"), end=True)) == [("message", 3, b"x"), ("ended", 3)]
    server.connection.answer(server.streams[3], b"")
    assert server.answer(3).status == 0
    assert not server.connection.closed
    server.take()
    server.feed(answer)
    assert not server.take()


def test_the_last_stream_of_a_goaway_never_rises() -> None:
    """A client that was told 1 has given up the streams above it."""
    server = Server()
    server.call()
    server.connection.go_away()
    server.connection.go_away()
    server.feed(head(3, BLOCK) + raw(6, bytes(7)))
    assert goaways(server.take()) == [(1, 0), (1, Code.FRAME_SIZE_ERROR)]


def test_the_answer_to_a_ping_that_nobody_sent_ends_nothing() -> None:
    """A client cannot make the server drain the connection."""
    server = Server()
    server.feed(PingFrame(opaque_data=b"draining", flags=["ACK"]).serialize())
    assert not server.take()
    server.call()


def test_the_size_of_the_table_is_told_once_and_first() -> None:
    """The server's encoder uses no dynamic table, whatever size the client offers."""
    server = Server({SettingsFrame.HEADER_TABLE_SIZE: 0})
    for number in (1, 3):
        server.connection.answer(server.call(number, end=True), b"x")
    blocks = [frame.data for frame in server.take() if isinstance(frame, HeadersFrame)]
    assert [bytes(block)[:1] == b"\x20" for block in blocks] == [True, False, False, False]


def test_a_preface_may_come_byte_by_byte() -> None:
    """Until it is complete, only the server's own preface is sent."""
    connection = Connection(0.0)
    connection.take_output()
    for byte in opening()[:-1]:
        assert connection.receive(bytes([byte]), 0.0) == []
        assert not connection.take_output()
    connection.receive(opening()[-1:], 0.0)
    assert connection.greeted
    assert connection.take_output() == frames.frame(frames.SETTINGS, frames.ACK, 0)
