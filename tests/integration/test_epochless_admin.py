"""Resets, deletes, clones and write-through before a Meta Service that knows only offsets: written through, and read back."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.model.records import CommitMode, OffsetRecord, ReadMode
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.sidecar.process import Sidecar
from tests.dialect import RobustMeta, failing, robust_meta
from tests.integration.helpers import PATIENCE_S, key, meta_section, serving

A, B = key("a"), key("b")
ERA = 2**32
OVERWRITE = CommitMode.OVERWRITE
QUIET: dict[str, Any] = {"flush": {"interval_ms": 60_000}}


@pytest.fixture
def robust() -> Iterator[RobustMeta]:
    """A running server without epochs."""
    with robust_meta() as service:
        yield service


@asynccontextmanager
async def adapter(directory: Path, robust: RobustMeta, **sections: Any) -> AsyncIterator[tuple[Sidecar, OffsetClient]]:
    """A sidecar over `directory` with a client."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs yet
    section = meta_section(robust.address, timeout_ms=2000)
    async with GrpcMetaClient.open(section) as way, serving(directory, way, **QUIET, **sections) as (sidecar, client):
        yield sidecar, client


async def _reset(client: OffsetClient, offset: int, *shards: str, execute: bool = True) -> offsets_pb.ChangeReply:
    request = offsets_pb.ResetOffsetsRequest(group="g", shards=shards, to_offset=offset, execute=execute)
    return await client.admin.ResetOffsets(request, timeout=PATIENCE_S)


async def _delete(client: OffsetClient, *shards: str) -> offsets_pb.ChangeReply:
    return await client.admin.DeleteOffsets(
        offsets_pb.DeleteOffsetsRequest(group="g", shards=shards, execute=True), timeout=PATIENCE_S
    )


def _stands(sidecar: Sidecar, shard: str = "a") -> tuple[int, int] | None:
    record = sidecar.core().ledger.store.get(key(shard))
    return record.position if record else None


async def test_a_shift_with_an_id_is_refused(tmp_path: Path, robust: RobustMeta) -> None:
    """Such a server remembers no changes. Nothing is changed; without the ID it is."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 160})
        request = offsets_pb.ResetOffsetsRequest(group="g", shift_by=-10, change_id=f"{wall_ms():013}-{1:016x}", execute=True)
        with pytest.raises(grpc.aio.AioRpcError, match="remembers no changes: it is RobustMQ's Meta Service") as refused:
            await client.admin.ResetOffsets(request, timeout=PATIENCE_S)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await client.flush()
        assert robust.offsets == {A: 160}
        request.change_id = ""
        await client.admin.ResetOffsets(request, timeout=PATIENCE_S)
        assert robust.offsets == {A: 150}


async def test_a_reset_is_a_plain_save_of_the_target(tmp_path: Path, robust: RobustMeta) -> None:
    """Also over a commit that is not flushed yet; a dry run writes nothing. It begins an era here, and survives a restart."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 160, "b": 5})
        await client.flush()
        await client.commit("g", {"a": 170})
        await _reset(client, 10, "a", execute=False)
        assert (robust.offsets, _stands(sidecar)) == ({A: 160, B: 5}, (1, 170))
        reply = await _reset(client, 10, "a")
        assert [(row.shard, row.before.offset, row.after.offset) for row in reply.rows] == [("a", 170, 10)]
        assert (robust.offsets, _stands(sidecar)) == ({A: 10, B: 5}, (ERA, 10))
        assert (await client.status()).dirty_keys == 0
        await client.flush()
        assert robust.offsets == {A: 10, B: 5}
    async with adapter(tmp_path, robust) as (sidecar, client):
        assert (await client.status()).recovery.equal == 2
        assert _stands(sidecar) == (ERA, 10)
        assert [row.held for row in await client.commit("g", {"a": 200}, check=False)] == [True]
        await client.read("g", mode=ReadMode.STORE)
        await client.commit("g", {"a": 11})
        await client.flush()
    assert robust.offsets == {A: 11, B: 5}


async def test_a_reset_over_a_rewind_that_is_not_flushed_stands(tmp_path: Path, robust: RobustMeta) -> None:
    """The load before it must not take what the server still has for newer."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 160})
        await client.flush()
        await client.commit("g", {"a": 30}, mode=OVERWRITE)
        reply = await _reset(client, 20, "a")
        assert reply.rows[0].before.offset == 30
        assert (robust.offsets, _stands(sidecar)) == ({A: 20}, (ERA, 20))


async def test_success_is_said_only_after_the_read_back(tmp_path: Path, robust: RobustMeta) -> None:
    """Another broker overwrites the reset at once, which such a server cannot refuse: whoever asked for it is told."""

    def overwrite(name: str, _: Any) -> None:
        if name == "GetOffsetData" and robust.offsets.get(A) == 10:
            robust.offsets[A] = 161

    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 160})
        await client.flush()
        robust.before = overwrite
        with pytest.raises(grpc.aio.AioRpcError, match="read back and found with another value"):
            await _reset(client, 10, "a")


async def test_a_delete_leaves_nothing_there_and_nothing_here(tmp_path: Path, robust: RobustMeta) -> None:
    """By the server's own call, with the shards named; dirty commits go with it, and a restart does not bring it back."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 160, "b": 5, "c": 6})
        await client.flush()
        await client.commit("g", {"a": 161})
        await _delete(client, "a")
        assert robust.offsets == {B: 5, key("c"): 6}
        assert _stands(sidecar) is None
        await client.flush()
        assert robust.offsets == {B: 5, key("c"): 6}
        assert list(await client.read("g", mode=ReadMode.STORE)) == ["b", "c"]
        await _delete(client)
        assert robust.offsets == {}
        assert [list(request.shard_names) for request in robust.deletes] == [["a"], ["b", "c"]]
    async with adapter(tmp_path, robust) as (_, client):
        assert await client.read("g", mode=ReadMode.STORE) == {}
        assert robust.offsets == {}
        await client.commit("g", {"a": 1})
        await client.flush()
        assert robust.offsets == {A: 1}


