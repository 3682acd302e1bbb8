"""Flushes to a Meta Service that writes one group after the other (a RobustMQ): how many at once, and to which node."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError, RefusedError, TimedOutError
from adapter.meta.client import GrpcMetaClient
from adapter.meta.epochless import Saver
from adapter.meta.group_saves import LEADERLESS
from adapter.model.records import GroupKey, OffsetKey, SaveEntry, SaveOutcome, Status
from adapter.sidecar.process import Sidecar
from tests.dialect import RobustMeta, robust_meta
from tests.integration.helpers import key, meta_section, serving
from tests.integration.test_meta_client_faults import answering, denial
from tests.unit.helpers import record

QUIET = {"flush": {"interval_ms": 60_000, "refused_retry_ms": 100}}


@pytest.fixture
def robust() -> Iterator[RobustMeta]:
    """A running server without epochs."""
    with robust_meta() as service:
        yield service


@contextmanager
def cluster(count: int) -> Iterator[list[RobustMeta]]:
    """Nodes with the same offsets."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(robust_meta()) for _ in range(count)]
        for node in nodes:
            node.offsets, node.topics, node.partitions, node.written = (
                nodes[0].offsets,
                nodes[0].topics,
                nodes[0].partitions,
                nodes[0].written,
            )
        yield nodes


@asynccontextmanager
async def way_to(*endpoints: str) -> AsyncIterator[tuple[GrpcMetaClient, Saver]]:
    """A client that knows which kind of server it has."""
    async with GrpcMetaClient.open(meta_section(*endpoints, timeout_ms=60_000)) as client:
        await client.get([])
        yield client, Saver(client)


@asynccontextmanager
async def adapter(directory: Path, *endpoints: str, **sections: Any) -> AsyncIterator[tuple[Sidecar, OffsetClient]]:
    """A sidecar over `directory` that flushes when it is asked to."""
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs yet
    async with (
        GrpcMetaClient.open(meta_section(*endpoints, timeout_ms=60_000)) as way,
        serving(directory, way, **{**QUIET, **sections}) as (sidecar, client),
    ):
        yield sidecar, client


def entries(count: int, offset: int = 5) -> list[SaveEntry]:
    """One entry for each of some groups."""
    return [SaveEntry(key("a", f"g{at:04}"), record(offset)) for at in range(count)]


def groups_of(save: Any) -> int:
    """How many groups a save carried."""
    return len(save.offsets)


def statuses(outcomes: Sequence[SaveOutcome]) -> Counter[Status]:
    """How many outcomes are of each status."""
    return Counter(outcome.status for outcome in outcomes)


async def test_groups_that_a_save_without_an_answer_had_stored_are_acknowledged_and_not_sent_again(robust: RobustMeta) -> None:
    """They are read back; the others count as unanswered, and the next save is smaller (3)."""
    robust.groups_in_time = 5
    async with way_to(robust.address) as (client, saver):
        before = client.limits.groups
        outcomes = await saver.save(entries(before))
        assert statuses(outcomes) == {Status.APPLIED: 5, Status.UNAVAILABLE: before - 5}
        assert "5 were found stored" in outcomes[-1].message
        assert client.limits.groups < before
        left = [entry for entry, outcome in zip(entries(before), outcomes, strict=True) if not outcome.status.acknowledged]
        while left:
            outcomes = await saver.save(left)
            left = [entry for entry, outcome in zip(left, outcomes, strict=True) if not outcome.status.acknowledged]
    assert Counter(robust.written) == {f"default/g{at:04}": 1 for at in range(before)}


async def test_more_dirty_groups_than_fit_into_a_save_all_get_there(tmp_path: Path, robust: RobustMeta) -> None:
    """A save that always started over would store the same first groups for ever: no group is written twice."""
    robust.groups_in_time = 7
    count = 150
    async with adapter(tmp_path, robust.address) as (sidecar, client):
        for at in range(count):
            await client.commit(f"g{at:04}", {"a": 5})
        core = sidecar.core()
        while core.ledger.dirty:
            try:
                await core.flusher.flush_once(aside_too=True)
            except MetaUnavailableError:
                continue
        assert len(robust.offsets) == count
        assert max(Counter(robust.written).values()) == 1


async def test_saves_grow_while_they_are_answered_in_time(robust: RobustMeta) -> None:
    """From a few groups on, doubled each time: a fast server is not asked group by group (5)."""
    async with way_to(robust.address) as (client, saver):
        first = client.limits.groups
        outcomes = await saver.save(entries(20 * first))
        assert statuses(outcomes) == {Status.APPLIED: 20 * first}
        sizes = [groups_of(save) for save in robust.saves]
        assert sizes[:3] == [first, 2 * first, 4 * first]
        assert client.limits.seconds_per_group > 0


async def test_a_server_that_stores_nothing_in_time_twice_in_a_row_counts_as_unreachable(robust: RobustMeta) -> None:
    """The first time it may be one Raft group without a majority: its groups are set aside."""
    robust.groups_in_time = 0
    async with way_to(robust.address) as (_, saver):
        assert statuses(await saver.save(entries(3))) == {Status.UNAVAILABLE: 3}
        with pytest.raises(TimedOutError):
            await saver.save(entries(3))


async def test_a_node_that_is_not_the_leader_names_it_and_it_is_followed() -> None:
    """Also when the leader is none of the endpoints; the next save goes there at once, and so does a delete."""
    with cluster(2) as (follower, leader):
        follower.leader_of = lambda _: leader.address
        async with way_to(follower.address) as (client, saver):
            assert statuses(await saver.save(entries(3))) == {Status.APPLIED: 3}
            assert client.endpoint == leader.address
            follower.saves.clear()
            assert statuses(await saver.save(entries(3, 6))) == {Status.APPLIED: 3}
            assert follower.saves == []
            leader.leader_of, follower.leader_of = follower.leader_of, lambda _: follower.address
            leader.leader_of = lambda _: follower.address
            await client.delete(GroupKey("default", "g0000"), ["a"])
        assert key("a", "g0000") not in leader.offsets


