"""One connection to a broker: calls with answers, each with a timeout, over TCP or TLS.

Calls may overlap; a broker answers them in any order. An answer that cannot be right ends the connection, and so does its end:
every call that waits then fails, at once. What nobody waits for (late answers, a broker's own requests) is dropped.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import anyio

from adapter.rocketmq.config import RocketmqSection
from adapter.rocketmq.errors import BrokerError, BrokerRefusedError, BrokerUnreachableError
from adapter.rocketmq.frames import LENGTH, SUCCESS, Reply, check_length, decode_reply, encode_request
from adapter.rocketmq.signing import Signer
from adapter.runtime.settings.addresses import split_address

BUFFER_BYTES = 2**20  # read ahead
MAX_WAITING = 1_000  # calls of one connection
MAX_REMARK = 200  # characters of a broker's remark in an error: some are stack traces
_LAST_OPAQUE = 2**31 - 1


class Connection:
    """An open connection. Made by `open_connection`."""

    def __init__(
        self, section: RocketmqSection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, signer: Signer | None
    ) -> None:
        self._address = section.broker
        self._timeout_s = section.timeout_ms / 1000
        self._reader = reader
        self._writer = writer
        self._signer = signer
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._opaque = 0
        self._end: BrokerError | None = None
        self.bytes_read = 0

    async def call(self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        """Send a request and return its answer, which says SUCCESS.

        Raises BrokerRefusedError for any other answer, BrokerError when there is none in time or the connection has ended.
        """
        reply = await self._ask(code, dict(fields or {}), body)
        if reply.code != SUCCESS:
            remark = reply.remark.split("\n", 1)[0][:MAX_REMARK] or "without a reason"
            raise BrokerRefusedError(
                f"the broker at {self._address} answered request {code} with {reply.code}: {remark}", reply.code
            )
        return reply

    async def _ask(self, code: int, fields: dict[str, str], body: bytes) -> Reply:
        if self._end:
            raise self._end
        if len(self._waiting) >= MAX_WAITING:
            raise BrokerError(f"{MAX_WAITING} requests to the broker at {self._address} wait for an answer already")
        self._opaque = self._opaque % _LAST_OPAQUE + 1
        opaque = self._opaque
        signed = self._signer.signed(fields, body) if self._signer else fields
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = answer
        try:
            with anyio.fail_after(self._timeout_s):
                self._writer.write(encode_request(code, opaque, signed, body))
                await self._writer.drain()
                await answer
            return answer.result()
        except TimeoutError:
            raise BrokerError(
                f"the broker at {self._address} did not answer request {code} within {self._timeout_s:g} s: "
                "is it overloaded? rocketmq.timeout_ms is the limit"
            ) from None
        except OSError as error:
            raise BrokerError(f"the broker at {self._address} closed the connection: {error}") from error
        finally:
            self._waiting.pop(opaque, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # looked at, so that asyncio does not report it

    async def read(self) -> None:
        """Take answers until the connection ends; never raises but when cancelled."""
        try:
            while True:
                length = check_length(*LENGTH.unpack(await self._reader.readexactly(LENGTH.size)))
                frame = await self._reader.readexactly(length)
                self.bytes_read += LENGTH.size + length
                self._take(decode_reply(frame))
        except asyncio.IncompleteReadError:
            self._fail(BrokerError(f"the broker at {self._address} closed the connection"))
        except OSError as error:
            self._fail(BrokerError(f"the connection to the broker at {self._address} failed: {error}"))
        except BrokerError as error:
            self._fail(BrokerError(f"the broker at {self._address}: {error}"))

    def _take(self, reply: Reply) -> None:
        answer = self._waiting.get(reply.opaque)
        if reply.is_reply and answer and not answer.done():
            answer.set_result(reply)

    def _fail(self, error: BrokerError) -> None:
        self._end = error
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)


@asynccontextmanager
async def open_connection(section: RocketmqSection, signer: Signer | None) -> AsyncIterator[Connection]:
    """Connect to the broker of a section. Raises BrokerError when that fails, or takes longer than a call may."""
    reader, writer = await _connect(section)
    connection = Connection(section, reader, writer, signer)
    reading = asyncio.create_task(connection.read(), name="rocketmq.read")
    try:
        yield connection
    finally:
        reading.cancel()
        writer.close()
        with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
            await reading


async def _connect(section: RocketmqSection) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = split_address(section.broker)
    try:
        with anyio.fail_after(section.timeout_ms / 1000):
            tls = tls_context(section)
            name = (section.tls.server_name or host) if section.tls else None
            return await asyncio.open_connection(host, port, limit=BUFFER_BYTES, ssl=tls, server_hostname=name)
    except TimeoutError:
        raise BrokerError(f"the broker at {section.broker} did not accept a connection within {section.timeout_ms} ms") from None
    except ssl.SSLError as error:
        raise BrokerError(
            f"no TLS with the broker at {section.broker}: {error.reason or error}; does it serve TLS (tls.server.mode), and did "
            "rocketmq.tls.ca sign its certificate?"
        ) from error
    except (OSError, UnicodeError) as error:  # of a name that DNS cannot have, such as a..b
        reason = getattr(error, "strerror", None) or error
        raise BrokerUnreachableError(f"the broker at {section.broker} cannot be reached: {reason}") from error


def tls_context(section: RocketmqSection) -> ssl.SSLContext | None:
    """How the broker's certificate is verified and ours is shown; None without TLS. Raises BrokerError for unusable files."""
    if section.tls is None:
        return None
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=section.tls.ca)
        if section.tls.cert:
            context.load_cert_chain(section.tls.cert, section.tls.key)
    except OSError as error:
        raise BrokerError(f"rocketmq.tls: a file cannot be used: {error}") from error
    return context
