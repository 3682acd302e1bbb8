"""An adapter before RobustMQ's own Meta Service, as real processes: `make interop`, where `ROBUSTMQ_META` names the binary.

The same rules are tested without it, against an imitation of its calls, in `tests/integration/test_epochless*` and
`test_group_saves`. This shows that the imitation is right.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from adapter.cli.groups.show import state_of
from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from adapter.testing.robustmq import ELECTION_S, RobustNode, missing, robust_cluster, wait_for_leader

MANY = 10_000  # groups: at 2 to 6 ms each, many times the deadline of a save
SOME = 300
COMMIT_GROUPS = 500  # of one commit
DRAIN_S = 1_800.0  # for MANY groups, on a busy machine
EXPIRE_S = 5  # RobustMQ looks every 10 s

pytestmark = pytest.mark.timeout(3_600)


@pytest.fixture(autouse=True)
def binary() -> None:
    """Skip, by name, where RobustMQ's Meta Service is not there."""
    if reason := missing():
        pytest.skip(reason)


@contextmanager
def adapter(directory: Path, endpoints: Sequence[RobustNode], extra: str = "") -> Iterator[ServiceProcess]:
    """A running adapter with these endpoints."""
    names = "', '".join(node.address for node in endpoints)
    service = adapter_process(directory / "adapter", names, extra=f"{extra}\n[stop]\ndrain_timeout_ms = 600000\n")
    with ended(service):
        service.start()
        yield service


async def commit_groups(client: OffsetClient, count: int, offset: int) -> None:
    """Commit one offset of each of so many groups."""
    for first in range(0, count, COMMIT_GROUPS):
        names = [f"group-{at}" for at in range(first, min(first + COMMIT_GROUPS, count))]
        groups = [offsets_pb.GroupCommits(group=name, shard_names=["orders/0"], offsets=[offset]) for name in names]
        await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=60.0)


async def until_clean(client: OffsetClient, limit_s: float = DRAIN_S) -> None:
    """Wait until nothing is dirty."""
    async with asyncio.timeout(limit_s):
        while (await client.status()).dirty_keys:  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.2)


def stored(node: RobustNode, count: int) -> set[int]:
    """The offsets of so many groups, as one node has them."""
    return {row.offset for at in range(count) for row in node.offsets(f"group-{at}").values()}


async def test_ten_thousand_dirty_groups_drain_and_the_adapter_stops_with_0(tmp_path: Path) -> None:
    """On three nodes. A save of all of them would time out for ever; a stop flushes the second half (8)."""
    with robust_cluster(tmp_path, 3) as nodes, adapter(tmp_path, nodes) as service:
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            await commit_groups(client, MANY, 5)
            await until_clean(client)
            await commit_groups(client, SOME, 6)
        assert await asyncio.to_thread(service.stop, DRAIN_S) == 0
        leader = wait_for_leader(nodes)
        assert stored(leader, SOME) == {6}
        assert stored(leader, MANY) == {5, 6}


@pytest.mark.parametrize("raft_groups", [1, 4])
async def test_what_is_dirty_when_the_leader_dies_gets_to_the_next_one(tmp_path: Path, raft_groups: int) -> None:
    """An election takes 10 to 20 s. With several Raft groups their leaders may be on different nodes then."""
    with robust_cluster(tmp_path, 3, raft_groups=raft_groups) as nodes, adapter(tmp_path, nodes) as service:
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            await commit_groups(client, SOME, 5)
            await until_clean(client)
            leader = wait_for_leader(nodes)
            leader.kill()
            await commit_groups(client, SOME, 6)
            await until_clean(client, ELECTION_S + DRAIN_S)
        left = [node for node in nodes if node is not leader]
        assert {max(node.offsets(f"group-{at}")["orders/0"].offset for node in left) for at in range(SOME)} == {6}


async def test_one_endpoint_that_is_not_the_leader_is_enough(tmp_path: Path) -> None:
    """Its errors name the leader, which is called from then on."""
    with robust_cluster(tmp_path, 3) as nodes:
        leader = wait_for_leader(nodes)
        follower = next(node for node in nodes if node is not leader)
        with adapter(tmp_path, [follower]) as service:
            async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
                await client.commit("g", {"orders/0": 5})
                await client.flush()
                assert (await client.status()).meta_endpoint == leader.address
            assert leader.offsets("g")["orders/0"].offset == 5


