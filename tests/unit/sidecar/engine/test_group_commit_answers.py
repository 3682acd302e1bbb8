"""Group commit from the view of a client of the built-in server: replies of calls and streams, and what is stored."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from adapter.errors import DiskFullError
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.serving.http2.admission import PROVEN_MESSAGES
from adapter.runtime.serving.http2.call import Requests
from adapter.runtime.serving.http2.server import Http2Server
from adapter.sidecar.api.commit_stream import MAX_PIPELINED
from adapter.sidecar.api.offset_service import ENDED, OffsetService
from adapter.sidecar.engine.core import Core
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.model.http2_client import COMMIT, GONE, STREAM, Client, Ended
from tests.unit.helpers import core_over, key, record, serving, watched
from tests.unit.sidecar.engine.fast_requests import Request, request

OK, UNAVAILABLE, UNIMPLEMENTED = (grpc.StatusCode[name].value[0] for name in ("OK", "UNAVAILABLE", "UNIMPLEMENTED"))
FULL, INVALID = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], grpc.StatusCode.INVALID_ARGUMENT.value[0]
REMOVE = "/offsets.v1.OffsetStore/RemoveOffsets"


class Served:
    """A client of the built-in server, with the store behind it."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.offsets = OffsetService(serving(core), lambda: core, AdapterMetrics())
        self.server = Http2Server()
        offsets_grpc.add_OffsetStoreServicer_to_server(self.offsets, cast("grpc.Server", self.server))
        self.server.take_together({COMMIT: self.offsets.take})
        self.client = Client(self.server)
        self.told: dict[str, list[bytes | Ended]] = {}

    def call(self, name: str, *messages: bytes, path: str = COMMIT, client: Client | None = None, ends: bool = True) -> int:
        """Begin a call."""
        return (client or self.client).call(path, messages, self.told.setdefault(name, []).append, ends=ends)

    async def answers(self) -> dict[str, int]:
        """Send everything, and return the statuses of the calls that have ended when nothing more happens."""
        self.client.send()
        for _ in range(50):
            await asyncio.sleep(0)
        return self.ended()

    def ended(self) -> dict[str, int]:
        """The statuses of the calls that have ended."""
        return {name: told[-1].status for name, told in self.told.items() if told and isinstance(told[-1], Ended)}

    def replies(self, name: str) -> list[tuple[int, int, int]]:
        """The replies of a stream, as (id, covers, code)."""
        found = [offsets_pb.StreamCommitsReply.FromString(each) for each in self.told[name] if isinstance(each, bytes)]
        return [(reply.id, reply.covers, reply.code) for reply in found]


@asynccontextmanager
async def served_over(directory: Path) -> AsyncIterator[Served]:
    """A client over a store with one shard in memory, clean."""
    store = watched(directory)
    async with core_over(directory, FakeMeta(), knows="g", store=store) as core:
        store.write({key("a"): record(1), key("b"): record(1)})
        served = Served(core)
        await served.answers()
        yield served


def stream_requests(*offsets: int, shard: str = "a") -> list[bytes]:
    """Messages of a stream, numbered from 0."""
    commits = [request(shard, offset=offset) for offset in offsets]
    return [offsets_pb.StreamCommitsRequest(id=number, commit=each).SerializeToString() for number, each in enumerate(commits)]


async def test_an_answer_is_sent_when_a_flush_was_due_before_it(tmp_path: Path) -> None:
    """A connection that was about to send other frames sends the reply too."""
    async with served_over(tmp_path) as served:
        for offset in range(2, 2 + PROVEN_MESSAGES):
            served.call(str(offset), request("a", offset=offset).SerializeToString())
        await served.answers()
        assert served.client.peer.is_proven  # what it sends is handled as soon as it is read
        served.told.clear()
        served.call("fast", request("a", offset=50).SerializeToString())
        served.client.peer.flush_soon()
        assert await served.answers() == {"fast": OK}


