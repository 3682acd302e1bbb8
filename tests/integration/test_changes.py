"""ListChanges over real gRPC: every sort of change, who asked for it, and bad requests."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import CommitMode
from adapter.rpc import offsets_pb
from tests.integration.helpers import serving

Request = offsets_pb.ListChangesRequest


async def listed(client: OffsetClient, **request: Any) -> list[offsets_pb.ListChangesReply.Change]:
    """The changes of a request."""
    return list((await client.admin.ListChanges(Request(**request))).changes)


async def test_each_sort_of_change_is_listed_with_who_asked(directory: Path) -> None:
    """Reset, delete, clone, import and a rewind; the newest is first. A dry run, and a commit that goes forward, are none."""
    async with serving(directory) as (_, client):
        admin = client.admin
        began = (await admin.ListChanges(Request())).since_ms
        await client.commit("g", {"a": 7, "b": 9})
        await client.commit("g", {"a": 8, "b": 9})
        await admin.ResetOffsets(offsets_pb.ResetOffsetsRequest(group="g", to_offset=3, execute=False))
        assert await listed(client) == []
        await admin.ResetOffsets(offsets_pb.ResetOffsetsRequest(group="g", to_offset=3, execute=True))
        await admin.CloneGroup(offsets_pb.CloneGroupRequest(from_group="g", to_group="h", shards=["a"], execute=True))
        row = offsets_pb.ShardCommit(shard="a", offset=50)
        imported = [offsets_pb.GroupCommits(namespace="default", group="i", shards=[row])]
        await admin.ImportOffsets(offsets_pb.ImportOffsetsRequest(groups=imported, execute=True))
        await client.commit("i", {"a": 20}, mode=CommitMode.OVERWRITE)
        await admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(group="h", execute=True))
        changes = await listed(client)
        reply = await admin.ListChanges(Request())
    kinds = {change.kind: change for change in changes}
    assert [change.at_ms for change in changes] == sorted((change.at_ms for change in changes), reverse=True)
    assert sorted(kinds) == sorted(change.kind for change in changes) == ["clone", "delete", "import", "reset", "rewind"]
    assert [kinds[kind].group for kind in ("reset", "clone", "delete", "rewind", "import")] == ["g", "h", "h", "i", "i"]
    rewind = kinds.pop("rewind")
    assert (rewind.who, rewind.claimed, rewind.peer) == ("", "", "")
    assert (rewind.rows[0].before.offset, rewind.rows[0].after.offset) == (50, 20)
    assert all(change.who.startswith("unix:") and change.claimed and change.peer for change in kinds.values())
    reset = kinds["reset"]
    assert (reset.shards, [(row.shard, row.before.offset, row.after.offset) for row in reset.rows]) == (
        2,
        [("a", 8, 3), ("b", 9, 3)],
    )
    assert kinds["delete"].rows[0].after.deleted
    assert not kinds["clone"].rows[0].HasField("before")
    assert reply.since_ms == began
    assert all(change.at_ms >= began for change in reply.changes)


async def test_changes_are_filtered_and_limited(directory: Path) -> None:
    """By namespace and group; the newest ones within the limit."""
    async with serving(directory) as (_, client):
        for namespace in ("n", "m"):
            for group in ("g", "h"):
                await client.commit(group, {"s": 5}, namespace=namespace)
                request = offsets_pb.ResetOffsetsRequest(namespace=namespace, group=group, to_offset=1, execute=True)
                await client.admin.ResetOffsets(request)
        found = [(change.namespace, change.group) for change in await listed(client)]
        assert sorted(found) == [("m", "g"), ("m", "h"), ("n", "g"), ("n", "h")]
        assert sorted(change.group for change in await listed(client, namespace="n")) == ["g", "h"]
        assert [change.group for change in await listed(client, namespace="n", group="h")] == ["h"]
        assert await listed(client, namespace="x") == []
        assert len(await listed(client, limit=3)) == 3


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Request(limit=1_001), "limit: 1001 is over 1000"),
        (Request(group="g"), "namespace: is empty"),
        (Request(namespace="n" * 256), "namespace is 256 bytes long"),
    ],
)
async def test_a_bad_request_is_refused_by_its_field(directory: Path, request_: Any, text: str) -> None:
    """With the name of the field (invariant 10)."""
    async with serving(directory) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.admin.ListChanges(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in str(refused.value.details())
