"""Slow clients of the built-in server: those that are gone or silent are disconnected, and leave nothing in memory."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, PingFrame

from adapter.runtime.serving.http2 import server as http2_server
from adapter.runtime.serving.http2.call import Call, Requests
from adapter.runtime.serving.http2.connection import STREAMS_MAX, Connection
from adapter.runtime.serving.http2.control import Control
from adapter.runtime.serving.http2.flood import FloodGuard
from adapter.runtime.serving.http2.receiving import Receiver
from adapter.runtime.serving.http2.sending import Sender
from adapter.runtime.serving.http2.server import Http2Peer, Http2Server
from adapter.runtime.serving.http2.streams import Stream
from adapter.testing.waiting import eventually
from tests.durability.proxy import Proxy
from tests.http2_attacks import (
    ACK,
    DATA,
    END_STREAM,
    NO_WINDOW,
    PING,
    RST_STREAM,
    SETTINGS,
    WIDE,
    WINDOW_UPDATE,
    Attacker,
    Calls,
    Ended,
    empty_settings,
    frame,
)
from tests.http2_client import PREFACE, message
from tests.integration.helpers import PATIENCE_S

NEVER_S = 1_000.0
LARGE, HANG, ECHO = "/t.T/Large", "/t.T/Hang", "/t.T/Echo"
LARGE_BYTES = 8 * 2**20  # more than the kernel takes for a peer that does not read


class Server(Http2Server):
    """With a reply that is large, a call that never ends, and a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging = 0
        self.replies = 0
        self.address = ""
        same: dict[str, Any] = {"request_deserializer": bytes, "response_serializer": bytes}
        methods = {
            "Large": grpc.unary_unary_rpc_method_handler(self._large, **same),
            "Hang": grpc.unary_unary_rpc_method_handler(self._hang, **same),
            "Echo": grpc.stream_stream_rpc_method_handler(self._echo, **same),
        }
        self.add_registered_method_handlers("t.T", methods)

    async def _large(self, _: bytes, __: object) -> bytes:
        self.replies += 1
        return bytes(LARGE_BYTES)

    async def _hang(self, _: bytes, __: object) -> bytes:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.hanging -= 1
        return b""

    async def _echo(self, requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request


@asynccontextmanager
async def listening() -> AsyncIterator[Server]:
    """A server on TCP, stopped at the end."""
    server = Server()
    listener = socket.create_server(("127.0.0.1", 0))
    server.address = f"127.0.0.1:{listener.getsockname()[1]}"
    await server.listen(listener)
    try:
        yield server
    finally:
        await server.stop(0)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], None]:
    """Sets times of the built-in server, in seconds; those that are not named never come."""

    def set_times(values: dict[str, float]) -> None:
        never = dict.fromkeys(("GREET_S", "QUIET_S", "ANSWER_S"), NEVER_S)
        for name, value in {"WATCH_S": 0.01, **never, **values}.items():
            monkeypatch.setattr(http2_server, name, value)

    return set_times


Times = Callable[[dict[str, float]], None]


async def until(peer: Attacker, enough: Callable[[Ended], bool]) -> Ended:
    """What a peer has read, when it is enough or all."""
    return await asyncio.to_thread(peer.read_until, enough)


@pytest.mark.parametrize("opening", [b"", PREFACE[:11], PREFACE, PREFACE + frame(SETTINGS, 0, 0)[:5]])
async def test_who_does_not_say_its_preface_in_time_is_dropped(times: Times, opening: bytes) -> None:
    """Nothing, or a part of it."""
    times({"GREET_S": 0.05})
    async with listening() as server:
        with Attacker(server.address, greets=False) as peer:
            peer.send(opening)
            assert (await until(peer, lambda _: False)).code is None
            await eventually(lambda: not server.peers)


QUIET: dict[str, bytes] = {
    "nothing": b"",
    "half_a_frame": frame(PING, 0, 0, bytes(8))[:12],
    "half_a_message": Calls().open(HANG) + frame(DATA, END_STREAM, 1, message(b"0123456789"))[:15],
    "an_open_stream": Calls().open(ECHO),
    "a_call_that_hangs": Calls().whole(HANG),
    "a_reply_without_window": NO_WINDOW + Calls().whole(LARGE),
}


@pytest.mark.parametrize("said", QUIET.values(), ids=QUIET)
async def test_who_goes_quiet_is_asked_once_and_dropped(times: Times, said: bytes) -> None:
    """By a PING; its calls end."""
    times({"QUIET_S": 0.05, "ANSWER_S": 0.05})
    async with listening() as server:
        with Attacker(server.address) as peer:
            peer.send(said)
            found = await until(peer, lambda _: False)
            assert len([each for each in found.frames if isinstance(each, PingFrame)]) == 1
            await eventually(lambda: not server.peers)
        assert server.hanging == 0


async def test_who_stops_reading_is_dropped_with_what_waits_for_it(times: Times) -> None:
    """A large reply that its windows allow: it cannot even be asked."""
    times({"QUIET_S": 0.05, "ANSWER_S": 0.05})
    async with listening() as server:
        with Attacker(server.address, buffer=4_096) as peer:
            peer.send(WIDE + _calls(LARGE, 5))
            await eventually(lambda: server.replies > 0)
            await eventually(lambda: not server.peers)