async def test_one_read_of_good_and_bad_calls_answers_each_as_it_deserves(tmp_path: Path) -> None:
    """Invalid input, no request at all, a new shard, two messages, with plain commits between them (10)."""
    async with served_over(tmp_path) as served:
        other = Client(served.server)
        served.call("fast", request("a", offset=5).SerializeToString())
        served.call("bad", request("", offset=5).SerializeToString())
        served.call("none", b"\xff")
        served.call("new", request("new", offset=3).SerializeToString())
        served.call("two", request("b", offset=8).SerializeToString(), request("b", offset=9).SerializeToString())
        served.call("empty")
        served.call("back", request("a", offset=4).SerializeToString())
        served.call("elsewhere", request("b", offset=2).SerializeToString(), client=other)
        other.send()
        assert await served.answers() == {
            "fast": OK,
            "bad": INVALID,
            "none": grpc.StatusCode.UNKNOWN.value[0],
            "new": OK,
            "two": UNIMPLEMENTED,
            "empty": UNIMPLEMENTED,
            "back": OK,
            "elsewhere": OK,
        }
        assert served.told["fast"][0] == b""
        (row,) = offsets_pb.CommitOffsetsReply.FromString(cast("bytes", served.told["back"][0])).superseded
        assert (row.shard, row.offset) == ("a", 5)
        found = {stored.key.shard: stored.record.offset for stored in served.core.ledger.store.scan()}
        assert found == {"a": 5, "b": 2, "new": 3}


async def test_a_call_of_two_messages_is_not_done(tmp_path: Path) -> None:
    """Its caller gets an error, and nothing is stored."""
    async with served_over(tmp_path) as served:
        group = offsets_pb.GroupShards(group="g")
        message = offsets_pb.RemoveOffsetsRequest(groups=[group]).SerializeToString()
        served.call("remove", message, message, path=REMOVE)
        served.call("commit", *[request("a", offset=5).SerializeToString()] * 2)
        assert await served.answers() == {"remove": UNIMPLEMENTED, "commit": UNIMPLEMENTED}
        assert served.core.ledger.store.get(key("a")) == record(1)


async def test_a_call_that_is_cancelled_in_its_read_is_answered_to_nobody(tmp_path: Path) -> None:
    """Calls before and after it get their replies."""
    async with served_over(tmp_path) as served:
        served.call("before", request("a", offset=5).SerializeToString())
        stream = served.call("cancelled", request("a", offset=6).SerializeToString())
        served.call("new", request("new", offset=6).SerializeToString())
        served.client.cancel(stream)
        served.call("after", request("b", offset=7).SerializeToString())
        assert await served.answers() == {"before": OK, "new": OK, "after": OK}
        assert served.told["cancelled"] == []


async def test_a_connection_that_is_lost_before_the_write_is_not_answered(tmp_path: Path) -> None:
    """Its commits may be stored; other connections get their replies."""
    async with served_over(tmp_path) as served:
        other = Client(served.server)
        served.call("gone", request("a", offset=5).SerializeToString(), client=other)
        other.send()
        served.call("here", request("b", offset=7).SerializeToString())
        other.wire.close()
        assert await served.answers() == {"gone": GONE, "here": OK}
        assert served.told["gone"] == [Ended(GONE)]


