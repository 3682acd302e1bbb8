"""Offsets on their way between Raft groups, under load: nothing acknowledged is lost, and no read goes back (2, 3)."""

import asyncio
from contextlib import AsyncExitStack
from itertools import count

import pytest

from adapter.errors import ConfigError, InvalidInputError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd import rebalancing
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.rebalancing import opened
from adapter.model.records import OffsetRecord, SaveEntry, SaveOutcome, Status
from adapter.rpc import etcd_pb
from tests.contract.engines import whole_group
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require
from tests.durability.moving import (
    CLUSTER,
    GROUPS,
    A,
    B,
    C,
    Life,
    StoppedError,
    Until,
    begun,
    check_clean,
    clusters,
    delete_below,
    key_of,
    layout_of,
    lived,
    meta,
    offsets_at,
    packed,
    rebalance,
    section_of,
)
from tests.durability.moving_load import Load, under

PAGE = 16  # keys, so that a few are many pages
STEP = 7  # calls; each life is so much longer than the one before
FEW, DELETED = 30, 10


@pytest.fixture(autouse=True)
def _needs() -> None:
    require("Raft groups that offsets move between", etcd)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rebalance."""
    monkeypatch.setattr(rebalancing, "PAGE", PAGE)


@pytest.mark.usefixtures("small_pages")
async def test_rebalances_and_metas_that_die_at_every_point_lose_nothing() -> None:
    """A Raft group is added, and another one taken away. What comes next goes on from whatever was left behind (2, 3)."""
    section = section_of(A, B, C)
    async with AsyncExitStack() as stack:
        async with meta(section.model_copy(update={"offsets": section.offsets[:2]})):
            pass
        metas = [await stack.enter_async_context(meta(section)) for _ in range(2)]
        load = Load(metas)
        await load.fill()
        async with under(load):
            for target in ((A, B, C), (A, C)):
                await load.acknowledged_more()
                for calls in count(1, STEP):
                    finished = await rebalance(section, target, Life(calls, done=calls % 2 == 0))
                    await lived(_look(section, load, life := Life(calls)), life)
                    if finished:
                        break
                await check_clean(section, *target)
                await load.acknowledged_more()
        await load.check(*metas)
        await _look(section, load, None)
    assert load.compared


async def _look(section: EtcdSection, load: Load, life: Life | None) -> None:
    """A Meta Service that has just started reads everything."""
    async with meta(section, life) as each:
        await load.check(each)


@pytest.mark.parametrize("target", [(A, B, C), (B,)])
async def test_a_meta_finds_everything_where_it_was_before_it_is_copied(target: tuple[str, ...]) -> None:
    """Whatever touches a consumer group first: what stands there decides, as if it were at home (2)."""
    section = await begun(A, B, C)
    with pytest.raises(StoppedError):
        await rebalance(section, target, watcher=Until("copying"))
    ways = {number: number % 5 for number in range(GROUPS)}
    async with meta(section) as each:
        listed, _ = await each.list_page(CLUSTER, [], 10_000, b"")
        assert sorted(listed) == sorted((key_of(number), OffsetRecord(1, 7)) for number in range(GROUPS))
        for number, way in ways.items():
            key = key_of(number)
            if way == 0:
                assert await each.get(CLUSTER, [key]) == [(key, OffsetRecord(1, 7))]
            elif way == 1:
                assert await whole_group(each, CLUSTER, *key[:2]) == [(key, OffsetRecord(1, 7))]
            elif way == 2:
                assert await each.save(CLUSTER, [SaveEntry(key, OffsetRecord(1, 5))]) == [
                    SaveOutcome(Status.SUPERSEDED, OffsetRecord(1, 7))
                ]
            elif way == 3:
                (outcome,) = await each.save(CLUSTER, [SaveEntry(key, OffsetRecord(1, 8), 7)])
                assert outcome.status is Status.APPLIED
            else:
                await each.delete(CLUSTER, *key[:2], [])
    assert await rebalance(section, target)
    await check_clean(section, *target)
    async with meta(section) as each:
        found = dict(await each.get(CLUSTER, [key_of(number) for number in ways]))
    stands = {number: (found[key_of(number)].offset, found[key_of(number)].live) for number in ways}
    assert stands == {number: {3: (8, True), 4: (0, False)}.get(way, (7, True)) for number, way in ways.items()}


async def test_a_consumer_group_is_not_at_home_before_its_copy_is_done() -> None:
    """Who asks for it meanwhile waits, and does not take an empty home for the truth (2)."""
    section = await begun(A, B)
    with pytest.raises(StoppedError):
        await rebalance(section, (A, B), watcher=Until("copying"))
    layout = await layout_of(section)
    key = next(key_of(number) for number in range(GROUPS) if layout.former(packed(number)))
    stuck = Life(2)  # in A, behind the check of its version and the raising of its fence
    async with meta(section, stuck, only=A) as each:
        reads = [asyncio.create_task(each.get(CLUSTER, [key]))]
        await stuck.over.wait()
        reads.append(asyncio.create_task(each.get(CLUSTER, [key])))
        for _ in range(10):  # time enough to read in an empty home
            await layout_of(section)
        assert not any(read.done() for read in reads)
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)


async def test_what_is_stopped_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives that are too short for all of it come to the end together, and what one has noted as copied is copied (2)."""
    monkeypatch.setattr(rebalancing, "PAGE", 3)
    section = await begun(A, B, C, groups=FEW)
    async with meta(section) as each:
        for number in range(DELETED):
            await each.delete(CLUSTER, *key_of(number)[:2], [])
    lives = [Life(24 + number % 3, done=number % 4 == 0) for number in range(100)]
    while lives:
        try:
            assert not await rebalance(section, (A, B, C), lives.pop(), Until("deleting old copies"))
        except StoppedError:
            break
    assert (await layout_of(section)).leftovers_in == (A, B)
    async with meta(section) as each:
        assert await offsets_at(each, FEW) == [0] * DELETED + [7] * (FEW - DELETED)
    while not await rebalance(section, (A, B, C), lives.pop()):
        pass
    await check_clean(section, A, B, C)


