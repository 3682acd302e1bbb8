"""Request headers: which are calls, how others are refused, and that a remembered block is never mistaken for another."""

import pytest
from hpack import Decoder, Encoder

from adapter.runtime.serving.http2 import headers
from adapter.runtime.serving.http2.frames import Code, ConnectionFailedError, StreamFailedError
from adapter.runtime.serving.http2.headers import HeaderReader, head_of
from tests.http2_client import Fields, block, request

PLAIN = request()


def read(fields: Fields) -> headers.Head:
    """The request that these headers make."""
    return HeaderReader(head_of).read(block(fields))


def told(sent: bytes) -> dict[str, str]:
    """The headers in a block that the server sent."""
    return {name.decode(): value.decode() for name, value in Decoder().decode(sent, raw=True)}


def without(name: str) -> Fields:
    """The usual headers without one."""
    return [field for field in PLAIN if field[0] != name]


def test_the_headers_of_a_call_say_its_path_deadline_and_metadata() -> None:
    """Pseudo-headers are not part of the metadata."""
    found = read(request("/a.B/C", ("grpc-timeout", "250m"), ("x", "1"), ("x", "2"), ("content-length", "7")))
    assert (found.path, found.timeout_s, found.length, found.refusal, found.compressed) == ("/a.B/C", 0.25, 7, None, False)
    assert [field for field in found.metadata if field[0] == "x"] == [("x", "1"), ("x", "2")]
    assert not any(name.startswith(":") for name, _ in found.metadata)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1H", 3_600.0),
        ("2M", 120.0),
        ("3S", 3.0),
        ("4m", 0.004),
        ("5u", 5e-6),
        ("6n", 6e-9),
        ("99999999S", 99_999_999.0),
        ("0S", 0.0),
    ],
)
def test_a_timeout_has_eight_digits_at_most_and_a_unit(text: str, seconds: float) -> None:
    """As gRPC over HTTP/2 defines it."""
    assert read(request("/s/m", ("grpc-timeout", text))).timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "1", "1s", "-1S", "1.5S", "123456789S", "\u0661S", "1S1S", "1000"])
def test_a_timeout_that_is_malformed_is_refused_with_a_status(text: str) -> None:
    """INTERNAL, as other servers do; the call does not begin without its deadline."""
    refusal = read(request("/s/m", ("grpc-timeout", text))).refusal
    assert refusal is not None
    assert (refusal.http, refusal.code) == (200, 13)


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=x"])
def test_content_types_of_grpc_are_calls(kind: str) -> None:
    """A suffix or parameters are accepted."""
    assert read(request(kind=kind)).refusal is None


@pytest.mark.parametrize("kind", ["", "text/plain", "application/grpc-web", "application/grpcx", "application/json"])
def test_other_content_types_are_answered_415(kind: str) -> None:
    """A request without a content type gets the same HTTP status."""
    refusal = read(request(kind=kind)).refusal
    assert refusal is not None
    assert refusal.http == 415


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "post"])
def test_other_methods_are_answered_405(method: str) -> None:
    """Whatever their content type is."""
    refusal = read(request(method=method)).refusal
    assert refusal is not None
    assert refusal.http == 405