async def test_a_leader_that_died_is_given_up_for_the_endpoints() -> None:
    """It is none of them, and they have elected another."""
    with cluster(2) as (endpoint, leader):
        endpoint.leader_of = lambda _: leader.address
        async with way_to(endpoint.address) as (client, saver):
            await saver.save(entries(3))
            assert client.endpoint == leader.address
            leader.stop()
            endpoint.leader_of = lambda _: endpoint.address
            assert statuses(await saver.save(entries(3, 6))) == {Status.APPLIED: 3}
            assert client.endpoint == endpoint.address


async def test_groups_of_several_leaders_all_get_there_and_are_sorted_from_then_on() -> None:
    """With offset_raft_group_num = 4 after a failover: what a node has to leave to another is sent to that one."""
    with cluster(3) as nodes:
        addresses = [node.address for node in nodes]

        def leader_of(name: str) -> str:
            return addresses[int(name[-4:]) % 3]

        for node in nodes:
            node.leader_of = leader_of
        async with way_to(*addresses) as (_, saver):
            assert statuses(await saver.save(entries(40))) == {Status.APPLIED: 40}
            assert max(Counter(nodes[0].written).values()) == 1
            for node in nodes:
                node.saves.clear()
            assert statuses(await saver.save(entries(40, 6))) == {Status.APPLIED: 40}
            assert sum(len(node.saves) for node in nodes) == 3
            assert {row.offset for node in nodes for save in node.saves for group in save.offsets for row in group.offsets} == {6}


async def test_groups_whose_raft_group_elects_a_leader_do_not_hold_up_the_others() -> None:
    """They count as unanswered alone."""
    with cluster(2) as nodes:

        def leader_of(name: str) -> str | None:
            return None if int(name[-4:]) % 4 == 0 else nodes[0].address

        for node in nodes:
            node.leader_of = leader_of
        async with way_to(nodes[0].address) as (_, saver):
            assert statuses(await saver.save(entries(16))) == {Status.APPLIED: 12, Status.UNAVAILABLE: 4}


async def test_a_cluster_without_any_leader_counts_as_unreachable(robust: RobustMeta) -> None:
    """After a few groups: the others would get the same answer one by one."""
    robust.leader_of = lambda _: None
    async with way_to(robust.address) as (_, saver):
        with pytest.raises(MetaUnavailableError, match="forward request to: None"):
            await saver.save(entries(16))
        assert robust.offsets == {}


async def test_a_mismatch_among_groups_of_one_save_is_found_by_reading_them(robust: RobustMeta) -> None:
    """The answer does not say which: only that one is merged, and what is stored already is not sent again."""
    async with way_to(robust.address) as (_, saver):
        await saver.save(entries(10))
        robust.offsets[key("a", "g0004")] = 300
        robust.written.clear()
        outcomes = await saver.save(entries(10, 6))
        assert statuses(outcomes) == {Status.APPLIED: 9, Status.SUPERSEDED: 1}
        assert outcomes[4].standing == record(300)
        assert max(Counter(robust.written).values()) == 1


async def test_a_group_with_a_slash_is_refused_alone_and_read_as_absent(robust: RobustMeta) -> None:
    """The server would show shard `b/x` of group `a` as one of group `a/b`."""
    slash = OffsetKey("default", "a/b", "x")
    robust.offsets[OffsetKey("default", "a/b", "b/x")] = 7
    async with way_to(robust.address) as (client, saver):
        assert await client.get([slash]) == {}
        outcomes = await saver.save([SaveEntry(slash, record(5)), SaveEntry(key("a"), record(5))])
        assert [outcome.status for outcome in outcomes] == [Status.INVALID, Status.APPLIED]
        assert outcomes[0].message.startswith("group: 'a/b' has a /")


async def test_a_leader_that_died_and_is_still_named_is_not_tried_again_and_again() -> None:
    """Until the others have elected another one they name the dead one: one failed call to it is enough."""
    with cluster(2) as (endpoint, leader):
        endpoint.leader_of = lambda _: leader.address
        async with way_to(endpoint.address) as (client, saver):
            await saver.save(entries(3))
            assert client.endpoint == leader.address
            leader.stop()
            asked: list[str] = []
            endpoint.before = lambda name, _: asked.append(name)
            with pytest.raises(MetaUnavailableError):
                await saver.save(entries(20, 6))
            assert asked.count("SaveOffsetData") <= 2 * LEADERLESS  # of groups that were saved before, and of the others
            endpoint.leader_of = lambda _: endpoint.address
            assert statuses(await saver.save(entries(20, 6))) == {Status.APPLIED: 20}


async def test_groups_are_saved_at_another_node_where_one_lets_nobody_in(robust: RobustMeta) -> None:
    """As behind a proxy whose policy became wrong. Where all do so, the save is refused."""
    async with answering(denial) as address, way_to(address, robust.address) as (client, _):
        client._endpoints.set_kind(epochs=False, name=address)
        client._endpoints.current = address
        outcomes = await client.save(entries(3))
        assert [outcome.status for outcome in outcomes] == [Status.APPLIED] * 3
        assert client.endpoint == robust.address
    async with answering(denial) as address, GrpcMetaClient.open(meta_section(address)) as client:
        client._endpoints.set_kind(epochs=False, name=address)
        with pytest.raises(RefusedError, match="PERMISSION_DENIED"):
            await client.save(entries(3))
