"""The client of a broker, over a real socket: calls, timeouts, ACL, TLS, and brokers that answer garbage."""

import asyncio
import re
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from adapter.rocketmq.broker import connected
from adapter.rocketmq.config import RocketmqSection, RocketmqTls
from adapter.rocketmq.connection import Connection, open_connection
from adapter.rocketmq.errors import BrokerError, BrokerRefusedError, BrokerUnreachableError
from adapter.rocketmq.frames import MAX_FRAME_BYTES
from adapter.rocketmq.signing import Signer
from adapter.testing.waiting import eventually
from tests.fake_rocketmq import Answer, FakeBroker
from tests.integration.certificates import Authority

GARBAGE: dict[str, Callable[[int, bytes], bytes]] = {
    "text": lambda *_: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a huge length": lambda _, data: struct.pack(">I", MAX_FRAME_BYTES + 1) + data[4:],
    "a negative length": lambda _, data: b"\xff\xff\xff\xff" + data[4:],
    "a header longer than its frame": lambda _, data: data[:4] + b"\0\xff\xff\xff" + data[8:],
    "an unknown form": lambda _, data: data[:4] + b"\x09" + data[5:],
    "no JSON": lambda _, data: data.replace(b"{", b"}"),
    "no opaque": lambda _, data: data.replace(b'"opaque"', b'"opaqux"'),
}


def section(broker: FakeBroker, **values: object) -> RocketmqSection:
    """How the client sees it."""
    return RocketmqSection.model_validate({"broker": broker.address, **values})


@pytest.mark.parametrize("binary", [False, True])
async def test_a_broker_is_asked_in_either_form(binary: bool) -> None:
    """JSON headers, and RocketMQ's binary ones."""
    fake = FakeBroker(binary=binary)
    fake.commit("g", "T", 1, 40, end=50)
    async with fake.serving(), connected(section(fake), None) as broker:
        identity = await broker.identity()
        assert (identity.name, identity.boot_ms, identity.is_slave, identity.resets) == ("broker-a", 1_000, False, True)
        assert await broker.bounds("T", 1) == (0, 50)
        await broker.update_offset("g", "T", 1, 41)
        assert fake.offset("g", "T", 1) == 41
        assert await broker.has_topic("T")
        assert not await broker.has_topic("U")
        with pytest.raises(BrokerRefusedError, match="answered request 15 with 26: Group h not exist!"):
            await broker.update_offset("h", "T", 1, 41)


async def test_many_calls_overlap_on_one_connection() -> None:
    """Each gets its own answer."""
    fake = FakeBroker()
    fake.logs = {("T", queue): (0, queue) for queue in range(200)}
    async with fake.serving(), connected(section(fake), None) as broker:
        found = await asyncio.gather(*(broker.bounds("T", queue) for queue in range(200)))
    assert [bounds.high for bounds in found] == list(range(200))


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".example"])
async def test_a_name_that_dns_cannot_have_is_an_error_of_the_connection(host: str) -> None:
    """Python raises none of the system's then, and the bridge would end with it, and with the bridge the sidecar."""
    with pytest.raises(BrokerUnreachableError, match=re.escape(f"the broker at {host}:1 cannot be reached: ")):
        async with connected(RocketmqSection(broker=f"{host}:1"), None):
            pass


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_ends_the_connection_with_an_error(name: str) -> None:
    """At once, for every call that waits, and for every later one."""
    fake = FakeBroker()
    async with fake.serving():
        async with connected(section(fake), None) as broker:
            assert await broker.offsets()
            fake.spoil = GARBAGE[name]
            with pytest.raises(BrokerError, match="RocketMQ"):
                await broker.offsets()
            fake.spoil = None
            with pytest.raises(BrokerError):
                await broker.offsets()
        async with connected(section(fake), None) as broker:
            assert await broker.offsets()


async def test_a_huge_length_takes_no_memory() -> None:
    """It is refused before the frame is read."""
    fake = FakeBroker(spoil=GARBAGE["a huge length"])
    async with fake.serving(), open_connection(section(fake), None) as connection:
        with pytest.raises(BrokerError, match="a frame of 16,777,217 bytes"):
            await connection.call(43)
        assert connection.bytes_read == 0


