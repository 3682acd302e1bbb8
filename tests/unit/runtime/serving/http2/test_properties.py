"""For any input: no exception, valid frames, and the same result however it is cut. The properties are in tests/fuzz/http2.py."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.http2 import check, http2
from tests.http2_client import block, data, head, message, opening, request

EXAMPLES = int(os.environ.get("HTTP2_EXAMPLES", "25"))
STREAMS = st.sampled_from((1, 1, 3, 3, 5, 7, 9, 2, 2**31 - 1))
ANY = st.just(0) | STREAMS

BLOCKS = st.sampled_from(
    [
        block(request()),
        block(request()),
        block(request("/s/m", ("content-length", "6"), ("grpc-encoding", "gzip"), ("grpc-timeout", "1S"))),
        block(request("/s/m", ("grpc-timeout", "?"))),
        block(request(method="GET", kind="")),
        block(request(kind="text/plain")),
        block([("x-trailer", "1")]),
        b"\x83\x86\x84",
        b"\x83\x86\x44\x02/a\x5f\x10application/grpc",  # adds two entries to the table
        b"\x83\x86\xbf\xbe",  # names them
        b"\x20",
        b"\x3f\xe1\x1f",
    ]
) | st.binary(max_size=20)
MESSAGES = st.one_of(
    st.binary(max_size=40).map(message),
    st.integers(0, 70_000).map(lambda size: message(bytes(size))[:16_000]),
    st.binary(max_size=5).map(lambda payload: message(payload, compressed=1)),
    st.lists(st.binary(max_size=3).map(message), max_size=5).map(b"".join),
    st.binary(max_size=8),
)
PADS = st.none() | st.integers(0, 255)


def raw(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Any frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def numbers(size: int) -> st.SearchStrategy[bytes]:
    """Numbers near the limits of the protocol."""
    return st.sampled_from((0, 1, 2, 100, 16_384, 65_535, 2**31 - 1, 2**31, 2**32 - 1)).map(
        lambda n: (n % 256**size).to_bytes(size, "big")
    )


FRAMES = st.one_of(
    st.builds(head, STREAMS, BLOCKS, end=st.booleans(), most=st.sampled_from((1, 7, 16_384))),
    st.builds(head, STREAMS, BLOCKS, end=st.booleans()),
    st.builds(data, STREAMS, MESSAGES, end=st.booleans(), pad=PADS),
    st.builds(data, STREAMS, MESSAGES, end=st.booleans()),
    st.builds(lambda stream, size: raw(8, 0, stream, size), ANY, numbers(4)),
    st.builds(lambda stream: raw(3, 0, stream, bytes(4)), ANY),
    st.builds(lambda pairs: raw(4, 0, 0, b"".join(pairs)), st.lists(st.tuples(numbers(2), numbers(4)).map(b"".join), max_size=3)),
    st.builds(lambda size: raw(4, 0, 0, b"\0\4" + size), numbers(4)),
    st.builds(lambda flags: raw(6, flags, 0, b"draining"), st.integers(0, 1)),
    st.builds(raw, st.integers(0, 12), st.integers(0, 255), ANY, st.binary(max_size=20)),
)


@pytest.mark.no_cover
@given(frames=st.lists(FRAMES, max_size=30), manner=st.integers(0, 31), piece=st.integers(1, 60))
@settings(max_examples=EXAMPLES)
def test_frames_in_any_order_are_answered_by_the_rules(frames: list[bytes], manner: int, piece: int) -> None:
    """Set HTTP2_EXAMPLES=5000 for more examples."""
    check(opening() + b"".join(frames), manner, piece)


@pytest.mark.no_cover
@given(sent=st.binary(max_size=200), form=st.sampled_from((b"\0", b"\2", b"\3")))
@settings(max_examples=EXAMPLES)
def test_any_bytes_are_answered_by_the_rules(sent: bytes, form: bytes) -> None:
    """Before the preface, after it, and as records that are turned into frames."""
    http2(form + sent)
