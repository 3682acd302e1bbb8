"""Offsets on their way between Raft groups, under load: nothing acknowledged is lost, and no read goes back (2, 3)."""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from adapter.errors import ConfigError, InvalidInputError, MetaUnavailableError
from adapter.etcd import cluster as etcd_cluster
from adapter.local_etcd import LocalCluster
from adapter.metaservice import rebalancing
from adapter.metaservice.config import EtcdSection, RaftGroupSection
from adapter.metaservice.etcd_engine import EtcdEngine
from adapter.metaservice.etcd_values import Keys
from adapter.metaservice.layout import Layout
from adapter.metaservice.rebalancing import opened
from adapter.model import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status
from adapter.rpc import etcd_pb
from adapter.testing import ServiceProcess, ended, free_port
from tests.durability.etcd_cluster import WAIT_S, Savers, etcd, saving
from tests.durability.machine import require
from tests.durability.moving import (
    CLUSTER,
    A,
    B,
    C,
    Life,
    Load,
    check_clean,
    clusters,
    delete_below,
    front,
    layout_of,
    lived,
    rebalance,
    section_of,
    settings,
    under,
)

PAGE = 16  # keys, so that a few are many pages
STEP = 7  # calls; each life is so much longer than the one before
GROUPS = 60
DELETED = 20
MANY = 4_000  # keys: a rebalance of them can be hit half way
LOOK_AGAIN_S = 0.005


@pytest.fixture(autouse=True)
def _needs() -> None:
    require("Raft groups that offsets move between", etcd)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a rebalance."""
    monkeypatch.setattr(rebalancing, "PAGE", PAGE)


class StoppedError(Exception):
    """Raised to stop a rebalance."""


class Until:
    """Stops a rebalance when it begins a step."""

    def __init__(self, what: str) -> None:
        self._what = what

    def step(self, what: str, keys: int) -> None:
        """See `Watcher`."""
        if what == self._what:
            raise StoppedError(keys)

    def looked(self, keys: int) -> None:
        """See `Watcher`."""


async def begun(*names: str, groups: int = GROUPS) -> EtcdSection:
    """Settings for some Raft groups; offsets are in all but the last one, one for each consumer group."""
    section = section_of(*names)
    async with front(section.model_copy(update={"offsets": section.offsets[:-1]})) as each:
        await save(each, 7, groups=groups)
    return section


def key_of(number: int) -> OffsetKey:
    """A key in a consumer group of its own."""
    return OffsetKey("default", f"group-{number}", "s1")


async def save(each: EtcdEngine, offset: int, groups: int = GROUPS) -> list[Status]:
    """Save an offset of each consumer group, in one call."""
    entries = [SaveEntry(key_of(number), OffsetRecord(1, offset)) for number in range(groups)]
    return [outcome.status for outcome in await each.save(CLUSTER, entries)]


async def offsets_at(each: EtcdEngine, groups: int = GROUPS) -> list[int]:
    """The offsets of all consumer groups that have one."""
    found = await each.get(CLUSTER, [key_of(number) for number in range(groups)])
    return [record.offset for _, record in found]


@pytest.mark.usefixtures("small_pages")
async def test_rebalances_and_fronts_that_die_at_every_point_lose_nothing() -> None:
    """A Raft group is added, and another one taken away. What comes next goes on from whatever was left behind (2, 3)."""
    section = section_of(A, B, C)
    async with AsyncExitStack() as stack:
        async with front(section.model_copy(update={"offsets": section.offsets[:2]})):
            pass
        fronts = [await stack.enter_async_context(front(section)) for _ in range(2)]
        load = Load(fronts)
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
        await load.check(*fronts)
        await _look(section, load, None)
    assert load.compared


async def _look(section: EtcdSection, load: Load, life: Life | None) -> None:
    """A front that has just started reads everything."""
    async with front(section, life) as each:
        await load.check(each)


@pytest.mark.parametrize("target", [(A, B, C), (B,)])
async def test_a_front_finds_everything_where_it_was_before_it_is_copied(target: tuple[str, ...]) -> None:
    """Whatever touches a consumer group first: what stands there decides, as if it were at home (2)."""
    section = await begun(A, B, C)
    with pytest.raises(StoppedError):
        await rebalance(section, target, watcher=Until("copying"))
    ways = {number: number % 5 for number in range(GROUPS)}
    async with front(section) as each:
        listed, _ = await each.list_page(CLUSTER, [], 10_000, b"")
        assert sorted(listed) == sorted((key_of(number), OffsetRecord(1, 7)) for number in range(GROUPS))
        for number, way in ways.items():
            key = key_of(number)
            if way == 0:
                assert await each.get(CLUSTER, [key]) == [(key, OffsetRecord(1, 7))]
            elif way == 1:
                assert await each.get_group(CLUSTER, *key[:2]) == [(key, OffsetRecord(1, 7))]
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
    async with front(section) as each:
        found = dict(await each.get(CLUSTER, [key_of(number) for number in ways]))
    stands = {number: (found[key_of(number)].offset, found[key_of(number)].live) for number in ways}
    assert stands == {number: {3: (8, True), 4: (0, False)}.get(way, (7, True)) for number, way in ways.items()}


async def test_what_is_stopped_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives that are too short for all of it come to the end together, and what one has noted as copied is copied (2)."""
    monkeypatch.setattr(rebalancing, "PAGE", 3)
    section = await begun(A, B, C)
    async with front(section) as each:
        for number in range(DELETED):
            await each.delete(CLUSTER, *key_of(number)[:2], [])
    lives = [Life(26 + number % 5, done=number % 2 == 0) for number in range(60)]
    while lives:
        try:
            assert not await rebalance(section, (A, B, C), lives.pop(), Until("deleting old copies"))
        except StoppedError:
            break
    assert (await layout_of(section)).leftovers_in == (A, B)
    async with front(section) as each:
        assert await offsets_at(each) == [0] * DELETED + [7] * (GROUPS - DELETED)
    while not await rebalance(section, (A, B, C), lives.pop()):
        pass
    await check_clean(section, A, B, C)


