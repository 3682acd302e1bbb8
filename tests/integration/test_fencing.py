"""Fencing as brokers see it: a zombie's commits are refused whole, also after a kill, a restart and a hand-over of shards."""

import signal
from pathlib import Path

import grpc
import grpc.aio
import pytest

from adapter.errors import MetaUnavailableError
from adapter.model.records import Member, ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from tests.integration.helpers import PATIENCE_S, PATIENT_META, Rpc, commits, each, key, rpc, serving, stored_in

FENCED = grpc.StatusCode.FAILED_PRECONDITION
ZOMBIE = "default/g: ILLEGAL_GENERATION: generation 4 of member 'zombie' has ended; 5 is the present one: rejoin the group"


def _of(generation: int, offsets: dict[str, int], member_id: str = "m", group: str = "g") -> offsets_pb.CommitOffsetsRequest:
    request = commits(offsets, group)
    request.groups[0].generation, request.groups[0].member_id = generation, member_id
    return request


def _fenced(stubs: Rpc, request: offsets_pb.CommitOffsetsRequest) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        stubs.store.CommitOffsets(request, timeout=PATIENCE_S)
    assert caught.value.code() is FENCED
    return caught.value.details() or ""


def _shards_of(stubs: Rpc, group: str = "g") -> dict[str, int]:
    request = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group=group)], mode=offsets_pb.MEMORY)
    return {row.shard: row.offset for row in stubs.store.ReadOffsets(request, timeout=PATIENCE_S).offsets}


@pytest.mark.parametrize("mode", ["write_back", "write_through"])
def test_a_generation_survives_kill_9_a_restart_and_a_hand_over(directory: Path, meta: ServiceProcess, mode: str) -> None:
    """The zombie is refused every time, and nothing of it reaches the adapter or the Meta Service."""
    adapter = adapter_process(directory, meta.address, top=f"mode = '{mode}'", extra=PATIENT_META)
    with ended(adapter):
        adapter.start()
        with rpc(adapter.address) as stubs:
            stubs.store.CommitOffsets(_of(5, {"s": 10}), timeout=PATIENCE_S)
            assert _fenced(stubs, _of(4, {"s": 11, "t": 1}, "zombie")) == ZOMBIE
        adapter.kill()
        adapter.start()
        with rpc(adapter.address) as stubs:
            assert _fenced(stubs, _of(4, {"s": 11}, "zombie")) == ZOMBIE
            wanted = [offsets_pb.GroupShards(group="g")]
            removed = stubs.store.RemoveOffsets(offsets_pb.RemoveOffsetsRequest(groups=wanted), timeout=PATIENCE_S)
            assert removed.removed == 1
            assert _fenced(stubs, _of(4, {"s": 11}, "zombie")) == ZOMBIE
        assert adapter.stop() == 0
        adapter.start()
        with rpc(adapter.address) as stubs:
            assert _fenced(stubs, _of(4, {"s": 11}, "zombie")) == ZOMBIE
            stubs.store.CommitOffsets(_of(5, {"s": 12}, "other"), timeout=PATIENCE_S)
            stubs.store.CommitOffsets(commits({"s": 13}), timeout=PATIENCE_S)
            assert _shards_of(stubs) == {"s": 13}
        assert adapter.stop() == 0
    assert stored_in(meta) == {key(): (1, 13)}


def test_a_generation_that_was_answered_just_before_a_kill_is_there(directory: Path, meta: ServiceProcess) -> None:
    """Also when its commit changed no offset: it is written before the answer."""
    adapter = adapter_process(directory, meta.address, extra=PATIENT_META)
    with ended(adapter):
        adapter.start()
        for generation in range(1, 4):
            with rpc(adapter.address) as stubs:
                stubs.store.CommitOffsets(_of(generation, {"s": 10}), timeout=PATIENCE_S)
                adapter.signal(signal.SIGKILL)
            adapter.kill()
            adapter.start()
            with rpc(adapter.address) as stubs:
                assert "ILLEGAL_GENERATION" in _fenced(stubs, _of(generation - 1, {"s": 11}))


