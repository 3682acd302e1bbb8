"""The front before a RobustMQ broker: the calls that it answers itself, and what a node answers to a call that is relayed.

The promises: what a broker sends is answered, refused as its own fault, or left to RobustMQ, and never ends in an error of the
program; what is stored can be read again. Whatever a node sends, a call ends once, its connection holds a bounded amount, and all
is the same wherever the bytes are cut.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from zlib import crc32

import grpc
from hyperframe.frame import GoAwayFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from adapter.meta.labels import ShardLabels
from adapter.model.names import name_problem
from adapter.model.records import SaveEntry, SaveOutcome
from adapter.rpc import meta_pb
from adapter.runtime.serving.http2.calling import CallingConnection
from adapter.runtime.serving.http2.headers import encoded
from adapter.runtime.serving.http2.relay import UNAVAILABLE
from adapter.runtime.serving.http2.streams import ANSWER, ENDED, MESSAGE, RESET, TRAILERS, WRITABLE, Event
from adapter.sidecar.api.offset_service import OffsetService
from adapter.sidecar.front.counts import FrontCounts
from adapter.sidecar.front.notices import Notices
from adapter.sidecar.front.own_calls import OwnCalls
from adapter.testing.fake_meta import FakeMeta
from tests.fuzz.http2 import FIXED_MAX, OF_STREAM, held
from tests.fuzz.rpc_seeds import OFFSET_STORE
from tests.fuzz.rpc_servers import Adapters, Served, check_rows
from tests.fuzz.rpcs import Running
from tests.fuzz.running import wait
from tests.http2_client import block, head
from tests.http2_client import data as data_frame
from tests.model.disk import Platter
from tests.unit.calls import AbortedError, FakeContext

Code = grpc.StatusCode
FRONT = "front"
CALLS = 3  # that a node has been asked for
OVER = {TRAILERS, ENDED, RESET}

_REQUESTS = (meta_pb.SaveOffsetDataRequest, meta_pb.GetOffsetDataRequest, meta_pb.DeleteOffsetDataRequest)
_adapters = Adapters()


class _Meta(FakeMeta):
    """Keeps what the client of a real one does not read again: names that no adapter takes."""

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        outcomes = await super().save(entries)
        for key, record, _ in entries:
            if any(map(name_problem, (*key, record.topic or "t"))):
                self.records.pop(key, None)
        return outcomes


@asynccontextmanager
async def _served() -> AsyncIterator[Served]:
    platter, meta, counts = Platter(), _Meta(), FrontCounts()
    async with _adapters.running(platter, meta) as (core, servicers):

        async def serving() -> object:
            await asyncio.sleep(0)
            return core

        store = servicers[OFFSET_STORE]
        assert isinstance(store, OffsetService)
        calls = OwnCalls(serving, lambda: core, store.commits, ShardLabels(), Notices(counts), counts)  # type: ignore[arg-type]

        def check() -> None:
            check_rows((found.key, found.record) for found in core.ledger.store.scan())

        yield Served({FRONT: calls}, lambda: dict(platter.contents), check)


@cache
def _front() -> Running:
    return Running(_served)


def front(data: bytes) -> None:
    """The first byte chooses the call, the others are its request."""
    running = _front()
    calls = running.served.servicers[FRONT]
    assert isinstance(calls, OwnCalls)
    call = list(calls.methods.values())[data[0] % len(calls.methods) if data else 0]
    try:
        reply = wait(call.behavior(data[1:], FakeContext("ipv4:127.0.0.1:5", {}, {})))
    except AbortedError as error:
        code, text = error.args
        assert code is Code.INVALID_ARGUMENT or (code is Code.UNAVAILABLE and text.startswith(UNAVAILABLE)), (code, text)
        assert "the adapter failed" not in text
    else:
        assert isinstance(reply, bytes)
    running.check()
    running.served.check()


class _Node:
    """A connection with a node, of which what it hears is checked."""

    def __init__(self) -> None:
        self.connection = CallingConnection(0.0)
        self.events: list[tuple[int, int, bytes]] = []
        self._last: dict[int, int] = {}
        request = encoded([(":method", "POST"), (":scheme", "http"), (":path", "/s/m"), (":authority", "a"), ("te", "trailers")])
        for _ in range(CALLS):
            stream = self.connection.call(request)
            self.connection.send_bytes(stream, bytes(100))
            self.connection.end_request(stream)
        self.connection.take_output()

    def receive(self, data: bytes) -> None:
        """Take a piece of input."""
        was_closed = self.connection.closed
        events = self.connection.receive(data, 0.0)
        assert not (was_closed and events)
        for event in events:
            self._check(event)
        self.connection.take_output()

    def _check(self, event: Event) -> None:
        kind, stream = event[0], event[1]
        last = self._last.get(stream.id)
        assert last not in OVER, (stream.id, last, kind)
        assert kind != MESSAGE or last in {ANSWER, MESSAGE}
        assert kind != ANSWER or last is None
        if kind != WRITABLE:
            self._last[stream.id] = kind
        if kind == MESSAGE:
            payload = bytes(event[2])  # type: ignore[misc]
            self.connection.passed_on(stream, len(payload))
            self.events.append((kind, stream.id, payload))
        else:
            self.events.append((kind, stream.id, b""))

    def weigh(self) -> None:
        """Check what is held."""
        assert len(self.connection.streams) <= CALLS
        assert held(self.connection) <= FIXED_MAX + OF_STREAM * CALLS  # type: ignore[arg-type]


def node(data: bytes) -> None:
    """What a node sends to a connection with some calls."""
    whole, cut = _Node(), _Node()
    whole.receive(data)
    piece = 1 + crc32(data) % 50
    for at in range(0, len(data), piece):
        cut.receive(data[at : at + piece])
    assert cut.events == whole.events
    assert cut.connection.closed == whole.connection.closed
    cut.weigh()


ROBUSTMQ: Mapping[str, Callable[[bytes], None]] = {"robustmq_front": front, "robustmq_node": node}


def robustmq_seeds(target: str) -> Iterator[bytes]:
    """A flush, a read and a delete; answers, an error, a reset and a goodbye."""
    if target == "robustmq_front":
        save = meta_pb.SaveOffsetDataRequest()
        for group in ("g", "h", "a/b"):
            rows = save.offsets.add(tenant="default", group=group)
            for at in range(3):
                rows.offsets.add(shard_name=f"s{at}", offset=at + 1, topic="orders", partition=at)
            rows.offsets[0].expected_offset = 0
        yield b"\0" + save.SerializeToString()
        yield b"\1" + meta_pb.GetOffsetDataRequest(tenant="default", group="g").SerializeToString()
        yield b"\2" + meta_pb.DeleteOffsetDataRequest(tenant="default", group="g", shard_names=["s0"]).SerializeToString()
        return
    greeting = SettingsFrame(settings={SettingsFrame.MAX_CONCURRENT_STREAMS: 5}).serialize()
    opening = block([(":status", "200"), ("content-type", "application/grpc")])
    trailers = block([("grpc-status", "0"), ("grpc-message", "no%20leader")])
    answer = b"".join(
        head(number, opening) + data_frame(number, bytes(20), pad=3) + head(number, trailers, end=True) for number in (1, 3)
    )
    yield greeting + answer
    yield greeting + head(1, opening) + RstStreamFrame(1, 7).serialize() + GoAwayFrame(0, last_stream_id=3).serialize()
    yield greeting + WindowUpdateFrame(0, window_increment=9).serialize() + head(5, block([(":status", "503")]), end=True)
