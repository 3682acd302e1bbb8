"""What callers see of a hold, over real gRPC with each server: in replies, reads, lists, descriptions, and in an OffsetStore."""

from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.model.queues import MessageQueue
from adapter.model.records import CommitMode, ReadMode
from adapter.rpc import offsets_pb
from tests.integration.helpers import PATIENCE_S, serving

ERA = 1 << 32
QUEUE = MessageQueue("t", 0, "b")
SHARD = "b/t/0"


async def reset(client: OffsetClient, offset: int) -> None:
    """An operator resets the shard."""
    request = offsets_pb.ResetOffsetsRequest(group="g", shards=[SHARD], to_offset=offset, execute=True)
    await client.admin.ResetOffsets(request, timeout=PATIENCE_S)


async def described(client: OffsetClient) -> offsets_pb.DescribeGroupReply.Shard:
    """The shard, as an operator sees it."""
    reply = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=PATIENCE_S)
    return reply.shards[0]


@pytest.mark.parametrize("mode", CommitMode)
async def test_a_consumer_that_was_running_cannot_undo_a_reset_and_is_told(directory: Path, mode: CommitMode) -> None:
    """Commit 200, reset to 100, commit 240: 100 stands, by whichever form of a commit."""
    async with serving(directory) as (_, client):
        await client.commit("g", {SHARD: 200})
        await reset(client, 100)
        [row] = await client.commit("g", {SHARD: 240}, mode=mode, check=False)
        assert (row.epoch, row.offset, row.held) == (ERA, 100, True)
        shard = offsets_pb.ShardCommit(shard=SHARD, offset=240)
        plain = offsets_pb.CommitOffsetsRequest(
            groups=[offsets_pb.GroupCommits(group="g", shards=[shard])], mode=offsets_pb.CommitMode.ValueType(mode.value)
        )
        reply = await client.store.CommitOffsets(plain, timeout=PATIENCE_S)
        assert [(row.offset, row.held) for row in reply.superseded] == [(100, True)]


async def test_a_hold_is_shown_until_a_consumer_has_read_the_store(directory: Path) -> None:
    """With its end at the latest. Who only looks, in whatever way, does not end it."""
    async with serving(directory, reset={"hold_seconds": 60}) as (sidecar, client):
        await client.commit("g", {SHARD: 200})
        assert not (await described(client)).HasField("held_until_ms")
        await reset(client, 100)
        for mode in ReadMode:
            assert (await client.read("g", mode=mode, keep_hold=True))[SHARD].held
        assert [row.held async for row in client.list()] == [True]
        shown = await described(client)
        assert shown.held_until_ms == shown.committed_at_ms + 60_000
        assert shown.held_until_ms > sidecar.core().clocks.now_ms() - 60_000
        row = (await client.read("g", mode=ReadMode.STORE))[SHARD]
        assert (row.epoch, row.offset, row.held) == (ERA + 1, 100, False)
        assert not (await described(client)).HasField("held_until_ms")
        assert await client.commit("g", {SHARD: 110}) == []


async def test_an_offset_store_that_never_read_learns_of_the_reset_by_its_commit(directory: Path) -> None:
    """It knows no epoch: what it is told is a reset like any other, and it goes on from there."""
    resets: list[tuple[MessageQueue, int | None]] = []
    async with serving(directory) as (_, client):
        await client.commit("g", {SHARD: 200})
        await reset(client, 100)
        consumer = RemoteOffsetStore(client, "g", on_reset=lambda queue, offset: resets.append((queue, offset)))
        consumer.update_offset(QUEUE, 240)
        await consumer.persist(QUEUE)
        assert resets == [(QUEUE, 100)]
        consumer.remove_offset(QUEUE)
        assert await consumer.read_offset(QUEUE) == 100
        for offset in (110, 105, 106):
            consumer.update_offset(QUEUE, offset)
            await consumer.persist(QUEUE)
            assert (await client.read("g"))[SHARD].offset == offset
        assert resets == [(QUEUE, 100)]