def test_metadata_of_over_16_kib_is_refused_with_a_status() -> None:
    """RESOURCE_EXHAUSTED, for that call only."""
    refusal = read(request("/s/m", ("x", "y" * headers.LIST_MAX))).refusal
    assert refusal is not None
    assert (refusal.http, refusal.code) == (200, 8)
    assert read(request("/s/m", ("x", "y" * (headers.LIST_MAX // 2)))).refusal is None


MALFORMED: dict[str, Fields] = {
    "no method": without(":method"),
    "no scheme": without(":scheme"),
    "no path": without(":path"),
    "an empty path": request(""),
    "none at all": [],
    "a pseudo-header twice": [(":method", "POST"), *PLAIN],
    "a pseudo-header behind another": [*without(":path"), (":path", "/")],
    "a pseudo-header of answers": [(":status", "200"), *PLAIN],
    "an unknown pseudo-header": [(":x", "1"), *PLAIN],
    "upper case": [*PLAIN, ("X-Y", "1")],
    "an empty name": [*PLAIN, ("", "1")],
    "a name with a blank": [*PLAIN, ("a b", "1")],
    "a line feed": [*PLAIN, ("x", "1\n2")],
    "a carriage return": [*PLAIN, ("x", "1\r2")],
    "a zero byte": [*PLAIN, ("x", "1\x002")],
    "connection": [*PLAIN, ("connection", "close")],
    "transfer-encoding": [*PLAIN, ("transfer-encoding", "chunked")],
    "upgrade": [*PLAIN, ("upgrade", "h2c")],
    "keep-alive": [*PLAIN, ("keep-alive", "1")],
    "proxy-connection": [*PLAIN, ("proxy-connection", "1")],
    "te that is not trailers": [*without("te"), ("te", "gzip")],
    "a content-length that is no number": [*PLAIN, ("content-length", "x")],
    "a negative content-length": [*PLAIN, ("content-length", "-1")],
    "a content-length without end": [*PLAIN, ("content-length", "9" * 5_000)],
    "two content-lengths": [*PLAIN, ("content-length", "1"), ("content-length", "2")],
}


@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_fails_its_stream(fields: Fields) -> None:
    """As RFC 9113, 8.1 to 8.3 demand."""
    with pytest.raises(StreamFailedError) as raised:
        read(fields)
    assert raised.value.code == Code.PROTOCOL_ERROR


def test_blanks_around_a_value_are_taken_with_it() -> None:
    """RFC 9113, 8.2.1 calls them malformed, but gRPC clients send them."""
    assert ("x", " 1\t") in read(request("/s/m", ("x", " 1\t"))).metadata


def test_a_block_that_is_remembered_means_the_same_until_the_table_changes() -> None:
    """A block of indexes means something else once an entry is added to the HPACK table."""
    encoder, reader = Encoder(), HeaderReader(head_of)
    first = block(request("/s/first"), encoder)
    assert reader.read(first).path == "/s/first"
    again = block(request("/s/first"), encoder)
    assert len(again) < len(first)
    for _ in range(3):
        assert reader.read(again).path == "/s/first"
    assert reader.read(block(request("/s/second"), encoder)).path == "/s/second"
    moved = block(request("/s/first"), encoder)
    assert reader.read(moved).path == "/s/first"
    for path in ("/s/first", "/s/second", "/s/third", "/s/first"):
        sent = block(request(path), encoder)
        assert reader.read(sent).path == path
        assert reader.read(block(request(path), encoder)).path == path


def test_a_block_that_adds_to_the_table_adds_to_it_each_time() -> None:
    """It is always decoded again, or later indexes would be wrong."""
    reader = HeaderReader(head_of)
    adds = b"\x83\x86\x44\x02/a\x5f\x10application/grpc"  # :path and content-type enter the table
    indexed = b"\x83\x86\xbf\xbe"  # the path that is one entry back
    for _ in range(5):
        assert reader.read(adds).path == "/a"
        assert reader.read(indexed).path == "/a"
    reader.fields(b"\x44\x02/b")  # trailers count, too
    assert reader.read(b"\x83\x86\xbe\xbf").path == "/b"
    with pytest.raises((StreamFailedError, ConnectionFailedError)):
        reader.read(indexed)


def test_a_new_size_of_the_table_forgets_what_it_held() -> None:
    """Remembered blocks are forgotten too."""
    encoder, reader = Encoder(), HeaderReader(head_of)
    fields = request("/s/m")
    reader.read(block(fields, encoder))
    again = block(fields, encoder)
    reader.read(again)
    with pytest.raises(ConnectionFailedError) as raised:
        reader.read(b"\x20" + again)
    assert raised.value.code == Code.COMPRESSION_ERROR
    with pytest.raises((ConnectionFailedError, StreamFailedError)):
        reader.read(again)


def test_a_block_may_resize_the_table_twice_at_its_beginning() -> None:
    """More than two changes would be wasted work (RFC 7541, 4.2)."""
    assert HeaderReader(head_of).read(b"\x20\x3f\xe1\x1f" + block(PLAIN)).path == "/s/m"
    with pytest.raises(ConnectionFailedError) as raised:
        HeaderReader(head_of).read(b"\x20\x20\x20" + block(PLAIN))
    assert raised.value.code == Code.COMPRESSION_ERROR


def test_what_is_remembered_is_bounded() -> None:
    """Both the number of blocks and their size."""
    reader = HeaderReader(head_of)
    for number in range(3 * headers.KNOWN_MAX):
        reader.read(block(request(f"/s/{number}")))
    assert len(reader._known) <= headers.KNOWN_MAX


@pytest.mark.parametrize(
    "sent",
    [
        b"\x80",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xbf",
        b"\x3f\xe2\x1f",
        b"\x00",
        b"\x40\x05ab",
        b"\x00\x81\xff\x00",
        b"\x00\x01a\x84\xff\xff\xff\xff",
        b"\x7f\x2f\x01a",
    ],
    ids=[
        "index 0",
        "a huge index",
        "no such entry",
        "a table over 4,096",
        "cut off",
        "a name cut off",
        "bad Huffman",
        "Huffman with EOS",
        "a name at no such entry",
    ],
)
def test_a_block_that_cannot_be_decoded_fails_the_connection(sent: bytes) -> None:
    """The HPACK state is unknown then, so later blocks cannot be decoded either."""
    with pytest.raises(ConnectionFailedError) as raised:
        HeaderReader(head_of).read(sent)
    assert raised.value.code == Code.COMPRESSION_ERROR
    assert len(str(raised.value)) < 200


def test_a_header_bomb_fails_the_connection_before_it_is_unpacked() -> None:
    """An entry of 4,000 bytes, referred to again and again by one byte each."""
    reader = HeaderReader(head_of)
    entry = block([("a", "b" * 3_900)], Encoder())
    with pytest.raises(ConnectionFailedError) as raised:
        reader.fields(entry + b"\xbe" * 10_000)
    assert raised.value.code == Code.ENHANCE_YOUR_CALM


def test_trailers_of_a_request_have_no_pseudo_headers() -> None:
    """Headers that are forbidden at the beginning are forbidden there too."""
    headers.check_trailers([(b"x-checksum", b"1")])
    for name in (b":path", b"X", b"connection"):
        with pytest.raises(StreamFailedError):
            headers.check_trailers([(name, b"1")])


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("plain text, 1!", "plain text, 1!"),
        ("50%", "50%25"),
        ("a\nb", "a%0Ab"),
        ("\u00e9", "%C3%A9"),
        ("\U0001f600", "%F0%9F%98%80"),
        ("~", "~"),
    ],
)
def test_a_status_text_is_escaped(text: str, sent: str) -> None:
    """Percent signs and everything but printable ASCII, as gRPC over HTTP/2 defines it."""
    assert told(headers.trailers(5, text, (), alone=False)) == {"grpc-status": "5", "grpc-message": sent}


@pytest.mark.parametrize("text", ["x" * 100_000, "\u00e9" * 100_000, "\u65e5" * 100_000, "\ud800" * 10])
def test_a_status_text_of_any_length_fits_a_frame(text: str) -> None:
    """It is cut: a frame has at most 16,384 bytes, and clients take 8 KiB of headers."""
    sent = headers.trailers(13, text, [("grpc-retry-pushback-ms", "100")], alone=True)
    assert sum(map(len, told(sent).values())) < 8_192
    assert len(sent) < 16_384
    assert told(sent)["grpc-retry-pushback-ms"] == "100"


def test_an_answer_without_messages_is_one_block() -> None:
    """HTTP status and gRPC status together: gRPC's Trailers-Only."""
    assert told(headers.trailers(0, "", (), alone=True)) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "0",
    }
