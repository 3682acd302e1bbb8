"""The metrics of Raft groups, from what their members answer."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from adapter.metaservice.etcd import raft_watch
from adapter.metaservice.etcd.leader_balancer import Leaders
from adapter.metaservice.etcd.leader_placement import ClusterState, RaftGroup, RaftMember
from adapter.metaservice.etcd.raft_watch import INTERVAL_S, RaftMetrics
from tests.unit.leader_fakes import FakeEtcd, in_virtual_time
from tests.unit.metaservice.etcd.raft_groups import raft_group

QUOTA = 1_000


def told(*groups: RaftGroup) -> dict[str, dict[str, float]]:
    """The metrics by name and Raft group."""
    metrics, registry = RaftMetrics(QUOTA), CollectorRegistry()
    registry.register(metrics)
    metrics.looked(ClusterState(groups[0], groups[1:]))
    return {
        family.name.removeprefix("offset_meta_raft_group_"): {
            sample.labels["raft_group"]: sample.value for sample in family.samples
        }
        for family in registry.collect()
    }


def away(member: RaftMember) -> RaftMember:
    """It did not answer."""
    return RaftMember(endpoint=member.endpoint, node=member.node, problem="away")


def sized(group: RaftGroup, *sizes: int, **fields: int | str) -> RaftGroup:
    """The members with databases of these sizes."""
    members = zip(group.members, sizes, strict=True)
    return RaftGroup(group.name, tuple(replace(member, db_bytes=size, **fields) for member, size in members))  # type: ignore[arg-type]


def test_a_group_whose_members_answer_has_a_leader_a_size_and_a_quota() -> None:
    """The size of the largest database: that member refuses first."""
    found = told(sized(raft_group("metadata", "n0"), 10, 30, 20))
    assert found == {
        "leader": {"metadata": 1},
        "members_unreachable": {"metadata": 0},
        "bytes": {"metadata": 30},
        "quota_bytes": {"metadata": QUOTA},
        "full": {"metadata": 0},
    }


def test_a_quota_that_members_tell_counts_and_of_several_the_smallest() -> None:
    """As etcd 3.6 does; what is configured is for those that do not."""
    group = sized(raft_group("o", "n0"), 1, 1, 1, quota_bytes=500)
    assert told(group)["quota_bytes"] == {"o": 500}
    older = replace(group.members[0], quota_bytes=0)
    assert told(RaftGroup("o", (older, *group.members[1:])))["quota_bytes"] == {"o": 500}
    assert told(RaftGroup("o", (older,)))["quota_bytes"] == {"o": QUOTA}


def test_a_group_without_a_leader_is_told_beside_one_that_has_one() -> None:
    """By the name of the Raft group."""
    headless = RaftGroup("offsets-1", tuple(replace(one, leader_id=0) for one in raft_group("offsets-1", "n0").members))
    assert told(raft_group("metadata", "n0"), headless)["leader"] == {"metadata": 1, "offsets-1": 0}


def test_members_that_do_not_answer_are_counted_and_a_group_that_is_gone_has_no_size() -> None:
    """It has no leader, and nothing is known of its size."""
    group = raft_group("metadata", "n0")
    some = RaftGroup("metadata", (*group.members[:2], away(group.members[2])))
    found = told(some, RaftGroup("offsets-1", tuple(away(member) for member in group.members)))
    assert found["members_unreachable"] == {"metadata": 1, "offsets-1": 3}
    assert found["leader"] == {"metadata": 1, "offsets-1": 0}
    assert set(found["bytes"]) == set(found["quota_bytes"]) == set(found["full"]) == {"metadata"}


def test_a_group_is_full_as_soon_as_a_member_has_the_alarm() -> None:
    """As an error of the member: so etcd tells it."""
    group = raft_group("metadata", "n0")
    alarmed = replace(group.members[1], problem="etcdserver: memberID:1 alarm:NOSPACE")
    assert told(RaftGroup("metadata", (group.members[0], alarmed, group.members[2])))["full"] == {"metadata": 1}


def test_there_are_no_series_before_the_first_look() -> None:
    """A 0 would be an alarm."""
    registry = CollectorRegistry()
    registry.register(RaftMetrics(QUOTA))
    assert [sample for family in registry.collect() for sample in family.samples] == []


@in_virtual_time
async def test_it_looks_again_and_again() -> None:
    """A leader that is lost is seen at the next look."""
    metadata, offsets = FakeEtcd("metadata", "n1"), FakeEtcd("offsets-1", "n2")
    metrics = RaftMetrics(QUOTA)
    task = asyncio.create_task(raft_watch.run(Leaders(metadata.watched, [offsets.watched]), metrics))
    await asyncio.sleep(INTERVAL_S / 2)
    leaders = [sample.value for family in metrics.collect() for sample in family.samples if family.name.endswith("_leader")]
    assert leaders == [1, 1]
    offsets.down = {"n1", "n2", "n3"}
    await asyncio.sleep(INTERVAL_S)
    leaders = [sample.value for family in metrics.collect() for sample in family.samples if family.name.endswith("_leader")]
    assert leaders == [1, 0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