async def test_labels_that_stand_are_kept_and_others_come_from_the_name(tmp_path: Path) -> None:
    """RobustMQ's Kafka OffsetFetch looks up by topic and partition."""
    with robust_cluster(tmp_path) as [node], adapter(tmp_path, [node]) as service:
        node.save("g", {"id9-3": 5}, topic="payments", partition=3)
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            await client.commit("g", {"id9-3": 6, "orders/7": 6})
            await client.flush()
        rows = node.offsets("g")
        assert {shard: (row.offset, row.topic, row.partition) for shard, row in rows.items()} == {
            "id9-3": (6, "payments", 3),
            "orders/7": (6, "orders", 7),
        }


async def test_another_writers_larger_offset_is_merged_and_logged(tmp_path: Path) -> None:
    """A plain save of 160 would take the 300 back."""
    with robust_cluster(tmp_path) as [node], adapter(tmp_path, [node]) as service:
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            await client.commit("g", {"orders/0": 150})
            await client.flush()
            node.save("g", {"orders/0": 300})
            await client.commit("g", {"orders/0": 160})
            await client.flush()
            assert node.offsets("g")["orders/0"].offset == 300
            assert (await client.read("g", mode=ReadMode.MEMORY))["orders/0"].offset == 300
        assert "150 was acknowledged last, 300 is there now; 160 was to be saved" in service.log


async def test_a_group_that_robustmq_deleted_is_not_lost_by_a_hand_over(tmp_path: Path) -> None:
    """It is clean here and gone there: it is saved again before the local offset is removed."""
    with (
        robust_cluster(tmp_path, expire_s=EXPIRE_S) as [node],
        adapter(tmp_path, [node], "expires_groups_after_seconds = 0") as service,
    ):
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            await client.commit("g", {"orders/0": 5, "orders/1": 6})
            await client.flush()
            await asyncio.to_thread(_until_gone, node, "g")
            reply = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=60.0)
            assert {state_of(row, remote_known=True) for row in reply.shards} == {"ahead"}
            assert await client.remove("g") == 2
            assert {row.offset for row in node.offsets("g").values()} == {5, 6}


async def test_an_idle_group_that_is_kept_here_stays_there(tmp_path: Path) -> None:
    """It is saved again before RobustMQ deletes it; a group of nobody's is deleted meanwhile."""
    with (
        robust_cluster(tmp_path, expire_s=4 * EXPIRE_S) as [node],
        adapter(tmp_path, [node], f"expires_groups_after_seconds = {2 * EXPIRE_S}") as service,
    ):
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            await client.commit("kept", {"orders/0": 5})
            await client.flush()
            node.save("left", {"orders/0": 5})
            await asyncio.to_thread(_until_gone, node, "left")
            await asyncio.to_thread(_until_logged, service, "renewal.done", 3)
            assert node.offsets("kept")["orders/0"].offset == 5
            assert "renewal.differs" not in service.log


async def test_a_name_that_robustmq_would_mix_up_is_refused(tmp_path: Path) -> None:
    """It joins its keys with a slash: `a/b` with shard `c` is `a` with shard `b/c`."""
    with robust_cluster(tmp_path) as [node], adapter(tmp_path, [node]) as service:
        node.save("a/b", {"c": 7})
        assert [row.offset for row in node.offsets("a").values()] == [7]
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            with pytest.raises(grpc.aio.AioRpcError, match=r"groups\[0\].group: 'a/b' has a /") as caught:
                await client.commit("a/b", {"c": 5})
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_restart_compares_and_describe_shows_clean(tmp_path: Path) -> None:
    """Also after kill -9 with dirty offsets (1)."""
    with robust_cluster(tmp_path) as [node], adapter(tmp_path, [node], "[flush]\ninterval_ms = 60000") as service:
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            await client.commit("g", {"orders/0": 5})
        service.kill()
        service.start()
        async with OffsetClient.connect(service.address, timeout_s=60.0) as client:
            assert (await client.status()).recovery.pushed == 1
            reply = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="g"), timeout=60.0)
            assert [state_of(row, remote_known=True) for row in reply.shards] == ["clean"]
        assert node.offsets("g")["orders/0"].offset == 5


def _until_gone(node: RobustNode, group: str) -> None:
    deadline = time.monotonic() + ELECTION_S
    while node.offsets(group):
        assert time.monotonic() < deadline, f"{group} is not deleted"
        time.sleep(0.5)


def _until_logged(service: ServiceProcess, event: str, times: int) -> None:
    deadline = time.monotonic() + ELECTION_S
    while service.log.count(event) < times:
        assert time.monotonic() < deadline, service.log
        time.sleep(0.5)
