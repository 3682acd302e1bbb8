"""Bugs that users of other systems met with resets, deletes, clones and failovers: each as a test, named by its report.

Two adapters, `here` and `there`, share a Meta Service: one of them is where the admin is. docs/discussion.md has the whole list.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.model.records import CommitMode, Member, OffsetRecord, ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from tests.integration.helpers import PATIENCE_S, key, record, serving

ON_DEMAND: dict[str, Any] = {"flush": {"interval_ms": 60_000}}  # nothing is flushed unless asked for
DOWN = MetaUnavailableError("down by the test")
OVERWRITE = CommitMode.OVERWRITE
ERA = 1 << 32


@asynccontextmanager
async def adapter(directory: Path, meta: FakeMeta) -> AsyncIterator[OffsetClient]:
    """An adapter with a directory of its own."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs yet
    async with serving(directory, meta, **ON_DEMAND) as (_, client):
        yield client


@asynccontextmanager
async def two(directory: Path, meta: FakeMeta) -> AsyncIterator[tuple[OffsetClient, OffsetClient]]:
    """Two of them."""
    async with adapter(directory / "here", meta) as here, adapter(directory / "there", meta) as there:
        yield here, there


def image(directory: Path, name: str = "here") -> Path:
    """The store of a running adapter as kill -9 would leave it now, in a directory for another one."""
    target = directory / f"{name}-killed"
    target.mkdir()
    shutil.copytree(directory / name / "adapter", target / "adapter")
    return target


async def reset(client: OffsetClient, to: int, *shards: str, group: str = "g", create: bool = False) -> offsets_pb.ChangeReply:
    """Reset and execute."""
    request = offsets_pb.ResetOffsetsRequest(group=group, shards=shards, to_offset=to, execute=True, create=create)
    return await client.admin.ResetOffsets(request, timeout=PATIENCE_S)


async def delete(client: OffsetClient, *shards: str, group: str = "g") -> offsets_pb.ChangeReply:
    """Delete and execute."""
    request = offsets_pb.DeleteOffsetsRequest(group=group, shards=shards, execute=True)
    return await client.admin.DeleteOffsets(request, timeout=PATIENCE_S)


async def offsets(client: OffsetClient, group: str = "g", mode: ReadMode = ReadMode.STORE) -> dict[str, int]:
    """The offsets of a group."""
    return {shard: row.offset for shard, row in (await client.read(group, mode=mode)).items()}


def stored(meta: FakeMeta, group: str = "g") -> dict[str, int]:
    """The live offsets of a group in the Meta Service."""
    return {where.shard: found.offset for where, found in meta.records.items() if where.group == group and found.live}


@pytest.mark.parametrize("mode", CommitMode)
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_commit_in_flight_does_not_undo_a_reset(directory: Path, mode: CommitMode, elsewhere: bool) -> None:
    """apache/rocketmq #4206: the consumer read before the reset and commits after it. The row of its reply says what stands."""
    meta = FakeMeta()
    async with two(directory, meta) as (here, there):
        await here.commit("g", {"s": 100})
        await here.flush()
        epoch = (await here.read("g"))["s"].epoch
        await reset(there if elsewhere else here, 10)
        await here.commit("g", {"s": 101}, mode=mode, epochs={"s": epoch}, check=False)
        await here.flush()
        assert stored(meta) == {"s": 10}
        [row] = await here.commit("g", {"s": 102}, mode=mode, epochs={"s": epoch}, check=False)
        assert (row.shard, row.epoch, row.offset) == ("s", ERA, 10)
        assert await here.commit("g", {"s": 11}, mode=mode, epochs={"s": row.epoch}) == []
        await here.flush()
        assert await offsets(there) == stored(meta) == {"s": 11}


async def test_a_reset_of_a_group_moves_all_of_its_shards(directory: Path) -> None:
    """apache/rocketmq #2298: those that only the other adapter or only this one knows, flushed or not; else the named ones."""
    meta = FakeMeta()
    async with two(directory, meta) as (here, there):
        await there.commit("g", {"a": 100, "b": 100})
        await there.flush()
        await here.commit("g", {"c": 100})
        reply = await reset(here, 7)
        assert (reply.executed, sorted(row.shard for row in reply.rows)) == (True, ["a", "b", "c"])
        assert await offsets(there) == stored(meta) == {"a": 7, "b": 7, "c": 7}
        await reset(here, 3, "b")
        assert await offsets(there) == stored(meta) == {"a": 7, "b": 3, "c": 7}


