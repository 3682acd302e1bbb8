"""Frames of the remoting protocol: those that RocketMQ's own classes encoded, and everything that is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.rocketmq.errors import BrokerError
from adapter.rocketmq.frames import MAX_FRAME_BYTES, check_length, decode_reply, encode_request

# RemotingCommand.encode of RocketMQ 5.3.3: code 17, a remark, the field offset = 9, opaque 7, the body "b".
BINARY = bytes.fromhex(
    "0100003200110000000000000700000001000000106e6f207375636820746f70696320c3bc0000000d00066f6666736574000000013962"
)
JSON = (
    b'\0\0\0\x95{"code":17,"extFields":{"offset":"9"},"flag":1,"language":"JAVA","opaque":7,'
    b'"remark":"no such topic \xc3\xbc","serializeTypeCurrentRPC":"JSON","version":0}b'
)


@pytest.mark.parametrize("frame", [JSON, BINARY], ids=["json", "binary"])
def test_both_forms_of_a_header_are_read(frame: bytes) -> None:
    """As RocketMQ 5.3.3 encoded them."""
    reply = decode_reply(frame)
    assert (reply.code, reply.opaque, reply.is_reply, reply.remark) == (17, 7, True, "no such topic \u00fc")
    assert (reply.fields, reply.body) == ({"offset": "9"}, b"b")


def test_a_request_is_a_frame_with_a_json_header() -> None:
    """Length, form and length of the header, header, body."""
    data = encode_request(15, 3, {"topic": "T\u00fc"}, b"xyz")
    size = int.from_bytes(data[5:8], "big")
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert data[4] == 0
    header = json.loads(data[8 : 8 + size])
    assert (header["code"], header["opaque"], header["flag"], header["extFields"]) == (15, 3, 0, {"topic": "T\u00fc"})
    assert data[8 + size :] == b"xyz"


def test_a_request_that_no_broker_accepts_is_not_sent() -> None:
    """Its limit is that of the broker's decoder."""
    with pytest.raises(BrokerError, match="larger than"):
        encode_request(15, 3, {}, b"x" * MAX_FRAME_BYTES)


@pytest.mark.parametrize("length", [0, 3, MAX_FRAME_BYTES + 1, 2**31, 2**32 - 1, int.from_bytes(b"HTTP", "big")])
def test_a_length_that_no_broker_sends_is_refused_before_anything_is_read(length: int) -> None:
    """What answers "HTTP/1.1 ..." announces a frame of 1.2 GB."""
    with pytest.raises(BrokerError, match="Is this the port of a RocketMQ broker"):
        check_length(length)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x05{}",
        b"\x02\0\0\x02{}",
        b"\0\0\0\x02{}",
        b"\0\0\0\x02[]",
        b"\0\0\0\x02\xff\xfe",
        b'\0\0\0\x22{"code":0,"opaque":true,"flag":1} ',
        b'\0\0\0\x24{"code":0,"opaque":1,"flag":1e400}  ',
        b'\0\0\0\x2b{"code":0,"opaque":1,"flag":1,"remark":[1]}',
        b'\0\0\0\x2b{"code":0,"opaque":1,"flag":1,"extFields":3}',
        b"\0\0\x30\0" + b"[" * 0x3000,
        BINARY[:30],
        b"\x01\0\0\x04\0\0\0\0",
        BINARY[:17] + b"\x7f\xff\xff\xff" + BINARY[21:],
        BINARY[:17] + b"\xff\xff\xff\xff" + BINARY[21:],
        BINARY.replace(b"\0\0\0\x0d", b"\0\0\x10\x0d"),
        BINARY.replace(b"\xc3\xbc", b"\xc3\xc3"),
    ],
)
def test_a_frame_that_is_none_is_refused(frame: bytes) -> None:
    """With one error, whatever is wrong."""
    with pytest.raises(BrokerError, match="is not RocketMQ's remoting protocol"):
        decode_reply(frame)


@given(st.binary(max_size=200), st.sampled_from([b"", JSON[:4], BINARY[:4], b"\x01\0\0\x16"]))
def test_any_bytes_are_a_reply_or_an_error(data: bytes, head: bytes) -> None:
    """Never another exception."""
    try:
        decode_reply(head + data)
    except BrokerError as error:
        assert "RocketMQ" in str(error)  # noqa: PT017 - both outcomes are allowed
