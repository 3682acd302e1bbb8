"""Requests that are not gRPC calls: of another kind, malformed, too many, or contradicting their own headers."""

import pytest
from hyperframe.frame import RstStreamFrame, SettingsFrame, WindowUpdateFrame

from adapter.runtime.serving.http2.connection import STREAMS_MAX
from adapter.runtime.serving.http2.frames import Code
from tests.unit.runtime.serving.http2.connections import BLOCK, Server, block, data, head, message, request


def test_a_malformed_request_resets_its_stream_and_is_no_call() -> None:
    """Malformed headers get no reply but RST_STREAM."""
    server = Server()
    assert server.feed(head(1, block(request("")))) == []
    assert server.resets == {1: Code.PROTOCOL_ERROR}


def test_what_is_no_call_is_answered_with_an_http_status() -> None:
    """405 or 415 with a text; servicers are not called."""
    server = Server()
    told = server.feed(
        head(1, block(request(method="GET", kind="")), end=True)
        + head(3, block(request(kind="text/plain")))
        + data(3, message(b"x") + b"rest")
        + data(3, b"", end=True)
        + head(5, block(request(method="HEAD")), end=True)
    )
    assert told == []
    get, post, head_only = server.answer(1), server.answer(3), server.answer(5)
    assert (get.headers[":status"], get.headers["content-type"], get.ended) == ("405", "text/plain", True)
    assert get.headers["content-length"] == str(len(get.data))
    assert (post.headers[":status"], post.ended) == ("415", True)
    assert (head_only.headers[":status"], bytes(head_only.data), head_only.ended) == ("405", b"", True)
    assert not server.connection.streams


def test_a_long_request_that_is_no_call_is_answered_before_its_end() -> None:
    """Its body is not needed."""
    server = Server()
    server.feed(head(1, block(request(kind="text/plain"))))
    sent = 0
    while not server.answer().ended:
        assert server.feed(data(1, bytes(10_000))) == []
        sent += 10_000
        assert sent < 65_535
    assert server.answer().reset == Code.NO_ERROR


@pytest.mark.parametrize(("more", "status"), [(("x", "y" * 20_000), 8), (("grpc-timeout", "soon"), 13)])
@pytest.mark.parametrize("ends", [False, True])
def test_a_call_that_is_refused_by_its_headers_gets_a_status(more: tuple[str, str], status: int, ends: bool) -> None:
    """Immediately; servicers are not called."""
    server = Server()
    assert server.feed(head(1, block(request("/s/m", more)), end=ends)) == []
    answer = server.answer()
    assert (answer.headers[":status"], answer.status, answer.reset) == ("200", status, None if ends else Code.NO_ERROR)
    assert not server.connection.streams


def test_a_text_for_what_is_no_call_waits_for_its_window() -> None:
    """Until then it counts as an open stream."""
    server = Server({SettingsFrame.INITIAL_WINDOW_SIZE: 1})
    server.feed(head(1, block(request(method="GET")), end=True))
    assert len(server.answer().data) == 1
    assert list(server.connection.streams) == [1]
    server.feed(WindowUpdateFrame(1, window_increment=1_000).serialize())
    assert server.answer().ended
    assert not server.connection.streams


def test_what_is_no_call_is_given_up_without_a_word() -> None:
    """If the client cancels it, servicers get no event, as they never got a call."""
    server = Server({SettingsFrame.INITIAL_WINDOW_SIZE: 0})
    server.feed(head(1, block(request(method="GET")), end=True))
    assert server.feed(RstStreamFrame(1, error_code=8).serialize()) == []
    assert not server.connection.streams


@pytest.mark.parametrize(("sent", "fits"), [(7, True), (6, False), (8, False), (0, False)])
def test_a_content_length_has_to_be_kept(sent: int, fits: bool) -> None:
    """Otherwise PROTOCOL_ERROR, before the servicer gets the end of the request."""
    server = Server()
    server.call(1, ("content-length", "7"))
    told = server.feed(data(1, message(bytes(max(sent - 5, 0)))[:sent], end=True, pad=3))
    assert (("ended", 1) in told) is fits
    assert server.resets == ({} if fits else {1: Code.PROTOCOL_ERROR})


def test_more_streams_than_allowed_are_refused_and_may_be_tried_again() -> None:
    """REFUSED_STREAM says that nothing was processed; a stream that ends makes room."""
    server = Server()
    server.feed(b"".join(head(2 * number + 1, BLOCK) for number in range(STREAMS_MAX)))
    number = 2 * STREAMS_MAX + 1
    assert server.feed(head(number, BLOCK)) == []
    assert server.resets == {number: Code.REFUSED_STREAM}
    server.feed(RstStreamFrame(1, error_code=8).serialize())
    assert server.feed(head(number + 2, BLOCK)) == [("call", number + 2)]