async def test_no_question_changes_anything(directory: Path) -> None:
    """apache/rocketmq #10987: reads, lists, describe, export and dry runs leave every record here and there as it is."""
    meta = FakeMeta({key("remote"): record(5, 3), key("dead"): OffsetRecord(ERA, 0, live=False, committed_at_ms=1)})
    async with adapter(directory / "here", meta) as client:
        await client.commit("g", {"a": 100})
        here, there = [row async for row in client.list()], dict(meta.records)
        for mode in ReadMode:
            await client.read("nobody", ["x"], mode=mode)
        await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=PATIENCE_S)
        await client.admin.ListGroups(offsets_pb.ListGroupsRequest(), timeout=PATIENCE_S)
        assert [row async for row in client.list()] == here
        dry = offsets_pb.ResetOffsetsRequest(group="g", to_offset=3)
        assert not (await client.admin.ResetOffsets(dry, timeout=PATIENCE_S)).executed
        await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(group="g"), timeout=PATIENCE_S)
        await client.admin.CloneGroup(offsets_pb.CloneGroupRequest(from_group="g", to_group="h"), timeout=PATIENCE_S)
        _ = [reply async for reply in client.admin.ExportOffsets(offsets_pb.ExportOffsetsRequest(), timeout=PATIENCE_S)]
        assert (meta.records, meta.saves) == (there, [])
        assert (await client.read("g", ["a"], mode=ReadMode.MEMORY))["a"] == here[0]


async def test_a_clone_that_copies_nothing_does_not_say_success(directory: Path) -> None:
    """apache/rocketmq #11111: an unknown group, a shard that it has not, or no Meta Service are errors; success is read back."""
    meta = FakeMeta()
    async with adapter(directory / "here", meta) as client:
        await client.commit("g", {"a": 4, "b": 5})

        async def clone(source: str, *shards: str) -> offsets_pb.ChangeReply:
            request = offsets_pb.CloneGroupRequest(from_group=source, to_group="copy", shards=shards, execute=True)
            return await client.admin.CloneGroup(request, timeout=PATIENCE_S)

        for source, shards in (("unknown", ()), ("g", ("a", "absent"))):
            with pytest.raises(grpc.aio.AioRpcError, match="nothing was cloned"):
                await clone(source, *shards)
        meta.down = DOWN
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await clone("g")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert stored(meta, "copy") == {}
        meta.down = None
        reply = await clone("g")
        assert reply.executed
        assert {row.shard: row.after.offset for row in reply.rows} == stored(meta, "copy") == {"a": 4, "b": 5}
        assert await offsets(client, "copy", ReadMode.MEMORY) == {"a": 4, "b": 5}


@pytest.mark.parametrize("moved", ["committed", "rewound", "reset", "deleted"])
async def test_a_broker_that_comes_back_does_not_win_with_old_offsets(directory: Path, moved: str) -> None:
    """apache/rocketmq #7790, #9711: killed with its store, the shard went on elsewhere; then it starts again from that store."""
    meta = FakeMeta()
    async with two(directory, meta) as (here, there):
        await here.commit("g", {"s": 100})
        await here.flush()
        old = image(directory)
        await there.read("g", mode=ReadMode.STORE)
        if moved == "reset":
            await reset(there, 10)
        elif moved == "deleted":
            await delete(there)
        else:
            await there.commit("g", {"s": 150} if moved == "committed" else {"s": 50}, mode=OVERWRITE)
            await there.flush()
    stands = dict(meta.records)
    async with adapter(old, meta) as back:
        assert await offsets(back, mode=ReadMode.MEMORY) == stored(meta)
        assert await back.flush() == 0
        assert meta.records == stands
        assert {"committed": 150, "rewound": 50, "reset": 10, "deleted": None}[moved] == stored(meta).get("s")


