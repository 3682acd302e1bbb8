"""Expiry with real processes: kills in its middle, the Meta Service away, and tombstones that are forgotten."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import OffsetKey, ReadMode
from adapter.rpc import meta_pb, offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.integration.helpers import PATIENCE_S, key, meta_rpc, status_of, stored_in, until_clean

HOUR_MS = 3_600_000
ERA = 1 << 32  # the epoch of a first reset
SHARDS = ("a", "b", "c")
GROUPS = [f"old-{at:02}" for at in range(40)]  # two seconds of expiry: 20 calls a second
EVERY_50_MS = "[expiry]\nretention_hours = 1\ninterval_ms = 50"
SWEEPS_S = 1.0  # in which there are many


def commits(groups: Iterable[str], hours_ago: int, offset: int = 5) -> offsets_pb.CommitOffsetsRequest:
    """A commit of all shards of these groups, by a consumer that says when it was."""
    at_ms = time.time_ns() // 1_000_000 - hours_ago * HOUR_MS
    shards = [offsets_pb.ShardCommit(shard=shard, offset=offset, committed_at_ms=at_ms) for shard in SHARDS]
    return offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=shards) for group in groups])


def keys(*groups: str) -> set[OffsetKey]:
    """All keys of these groups."""
    return {key(shard, group) for group in groups for shard in SHARDS}


def not_whole(found: Iterable[OffsetKey]) -> list[str]:
    """Groups of which there is something, but not all."""
    return [group for group, count in Counter(where.group for where in found).items() if count != len(SHARDS)]


async def local(client: OffsetClient) -> dict[OffsetKey, tuple[int, int]]:
    """Live offsets of an adapter: key -> (epoch, offset)."""
    return {OffsetKey(row.namespace, row.group, row.shard): (row.epoch, row.offset) async for row in client.list()}


async def gone_from(client: OffsetClient, meta: ServiceProcess, stays: set[OffsetKey]) -> None:
    """Wait until both stores hold exactly this."""
    async with asyncio.timeout(PATIENCE_S):
        while set(await local(client)) != stays or set(stored_in(meta)) != stays:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.02)


async def test_old_groups_leave_both_stores_and_used_ones_stay(tmp_path: Path) -> None:
    """By the time that the consumers said. A consumer that comes back begins where it wants."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=EVERY_50_MS)
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await client.store.CommitOffsets(commits(["used"], 0))
            await client.store.CommitOffsets(commits(GROUPS[:3], 2))
            await gone_from(client, meta, keys("used"))
            assert adapter.log.count("expiry.expired") == 3
            await client.commit(GROUPS[0], {"a": 3})
            await until_clean(client)
            assert stored_in(meta)[key("a", GROUPS[0])] == (2, 3)
            assert (await client.read(GROUPS[0]))["a"].offset == 3


@pytest.mark.parametrize("stay", [3, 12])
async def test_a_kill_in_the_middle_of_a_sweep_leaves_no_group_half(tmp_path: Path, stay: int) -> None:
    """Whatever was under way: after the restart each group is whole or gone, and in the end it is gone (1)."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=EVERY_50_MS)
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await client.store.CommitOffsets(commits(["used"], 0))
            await client.store.CommitOffsets(commits(GROUPS, 2))
        await eventually(lambda: adapter.log.count("expiry.expired") >= stay, PATIENCE_S)
        adapter.kill()
        left = stored_in(meta)
        assert not_whole(left) == []
        assert keys("used") < set(left) < keys("used", *GROUPS)
        # At first without expiry, to look at what the kill left.
        quiet = adapter_process(tmp_path, meta.address)
        with ended(quiet):
            quiet.start()
            async with OffsetClient.connect(quiet.address, PATIENCE_S) as client:
                await until_clean(client)
                assert await local(client) == stored_in(meta)
                assert not_whole(stored_in(meta)) == []
                assert set(stored_in(meta)) >= set(left)
            assert quiet.stop() == 0
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await gone_from(client, meta, keys("used"))
        assert stored_in(meta) == dict.fromkeys(keys("used"), (1, 5))


async def test_a_kill_of_the_meta_service_in_the_middle_of_a_sweep_leaves_no_group_half(tmp_path: Path) -> None:
    """What it acknowledged as expired is so after its restart; of the one under way nobody knows, and it is asked again (1)."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=f"timeout_ms = 500\n{EVERY_50_MS}")
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await client.store.CommitOffsets(commits(["used"], 0))
            await client.store.CommitOffsets(commits(GROUPS, 2))
            await eventually(lambda: adapter.log.count("expiry.expired") >= 3, PATIENCE_S)
            meta.kill()
            await eventually(lambda: "expiry.failed" in adapter.log, PATIENCE_S)
            here = await local(client)
            assert not_whole(here) == []
            assert keys("used") < set(here)
            meta.start()
            assert not_whole(stored_in(meta)) == []
            await gone_from(client, meta, keys("used"))