async def test_half_a_frame_is_waited_for_no_longer_than_a_call_may_take() -> None:
    """The rest never comes."""
    fake = FakeBroker(spoil=lambda _, data: data[: len(data) // 2])
    async with fake.serving(), connected(section(fake, timeout_ms=50), None) as broker:
        with pytest.raises(BrokerError, match=r"did not answer request 43 within 0.05 s"):
            await broker.offsets()


@pytest.mark.parametrize("wrong", [b'"opaque": 77', b'"opaque": -1', b'"opaque": 0'])
async def test_an_answer_to_another_question_is_nobodys(wrong: bytes) -> None:
    """It is dropped; the call gets its own answer, or none in time."""

    def spoil(_: int, data: bytes) -> bytes:
        at = data.index(b'"opaque": ')
        return data[:4] + data[4:at] + wrong + data[data.index(b",", at) :]

    fake = FakeBroker()
    async with fake.serving(), connected(section(fake, timeout_ms=100), None) as broker:
        assert await broker.offsets()

        def shifted(code: int, data: bytes) -> bytes:
            bad = spoil(code, data)
            size = int.from_bytes(data[5:8], "big") + len(bad) - len(data)
            return struct.pack(">I", len(bad) - 4) + b"\0" + size.to_bytes(3, "big") + bad[8:] + data

        fake.spoil = shifted
        assert await broker.offsets()
        fake.spoil = lambda code, data: shifted(code, data)[: -len(data)]
        with pytest.raises(BrokerError, match="did not answer"):
            await broker.offsets()


async def test_a_request_of_the_broker_is_not_taken_for_an_answer() -> None:
    """Brokers tell their clients of new members and transactions in the same way."""
    fake = FakeBroker(spoil=lambda _, data: data.replace(b'"flag": 1', b'"flag": 0') + data)
    async with fake.serving(), connected(section(fake), None) as broker:
        assert (await broker.identity()).name == "broker-a"


async def test_a_broker_that_goes_away_ends_every_call() -> None:
    """Not only the one that was sent last."""
    fake = FakeBroker(spoil=lambda *_: b"")
    errors: list[BrokerError] = []

    async def call(connection: Connection) -> None:
        try:
            await connection.call(43)
        except BrokerError as error:
            errors.append(error)

    async with fake.serving() as up, open_connection(section(fake), None) as connection, anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(call, connection)
        await eventually(lambda: len(up.calls) == 3)
        up.cut()
    assert len(errors) == 3


async def test_nobody_there_is_told_by_address() -> None:
    """With what to check left to the caller."""
    fake = FakeBroker()
    async with fake.serving():
        gone = section(fake)
    with pytest.raises(BrokerError, match=rf"the broker at {fake.address} cannot be reached"):
        async with connected(gone, None):
            pass


async def test_a_broker_with_an_acl_takes_signed_requests_alone() -> None:
    """Names beyond ASCII are signed as UTF-8."""
    fake = FakeBroker(secret="12345678")  # noqa: S106
    fake.commit("gr\u00fc\u00dfe", "T", 0, 1)
    async with fake.serving():
        async with connected(section(fake), Signer("admin", "12345678")) as broker:
            await broker.update_offset("gr\u00fc\u00dfe", "T", 0, 2)
        for signer in (None, Signer("admin", "wrong")):
            async with connected(section(fake), signer) as broker:
                with pytest.raises(BrokerRefusedError, match="Check signature failed"):
                    await broker.identity()
    assert fake.offset("gr\u00fc\u00dfe", "T", 0) == 2


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (28, b"[]"), (28, b'{"table":{}}'), (28, b'{"table":{"bootTimestamp":"x"}}'), (28, b'{"table":{"bootTimestamp":-1}}'),
        (26, b""), (26, b"brokerName=\n"), (26, b"brokerName=\x07\n"),
    ],
)  # fmt: skip
async def test_a_broker_that_does_not_say_who_it_is_is_not_followed(code: int, body: bytes) -> None:
    """A name or a start that cannot be right is an error."""
    fake = FakeBroker()
    usual = fake.answer

    def answer(code_: int, fields: dict[str, str], data: bytes) -> Answer:
        return (0, "", {}, body) if code_ == code else usual(code_, fields, data)

    fake.answer = answer  # type: ignore[assignment,method-assign]
    async with fake.serving(), connected(section(fake), None) as broker:
        with pytest.raises(BrokerError, match=r"broker's|bootTimestamp"):
            await broker.identity()


@pytest.mark.parametrize("offset", ["", "x", "-2", "9223372036854775808", "1.0", "\u0663"])
async def test_an_offset_that_cannot_be_right_is_an_error(offset: str) -> None:
    """Never 0 in its place."""
    fake = FakeBroker()
    fake.answer = lambda *_: (0, "", {"offset": offset}, b"")  # type: ignore[method-assign]
    async with fake.serving(), connected(section(fake), None) as broker:
        with pytest.raises(BrokerError, match="the offset of T/0 is"):
            await broker.bounds("T", 0)


def tls_of(directory: Path) -> tuple[Authority, ssl.SSLContext]:
    """An authority, and how a broker serves TLS with its certificate; clients have to show one."""
    authority = Authority(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.cert)
    context.load_cert_chain(*authority.issue("broker"))
    context.verify_mode = ssl.CERT_REQUIRED
    return authority, context


async def test_a_broker_is_asked_over_tls(tmp_path: Path) -> None:
    """Verified by its CA, and shown a certificate."""
    authority, context = tls_of(tmp_path)
    cert, key = authority.issue("adapter")
    fake = FakeBroker()
    async with fake.serving(context):
        for name in ("", "localhost"):
            tls = RocketmqTls(ca=authority.cert, cert=cert, key=key, server_name=name)
            async with connected(section(fake, tls=tls), None) as broker:
                assert (await broker.identity()).name == "broker-a"


async def test_a_certificate_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Another CA, another name, and a file that is not there; the error names the settings."""
    authority, context = tls_of(tmp_path)
    other = Authority(tmp_path, "other")
    fake = FakeBroker()
    async with fake.serving(context):
        for tls in (RocketmqTls(ca=other.cert), RocketmqTls(ca=authority.cert, server_name="elsewhere")):
            with pytest.raises(BrokerError, match=r"no TLS with the broker at .*rocketmq.tls.ca"):
                async with connected(section(fake, tls=tls), None):
                    pass
        with pytest.raises(BrokerError, match=r"rocketmq.tls: a file cannot be used"):
            async with connected(section(fake, tls=RocketmqTls(ca=tmp_path / "none")), None):
                pass


async def test_a_broker_without_tls_is_told(tmp_path: Path) -> None:
    """It closes the connection, or answers what is no handshake."""
    fake = FakeBroker()
    tls = RocketmqTls(ca=Authority(tmp_path).cert)
    async with fake.serving():
        with pytest.raises(BrokerError):
            async with connected(section(fake, tls=tls, timeout_ms=1_000), None):
                pass