@pytest.mark.parametrize("first", [NO_WINDOW, WIDE], ids=["no_window", "wide_windows"])
async def test_what_was_held_back_goes_on_when_its_peer_reads(times: Times, first: bytes) -> None:
    """Not all calls are begun while replies wait; all are answered in the end."""
    times({})
    count = 5
    async with listening() as server:
        with Attacker(server.address, buffer=262_144) as peer:
            peer.send(first + _calls(LARGE, count))
            await eventually(lambda: server.replies > 0 and not any(each.may_start for each in server.peers))
            assert server.replies < count
            peer.send(WIDE if first == NO_WINDOW else b"")
            await until(peer, lambda found: len(_ended(found)) == count)
            assert server.replies == count


async def test_a_reply_that_is_given_up_makes_room_for_others(times: Times) -> None:
    """Without a byte of it being read."""
    times({})
    async with listening() as server:
        with Attacker(server.address) as peer:
            peer.send(NO_WINDOW + _calls(LARGE, 4))
            await eventually(lambda: server.replies > 0 and not any(each.may_start for each in server.peers))
            begun = server.replies  # of the first three: how many fit in depends on when they were read
            assert begun < 4
            peer.send(*(frame(RST_STREAM, 0, stream, bytes(4)) for stream in (1, 3, 5)))
            await eventually(lambda: server.replies > begun)


