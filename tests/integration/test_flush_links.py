"""Commits of callers that record their traces, over gRPC, are linked to the flush that carries them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from adapter.errors import MetaUnavailableError
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.telemetry.spans import Span, TraceContext
from adapter.sidecar import process
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.http2_attacks import COMMIT, DATA, END_STREAM, RST_STREAM, Attacker, Calls, frame
from tests.http2_client import message
from tests.integration.helpers import PATIENCE_S, commits, serving

BY_HAND = {"interval_ms": 60_000}  # a test flushes when it wants to


class Recorder:
    """Telemetry that keeps the spans of a test."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.record = self.spans.append

    def counters(self) -> dict[str, tuple[str, float]]:
        """None."""
        return {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send nothing."""
        yield

    @property
    def links(self) -> list[list[int]]:
        """The traces of each span."""
        return [[context.trace_id for context in span.links] for span in self.spans]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """What adapters of this test tell."""
    made = Recorder()
    monkeypatch.setattr(process, "telemetry_of", lambda *_: made)
    return made


def traced(number: int, flags: str = "01") -> tuple[tuple[str, str], ...]:
    """The metadata of a caller."""
    return (("traceparent", f"00-{number:032x}-{number:016x}-{flags}"),)


@asynccontextmanager
async def calling(directory: Path, meta: FakeMeta | None = None, **sections: Any) -> AsyncIterator[Any]:
    """The stub of a sidecar, by its TCP address, with one key of a known group; `flush` flushes it."""
    async with serving(directory, meta, flush=BY_HAND, **sections) as (sidecar, client):
        await client.commit("g", {"s": 1})
        await client.flush()
        async with grpc.aio.insecure_channel(sidecar.addresses[0]) as channel:
            stub: Any = offsets_grpc.OffsetStoreStub(channel)
            stub.flush = client.flush
            yield stub


async def send(stub: Any, offset: int, metadata: Any = None, shard: str = "s") -> None:
    """Commit one offset."""
    await stub.CommitOffsets(commits({shard: offset}), metadata=metadata, timeout=PATIENCE_S)


@pytest.mark.usefixtures("recorder")
async def test_a_sampled_commit_that_its_client_gives_up_at_once_is_no_error(directory: Path) -> None:
    """Its call has ended when the write is made."""
    calls = Calls()
    given_up = calls.open(COMMIT, *traced(1)) + frame(DATA, END_STREAM, 1, message(commits({"s": 2}).SerializeToString()))
    async with serving(directory, flush=BY_HAND) as (sidecar, client):
        await client.commit("g", {"s": 1})
        written = sidecar.core().ledger.store.seq
        with capture_logs() as logs, Attacker(sidecar.addresses[0]) as peer:
            peer.send(given_up + frame(RST_STREAM, 0, 1, bytes(4)))
            await eventually(lambda: sidecar.core().ledger.store.seq > written)
    assert [entry for entry in logs if entry["log_level"] == "error"] == []


async def test_a_sampled_commit_is_linked_to_the_next_flush(directory: Path, recorder: Recorder) -> None:
    """A plain commit, one that takes another way, and one of several keys; not one that the caller does not record."""
    async with calling(directory) as stub:
        await send(stub, 2, traced(1))
        await send(stub, 3, traced(2, "00"))
        await send(stub, 4)
        await stub.CommitOffsets(commits({"s": 5}, metadata="m"), metadata=traced(3), timeout=PATIENCE_S)
        await stub.CommitOffsets(commits({"s": 6, "t": 6}), metadata=traced(4), timeout=PATIENCE_S)
        await stub.CommitOffsets(commits({"s": 7}, "new group"), metadata=traced(5), timeout=PATIENCE_S)
        await stub.flush()
        await send(stub, 8)
        await stub.flush()
    assert recorder.links == [[1, 3, 4, 5]]
    assert recorder.spans[0].links[0] == TraceContext(1, 1)


async def test_a_commit_in_columns_is_linked(directory: Path, recorder: Recorder) -> None:
    """As every form of a commit."""
    columns = offsets_pb.GroupCommits(group="g", shard_names=["s", "t"], offsets=[2, 2])
    async with calling(directory) as stub:
        await stub.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[columns]), metadata=traced(1), timeout=PATIENCE_S)
        await stub.flush()
    assert recorder.links == [[1]]


async def test_a_refused_commit_is_linked_to_nothing(directory: Path, recorder: Recorder) -> None:
    """Nor one that changed nothing."""
    async with calling(directory) as stub:
        await send(stub, 9)
        await stub.flush()
        with pytest.raises(grpc.aio.AioRpcError):
            await send(stub, 1, traced(1), shard="\0")
        await send(stub, 8, traced(2))
        await stub.flush()
    assert recorder.links == []


async def test_a_stream_has_one_context(directory: Path, recorder: Recorder) -> None:
    """Each flush that carries a commit of it is linked to it, once."""
    async with calling(directory) as stub:
        stream = stub.StreamCommits(metadata=traced(7), timeout=PATIENCE_S)
        answered = 0
        for turn in range(2):
            for offset in range(10):
                number = 10 * turn + offset + 2
                await stream.write(offsets_pb.StreamCommitsRequest(id=number, commit=commits({"s": number, f"t{turn}": number})))
                await stream.write(offsets_pb.StreamCommitsRequest(id=number, commit=commits({"s": number})))
            while answered < 20 * (turn + 1):
                reply = await stream.read()
                assert isinstance(reply, offsets_pb.StreamCommitsReply)
                answered += reply.covers
            await stub.flush()
        await stream.done_writing()
    assert recorder.links == [[7], [7]]


async def test_a_broadcast_commit_is_linked(directory: Path, recorder: Recorder) -> None:
    """It is stored under a key for its client."""
    shards = [offsets_pb.ShardCommit(shard="s", offset=5)]
    request = offsets_pb.CommitBroadcastRequest(group="b", client_id="c", shards=shards)
    async with calling(directory) as stub:
        await stub.CommitBroadcast(request, metadata=traced(1), timeout=PATIENCE_S)
        await stub.flush()
    assert recorder.links == [[1]]


async def test_a_failed_flush_has_a_status_and_its_commits_are_linked_to_the_next_one(
    directory: Path, recorder: Recorder
) -> None:
    """Over gRPC as well."""
    meta = FakeMeta()
    async with calling(directory, meta) as stub:
        await send(stub, 2, traced(1))
        meta.faults.append(MetaUnavailableError("down by the test"))
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.flush()
        await stub.flush()
    assert recorder.links == [[1], [1]]
    assert [span.failure for span in recorder.spans] == ["down by the test", ""]


async def test_a_written_through_commit_waits_for_no_flush(directory: Path, recorder: Recorder) -> None:
    """The Meta Service has it before its answer."""
    async with calling(directory, mode="write_through") as stub:
        await send(stub, 2, traced(1))
        await stub.flush()
    assert recorder.links == []


async def test_a_commit_that_waits_for_a_sync_is_linked(directory: Path, recorder: Recorder) -> None:
    """Its flush comes behind the answer here."""
    async with calling(directory, store={"wal_sync": "always"}) as stub:
        await send(stub, 2, traced(1))
        await stub.flush()
    assert recorder.links == [[1]]


async def test_the_last_flush_of_a_stop_is_told(directory: Path, recorder: Recorder) -> None:
    """What was dirty then has its span."""
    async with calling(directory) as stub:
        await send(stub, 2, traced(1))
    assert recorder.links == [[1]]