@pytest.mark.usefixtures("small_pages")
async def test_several_rebalances_at_once_are_as_good_as_one() -> None:
    """Each finishes, also when another one was faster; what they undid of each other's is done again."""
    section = await begun(A, B, C)
    assert await asyncio.gather(*(rebalance(section, (A, B, C)) for _ in range(3))) == [True] * 3
    await check_clean(section, A, B, C)
    async with front(section) as each:
        assert await offsets_at(each) == [7] * GROUPS
    await asyncio.gather(*(rebalance(section, (B, C)) for _ in range(3)))
    await check_clean(section, B, C)
    async with front(section) as each:
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
    async with front(section) as each:
        assert await offsets_at(each) == [7] * GROUPS
    async with clusters(section) as (_, [_, new]):
        await delete_below(new, section.prefix.encode())
    assert await rebalance(section, [A, B])
    await check_clean(section, A, B)
    async with front(section) as each:
        assert await offsets_at(each) == [7] * GROUPS


async def test_nothing_expires_and_no_tombstone_goes_while_offsets_move() -> None:
    """A tombstone that went could not stop an old copy; one of an expiry is below it (7)."""
    section = await begun(A, B, groups=8)
    async with front(section) as each:
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


async def test_a_raft_group_that_is_down_holds_up_only_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move does not begin without it. When it fails later, everybody else's offsets are saved, in the same call (4)."""
    monkeypatch.setattr(etcd_cluster, "LIMIT_S", 0.2)
    monkeypatch.setattr(rebalancing, "_with_patience", _at_once)
    with LocalCluster("down", 1, directory=tmp_path) as down:
        named = section_of(A, C)
        own = RaftGroupSection(name="down", endpoints=down.endpoints)
        section = named.model_copy(update={"offsets": (own, *named.offsets), "timeout_ms": 1_000})
        async with front(section.model_copy(update={"offsets": section.offsets[:-1]})) as each:
            await save(each, 1)
        async with front(section) as each:
            down.stop()
            with pytest.raises(MetaUnavailableError):
                await rebalance(section, ["down", A, C])
            assert (await layout_of(section)).settled
            await run_sync(down.start)
            with pytest.raises(StoppedError):
                await rebalance(section, ["down", A, C], watcher=Until("copying"))
            down.stop()
            layout = await layout_of(section)
            packed = [Keys("").group_of(Keys("").offset(CLUSTER, key_of(number))) for number in range(GROUPS)]
            dead = ["down" in {layout.home(group), layout.former(group)} for group in packed]
            assert await save(each, 2) == [Status.UNAVAILABLE if those else Status.APPLIED for those in dead]
            assert {*dead} == {True, False}
            with pytest.raises(MetaUnavailableError):
                await rebalance(section, ["down", A, C])
            await run_sync(down.start)
            assert await rebalance(section, ["down", A, C])
            await check_clean(section, "down", A, C)
            assert await offsets_at(each) == [1 if those else 2 for those in dead]


async def _at_once(work: Callable[..., object], *args: object) -> object:
    return await work(*args)  # type: ignore[misc]


async def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    """Real ones: SIGKILL to a rebalance that copies, Ctrl-C to one that deletes, SIGKILL to a front in between (2, 3)."""
    section = await begun(A, B, C, groups=MANY)
    config = tmp_path / "rebalance.toml"
    config.write_text(settings(section))
    fronts = [ServiceProcess("meta", tmp_path / f"front-{number}", "", free_port()) for number in range(2)]
    for process in fronts:
        process.settings = settings(section, process.port)
    with ended(*fronts):
        for process in fronts:
            process.launch()
        for process in fronts:
            await run_sync(process.wait_ready)
        async with saving(Savers(fronts, "moving")) as savers:
            assert await _struck(section, config, signal.SIGKILL, lambda layout: bool(layout.moving_from)) == -signal.SIGKILL
            fronts[0].kill()
            await savers.acknowledged_more()
            assert await _struck(section, config, signal.SIGINT, lambda layout: bool(layout.leftovers_in)) == 1
            await savers.acknowledged_more()
            assert await _struck(section, config, 0, lambda layout: layout.settled) == 0
        await savers.check(fronts[1])
    await check_clean(section, A, B, C)
    async with front(section) as each:
        assert await offsets_at(each, MANY) == [7] * MANY


async def _struck(section: EtcdSection, config: Path, number: int, when: Callable[[Layout], bool]) -> int:
    """Run the command, send it a signal as soon as the layout is so, and return its exit code."""
    command = [sys.executable, "-m", "adapter", "meta", "rebalance", "--config", str(config), "--yes"]
    with (config.parent / "rebalance.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(WAIT_S):
            while process.returncode is None and not when(await layout_of(section)):  # noqa: ASYNC110 - in etcd there is no event
                await asyncio.sleep(LOOK_AGAIN_S)
            if number and process.returncode is None:
                process.send_signal(number)
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