@pytest.mark.parametrize("path", [LARGE, ECHO])
async def test_calls_that_are_given_up_before_they_begin_leave_nothing(times: Times, path: str) -> None:
    """Behind answers that are not read no call begins, and their client may send and reset any number of them."""
    times({})
    async with listening() as server:
        with Attacker(server.address) as peer:
            calls, body = Calls(), bytes(10_000)
            peer.send(NO_WINDOW, *(calls.whole(LARGE) for _ in range(3)))
            await eventually(lambda: server.replies > 0 and not any(each.may_start for each in server.peers))
            before = _kept_calls(body)
            for _ in range(3 * STREAMS_MAX // 10):
                given_up = [calls.whole(path, body) + frame(RST_STREAM, 0, calls.last, bytes(4)) for _ in range(10)]
                await asyncio.get_running_loop().run_in_executor(None, peer.send, *given_up)
            peer.send(frame(PING, 0, 0, b"are here"))
            await until(peer, lambda found: any(getattr(each, "opaque_data", b"") == b"are here" for each in found.frames))
            calls_kept, messages_kept = _kept_calls(body)
            assert calls_kept <= before[0] + 2 * STREAMS_MAX
            assert messages_kept == before[1]


def _kept_calls(body: bytes) -> tuple[int, int]:
    """How many calls there are in memory, and how many of them hold this message."""
    calls = [each for each in gc.get_objects() if isinstance(each, Call)]
    return len(calls), sum(each._message == body for each in calls)


async def test_who_answers_is_there_however_long(times: Times) -> None:
    """It says nothing but that."""
    times({"QUIET_S": 0.02})
    async with listening() as server:
        with Attacker(server.address) as peer:
            for _ in range(3):
                await until(peer, lambda found: any(isinstance(each, PingFrame) for each in found.frames))
                peer.send(frame(PING, ACK, 0, bytes(8)))
            peer.send(Calls().whole(ECHO, b"here"))
            assert _has(DataFrame)(await until(peer, _has(DataFrame)))
            assert len(server.peers) == 1


class Vanishing(Proxy):
    """Carries nothing any more once the peers have gone: both ends still believe in the connection."""

    gone = False

    @asynccontextmanager
    async def carrying(self) -> AsyncIterator["Vanishing"]:
        """As `listening`."""
        async with self.listening():
            yield self

    async def _requests(self, client: Any, server: Any) -> None:
        async for data in client:
            if not self.gone:
                await server.send(data)

    async def _answers(self, server: Any, client: Any) -> None:
        await self._requests(server, client)


async def test_who_vanishes_without_a_word_is_dropped(times: Times) -> None:
    """A machine that lost its power, a cable: there is no FIN. Its calls are cancelled."""
    times({"QUIET_S": 0.1, "ANSWER_S": 0.1})
    async with (
        listening() as server,
        Vanishing(server.address).carrying() as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):
        hang: Any = channel.unary_unary(HANG)
        call = hang(b"", timeout=PATIENCE_S)
        await eventually(lambda: server.hanging == 1)
        proxy.gone = True
        await eventually(lambda: server.hanging == 0 and not server.peers)
        call.cancel()


def _calls(path: str, count: int) -> bytes:
    """Calls of one connection."""
    calls = Calls()
    return b"".join(calls.whole(path) for _ in range(count))


async def test_a_peer_that_sends_much_is_read_once_in_a_turn(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be read until it has no more, and all others would wait. No read is of more than 64 KiB."""
    times({})
    reads: list[tuple[bool, bool]] = []
    receive = Http2Peer.data_received

    def recorded(self: Http2Peer, data: bytes) -> None:
        assert len(data) <= http2_server.READ_MAX
        receive(self, data)
        assert self._transport is not None
        much = max(len(data), len(self.unread)) >= http2_server.READ_MAX  # a busy machine reads it in small pieces
        reads.append((much, self._transport.is_reading()))

    monkeypatch.setattr(Http2Peer, "data_received", recorded)
    async with listening() as server:
        with Attacker(server.address) as peer:
            await asyncio.to_thread(peer.send, frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\1") * 100_000, Calls().whole(ECHO, b"x"))
            assert _has(DataFrame)(await until(peer, _has(DataFrame)))
    assert {much == going_on for much, going_on in reads} == {False}
    assert any(much for much, _ in reads)


STUBBORN: dict[str, bytes] = {
    "half_a_frame": PREFACE[:3],
    "an_open_stream": Calls().open(ECHO),
    "a_call_that_hangs": Calls().whole(HANG),
    "a_reply_without_window": NO_WINDOW + Calls().whole(LARGE),
    "replies_that_are_not_read": WIDE + _calls(LARGE, 3),
}


@pytest.mark.parametrize("said", STUBBORN.values(), ids=STUBBORN)
async def test_a_stop_ends_with_its_grace_whatever_a_peer_does(times: Times, said: bytes) -> None:
    """It answers no PING and reads nothing; no connection and no task is left."""
    times({})
    before = asyncio.all_tasks()
    async with listening() as server:
        with Attacker(server.address, buffer=4_096) as peer:
            peer.send(said)
            await eventually(lambda: all(each.connection.greeted for each in server.peers) and len(server.peers) == 1)
            async with asyncio.timeout(PATIENCE_S):
                await server.stop(0.05)
            await eventually(lambda: not server.peers)
            assert (server.hanging, asyncio.all_tasks() - before) == (0, set())


async def test_calls_that_go_on_in_spite_of_the_go_away_are_answered_until_the_grace_is_over(times: Times) -> None:
    """What came before the peer could know is served; then the connection ends."""
    times({})
    async with listening() as server:
        with Attacker(server.address) as peer:
            calls = Calls()
            peer.send(calls.whole(HANG))
            await eventually(lambda: server.hanging == 1)
            stop = asyncio.create_task(server.stop(0.2))
            await until(peer, _has(GoAwayFrame))
            peer.send(calls.whole(ECHO, b"late"))
            found = await until(peer, lambda _: False)
            assert [each.data for each in found.frames if isinstance(each, DataFrame)] == [message(b"late")]
            assert found.code == 0
            await stop


ENDS: dict[str, Iterable[bytes]] = {
    "a_call": [Calls().whole(ECHO)],
    "an_unknown_method": [Calls().whole("/no/such")],
    "a_deadline": [Calls().open(HANG, ("grpc-timeout", "10m")) + frame(DATA, END_STREAM, 1, message(b""))],
    "a_reset": [Calls().whole(HANG) + frame(RST_STREAM, 0, 1, bytes(4))],
    "a_stream_that_is_reset": [Calls().open(ECHO) + frame(DATA, 0, 1, message(b"1") * 9) + frame(RST_STREAM, 0, 1, bytes(4))],
    "half_a_message": [Calls().open(HANG) + frame(DATA, 0, 1, message(bytes(4_000_000))[:16_384])],
    "messages_that_wait": [NO_WINDOW, Calls().open(ECHO) + frame(DATA, 0, 1, message(b"1") * 1_000)],
    "a_reply_that_waits": [NO_WINDOW, Calls().whole(LARGE)],
    "a_flood": [Calls().whole(HANG), *empty_settings(3_000)],
}


@pytest.mark.parametrize("said", ENDS.values(), ids=ENDS)
async def test_nothing_of_a_connection_outlives_it(times: Times, said: Iterable[bytes]) -> None:
    """Not even until the next full garbage collection: in the process of an adapter there is none, see `process`."""
    times({})
    kinds = (Http2Peer, Connection, Sender, Receiver, Control, FloodGuard, Stream, Call, Requests)
    before = asyncio.all_tasks()
    async with listening() as server:
        gc.collect()
        gc.freeze()  # what there is already is none of gc's objects from here on
        gc.disable()
        try:
            with Attacker(server.address) as peer:
                peer.send(*said)
                peer.send(frame(PING, 0, 0, b"are here"))
                await until(peer, lambda found: any(getattr(each, "opaque_data", b"") == b"are here" for each in found.frames))
            await eventually(lambda: not server.peers and server.hanging == 0 and asyncio.all_tasks() == before)
            assert [type(each) for each in gc.get_objects() if isinstance(each, kinds)] == []
        finally:
            gc.enable()


def _ended(found: Ended) -> list[int]:
    """The streams whose answers are complete."""
    return [each.stream_id for each in found.frames if isinstance(each, HeadersFrame) and "END_STREAM" in each.flags]


def _has(kind: type[object]) -> Callable[[Ended], bool]:
    """Such a frame was read."""
    return lambda found: any(isinstance(each, kind) for each in found.frames)
