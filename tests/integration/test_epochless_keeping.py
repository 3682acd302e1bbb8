"""What stands before a Meta Service without epochs (a RobustMQ): labels, its own expiry, names, and what an operator sees."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from adapter.cli.groups.show import state_of
from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from adapter.sidecar.process import Sidecar
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import PATIENCE_S
from tests.dialect import RobustMeta, robust_meta
from tests.integration.helpers import key, meta_section

A, B = key("a"), key("b")
QUIET = {"flush": {"interval_ms": 60_000, "refused_retry_ms": 100}}


@pytest.fixture
def robust() -> Iterator[RobustMeta]:
    """A running server without epochs."""
    with robust_meta() as service:
        yield service


@asynccontextmanager
async def adapter(directory: Path, robust: RobustMeta, **sections: Any) -> AsyncIterator[tuple[Sidecar, OffsetClient]]:
    """A sidecar over `directory` with a client, which flushes when it is asked to."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs yet
    section = meta_section(robust.address, timeout_ms=60_000)
    async with (
        GrpcMetaClient.open(section) as way,
        running_sidecar(adapter_config(directory, **{**QUIET, **sections}), way) as sidecar,
        OffsetClient.connect(sidecar.addresses[-1]) as client,
    ):
        yield sidecar, client


def labels(robust: RobustMeta) -> dict[str, tuple[str, int]]:
    """What stands in the group: shard -> topic, partition."""
    return {where.shard: (robust.topics[where], robust.partitions.get(where, 0)) for where in robust.offsets}


async def test_a_commit_without_labels_keeps_those_that_stand(tmp_path: Path, robust: RobustMeta) -> None:
    """RobustMQ's Kafka OffsetFetch looks up by them. Also if the offset here was equal, and brought none."""
    robust.offsets = {key("id9-3"): 5, key("id9-4"): 6}
    robust.topics = {key("id9-3"): "payments", key("id9-4"): "payments"}
    robust.partitions = {key("id9-3"): 3, key("id9-4"): 4}
    async with adapter(tmp_path, robust) as (_, client):
        for offset in (6, 7, 8):
            await client.commit("g", {"id9-3": offset, "id9-4": offset})
            await client.flush()
            assert labels(robust) == {"id9-3": ("payments", 3), "id9-4": ("payments", 4)}
            assert set(robust.offsets.values()) == {offset}
        await client.persist("g")
        assert labels(robust) == {"id9-3": ("payments", 3), "id9-4": ("payments", 4)}


async def test_labels_of_an_equal_offset_are_kept_though_the_local_record_has_none(tmp_path: Path, robust: RobustMeta) -> None:
    """Equal records are not adopted: the server's labels are remembered beside them."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"id9-3": 5})
    robust.topics[key("id9-3")], robust.partitions[key("id9-3")] = "payments", 3
    async with adapter(tmp_path, robust) as (_, client):
        for offset in (6, 7):
            await client.commit("g", {"id9-3": offset})
            await client.flush()
            assert (robust.offsets, labels(robust)) == ({key("id9-3"): offset}, {"id9-3": ("payments", 3)})


async def test_a_reset_keeps_the_labels_that_stand(tmp_path: Path, robust: RobustMeta) -> None:
    """Also of a shard that this adapter has never saved."""
    robust.offsets, robust.topics, robust.partitions = {key("id9-3"): 50}, {key("id9-3"): "payments"}, {key("id9-3"): 3}
    async with adapter(tmp_path, robust) as (_, client):
        request = offsets_pb.ResetOffsetsRequest(group="g", shards=["id9-3"], to_offset=10, execute=True)
        await client.admin.ResetOffsets(request, timeout=PATIENCE_S)
        assert (robust.offsets, labels(robust)) == ({key("id9-3"): 10}, {"id9-3": ("payments", 3)})


async def test_where_no_labels_stand_the_name_of_the_shard_gives_them(tmp_path: Path, robust: RobustMeta) -> None:
    """By the pattern of the setting; labels of a commit go before all others."""
    meta = {"shard_names": "{topic_id}-{partition}", "topics": {"id9": "payments"}}
    async with adapter(tmp_path, robust, meta=meta) as (_, client):
        await client.commit("g", {"id9-3": 5, "id8-3": 5, "c": 5})
        labelled = offsets_pb.ShardCommit(shard="d", offset=5, topic="orders", partition=7)
        group = offsets_pb.GroupCommits(group="g", shards=[labelled])
        await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[group]), timeout=PATIENCE_S)
        await client.flush()
        assert labels(robust) == {"id9-3": ("payments", 3), "id8-3": ("id8-3", 0), "c": ("c", 0), "d": ("orders", 7)}
        await client.commit("g", {"d": 6})
        await client.flush()
        assert labels(robust)["d"] == ("orders", 7)


async def test_a_hand_over_saves_again_what_the_server_has_deleted_itself(tmp_path: Path, robust: RobustMeta) -> None:
    """It deletes groups without a save. Clean here and gone there: the local offset is the last one."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 5, "b": 6})
        await client.flush()
        robust.offsets.clear()
        await client.persist("g", ["a"])
        assert robust.offsets == {A: 5}
        robust.offsets.clear()
        assert await client.remove("g") == 2
        assert robust.offsets == {A: 5, B: 6}


