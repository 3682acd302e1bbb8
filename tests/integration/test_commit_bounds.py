"""Bounds that come with commits: noted with the commit, shown by DescribeGroup; never half of a bad request."""

import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.model.bounds import ShardKey
from adapter.model.records import U64_MAX
from adapter.rpc import offsets_pb
from adapter.sidecar.process import Sidecar
from adapter.testing.fake_meta import FakeMeta
from tests.integration.helpers import PATIENCE_S, serving

# What a shard tells, and what is said of it.
BAD = {
    "low_over_high": ({"low_watermark": 6, "high_watermark": 5}, ".low_watermark: 6 is over high_watermark, 5"),
    "over_an_empty_log": ({"low_watermark": 1, "high_watermark": 0}, ".low_watermark: 1 is over high_watermark, 0"),
    "long_log_id": ({"high_watermark": 6, "log_id": "x" * 256}, ".log_id is 256 bytes long; at most 255 are allowed"),
    "low_alone": ({"low_watermark": 6}, ".high_watermark is missing; low_watermark alone says nothing"),
    "low_0_alone": ({"low_watermark": 0}, ".high_watermark is missing; low_watermark alone says nothing"),
}


def shard(name: str = "s", offset: int = 1, **fields: Any) -> offsets_pb.ShardCommit:
    """A shard in a commit."""
    return offsets_pb.ShardCommit(shard=name, offset=offset, **fields)


def commit(*shards: offsets_pb.ShardCommit, namespace: str = "", **fields: Any) -> offsets_pb.CommitOffsetsRequest:
    """A commit of the group `g`."""
    group = offsets_pb.GroupCommits(namespace=namespace, group="g", shards=shards, **fields)
    return offsets_pb.CommitOffsetsRequest(groups=[group])


def told(sidecar: Sidecar, name: str = "s", namespace: str = "default") -> tuple[int, int] | None:
    """The bounds that the adapter holds of a shard."""
    bounds = sidecar.core().bounds.get(ShardKey(namespace, name))
    return bounds[:2] if bounds else None


async def described(client: OffsetClient, group: str = "g") -> dict[str, offsets_pb.DescribeGroupReply.Shard]:
    """The shards of a group."""
    reply = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group=group), timeout=PATIENCE_S)
    assert reply.bounds_error == ""
    return {row.shard: row for row in reply.shards}


async def test_bounds_come_with_a_commit(directory: Path) -> None:
    """The end alone means that the log begins at 0; no bounds mean that nothing is known; the time is the adapter's."""
    before_ms = time.time_ns() // 1_000_000
    async with serving(directory) as (sidecar, client):
        both = shard("both", low_watermark=3, high_watermark=9)
        largest = shard("largest", low_watermark=U64_MAX, high_watermark=U64_MAX)
        await client.store.CommitOffsets(commit(both, largest, shard("end", high_watermark=4), shard("none")))
        names = ("both", "largest", "end", "none", "other")
        assert [told(sidecar, name) for name in names] == [(3, 9), (U64_MAX, U64_MAX), (0, 4), None, None]
        noted = sidecar.core().bounds.get(ShardKey("default", "both"))
        assert noted is not None
        assert before_ms <= noted.seen_at_ms <= time.time_ns() // 1_000_000


async def test_bounds_belong_to_the_shard_in_its_namespace(directory: Path) -> None:
    """Not to the group that told them, and not to a shard of this name elsewhere."""
    async with serving(directory) as (sidecar, client):
        await client.store.CommitOffsets(commit(shard(high_watermark=4)))
        await client.store.CommitOffsets(commit(shard(high_watermark=7), namespace="other"))
        await client.commit("h", {"s": 1})
        assert (told(sidecar), told(sidecar, namespace="other")) == ((0, 4), (0, 7))
        assert (await described(client, "h"))["s"].high_watermark == 4