def _saved(shard: str, epoch: int, offset: int, hours_ago: int) -> meta_pb.SaveOffsetDataRequest:
    at_ms = time.time_ns() // 1_000_000 - hours_ago * HOUR_MS
    row = meta_pb.SaveOffsetDataRequestOffset(
        namespace="default", shard_name=shard, offset=offset, epoch=epoch, committed_at_ms=at_ms
    )
    return meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="g", offsets=[row])])


async def test_a_kill_between_an_expiry_and_what_takes_it_back_loses_no_reset(tmp_path: Path) -> None:
    """It got a commit elsewhere: it comes back whole, with a reset that nobody took up, whose tombstone is above it (1)."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address)
    with ended(meta, adapter):
        meta.start()
        with meta_rpc(meta.address) as stub:
            stub.SaveOffsetData(_saved("a", ERA, 100, 2), timeout=PATIENCE_S)
            stub.SaveOffsetData(_saved("b", 1, 5, 2), timeout=PATIENCE_S)
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            assert set(await client.read("g", mode=ReadMode.MEMORY_FIRST_THEN_STORE)) == {"a", "b"}
        adapter.kill()
        now_ms = time.time_ns() // 1_000_000
        with meta_rpc(meta.address) as stub:
            expiry = meta_pb.ExpireOffsetDataRequest(namespace="default", group="g", before_ms=now_ms - HOUR_MS, now_ms=now_ms)
            assert stub.ExpireOffsetData(expiry, timeout=PATIENCE_S).expired == 2
            stub.SaveOffsetData(_saved("b", 1, 6, 0), timeout=PATIENCE_S)
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await until_clean(client)
            assert await local(client) == stored_in(meta) == {key("a"): (ERA + 1, 100), key("b"): (1, 6)}
        assert adapter.stop() == 0


async def test_a_group_that_the_meta_service_does_not_have_yet_never_expires(tmp_path: Path) -> None:
    """However old, through many sweeps and a kill. When it is there, it may."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra=f"timeout_ms = 200\n[recovery]\ntimeout_ms = 0\n{EVERY_50_MS}")
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        meta.kill()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await client.store.CommitOffsets(commits(["old"], 2))
            await client.store.CommitOffsets(commits(["used"], 2))
            await client.commit("used", {"a": 6})
            after_s = status_of(adapter).uptime_seconds + SWEEPS_S
            await eventually(lambda: status_of(adapter).uptime_seconds > after_s, PATIENCE_S)
            assert set(await local(client)) == keys("old", "used")
        adapter.kill()
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            assert set(await client.read("old", mode=ReadMode.MEMORY)) == set(SHARDS)
            assert "expiry.expired" not in adapter.log
            meta.start()
            await gone_from(client, meta, keys("used"))
        assert stored_in(meta)[key("a", "used")] == (1, 6)


def _tombstones(*shards: tuple[str, int]) -> meta_pb.SaveOffsetDataRequest:
    entries = [
        meta_pb.SaveOffsetDataRequestOffset(
            namespace="default", shard_name=shard, offset=0, epoch=2, committed_at_ms=at_ms, tombstone=True
        )
        for shard, at_ms in shards
    ]
    return meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="g", offsets=entries)])


def test_a_meta_service_forgets_by_its_settings(tmp_path: Path) -> None:
    """A real one: the old one goes, the young one stays, and comes back as it was after a kill."""
    meta = meta_process(tmp_path, extra="[tombstones]\nretention_hours = 1\ninterval_ms = 20")
    group = meta_pb.BatchGetOffsetDataRequest(groups=[meta_pb.BatchGetOffsetDataRequest.Group(namespace="default", group="g")])
    with ended(meta):
        meta.start()
        with meta_rpc(meta.address) as stub:
            stub.SaveOffsetData(_tombstones(("old", 1), ("young", 2**62)), timeout=PATIENCE_S)
            asyncio.run(eventually(lambda: "tombstones.dropped" in meta.log))
        meta.kill()
        meta.start()
        with meta_rpc(meta.address) as stub:
            found = stub.BatchGetOffsetData(group, timeout=PATIENCE_S).groups[0].offsets
        assert [(row.shard_name, row.epoch, row.tombstone) for row in found] == [("young", 2, True)]