@pytest.mark.parametrize("unflushed", [False, True])
async def test_a_broker_that_comes_back_with_unflushed_commits_does_not_undo_a_reset(directory: Path, unflushed: bool) -> None:
    """apache/rocketmq #7790, the worst case: it acknowledged more than anybody knew, and rewinds of its own besides."""
    meta = FakeMeta()
    async with two(directory, meta) as (here, there):
        await here.commit("g", {"s": 100})
        await here.flush()
        if unflushed:
            for offset in (500, 90, 400, 80, 300):
                await here.commit("g", {"s": offset}, mode=OVERWRITE)
        old = image(directory)
        await reset(there, 10)
        if unflushed:
            await here.flush()
            assert await offsets(here, mode=ReadMode.MEMORY) == {"s": 10}
    async with adapter(old, meta) as back:
        assert await offsets(back, mode=ReadMode.MEMORY) == stored(meta) == {"s": 10}


async def test_a_shard_that_was_made_anew_begins_anew(directory: Path) -> None:
    """apache/rocketmq #4774: its old offsets go from every group, of both adapters; the first commit counts; lag is >= 0."""
    meta = FakeMeta()
    async with two(directory, meta) as (here, there):
        await here.commit("g", {"s": 1_000, "t": 5})
        await there.commit("h", {"s": 2_000})
        for client in (here, there):
            await client.flush()
        request = offsets_pb.DeleteOffsetsRequest(shards=["s"], execute=True)
        reply = await here.admin.DeleteOffsets(request, timeout=PATIENCE_S)
        assert sorted((row.group, row.shard) for row in reply.rows) == [("g", "s"), ("h", "s")]
        assert (stored(meta), stored(meta, "h")) == ({"t": 5}, {})
        assert await offsets(there, "h") == {}
        assert await offsets(here) == {"t": 5}
        shard = offsets_pb.ShardCommit(shard="s", offset=3, low_watermark=0, high_watermark=2)
        group = offsets_pb.GroupCommits(group="g", shards=[shard])
        assert not (await here.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[group]))).superseded
        described = await here.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=PATIENCE_S)
        assert [(row.shard, row.local.offset, row.lag) for row in described.shards] == [("s", 3, 0), ("t", 5, 0)]
        await here.flush()
        assert stored(meta) == {"s": 3, "t": 5}


async def test_a_reset_is_not_dropped_behind_queued_commits(directory: Path) -> None:
    """apache/pulsar #26304: commits that wait for the flush, and those that come while the reset runs, stay below it."""
    meta = FakeMeta()
    async with adapter(directory / "here", meta) as client:
        await client.commit("g", {"s": 100})
        await client.flush()
        await client.commit("g", {"s": 120})

        async def during(entries: Any) -> Any:
            await client.commit("g", {"s": 130})
            return meta.apply(entries)

        meta.faults.append(during)
        assert (await reset(client, 10)).executed
        assert await offsets(client, mode=ReadMode.MEMORY) == stored(meta) == {"s": 10}
        await client.flush()
        assert await offsets(client) == stored(meta) == {"s": 10}


@pytest.mark.parametrize("to", [0, 99, 100, 101, 2**63])
async def test_a_reset_persists_the_position_that_was_asked_for(directory: Path, to: int) -> None:
    """apache/pulsar #18237; and RocketMQ's assignResetOffset, whose reset went under another key and was gone after a restart."""
    meta = FakeMeta()
    async with adapter(directory / "here", meta) as client:
        await client.commit("g", {"s": 100, "t": 100})
        await client.commit("s", {"g": 100})
        await client.flush()
        [row] = (await reset(client, to, "s")).rows
        assert (row.before.offset, row.after.offset, row.after.epoch) == (100, to, ERA)
        killed = image(directory)
    async with adapter(killed, meta) as client:
        assert await offsets(client, mode=ReadMode.MEMORY) == stored(meta) == {"s": to, "t": 100}
        assert await offsets(client, "s", ReadMode.MEMORY) == {"g": 100}


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_deleted_group_does_not_return(directory: Path, flushed: bool) -> None:
    """Redpanda #4900: neither by a flush of the other adapter, nor by its start from an old store; new commits do count."""
    meta = FakeMeta()
    async with two(directory, meta) as (here, there):
        await here.commit("g", {"s": 100, "t": 1})
        await here.flush()
        if not flushed:
            await here.commit("g", {"s": 200, "t": 2})
        old = image(directory)
        assert (await delete(there)).executed
        await here.commit("g", {"s": 300}, epochs={"s": 1})
        await here.flush()
        assert await offsets(here) == stored(meta) == {}
    async with adapter(old, meta) as back:
        assert await offsets(back) == stored(meta) == {}
        await back.commit("g", {"s": 0})
        await back.flush()
        assert stored(meta) == {"s": 0}


