"""OffsetAdmin.SnapshotOffsets over gRPC: during commits, and when client, store or process goes away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from adapter.client.client import OffsetClient
from adapter.model.codec import decode_key, decode_record
from adapter.model.records import OffsetKey
from adapter.rpc import offsets_pb
from adapter.sidecar.ledger.snapshot import PAGE_RECORDS
from adapter.testing.waiting import PATIENCE_S, eventually
from tests.integration.helpers import commits, serving

Reply = offsets_pb.SnapshotOffsetsReply
REQUEST = offsets_pb.SnapshotOffsetsRequest()
PAIRS = 50
PADDING = 3_000  # records of 4 KB beside the pairs: more than a connection takes, so that a stream waits for its reader


async def replies_of(client: OffsetClient) -> list[Reply]:
    """All replies of a snapshot."""
    return [reply async for reply in client.admin.SnapshotOffsets(REQUEST, timeout=30)]


def offsets_in(replies: Sequence[Reply]) -> dict[OffsetKey, int]:
    """The offset of each key."""
    rows = [row for reply in replies for row in zip(reply.keys, reply.records, strict=True)]
    return {decode_key(name): decode_record(value).offset for name, value in rows}


async def fill(client: OffsetClient) -> None:
    """Store many records with metadata."""
    for at in range(0, PADDING, 500):
        offsets = {f"{number:06}": 1 for number in range(at, at + 500)}
        await client.store.CommitOffsets(commits(offsets, "padding", metadata="x" * 4_000), timeout=30)


async def begun(client: OffsetClient) -> AsyncIterator[Reply]:
    """A snapshot of which only the head was read."""
    call = client.admin.SnapshotOffsets(REQUEST, timeout=30)
    assert (await anext(aiter(call))).head.records == PADDING
    return aiter(call)


async def test_a_snapshot_is_of_one_instant_while_pairs_are_committed(tmp_path: Path) -> None:
    """A pair of one request is never half there; it has all that was acknowledged before, and nothing committed later."""
    sent = [0] * PAIRS
    acknowledged = [0] * PAIRS
    async with serving(tmp_path, broker="broker-1") as (_, client):

        async def write(pair: int) -> None:
            while True:
                sent[pair] += 1
                # They are first and last in key order, with all the padding in between.
                request = offsets_pb.CommitOffsetsRequest(
                    groups=[
                        offsets_pb.GroupCommits(group=group, shard_names=[f"{pair}"], offsets=[sent[pair]])
                        for group in ("a", "z" * 20)
                    ]
                )
                await client.store.CommitOffsets(request, timeout=30)
                acknowledged[pair] = sent[pair]

        await fill(client)
        writers = [asyncio.create_task(write(pair)) for pair in range(PAIRS)]
        moved = 0
        for _ in range(3):
            await eventually(lambda: min(acknowledged) > 0)
            before = list(acknowledged)
            replies = await replies_of(client)
            after = list(sent)
            shown = offsets_in(replies)
            first, last = ([shown["default", group, f"{pair}"] for pair in range(PAIRS)] for group in ("a", "z" * 20))  # type: ignore[index]
            assert first == last
            assert all(low <= value <= high for low, value, high in zip(before, first, after, strict=True))
            assert (replies[0].head.records, replies[0].head.broker) == (len(shown), "broker-1")
            assert not any(reply.HasField("head") for reply in replies[1:])
            assert max(len(reply.keys) for reply in replies) <= PAGE_RECORDS
            moved += sum(high - low for low, high in zip(before, after, strict=True))
        for writer in writers:
            writer.cancel()
    assert moved > PAIRS, "nothing was committed meanwhile: the test shows nothing"


async def test_a_snapshot_tells_what_the_meta_service_has(tmp_path: Path) -> None:
    """Only records above `flushed_seq` may be dirty."""
    async with serving(tmp_path, flush={"interval_ms": 60_000}) as (sidecar, client):
        await client.commit("g", {"a": 1})
        await client.flush()
        await client.commit("g", {"b": 1})
        head, page = await replies_of(client)
        core = sidecar.core()
        assert (head.head.flushed_seq, len(page.keys)) == (1, 2)
        assert {name for name in map(decode_key, page.keys) if name in core.ledger.dirty} == {OffsetKey("default", "g", "b")}


async def test_a_client_that_goes_away_leaves_no_snapshot_behind(tmp_path: Path) -> None:
    """Otherwise RocksDB would keep obsolete files; the audit log shows that the call was cancelled."""
    with capture_logs() as lines:
        async with serving(tmp_path) as (sidecar, client):
            await fill(client)
            async with OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as other:
                await begun(other)
                assert len(sidecar.core().ledger.store.snapshots) == 1
            await eventually(lambda: not len(sidecar.core().ledger.store.snapshots))
            await eventually(lambda: any(line.get("method") == "SnapshotOffsets" for line in lines))
            assert len(await replies_of(client)) > 1
    outcomes = [line["outcome"] for line in lines if line.get("method") == "SnapshotOffsets"]
    assert outcomes == ["CANCELLED", "OK"]


async def test_a_failed_store_ends_the_snapshot_and_is_opened_again(tmp_path: Path) -> None:
    """The stream ends with an error, and its iterator does not keep the store's lock."""
    async with serving(tmp_path) as (sidecar, client):
        await fill(client)
        replies = await begun(client)
        failed = sidecar.core().ledger.store
        failed.failure = "failed by the test"
        failed.failed.set()
        await eventually(lambda: sidecar.state.core is not None and sidecar.state.core.ledger.store is not failed)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            _ = [reply async for reply in replies]
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "cannot be read to its end: failed by the test" in str(raised.value.details())
        await eventually(lambda: bool(sidecar.state.state == offsets_pb.StatusReply.SERVING))
        assert (await replies_of(client))[0].head.records == PADDING


async def test_a_stop_does_not_wait_for_a_snapshot_that_nobody_reads(tmp_path: Path) -> None:
    """It is cancelled like any other call in flight (8)."""
    async with serving(tmp_path, stop={"grace_ms": 1}) as (sidecar, client):
        await fill(client)
        replies = await begun(client)
        store = sidecar.core().ledger.store
        sidecar.stop()
        await eventually(lambda: sidecar.state.core is None and not len(store.snapshots))
        with pytest.raises(grpc.aio.AioRpcError):
            _ = [reply async for reply in replies]