@pytest.mark.usefixtures("small_pages")
async def test_several_rebalances_at_once_are_as_good_as_one() -> None:
    """Each finishes, also when another one was faster; what they undid of each other's is done again."""
    section = await begun(A, B, C)
    assert await asyncio.gather(*(rebalance(section, (A, B, C)) for _ in range(3))) == [True] * 3
    await check_clean(section, A, B, C)
    async with meta(section) as each:
        assert await offsets_at(each) == [7] * GROUPS
    await asyncio.gather(*(rebalance(section, (B, C)) for _ in range(3)))
    await check_clean(section, B, C)
    async with meta(section) as each:
        assert await offsets_at(each) == [7] * GROUPS


async def test_a_plan_says_how_many_keys_move_and_changes_nothing() -> None:
    """As many as then do; of the Raft groups that lose some."""
    section = await begun(A, B, C)
    async with opened(section) as rebalancer:
        plan = await rebalancer.plan([A, B, C])
        assert (plan.layout.version, plan.keys, plan.needed) == (1, GROUPS, True)
        with pytest.raises(StoppedError, match=str(GROUPS)):
            await rebalancer.run([A, B, C], Until("copying"))
        copying = await rebalancer.plan([A, B, C])
        assert (copying.layout.version, copying.keys, copying.moving) == (2, GROUPS, plan.moving)
        with pytest.raises(StoppedError):
            await rebalancer.run([A, B, C], Until("deleting old copies"))
        deleting = await rebalancer.plan([A, B, C])
        assert (deleting.layout.version, deleting.moving) == (3, plan.moving)
    assert await rebalance(section, [A, B, C])
    async with opened(section) as rebalancer:
        assert not (await rebalancer.plan([A, B, C])).needed
    async with clusters(section) as (_, [*_, new]):
        asked = etcd_pb.RangeRequest(key=Keys(section.prefix).offsets, range_end=section.prefix.encode() + b"p", count_only=True)
        assert (await new.range(asked)).count == plan.moving


async def test_another_target_is_refused_while_a_move_is_under_way() -> None:
    """And what is to be done is said; nothing changes."""
    section = await begun(A, B, C)
    async with opened(section) as rebalancer:
        with pytest.raises(StoppedError):
            await rebalancer.run([A, B, C], Until("copying"))
        with pytest.raises(
            InvalidInputError, match=f"a move to {A}, {B}, {C} is under way, not to {A}, {C}; finish that one first"
        ):
            await rebalancer.plan([A, C])
        with pytest.raises(InvalidInputError, match="under way"):
            await rebalancer.run([A, C], Until("copying"))
        with pytest.raises(InvalidInputError, match="no Raft group would be left"):
            await rebalancer.plan([])


async def test_a_new_raft_group_that_holds_offsets_is_refused() -> None:
    """They would come back from the dead."""
    section = await begun(A, B)
    async with clusters(section) as (_, [_, new]):
        request = etcd_pb.TxnRequest()
        put = request.success.add().request_put
        put.key, put.value = Keys(section.prefix).offset(CLUSTER, key_of(1)), b"old"
        await new.txn(request)
    with pytest.raises(ConfigError, match=f"{B} holds offsets already"):
        await rebalance(section, [A, B])
    assert (await layout_of(section)).groups == (A,)


async def test_old_copies_outlive_a_new_home_that_was_lost() -> None:
    """An old snapshot of the new Raft group was restored in the middle: what it has lost is copied again, not deleted."""
    section = await begun(A, B)
    for step in ("copying", "deleting old copies"):
        with pytest.raises(StoppedError):
            await rebalance(section, [A, B], watcher=Until(step))
    async with meta(section) as each:
        assert await offsets_at(each) == [7] * GROUPS
    async with clusters(section) as (_, [_, new]):
        await delete_below(new, section.prefix.encode())
    assert await rebalance(section, [A, B])
    await check_clean(section, A, B)
    async with meta(section) as each:
        assert await offsets_at(each) == [7] * GROUPS


async def test_nothing_expires_and_no_tombstone_goes_while_offsets_move() -> None:
    """A tombstone that went could not stop an old copy; one of an expiry is below it (7)."""
    section = await begun(A, B, groups=8)
    async with meta(section) as each:
        await each.delete(CLUSTER, "default", "group-0", ["s1"])
        for step in ("copying", "deleting old copies"):
            with pytest.raises(StoppedError):
                await rebalance(section, [A, B], watcher=Until(step))
            expiries = [await each.expire(CLUSTER, "default", f"group-{number}", 10, 10) for number in range(8)]
            assert {expiry.expired for expiry in expiries} == {0}
            assert {expiry.newest_ms for expiry in expiries} == {10}
            assert await each.drop_tombstones(2**60) == 0
        assert await rebalance(section, [A, B])
        assert (await each.expire(CLUSTER, "default", "group-1", 10, 10)).expired == 1
        assert await each.drop_tombstones(2**60) == 2