async def test_a_delete_that_does_not_get_through_changes_nothing(tmp_path: Path, robust: RobustMeta) -> None:
    """The Meta Service goes first."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 160})
        await client.flush()
        robust.before = failing(grpc.StatusCode.UNAVAILABLE, rpc="DeleteOffsetData")
        with pytest.raises(grpc.aio.AioRpcError):
            await _delete(client, "a")
        assert (robust.offsets, _stands(sidecar)) == ({A: 160}, (1, 160))


async def test_a_clone_and_an_import_work_as_well(tmp_path: Path, robust: RobustMeta) -> None:
    """Plain saves of what is to stand; the import keeps what is larger."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 7, "b": 8})
        request = offsets_pb.CloneGroupRequest(from_group="g", to_group="h", execute=True)
        await client.admin.CloneGroup(request, timeout=PATIENCE_S)
        assert {name: offset for name, offset in robust.offsets.items() if name.group == "h"} == {
            key("a", "h"): 7,
            key("b", "h"): 8,
        }


async def test_a_stale_adapter_undoes_a_reset_of_another_one(tmp_path: Path, robust: RobustMeta) -> None:
    """Its local value is larger, and an offset is all that can be compared. Documented; with epochs the reset stands (7)."""
    async with adapter(tmp_path / "stale", robust) as (_, stale):
        await stale.commit("g", {"a": 160})
    async with adapter(tmp_path / "here", robust) as (_, here):
        await _reset(here, 10, "a")
        assert robust.offsets == {A: 10}
    async with adapter(tmp_path / "stale", robust) as (_, stale):
        assert (await stale.status()).recovery.pushed == 1
    assert robust.offsets == {A: 160}


async def test_a_mere_read_of_the_store_pushes_a_larger_local_offset(tmp_path: Path, robust: RobustMeta) -> None:
    """Another adapter reset the shard, this one still holds it: what it has is larger, so it is dirty. Documented (7)."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 160})
        await client.flush()
        robust.offsets[A] = 10
        assert (await client.read("g", ["a"], mode=ReadMode.STORE))["a"].offset == 160
        await client.flush()
    assert robust.offsets == {A: 160}


async def test_what_such_a_server_cannot_do_is_refused_with_a_reason(tmp_path: Path, robust: RobustMeta) -> None:
    """Deleting shards of every group needs a list of everything."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 160})
        with pytest.raises(grpc.aio.AioRpcError, match=r"cannot list its offsets.*name the group") as caught:
            await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(shards=["a"], execute=True), timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await client.flush()
    assert robust.offsets == {A: 160}


async def test_a_write_through_commit_is_saved_over_what_stood_also_a_rewind(tmp_path: Path, robust: RobustMeta) -> None:
    """Acknowledged when the server has it; a smaller one in the default mode sends what stands here."""
    async with adapter(tmp_path, robust, mode="write_through") as (sidecar, client):
        await client.commit("g", {"a": 160})
        assert robust.offsets == {A: 160}
        assert [row.offset for row in await client.commit("g", {"a": 30})] == [160]
        assert robust.offsets == {A: 160}
        await client.commit("g", {"a": 30}, mode=OVERWRITE)
        assert (robust.offsets, _stands(sidecar)) == ({A: 30}, (2, 30))
        assert (await client.status()).dirty_keys == 0
        assert robust.conditional() == [{"a": (0, 160)}, {"a": (160, 160)}, {"a": (160, 30)}]


async def test_a_write_through_commit_of_a_key_that_was_never_seen_overwrites_nothing_larger(
    tmp_path: Path, robust: RobustMeta
) -> None:
    """Its group could not be loaded before: epoch 0. It is compared, and told what stands (2)."""
    robust.offsets[A] = 100
    robust.before = failing(grpc.StatusCode.UNAVAILABLE, rpc="GetOffsetData")
    async with adapter(tmp_path, robust, mode="write_through") as (sidecar, client):
        superseded = await client.commit("g", {"a": 5})
        assert [row.offset for row in superseded] == [100]
        assert (robust.offsets, _stands(sidecar)) == ({A: 100}, (1, 100))


async def test_a_write_through_commit_of_before_a_delete_sends_no_tombstone(tmp_path: Path, robust: RobustMeta) -> None:
    """It knows an older epoch than the tombstone that stands here: it changes nothing, and disturbs nobody (7, 10)."""
    async with adapter(tmp_path, robust, mode="write_through") as (sidecar, client):
        sidecar.core().ledger.store.write({A: OffsetRecord(ERA, 0, live=False, committed_at_ms=5)})
        assert len(await client.commit("g", {"a": 5, "b": 6}, epochs={"a": 1}, check=False)) == 1
        assert robust.offsets == {B: 6}
        assert _stands(sidecar) == (ERA, 0)