async def test_a_zombie_on_a_stream_is_answered_in_its_place(directory: Path) -> None:
    """Status and text in its reply; the stream and its other commits go on (10)."""
    async with serving(directory) as (_, client):
        requests = [_of(5, {"s": 1}), _of(4, {"s": 9, "t": 9}, "zombie"), _of(5, {"s": 2}), _of(6, {"s": 3}), _of(5, {"s": 9})]
        stream = (offsets_pb.StreamCommitsRequest(id=at, commit=request) for at, request in enumerate(requests))
        replies = [reply async for reply in client.store.StreamCommits(stream, timeout=PATIENCE_S)]
        fenced = FENCED.value[0]
        replies = each(replies)
        assert [(reply.id, reply.code) for reply in replies] == [(0, 0), (1, fenced), (2, 0), (3, 0), (4, fenced)]
        assert replies[1].message == ZOMBIE
        assert {shard: row.offset for shard, row in (await client.read("g")).items()} == {"s": 3}


async def test_a_fenced_request_changes_no_other_group(directory: Path) -> None:
    """All or nothing, in either order of the groups (10)."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        await client.commit("g", {"s": 10}, member=Member(5, "m"))
        good, bad = _of(9, {"s": 1}, "x", "h").groups[0], _of(4, {"s": 11}, "zombie").groups[0]
        for groups in ([good, bad], [bad, good]):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups))
            assert (caught.value.code(), caught.value.details()) == (FENCED, ZOMBIE)
        assert await client.read("h") == {}
        await client.commit("h", {"s": 1}, member=Member(8, "x"))
    assert {where: found.position for where, found in meta.records.items()} == {key(): (1, 10), key("s", "h"): (1, 1)}


async def test_fencing_needs_no_meta_service(directory: Path) -> None:
    """The zombie is refused by what is known here, the present generation goes on (4)."""
    meta = FakeMeta()
    async with serving(directory, meta, flush={"interval_ms": 60_000}) as (_, client):
        await client.commit("g", {"s": 10}, member=Member(5, "m"))
        meta.down = MetaUnavailableError("down by the test")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.commit("g", {"s": 11}, member=Member(4, "zombie"))
        assert (caught.value.code(), caught.value.details()) == (FENCED, ZOMBIE)
        await client.commit("g", {"s": 12}, member=Member(5, "m"))
        assert (await client.read("g", mode=ReadMode.MEMORY))["s"].offset == 12
        meta.down = None


async def test_a_group_that_was_deleted_as_a_whole_may_count_from_the_beginning(directory: Path) -> None:
    """Its name belongs to somebody new; a delete of one shard, or a dry run, leaves the generation."""
    async with serving(directory) as (_, client):
        await client.commit("g", {"s": 10, "t": 1}, member=Member(5, "m"))
        for request in (
            offsets_pb.DeleteOffsetsRequest(group="g", shards=["t"], execute=True),
            offsets_pb.DeleteOffsetsRequest(group="g", execute=False),
        ):
            await client.admin.DeleteOffsets(request, timeout=PATIENCE_S)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.commit("g", {"s": 11}, member=Member(4, "zombie"))
            assert caught.value.code() is FENCED
        reply = await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(group="g", execute=True), timeout=PATIENCE_S)
        assert reply.executed
        await client.read("g", mode=ReadMode.STORE)
        await client.commit("g", {"s": 1}, member=Member(1, "new"))
        described = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=PATIENCE_S)
        assert (described.generation, described.member_id) == (1, "new")
        assert (await client.read("g"))["s"].offset == 1


async def test_a_reset_leaves_the_generation(directory: Path) -> None:
    """The members are the same ones."""
    async with serving(directory) as (_, client):
        await client.commit("g", {"s": 10}, member=Member(5, "m"))
        request = offsets_pb.ResetOffsetsRequest(group="g", to_offset=3, execute=True)
        assert (await client.admin.ResetOffsets(request, timeout=PATIENCE_S)).executed
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.commit("g", {"s": 11}, member=Member(4, "zombie"))
        assert caught.value.details() == ZOMBIE
        assert [row.held for row in await client.commit("g", {"s": 11}, member=Member(5, "m"), check=False)] == [True]
        await client.read("g", mode=ReadMode.STORE)
        await client.commit("g", {"s": 4}, member=Member(5, "m"))
        assert (await client.read("g"))["s"].offset == 4
