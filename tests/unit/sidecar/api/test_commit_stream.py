"""Replies of a stream: one for many plain requests in a row, and never across one that was not plain."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from adapter.rpc import offsets_pb
from adapter.sidecar.api.offset_service import OffsetService
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import core_over, watched

INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]


async def replies(core: Any, *offsets: int | None) -> list[tuple[int, int, int, int]]:
    """(id, covers, code, superseded rows) of each reply to commits of one shard that are all there at once; None: a bad one."""

    async def requests() -> AsyncIterator[offsets_pb.StreamCommitsRequest]:
        for number, offset in enumerate(offsets):
            shards = [offsets_pb.ShardCommit(shard="s", offset=offset)]
            commit = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])
            yield offsets_pb.StreamCommitsRequest(id=number, commit=commit)

    service = OffsetService(lambda: core, AdapterMetrics())
    found = service.StreamCommits(requests(), None)  # type: ignore[arg-type]  # a context is for errors of the stream itself
    return [(reply.id, reply.covers, reply.code, len(reply.superseded)) async for reply in found]


async def test_plain_requests_in_a_row_have_one_reply(tmp_path: Path) -> None:
    """It names the last of them and their number."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        assert await replies(core, *range(1, 101)) == [(99, 100, 0, 0)]


async def test_what_is_not_plain_has_a_reply_of_its_own(tmp_path: Path) -> None:
    """Refused or superseded; all in order."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        assert await replies(core, 1, 2, None, 3, 1, 4, 5, 6) == [
            (1, 2, 0, 0),
            (2, 1, INVALID, 0),
            (3, 1, 0, 0),
            (4, 1, 0, 1),
            (7, 3, 0, 0),
        ]


async def test_what_waits_for_a_sync_keeps_its_place(tmp_path: Path) -> None:
    """Each such request is answered by itself, in order."""
    async with core_over(tmp_path, FakeMeta(), knows="g", store=watched(tmp_path, "always")) as core:
        assert await replies(core, 1, 2, None, 3) == [(0, 1, 0, 0), (1, 1, 0, 0), (2, 1, INVALID, 0), (3, 1, 0, 0)]


async def test_more_requests_than_there_is_room_for_are_all_answered(tmp_path: Path) -> None:
    """Reading goes on when replies are taken."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        found = await replies(core, *range(1, 2001))
        assert (found[-1][0], sum(covers for _, covers, _, _ in found)) == (1999, 2000)
