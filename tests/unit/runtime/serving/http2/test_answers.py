"""Outgoing replies: they keep to the client's windows, share them fairly, and have exactly one end."""

import pytest
from hyperframe.frame import DataFrame, SettingsFrame, WindowUpdateFrame

from adapter.runtime.serving.http2.frames import Code
from adapter.runtime.serving.http2.streams import Stream
from tests.unit.runtime.serving.http2.connections import Server

WINDOW = 65_535


@pytest.fixture
def server() -> Server:
    """A connection that is open."""
    return Server()


def window(number: int, size: int) -> bytes:
    """The client's WINDOW_UPDATE of this many bytes."""
    return WindowUpdateFrame(number, window_increment=size).serialize()


def pieces(server: Server) -> list[int]:
    """The sizes of the DATA frames that are sent."""
    return [len(frame.data) for frame in server.take() if isinstance(frame, DataFrame)]


def test_an_answer_waits_for_its_window(server: Server) -> None:
    """It is sent in frames of 16 KiB; the status follows the last of them."""
    stream = server.call(1, end=True)
    server.connection.answer(stream, bytes(100_000))
    assert sum(pieces(server)) == WINDOW
    assert server.answer().status is None
    server.feed(window(0, 10**6))
    assert pieces(server) == []
    assert server.feed(window(1, 10)) == []
    assert pieces(server) == [10]
    server.feed(window(1, 10**6))
    assert max(pieces(server)) == 16_384
    assert server.answer().messages == [bytes(100_000)]
    assert server.answer().status == 0
    assert not server.connection.streams


def test_streams_that_wait_for_the_connection_share_what_comes(server: Server) -> None:
    """They take turns, and never send more than the window allows."""
    streams = [server.call(number) for number in (1, 3, 5)]
    for stream in streams:
        server.connection.send_message(stream, bytes(40_000))
    server.take()
    server.feed(window(0, 5) * 20)
    assert pieces(server) == [5] * 20
    server.feed(window(0, 10**6))
    assert [len(server.answer(stream.id).messages[0]) for stream in streams] == [40_000] * 3


def test_a_window_may_shrink_below_nothing(server: Server) -> None:
    """A new INITIAL_WINDOW_SIZE also applies to open streams (RFC 9113, 6.9.2)."""
    stream = server.call()
    server.connection.send_message(stream, bytes(1_000))
    server.feed(SettingsFrame(settings={4: 100}).serialize())
    server.connection.send_message(stream, bytes(1_000))
    assert sum(pieces(server)) == 1_005
    server.feed(window(1, 905))
    assert pieces(server) == []
    server.feed(window(1, 1))
    assert pieces(server) == [1]
    server.feed(SettingsFrame(settings={4: 10_000}).serialize())
    assert sum(pieces(server)) == 1_004


def test_who_streams_is_told_when_all_is_out(server: Server) -> None:
    """The event comes when the last message is sent, and not at all for a call that has ended."""
    stream = server.call()
    server.connection.send_message(stream, bytes(WINDOW))
    assert server.feed(window(1, 4) + window(0, 4)) == []
    assert server.feed(window(1, 100) + window(0, 100)) == [("writable", 1)]
    server.connection.send_message(stream, bytes(10**5))
    server.connection.finish(stream, 0)
    assert server.feed(window(1, 10**6) + window(0, 10**6)) == []
    assert server.answer().ended


def test_the_first_end_of_a_call_counts(server: Server) -> None:
    """A reply that waits for a window is not replaced by a later status."""
    stream = server.call(1, end=True)
    server.connection.answer(stream, bytes(10**5))
    server.connection.finish(stream, 4, "too late")
    server.connection.send_message(stream, b"more")
    server.connection.answer(stream, b"again")
    server.feed(window(1, 10**6) + window(0, 10**6))
    answer = server.answer()
    assert (answer.status, answer.messages) == (0, [bytes(10**5)])


def test_an_answer_before_the_end_of_its_request_says_that_the_rest_is_of_no_use(server: Server) -> None:
    """END_STREAM is followed by RST_STREAM NO_ERROR (RFC 9113, 8.1)."""
    server.connection.answer(server.call(), b"x")
    answer = server.answer()
    assert (answer.status, answer.messages, answer.reset) == (0, [b"x"], Code.NO_ERROR)


@pytest.mark.parametrize("told", [True, False])
def test_an_empty_answer_is_like_any_other(server: Server, told: bool) -> None:
    """Most replies are empty; headers, message and trailers are sent together."""
    if told:
        server.connection.answer(server.call(end=True), b"x")
    number = 3
    stream: Stream = server.call(number, end=True)
    server.connection.answer(stream, b"")
    answer = server.answer(number)
    assert (answer.headers[":status"], answer.messages, answer.status, answer.reset) == ("200", [b""], 0, None)
    assert not server.connection.streams


def test_an_empty_answer_keeps_to_its_windows() -> None:
    """The five bytes of its prefix count."""
    server = Server()
    server.connection.answer(server.call(end=True), bytes(WINDOW - 5 - 4))
    server.connection.answer(server.call(3, end=True), b"")
    assert server.answer(3).data == bytes(4)
    server.feed(window(0, 1))
    assert server.answer(3).messages == [b""]
    counted = Server()
    counted.connection.answer(counted.call(end=True), bytes(WINDOW - 5 - 7))
    for number in (3, 5):
        counted.connection.answer(counted.call(number, end=True), b"")
    assert [len(counted.answer(number).data) for number in (3, 5)] == [5, 2]
    small = Server({4: 4})
    small.connection.answer(small.call(end=True), b"")
    small.connection.answer(small.call(3, end=True), b"")
    assert [bytes(small.answer(number).data) for number in (1, 3)] == [bytes(4), bytes(4)]
