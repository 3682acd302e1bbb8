"""Raft groups that fall silent, and rebalances beneath adapters: what the world leaves to chance, one step after the other."""

from collections.abc import Callable, Iterator

import pytest

from adapter.model.codec import pack_names
from adapter.model.records import OffsetKey, ReadMode
from adapter.sidecar.engine.meta_watch import REPORT_S
from tests.model.broker import Setup
from tests.model.etcd import BESIDE_S, EtcdWatch, EtcdWorld, quickly
from tests.model.etcd_service import METADATA, OFFSETS
from tests.model.machines import KEYS
from tests.model.network import CLUSTER
from tests.model.raft_groups import Fate
from tests.model.settle import settle

TWO = OFFSETS[:2]
ADDED = OFFSETS[2]
SECOND_S = 1.0
MOVES = KEYS[4]  # to the Raft group that is added
CALL_S = 0.001  # less than a call to etcd may take


@pytest.fixture
def world() -> Iterator[EtcdWorld]:
    """Two adapters before two Raft groups; the first has flushed an offset of each key."""
    with quickly():
        world = EtcdWorld(0, [Setup("interval", writes_through=False)] * 2, TWO)
        try:
            world.commit(0, dict.fromkeys(KEYS, 5))
            world.pass_time(SECOND_S)
            yield world
        finally:
            world.close()


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("silent", TWO)
def test_what_belongs_into_a_raft_group_that_answers_is_flushed_beside_a_silent_one(
    world: EtcdWorld, silent: str, fate: Fate
) -> None:
    """What belongs into the silent one stays dirty, is refused by nobody, and is flushed when that answers again (3)."""
    watch = EtcdWatch(world)
    core = world.brokers[0].core()
    assert core
    world.fall_silent(silent, [fate])
    world.commit(0, dict.fromkeys(KEYS, 6))
    world.pass_time(BESIDE_S)
    watch.check()
    assert core.ledger.dirty.keys() == {key for key in KEYS if _home(world, key) == silent}
    assert not core.ledger.dirty.refused
    world.speak(silent)
    world.pass_time(SECOND_S)
    watch.check()
    assert not len(core.ledger.dirty)
    assert offsets(world) == [6] * len(KEYS)
    settle(world, watch)


def test_what_is_done_late_undoes_nothing(world: EtcdWorld) -> None:
    """A save reaches a Raft group when it answers again, behind a reset of the same offset."""
    watch = EtcdWatch(world)
    world.fall_silent(_home(world, KEYS[0]), [Fate.LATE])
    world.commit(0, {KEYS[0]: 9})
    world.pass_time(SECOND_S)
    world.speak(_home(world, KEYS[0]))
    world.reset(1, [KEYS[0]], 2)
    world.pass_time(SECOND_S)
    watch.check()
    assert offsets(world)[0] == 2
    settle(world, watch)


@pytest.mark.parametrize("reached", [1, 2, 3])
def test_a_rebalance_that_was_killed_is_taken_up_while_adapters_work(world: EtcdWorld, reached: int) -> None:
    """Killed once it has begun, once all is copied, and in the midst of the next step."""
    watch = EtcdWatch(world)
    world.rebalance(ADDED)
    _until(world, lambda: world.service.layout.version > min(reached, 2))
    if reached == 3:
        world.pass_time(10 * CALL_S)
    assert not world.service.layout.settled
    world.kill_rebalances()
    world.read(1, MOVES.group_key, ReadMode.STORE)
    world.pass_time(SECOND_S)
    world.commit(0, dict.fromkeys(KEYS, 6))
    world.reset(1, [KEYS[2]], 3)
    world.pass_time(SECOND_S)
    watch.check()
    assert offsets(world) == [6, 6, 3, 6, 6, 6]
    world.rebalance(ADDED)
    _until(world, lambda: world.service.layout.settled)
    watch.check()
    assert world.service.layout.groups == OFFSETS
    assert offsets(world) == [6, 6, 3, 6, 6, 6]
    settle(world, watch)


def test_a_process_that_was_paused_meanwhile_does_not_write_where_nobody_reads(world: EtcdWorld) -> None:
    """It goes on with a layout of which nothing is true any more; the fences refuse it."""
    watch = EtcdWatch(world)
    world.pause_meta(0)
    world.rebalance(ADDED)
    _until(world, lambda: world.service.layout.settled and world.service.layout.groups == OFFSETS)
    for removed in TWO:
        world.rebalance(removed)
        _until(world, lambda removed=removed: world.service.layout.settled and removed not in world.service.layout.groups)  # type: ignore[misc]
    world.commit(0, dict.fromkeys(KEYS, 6))
    world.kill_meta(1)
    world.resume_meta(0)
    world.pass_time(SECOND_S)
    watch.check()
    core = world.brokers[0].core()
    assert core
    assert not len(core.ledger.dirty)
    assert offsets(world) == [6] * len(KEYS)
    settle(world, watch)


def test_a_raft_group_that_was_taken_away_may_be_switched_off(world: EtcdWorld) -> None:
    """It had the last reports of the adapters' stores; nobody takes it for a loss that they are gone."""
    watch = EtcdWatch(world)
    removed = "north"
    world.pass_time(2 * REPORT_S)
    world.rebalance(removed)
    _until(world, lambda: world.service.layout.settled and removed not in world.service.layout.groups)
    world.pass_time(2 * REPORT_S)
    world.fall_silent(removed, [Fate.REFUSED])
    world.pass_time(2 * REPORT_S)
    watch.check()
    settle(world, watch)


def test_a_silent_metadata_group_holds_nobody_up(world: EtcdWorld) -> None:
    """It is needed when the layout changes, and not before."""
    watch = EtcdWatch(world)
    world.fall_silent(METADATA, [Fate.LOST])
    world.commit(0, dict.fromkeys(KEYS, 6))
    world.pass_time(SECOND_S)
    watch.check()
    assert offsets(world) == [6] * len(KEYS)
    settle(world, watch)


def offsets(world: EtcdWorld) -> list[int]:
    """What a reader of the Meta Service is told of each key."""
    return [standing.offset for key in KEYS if (standing := world.service.standing(key))]


def _home(world: EtcdWorld, key: OffsetKey) -> str:
    return world.service.layout.home(pack_names(CLUSTER, key.namespace, key.group))


def _until(world: EtcdWorld, condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        world.pass_time(CALL_S)
    raise AssertionError("it does not come to that")