async def test_a_commit_without_bounds_leaves_the_known_ones(directory: Path) -> None:
    """And one with lower bounds replaces them: the shard was made anew."""
    async with serving(directory) as (sidecar, client):
        await client.store.CommitOffsets(commit(shard(low_watermark=5, high_watermark=9)))
        await client.store.CommitOffsets(commit(shard(offset=2)))
        assert told(sidecar) == (5, 9)
        await client.store.CommitOffsets(commit(shard(low_watermark=0, high_watermark=1)))
        assert told(sidecar) == (0, 1)


async def test_a_superseded_commit_tells_its_bounds_all_the_same(directory: Path) -> None:
    """The offset does not stand, but the broker that sent it knows its log."""
    async with serving(directory) as (sidecar, client):
        await client.commit("g", {"s": 5})
        reply = await client.store.CommitOffsets(commit(shard(offset=4, high_watermark=9)))
        assert [row.offset for row in reply.superseded] == [5]
        assert told(sidecar) == (0, 9)


async def test_a_fenced_commit_tells_no_bounds(directory: Path) -> None:
    """Who was fenced off is exactly who knows an old end."""
    async with serving(directory) as (sidecar, client):
        await client.store.CommitOffsets(commit(shard(high_watermark=9), generation=2))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.store.CommitOffsets(commit(shard(offset=2, high_watermark=4), generation=1))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert told(sidecar) == (0, 9)


@pytest.mark.parametrize(("fields", "problem"), BAD.values(), ids=BAD)
async def test_bad_bounds_refuse_the_whole_request(directory: Path, fields: dict[str, Any], problem: str) -> None:
    """By the name of the field and the entry (10): no offset is stored, no bounds are noted, here or in the Meta Service."""
    meta = FakeMeta()
    async with serving(directory, meta) as (sidecar, client):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.store.CommitOffsets(commit(shard("good", high_watermark=3), shard("bad", **fields)))
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            f"groups[0].shards[1]{problem}",
        )
        assert (told(sidecar, "good"), told(sidecar, "bad")) == (None, None)
        assert await client.read("g") == {}
    assert meta.records == {}


async def test_bad_bounds_in_a_stream_refuse_only_their_request(directory: Path) -> None:
    """The stream goes on; each answer has its own code."""
    requests = [
        offsets_pb.StreamCommitsRequest(id=1, commit=commit(shard(low_watermark=2, high_watermark=1))),
        offsets_pb.StreamCommitsRequest(id=2, commit=commit(shard(offset=3, high_watermark=8))),
    ]
    async with serving(directory) as (sidecar, client):
        replies = [reply async for reply in client.store.StreamCommits(iter(requests), timeout=PATIENCE_S)]
        assert [(reply.id, reply.code) for reply in replies] == [(1, grpc.StatusCode.INVALID_ARGUMENT.value[0]), (2, 0)]
        assert replies[0].message == "groups[0].shards[0].low_watermark: 2 is over high_watermark, 1"
        assert told(sidecar) == (0, 8)


async def test_describe_shows_the_bounds_that_commits_told(directory: Path) -> None:
    """With the lag; where nothing was told, both are absent, which is not 0."""
    async with serving(directory) as (_, client):
        rows = [shard("behind", 4, low_watermark=2, high_watermark=9), shard("done", 9, high_watermark=9), shard("none", 1)]
        await client.store.CommitOffsets(commit(*rows, shard("beyond", 12, high_watermark=9)))
        found = await described(client)
    seen = {name: (row.low_watermark, row.high_watermark, row.lag) for name, row in found.items() if row.HasField("lag")}
    assert seen == {"behind": (2, 9, 5), "done": (0, 9, 0), "beyond": (0, 9, 0)}
    none = found["none"]
    assert [none.HasField(field) for field in ("low_watermark", "high_watermark", "lag")] == [False] * 3


async def test_bounds_are_a_hint_and_are_gone_after_a_restart(directory: Path) -> None:
    """They age; the next commit tells them again. The offset stays."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        await client.store.CommitOffsets(commit(shard(high_watermark=9)))
    async with serving(directory, meta) as (_, client):
        row = (await described(client))["s"]
        assert (row.local.offset, row.HasField("high_watermark")) == (1, False)
