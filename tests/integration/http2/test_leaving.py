"""How the built-in server asks its clients to leave: no call that they sent before they knew fails, and nothing is reset (8)."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, PingFrame, SettingsFrame

from adapter.runtime.serving.http2 import server as http2_server
from adapter.runtime.serving.http2.server import LEAVING_LOOK_S, Http2Peer, Http2Server
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually
from tests.http2_attacks import ACK, PING, Attacker, Calls, Ended
from tests.integration.helpers import PATIENCE_S, commits, key

ECHO = "/t.T/Echo"
NEVER_S = 1_000.0
LOOKS = 20


class Server(Http2Server):
    """With a method that answers with its request."""

    def __init__(self) -> None:
        super().__init__()
        handler = grpc.unary_unary_rpc_method_handler(self._echo, request_deserializer=bytes, response_serializer=bytes)
        self.add_registered_method_handlers("t.T", {"Echo": handler})

    async def _echo(self, request: bytes, _: object) -> bytes:
        return request


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for its clients, however slow this machine is."""
    monkeypatch.setattr(http2_server, "ASKED_S", NEVER_S)
    monkeypatch.setattr(http2_server, "LEFT_S", NEVER_S)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket as a service manager holds it."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield held


@asynccontextmanager
async def serving(held: socket.socket) -> AsyncIterator[Server]:
    """A server on a copy of a socket."""
    server = Server()
    await server.listen(held.dup())
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(held: socket.socket) -> AsyncIterator[Attacker]:
    """A client by its frames."""
    host, port = held.getsockname()
    with await asyncio.to_thread(Attacker, f"{host}:{port}") as peer:
        yield peer


async def frames(peer: Attacker, enough: Callable[[list[Frame]], bool] = lambda _: False) -> list[Frame]:
    """What comes until it is enough, or to the end of the connection."""

    def checked(found: Ended) -> bool:
        return enough(found.frames)

    return (await asyncio.to_thread(peer.read_until, checked)).frames


def asked(found: list[Frame]) -> bool:
    """True once the server has asked the client to leave, and whether it knows."""
    return any(isinstance(each, PingFrame) and each.opaque_data == b"draining" for each in found)


def last_calls(found: list[Frame]) -> list[int]:
    """What each GOAWAY names."""
    return [int(each.last_stream_id) for each in found if isinstance(each, GoAwayFrame)]


def knows() -> bytes:
    """The answer of a client to one of the two PINGs."""
    return bytes([0, 0, 8, PING, ACK, 0, 0, 0, 0]) + b"draining"


async def some_looks() -> None:
    """Let the server look at its connections, some times."""
    for _ in range(LOOKS):
        await asyncio.sleep(LEAVING_LOOK_S)


@pytest.mark.parametrize("first", ["call", "answer"])
async def test_a_call_that_was_on_its_way_is_answered_before_the_connection_ends(listener: socket.socket, first: str) -> None:
    """It gets its answer, the last call's number, and the end, in this order.

    The client sends it, then learns of the stop; or has begun it, and answers the PING first, as h2 does (the library of tonic).
    """
    call, known = Calls().whole(ECHO, b"late"), knows()
    async with serving(listener) as server, connected(listener) as peer:
        await eventually(lambda: bool(server.peers))
        server.drain()
        leaving = asyncio.create_task(server.drained(PATIENCE_S))
        found = await frames(peer, asked)
        assert last_calls(found) == [2**31 - 1]
        await some_looks()
        peer.send(call + known if first == "call" else known + call)
        found = await frames(peer, asked)
        assert last_calls(found) == []
        peer.send(known)
        found += await frames(peer)
        assert [each.data[5:] for each in found if isinstance(each, DataFrame)] == [b"late"]
        assert last_calls(found) == [1]
        assert not leaving.done()
        peer.socket.close()
        assert await leaving


async def test_a_client_that_acknowledges_nothing_is_told_the_last_call(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while; what it sends then was not begun, and it can tell. The connection is not reset."""
    monkeypatch.setattr(http2_server, "ASKED_S", 0.0)
    async with serving(listener) as server, connected(listener) as peer:
        await eventually(lambda: bool(server.peers))
        server.drain()
        leaving = asyncio.create_task(server.drained(PATIENCE_S))
        found = await frames(peer)
        assert last_calls(found) == [2**31 - 1, 0]
        peer.send(Calls().whole(ECHO, b"late"))
        await some_looks()
        assert server.peers
        peer.socket.close()
        assert await leaving


async def test_a_client_that_stays_is_disconnected(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """It acknowledges, and does not close the connection."""
    monkeypatch.setattr(http2_server, "LEFT_S", 0.0)
    async with serving(listener) as server, connected(listener) as peer:
        await eventually(lambda: bool(server.peers))
        server.drain()
        peer.send(knows() * 2)
        assert await server.drained(PATIENCE_S)


async def test_a_connection_that_was_accepted_in_the_moment_of_the_stop_is_asked_to_leave() -> None:
    """Its socket was taken from the backlog, so that no other process will serve it."""
    server = Server()
    ours, theirs = socket.socketpair()
    server.drain()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: Http2Peer(server, "unix:"), ours)
    leaving = asyncio.create_task(server.drained(PATIENCE_S))
    with theirs:
        theirs.settimeout(PATIENCE_S)
        greeting = b""
        while b"draining" not in greeting and (data := await asyncio.to_thread(theirs.recv, 65_536)):
            greeting += data
    assert b"draining" in greeting
    assert await leaving


async def test_a_client_that_is_gone_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end was not read so far: shutting the connection down is refused, and nothing else may end because of that."""

    def gone(_: object) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    server = Server()
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: Http2Peer(server, "unix:"), ours)
        monkeypatch.setattr(type(transport), "write_eof", gone)
        server.drain()
        theirs.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]) + knows() * 2)
        assert await server.drained(PATIENCE_S)


async def test_who_connects_after_the_stop_waits_in_the_backlog(listener: socket.socket) -> None:
    """The next process that listens on the socket serves it."""
    async with serving(listener) as first:
        first.drain()
        async with connected(listener) as peer:
            peer.send(Calls().whole(ECHO, b"x"))
            await some_looks()
            assert not first.peers
            async with serving(listener):
                found = await frames(peer, lambda found: any(isinstance(each, DataFrame) for each in found))
    assert isinstance(found[0], SettingsFrame)
    assert [each.data[5:] for each in found if isinstance(each, DataFrame)] == [b"x"]
    assert await first.drained(0)


async def test_a_commit_that_was_on_its_way_at_the_stop_is_taken(directory: Path) -> None:
    """The adapter refuses none before it knows that the client has heard of the stop; it is flushed with the others."""
    meta = FakeMeta()
    config = adapter_config(directory, stop={"grace_ms": 120_000})
    async with running_sidecar(config, meta) as sidecar:
        with await asyncio.to_thread(Attacker, sidecar.addresses[0]) as peer:
            calls = Calls()
            peer.send(calls.whole("/no/such"))
            await frames(peer, lambda found: any(isinstance(each, HeadersFrame) for each in found))
            sidecar.stop()
            await frames(peer, asked)
            await some_looks()
            peer.send(calls.whole(body=commits({"late": 1}).SerializeToString()) + knows() * 2)
            assert last_calls(await frames(peer)) == [3]
    assert meta.records.keys() == {key("late")}