async def test_what_the_disk_refuses_is_refused_to_every_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of two connections and a stream; all succeed when they are repeated."""
    async with served_over(tmp_path) as served:
        other = Client(served.server)

        def full(_: object) -> None:
            raise DiskFullError("full by the test")

        def send() -> None:
            served.call("one", request("a", offset=5).SerializeToString())
            served.call("two", request("b", offset=6).SerializeToString(), client=other)
            served.call("stream", *stream_requests(7, 8), path=STREAM)
            other.send()

        with monkeypatch.context() as patched:
            patched.setattr(served.core.ledger.store._disk, "write", full)
            send()
            assert await served.answers() == {"one": FULL, "two": FULL, "stream": OK}
        assert served.replies("stream") == [(0, 1, FULL), (1, 1, FULL)]
        assert (served.core.ledger.store.get(key("a")), len(served.core.ledger.dirty)) == (record(1), 0)
        served.told.clear()
        send()
        assert await served.answers() == {"one": OK, "two": OK, "stream": OK}
        assert served.replies("stream") == [(1, 2, 0)]


async def test_a_stream_keeps_its_order_whatever_is_between(tmp_path: Path) -> None:
    """Commits, one of a lower offset, an invalid one, and a new shard: replies come in the order of requests."""
    async with served_over(tmp_path) as served:
        messages = stream_requests(5, 6, 2, 7)
        messages[3:] = [
            offsets_pb.StreamCommitsRequest(id=3, commit=Request()).SerializeToString(),
            *(
                offsets_pb.StreamCommitsRequest(id=4 + at, commit=request("new", offset=at)).SerializeToString()
                for at in range(3)
            ),
        ]
        served.call("stream", *messages, path=STREAM)
        assert await served.answers() == {"stream": OK}
        assert served.replies("stream") == [(1, 2, 0), (2, 1, 0), (3, 1, INVALID), (4, 1, 0), (6, 2, 0)]
        assert {stored.key.shard: stored.record.offset for stored in served.core.ledger.store.scan()} == {
            "a": 6,
            "b": 1,
            "new": 2,
        }


async def test_a_stop_answers_what_its_streams_have_committed(tmp_path: Path) -> None:
    """Also what was in progress when the reader ended (8); the stream then ends with a status that says what to do."""
    async with served_over(tmp_path) as served:
        served.call("stream", *stream_requests(5, 6, 7), path=STREAM, ends=False)
        served.client.send()
        while not served.offsets.commits._offered:  # noqa: ASYNC110 - the instant between an offer and its write
            await asyncio.sleep(0)
        served.offsets.end_streams()
        assert await served.answers() == {"stream": UNAVAILABLE}
        assert served.replies("stream") == [(2, 3, 0)]
        assert cast("Ended", served.told["stream"][-1]).text == ENDED
        assert (served.core.ledger.store.get(key("a")) or record(0)).offset == 7


async def test_a_long_run_of_a_stream_is_cut_to_what_may_be_unanswered(tmp_path: Path) -> None:
    """The rest follows when replies have been sent."""
    async with served_over(tmp_path) as served:
        served.call("stream", *stream_requests(*range(1, MAX_PIPELINED * 2)), path=STREAM)
        assert await served.answers() == {"stream": OK}
        assert sum(covers for _, covers, _ in served.replies("stream")) == MAX_PIPELINED * 2 - 1
        assert max(covers for _, covers, _ in served.replies("stream")) <= MAX_PIPELINED


async def test_with_always_a_call_is_answered_after_its_sync(tmp_path: Path) -> None:
    """The fast path declines it, even if the key is in memory (1)."""
    store = watched(tmp_path, "always")
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        store.write({key("a"): record(1)})
        await store.sync()
        store.gate = asyncio.Event()
        served = Served(core)
        served.call("synced", request("a", offset=5).SerializeToString())
        served.call("stream", *stream_requests(6), path=STREAM)
        assert await served.answers() == {}
        assert (core.ledger.store.get(key("a")) or record(0)).offset == 6
        store.gate.set()
        await eventually(lambda: served.ended() == {"synced": OK, "stream": OK})


async def test_a_stream_that_is_over_keeps_none_of_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What still refers to the call does so until a garbage collection, and each message may have 4 MiB."""
    put, seen = Requests.put, list[Requests]()

    def noted(requests: Requests, message: bytes) -> None:
        seen.append(requests)
        put(requests, message)

    monkeypatch.setattr(Requests, "put", noted)
    async with served_over(tmp_path) as served:
        served.call("stream", b"\x0c", *stream_requests(2, 3), path=STREAM)
        assert list(await served.answers()) == ["stream"]
        assert len(seen) == 3
        assert not any(requests._waiting for requests in seen)


class Steps:
    """Counts how often each offset is parsed, and offered to the fast path."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed: list[int] = []
        self.offered: list[int] = []
        method, ledger = served.server.methods[COMMIT], served.core.ledger
        decide = ledger._decide

        def parse(message: bytes) -> Request:
            found = Request.FromString(message)
            self.parsed.append(found.groups[0].shards[0].offset)
            return found

        def counted(writing: Any, request: Request, now_ms: int) -> bool:
            self.offered.append(request.groups[0].shards[0].offset)
            return decide(writing, request, now_ms)

        served.server.methods[COMMIT] = method._replace(parse=parse)
        monkeypatch.setattr(ledger, "_decide", counted)


async def test_a_call_is_parsed_once_and_offered_to_the_fast_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is accepted, declined, or too long for a group commit."""
    async with served_over(tmp_path) as served:
        steps = Steps(served, monkeypatch)
        served.call("taken", request("a", offset=5).SerializeToString())
        served.call("left", request("new", offset=6).SerializeToString())
        served.call("long", request("b", offset=7, metadata="m" * 2_000).SerializeToString())
        assert await served.answers() == {"taken": OK, "left": OK, "long": OK}
        assert (sorted(steps.parsed), sorted(steps.offered)) == ([5, 6, 7], [5, 6, 7])
        found = {stored.key.shard: stored.record.offset for stored in served.core.ledger.store.scan()}
        assert found == {"a": 5, "b": 7, "new": 6}


async def test_a_request_of_a_stream_is_offered_to_the_fast_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the one at which a run ends, and one that begins a run."""
    async with served_over(tmp_path) as served:
        steps = Steps(served, monkeypatch)
        served.call("stream", *stream_requests(5, 6, 4, 3, 7), path=STREAM)
        assert await served.answers() == {"stream": OK}
        assert steps.offered == [5, 6, 4, 3, 7]
        assert served.replies("stream") == [(1, 2, 0), (2, 1, 0), (3, 1, 0), (4, 1, 0)]