async def test_a_rewind_during_a_rebalance_comes_from_the_new_owner_alone(directory: Path) -> None:
    """confluentinc/librdkafka #2782: the member that lost the shard commits its old position, and is refused."""
    async with adapter(directory / "here", FakeMeta()) as client:
        await client.commit("g", {"s": 100}, member=Member(1, "old"))
        await client.commit("g", {"s": 100}, member=Member(2, "new"))
        for offset, mode in ((90, OVERWRITE), (110, CommitMode.INCREASE_ONLY)):
            with pytest.raises(grpc.aio.AioRpcError, match="ILLEGAL_GENERATION"):
                await client.commit("g", {"s": offset}, mode=mode, member=Member(1, "old"))
        await client.commit("g", {"s": 95}, mode=OVERWRITE, member=Member(2, "new"))
        row = (await client.read("g"))["s"]
        assert (row.epoch, row.offset) == (2, 95)


async def test_absent_is_not_0(directory: Path) -> None:
    """rabbitmq/rabbitmq-server #3783: never committed or deleted: no row. Offset 0 is a row. Nothing is made up."""
    meta = FakeMeta()
    async with adapter(directory / "here", meta) as client:
        await client.commit("g", {"zero": 0, "deleted": 9})
        await delete(client, "deleted")
        for mode in ReadMode:
            assert {
                shard: row.offset for shard, row in (await client.read("g", ["zero", "deleted", "never"], mode=mode)).items()
            } == {"zero": 0}
        described = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=PATIENCE_S)
        assert [(row.shard, row.local.deleted, row.HasField("lag")) for row in described.shards] == [
            ("deleted", True, False),
            ("zero", False, False),
        ]
        await client.flush()
        await reset(client, 5, "never", create=True)
        assert stored(meta) == {"zero": 0, "never": 5}


@pytest.mark.parametrize("reachable", [False, True])
async def test_after_an_unclean_exit_an_unflushed_offset_is_not_stale(directory: Path, reachable: bool) -> None:
    """apache/kafka #22478: what was acknowledged is read from what a killed process left, with or without the Meta Service."""
    meta = FakeMeta()
    async with adapter(directory / "here", meta) as client:
        await client.commit("g", {"s": 100})
        await client.flush()
        await client.commit("g", {"s": 200})
        killed = image(directory)
        meta.down = None if reachable else DOWN
        settings: dict[str, Any] = {**ON_DEMAND, "recovery": {"timeout_ms": 0}, "stop": {"drain_timeout_ms": 100}}
        async with serving(killed, meta, **settings) as (_, back):
            assert await offsets(back, mode=ReadMode.MEMORY) == {"s": 200}
            assert stored(meta) == {"s": 200 if reachable else 100}
        meta.down = None


async def test_a_failed_persist_stays_dirty(directory: Path) -> None:
    """apache/pulsar #14256: the caller hears of it, the next flush sends it, and a kill between both loses nothing."""
    meta = FakeMeta()
    async with adapter(directory / "here", meta) as client:
        await client.commit("g", {"s": 100})
        meta.faults.append(DOWN)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.persist("g")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await client.read("g", mode=ReadMode.MEMORY))["s"].dirty
        killed = image(directory)
        await client.persist("g")
        assert stored(meta) == {"s": 100}
    meta.records.clear()
    async with adapter(killed, meta):
        assert stored(meta) == {"s": 100}
