"""Relayed calls: what passes through unchanged, when a call goes on to the next node, and nodes that break the rules."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import grpc.aio
import pytest
from hyperframe.frame import GoAwayFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from adapter.runtime.serving.http2 import client
from adapter.runtime.serving.http2.client import Node
from adapter.runtime.serving.http2.relay import Relay
from adapter.runtime.serving.http2.server import Http2Server
from adapter.testing.waiting import eventually
from tests.http2_client import block, data, frames_of, head

Code = grpc.StatusCode
FORWARD = 'has to forward request to: Some(2), rpc_addr: "node-2:1228" é'
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
GREETING = SettingsFrame().serialize()
OK = head(1, block([(":status", "200"), ("content-type", "application/grpc")]))
DONE = head(1, block([("grpc-status", "0")]), end=True)


class _Service(grpc.GenericRpcHandler):
    """What a node answers, by the name of the method."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.written = 0

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        kind = grpc.stream_stream_rpc_method_handler if name in {"Chat", "Flood"} else grpc.unary_unary_rpc_method_handler
        return kind(getattr(self, name)) if hasattr(self, name) else None

    async def Echo(self, request: bytes, context: Any) -> bytes:
        sent = dict(context.invocation_metadata())
        await context.send_initial_metadata((("first", sent.get("word", "")),))
        context.set_trailing_metadata((("last-bin", bytes(range(256))),))
        return request

    async def Fail(self, _: bytes, context: Any) -> bytes:
        await context.abort(Code.INTERNAL, FORWARD, (("why", "election"),))
        raise AssertionError

    async def Hang(self, request: bytes, _: Any) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return request

    async def Chat(self, requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def Flood(self, _: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        while True:
            await context.write(bytes(10_000))
            self.written += 10_000
            yield b""


@asynccontextmanager
async def _node() -> AsyncIterator[tuple[str, _Service]]:
    server, service = grpc.aio.server(options=ANY_SIZE), _Service()
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}", service
    await server.stop(0)


@asynccontextmanager
async def _relaying(*nodes: str, limit_s: float | None = None) -> AsyncIterator[tuple[Any, Relay]]:
    relay = Relay([Node(name) for name in nodes], limit_s=lambda _: limit_s)
    server, listener = Http2Server(relay=relay), socket.create_server(("127.0.0.1", 0))
    await server.listen(listener)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{listener.getsockname()[1]}", options=ANY_SIZE) as channel:
        yield channel, relay
    await server.stop(0)
    relay.close()


@asynccontextmanager
async def _scripted(script: Sequence[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A node that sends these bytes once a request with the word end! has come; and what it received.

    It then closes the connection, unless the last of them is empty.
    """
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        got = b""
        while b"end!" not in got:
            some = await reader.read(65_536)
            if not some:
                return
            got += some
        received.append(got)
        writer.writelines(script)
        await writer.drain()
        if script[-1] == b"":
            await reader.read()

    async with _serving(serve) as address:
        yield address, received


@asynccontextmanager
async def _serving(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve connections; the address. Each ends with its call of `serve`, all at the end."""
    tasks: dict[asyncio.Task[Any] | None, asyncio.StreamWriter] = {}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks[asyncio.current_task()] = writer
        with suppress(OSError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for task, writer in tasks.items():
        writer.close()
        if task:
            await task


async def _failed(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value


async def test_what_is_sent_arrives_unchanged() -> None:
    """Metadata in both directions, trailers, an error with its text, large messages, streams; nothing is left open."""
    async with _node() as (node, _), _relaying(node) as (channel, relay):
        call = channel.unary_unary("/s/Echo")(b"hello", metadata=(("word", "yes"),))
        assert await call == b"hello"
        assert ("first", "yes") in tuple(await call.initial_metadata())
        assert dict(await call.trailing_metadata())["last-bin"] == bytes(range(256))
        error = await _failed(channel.unary_unary("/s/Fail")(b""))
        assert (error.code(), error.details()) == (Code.INTERNAL, FORWARD)
        assert ("why", "election") in tuple(error.trailing_metadata())
        large = os.urandom(12_000_000)
        assert await channel.unary_unary("/s/Echo")(large) == large
        chat = channel.stream_stream("/s/Chat")()
        for word in (b"one", b"", b"three"):
            await chat.write(word)
            assert await chat.read() == word
        await chat.done_writing()
        assert await chat.read() is grpc.aio.EOF
        assert (await _failed(channel.unary_unary("/s/Unknown")(b""))).code() is Code.UNIMPLEMENTED
        assert relay.open == 0


async def test_compressed_messages_stay_as_they_are() -> None:
    """The built-in server itself takes none."""
    async with _node() as (node, _), _relaying(node) as (channel, _):
        call = channel.unary_unary("/s/Echo")
        assert await call(bytes(100_000), compression=grpc.Compression.Gzip) == bytes(100_000)


async def test_a_deadline_and_a_cancelled_call_end_the_node_s() -> None:
    """And a limit of our own."""
    async with _node() as (node, service):
        async with _relaying(node) as (channel, relay):
            assert (await _failed(channel.unary_unary("/s/Hang")(b"", timeout=0.2))).code() is Code.DEADLINE_EXCEEDED
            await service.cancelled.wait()
            service.cancelled.clear()
            call = channel.unary_unary("/s/Hang")(b"")
            await channel.unary_unary("/s/Echo")(b"")  # the call before it has begun as well
            call.cancel()
            await service.cancelled.wait()
            assert (relay.open, relay.nodes[0].lost) == (0, 0)
        async with _relaying(node, limit_s=0.05) as (channel, _):
            assert (await _failed(channel.unary_unary("/s/Hang")(b""))).code() is Code.DEADLINE_EXCEEDED


async def test_a_reader_that_stops_stops_the_node() -> None:
    """What waits is bounded: windows and buffers of the sockets, not what the node would send."""
    async with _node() as (node, service), _relaying(node) as (channel, _):
        call = channel.stream_stream("/s/Flood")()
        await call.read()
        before, still = -1, 0
        while still < 20:  # it has written nothing in as many looks
            still = still + 1 if service.written == before else 0
            before = service.written
            assert before < 8_000_000
            await asyncio.sleep(0.01)
        call.cancel()


async def test_a_node_that_is_not_there_is_passed_over() -> None:
    """In the order of the settings; with none left the text is one at which RobustMQ's clients call their next address."""
    async with _node() as (node, _), _relaying("127.0.0.1:1", node) as (channel, relay):
        assert await channel.unary_unary("/s/Echo")(b"x") == b"x"
        assert relay.nodes[0].problem
    async with _relaying("127.0.0.1:1") as (channel, _):
        error = await _failed(channel.unary_unary("/s/Echo")(b"x"))
        assert error.code() is Code.UNAVAILABLE
        assert "The service is currently unavailable" in str(error.details())


async def test_a_node_that_was_away_is_found_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits for it meanwhile, and none is needed to learn that it is back, wherever it stands in the order."""
    monkeypatch.setattr(client, "PAUSE_S", 3_600)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and says nothing
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        async with _node() as (node, _), _relaying(where, "127.0.0.1:1", node) as (channel, relay):
            assert await channel.unary_unary("/s/Echo")(b"x") == b"x"
            assert [bool(each.problem) for each in relay.nodes] == [True, True, False]
            assert await channel.unary_unary("/s/Echo")(b"y") == b"y"
            assert [each.failures for each in relay.nodes] == [1, 1, 0]
            monkeypatch.setattr(client, "PAUSE_S", 0.01)
            relay.nodes[1].name = node
            relay.nodes[1].failed("once more")
            await eventually(lambda: not relay.nodes[1].problem)
            assert relay.nodes[0].problem


async def test_a_node_that_does_not_read_stops_the_client() -> None:
    """What waits is bounded, as in the other direction."""
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        await reader.readexactly(24)
        await asyncio.Event().wait()

    async def upload(call: Any) -> None:
        nonlocal sent
        while True:
            await call.write(bytes(10_000))
            sent += 10_000

    async with _node_that_does_not_read(serve) as node, _relaying(node) as (channel, _):
        call = channel.stream_stream("/s/Any")()
        uploading = asyncio.create_task(upload(call))
        before, still = -1, 0
        while still < 20 or not sent:
            still = still + 1 if sent == before else 0
            before = sent
            assert before < 2_000_000
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(uploading, return_exceptions=True)


@asynccontextmanager
async def _node_that_does_not_read(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Its window is that of HTTP/2: 64 KiB of a call."""
    tasks: list[asyncio.Task[Any]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.ensure_future(serve(reader, writer)))
        with suppress(asyncio.CancelledError):
            await tasks[-1]
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    "script",
    [
        [RstStreamFrame(1, 7).serialize(), b""],  # REFUSED_STREAM
        [GoAwayFrame(0, last_stream_id=0).serialize(), b""],
    ],
    ids=["refused", "go_away"],
)
async def test_what_a_node_has_not_begun_goes_on_to_the_next(script: list[bytes]) -> None:
    """With all of its request."""
    async with _scripted(script) as (refusing, received), _node() as (node, _), _relaying(refusing, node) as (channel, _):
        assert await channel.unary_unary("/s/Echo")(b"whole end!") == b"whole end!"
        assert len(received) == 1


@pytest.mark.parametrize(
    "script",
    [
        [RstStreamFrame(1, 2).serialize(), b""],  # INTERNAL_ERROR
        [RstStreamFrame(1, 8).serialize(), b""],  # CANCEL
        [RstStreamFrame(1, 11).serialize(), b""],  # ENHANCE_YOUR_CALM
        [OK, RstStreamFrame(1, 7).serialize(), b""],  # REFUSED_STREAM, by a node that has answered
        [GoAwayFrame(0, last_stream_id=1).serialize()],
        [b"x"],
    ],
    ids=["reset", "cancelled", "calmed", "refused_late", "gone_away", "closed"],
)
async def test_what_a_node_may_have_begun_is_not_repeated_at_another(script: list[bytes]) -> None:
    """Only its client knows whether it may be."""
    async with _scripted(script) as (first, at_first), _scripted([OK, DONE, b""]) as (second, at_second):
        async with _relaying(first, second) as (channel, _):
            error = await _failed(channel.unary_unary("/s/Echo")(b"end!", timeout=20))
        assert error.code() is not Code.DEADLINE_EXCEEDED
        assert (len(at_first), len(at_second)) == (1, 0)


HOSTILE: dict[str, list[bytes]] = {
    "closed": [b"x"],
    "cut_off": [OK, data(1, b"\0\0\0\0\5he")],
    "no_http2": [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
    "garbage": [bytes(range(256)) * 4],
    "data_first": [data(1, b"\0\0\0\0\0"), b""],
    "twice": [OK, OK, b""],
    "no_status": [head(1, block([("content-type", "application/grpc")])), b""],
    "bad_name": [head(1, block([(":status", "200"), ("Bad", "x")])), b""],
    "line_feed": [head(1, block([(":status", "200"), ("a", "x\r\nb: c")])), b""],
    "window": [OK, data(1, bytes(16_384)) * 8, b""],
    "stream_never_opened": [head(9, block([(":status", "200")])), b""],
    "even_stream": [head(2, block([(":status", "200")])), b""],
    "large_frame": [b"\xff\xff\xff\0\0\0\0\0\1", b""],
    "zero_window": [WindowUpdateFrame(0, window_increment=1).serialize()[:-4] + bytes(4), b""],
    "wide_window": [WindowUpdateFrame(0, window_increment=2**31 - 1).serialize() * 2, b""],
    "settings_flood": [GREETING * 50_000, b""],
    "reset_unknown": [RstStreamFrame(7, 1).serialize(), b""],
    "push": [b"\0\0\4\5\4\0\0\0\1\0\0\0\2", b""],
    "bomb": [head(1, b"\x3f\xe1\xff\x3f" * 3), b""],
    "long_headers": [head(1, block([(":status", "200"), *[(f"n{at}", "v" * 100) for at in range(2_000)]])), b""],
    "ended_without_status": [OK, data(1, b"\0\0\0\0\0", end=True), b""],
    "reset": [OK, RstStreamFrame(1, 2).serialize(), b""],
    "odd_status": [head(1, block([(":status", "200"), ("grpc-status", "9999999999999999999999")]), end=True), b""],
}


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_node_that_breaks_the_rules_ends_its_call_alone(script: list[bytes]) -> None:
    """The call ends with an error, no other one does, nothing is left over, and the next call is served."""
    async with _scripted(script) as (hostile, received), _relaying(hostile) as (channel, relay):
        error = await _failed(channel.unary_unary("/s/Echo")(b"end!", timeout=20))
        assert error.code() not in {Code.OK, Code.DEADLINE_EXCEEDED}
        assert len(received) == 1  # what a node may have done is not repeated
        assert relay.open == 0
        async with _node() as (node, _):
            relay.replace([Node(node)])
            assert await channel.unary_unary("/s/Echo")(b"x") == b"x"


async def test_calls_wait_while_a_node_takes_no_more() -> None:
    """For as many as it lets be open."""
    settings = SettingsFrame(settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 1}).serialize()
    bodies: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings)
        got, at = b"", 24
        while some := await reader.read(65_536):
            got += some
            while len(got) >= at + 9 and len(got) >= at + 9 + int.from_bytes(got[at : at + 3], "big"):
                size = int.from_bytes(got[at : at + 3], "big")
                for frame in frames_of(got[at : at + 9 + size]):
                    if "END_STREAM" in frame.flags:
                        bodies.append(frame.stream_id)
                        writer.write(
                            head(frame.stream_id, block([(":status", "200"), ("content-type", "application/grpc")]))
                            + data(frame.stream_id, b"\0\0\0\0\0")
                            + head(frame.stream_id, block([("grpc-status", "0")]), end=True)
                        )
                at += 9 + size

    async with _serving(serve) as node, _relaying(node) as (channel, _):
        assert await asyncio.gather(*(channel.unary_unary("/s/Any")(b"") for _ in range(20))) == [b""] * 20
    assert bodies == list(range(1, 41, 2))