async def test_a_hand_over_of_what_is_there_is_one_save_on_condition(tmp_path: Path, robust: RobustMeta) -> None:
    """So the server's own time for the group begins anew, for the next owner."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"a": 5})
        await client.flush()
        robust.saves.clear()
        robust.reads.clear()
        await client.persist("g", ["a"])
        assert (robust.conditional(), robust.reads) == ([{"a": (5, 5)}], [])


async def test_a_hand_over_fails_while_the_server_keeps_nothing(tmp_path: Path, robust: RobustMeta) -> None:
    """Nothing is removed here then."""

    def forget(name: str, _: Any) -> None:
        if name == "SaveOffsetData":
            robust.offsets.clear()

    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g", {"a": 5})
        await client.flush()
        robust.before = forget
        with pytest.raises(grpc.aio.AioRpcError, match="has something else each time"):
            await client.remove("g")
        record = sidecar.core().ledger.store.get(A)
        assert record is not None
        assert record.offset == 5


async def test_idle_groups_are_saved_again_and_what_is_gone_is_put_back(tmp_path: Path, robust: RobustMeta) -> None:
    """One offset of each group is enough; of a group that is gone all are sent. Young and expired ones are left alone."""
    async with adapter(tmp_path, robust, meta={"expires_groups_after_seconds": 4_000}, expiry={"retention_hours": 1}) as (
        sidecar,
        client,
    ):
        core = sidecar.core()
        now_ms = core.clocks.now_ms()
        for group, age_s in (("idle", 1_001), ("gone", 1_001), ("young", 900), ("old", 3_601)):
            shards = [offsets_pb.ShardCommit(shard=shard, offset=5, committed_at_ms=now_ms - age_s * 1000) for shard in "ab"]
            request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group=group, shards=shards)])
            await client.store.CommitOffsets(request, timeout=PATIENCE_S)
        await client.flush()
        del robust.offsets[key("a", "gone")], robust.offsets[key("b", "gone")]
        robust.saves.clear()
        await core.renewal.pass_once()
        sent = [(group.group, sorted(row.shard_name for row in group.offsets)) for save in robust.saves for group in save.offsets]
        assert sent == [("gone", ["a"]), ("idle", ["a"]), ("gone", ["b"])]
        assert core.ledger.dirty.keys() == {key("a", "gone"), key("b", "gone")}
        await client.flush()
        assert core.ledger.dirty.keys() == set()
        assert {robust.offsets[key("a", "gone")], robust.offsets[key("b", "gone")]} == {5}


async def test_a_name_that_such_a_server_would_mix_up_is_refused_at_the_commit(tmp_path: Path, robust: RobustMeta) -> None:
    """By the field; a shard may have slashes. In every form of a commit, also beside good ones."""
    async with adapter(tmp_path, robust) as (_, client):
        for namespace, group, field in (("default", "a/b", r"groups\[0\].group"), ("n/m", "g", r"groups\[0\].namespace")):
            with pytest.raises(grpc.aio.AioRpcError, match=f"{field}: '.*' has a /") as caught:
                await client.commit(group, {"s/1": 5}, namespace=namespace)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await client.commit("g", {"topic/1": 5})
        await client.flush()
        assert robust.offsets == {key("topic/1"): 5}


async def test_describe_shows_equal_offsets_as_clean_and_what_is_missing_as_ahead(tmp_path: Path, robust: RobustMeta) -> None:
    """The server knows no epochs: its offset counts as being in the local one."""
    async with adapter(tmp_path, robust) as (_, client):
        await client.commit("g", {"same": 5, "less": 5, "gone": 5, "more": 5})
        await client.flush()
        robust.offsets |= {key("less"): 4, key("more"): 6}
        del robust.offsets[key("gone")]
        reply = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=PATIENCE_S)
        states = {row.shard: state_of(row, remote_known=True) for row in reply.shards}
        assert states == {"same": "clean", "less": "ahead", "gone": "ahead", "more": "behind"}


async def test_status_says_what_is_weaker(tmp_path: Path, robust: RobustMeta) -> None:
    """And nothing with a Meta Service that knows epochs, see test_store_api."""
    async with adapter(tmp_path, robust) as (_, client):
        assert "a reset or delete is undone by another adapter" in (await client.status()).weaker[0]


async def test_a_flush_says_how_long_the_server_needs(tmp_path: Path, robust: RobustMeta) -> None:
    """By the time of the last saves: many groups, each of which takes a while."""
    async with adapter(tmp_path, robust) as (sidecar, client):
        await client.commit("g0", {"a": 1})
        await client.flush()
        assert not (await client.status()).flush_pace
        core = sidecar.core()
        core.flusher.saver.meta.group_window.seconds_each = 0.5  # type: ignore[attr-defined]  # of the real client
        for at in range(4):
            await client.commit(f"g{at}", {"a": 2})
        pace = (await client.status()).flush_pace
        assert pace == "the Meta Service takes 500 ms for each group, one after the other: 4 dirty groups take about 2 s"
        assert core.ledger.dirty.groups == len({GroupKey("default", f"g{at}") for at in range(4)})
