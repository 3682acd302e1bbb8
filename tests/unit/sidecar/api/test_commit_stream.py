"""Replies of a commit stream: one reply covers consecutive plain requests, and never one that is not plain."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.rpc import offsets_pb
from adapter.sidecar.api.commit_stream import CommitStream
from adapter.sidecar.api.commits import SMALL, Commits
from adapter.sidecar.engine.policies import Policies
from adapter.sidecar.ledger.operations import Commit, Standing
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from tests.unit.calls import arrived
from tests.unit.helpers import core_over, watched

INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def replies(core: Any, *offsets: int | None) -> list[tuple[int, int, int, int]]:
    """(id, covers, code, superseded rows) of each reply to commits of one shard that arrive together; None: a bad one."""
    requests = []
    for number, offset in enumerate(offsets):
        shards = [offsets_pb.ShardCommit(shard="s", offset=offset)]
        commit = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])
        requests.append(offsets_pb.StreamCommitsRequest(id=number, commit=commit))
    stream = CommitStream(Commits(lambda: core, AdapterMetrics()))
    reader = asyncio.create_task(stream.read(arrived(*requests)))
    await asyncio.wait([reader], timeout=0.05)  # replies are taken when all is read, or when there is no room for more of them
    return [(reply.id, reply.covers, reply.code, len(reply.superseded)) async for reply in stream.replies(reader)]


async def test_plain_requests_in_a_row_have_one_reply(tmp_path: Path) -> None:
    """It has the id of the last one, and their number."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        await replies(core, 1)  # the first commit of a key is no plain one
        assert await replies(core, *range(1, 101)) == [(99, 100, 0, 0)]


async def test_what_is_not_plain_has_a_reply_of_its_own(tmp_path: Path) -> None:
    """A refused or superseded request; the order of replies is that of requests."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        await replies(core, 1)
        assert await replies(core, 1, 2, None, 3, 1, 4, 5, 6) == [
            (1, 2, 0, 0),
            (2, 1, INVALID, 0),
            (3, 1, 0, 0),
            (4, 1, 0, 1),
            (7, 3, 0, 0),
        ]


async def test_what_waits_for_a_sync_keeps_its_place(tmp_path: Path) -> None:
    """Each such request gets its own reply, in order."""
    async with core_over(tmp_path, FakeMeta(), knows="g", store=watched(tmp_path, "always")) as core:
        assert await replies(core, 1, 2, None, 3) == [(0, 1, 0, 0), (1, 1, 0, 0), (2, 1, INVALID, 0), (3, 1, 0, 0)]


async def test_more_requests_than_there_is_room_for_are_all_answered(tmp_path: Path) -> None:
    """Reading continues when replies are taken."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        found = await replies(core, *range(1, 2001))
        assert (found[-1][0], sum(covers for _, covers, _, _ in found)) == (1999, 2000)


@pytest.mark.parametrize("size", [2, SMALL + 1])
async def test_what_is_committed_is_answered_when_the_reader_is_ended_in_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Nothing is awaited between the write of a commit, even a large one, and its reply (8)."""
    shards = [offsets_pb.ShardCommit(shard=f"s{number}", offset=5) for number in range(size)]
    commit = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])
    requests = [offsets_pb.StreamCommitsRequest(id=number, commit=commit) for number in range(3)]
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        stream = CommitStream(Commits(lambda: core, AdapterMetrics()))
        commit_at_once = core.router.commit_at_once

        def ended(change: Commit, policies: Policies) -> list[Standing] | None:
            standing = commit_at_once(change, policies)
            reader.cancel()
            return standing

        monkeypatch.setattr(core.router, "commit_at_once", ended)
        reader = asyncio.create_task(stream.read(arrived(*requests)))
        found = [(reply.id, reply.covers, reply.code) async for reply in stream.replies(reader)]
        assert reader.cancelled()
        assert core.ledger.store.keys == size
        answered = sum(covers for _, covers, _ in found)
        assert answered >= 1
        assert found == [(answered - 1, answered, 0)]
