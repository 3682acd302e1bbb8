"""What an adapter that was away for longer than tombstones are kept brings back, and what it does not."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from adapter.model.records import ReadMode
from adapter.sidecar.engine.group_loader import Wanted
from tests.model.broker import Setup
from tests.model.forgotten import SETTLED_S, ForgetfulWatch, ForgetfulWorld
from tests.model.machines import KEYS, held_by
from tests.model.network import Fault

KEY = KEYS[0]
SECOND_S = 1.0


@pytest.fixture
def world() -> Iterator[ForgetfulWorld]:
    """Two adapters that know a key, which is then deleted."""
    with closing(ForgetfulWorld(0, [Setup("interval", writes_through=False)] * 2)) as world:
        world.commit(0, {KEY: 5})
        world.pass_time(SECOND_S)
        world.read(1, KEY.group_key, ReadMode.STORE)
        world.pass_time(SECOND_S)
        yield world


def forget(world: ForgetfulWorld, *, swept: bool = True) -> ForgetfulWatch:
    """Tombstones become old and are forgotten, first by the adapters that are there, then by the Meta Service.

    Not `swept`: the first adapter has just come back, as on a machine that was suspended, whose clock for pauses stood still.
    """
    watch = ForgetfulWatch(world)
    watch.check()
    core = world.brokers[0].core()
    if core and not swept:
        core.expiry.take(core.expiry._section.now.model_copy(update={"interval_ms": 3_600_000}))
    world.time_passes()
    world.pass_time(SETTLED_S)
    watch.check()
    watch.forgot(world.tombstones_are_forgotten())
    watch.check()
    return watch


def test_an_adapter_that_was_away_for_too_long_brings_a_deleted_offset_back(world: ForgetfulWorld) -> None:
    """The limit that docs/discussion.md names."""
    world.kill(1, None, restart=False)
    world.delete(0, KEY.group_key)
    world.pass_time(SECOND_S)
    watch = forget(world)
    assert world.service.standing(KEY) is None
    world.start(1)
    world.pass_time(0.2)
    watch.check()
    back = world.service.standing(KEY)
    assert back is not None
    assert (back.live, back.offset) == (True, 5)


def test_a_tombstone_that_outlived_the_meta_services_hides_nothing(world: ForgetfulWorld) -> None:
    """An adapter that was away knows of the delete. What was committed since the tombstone was forgotten stands."""
    world.delete(0, KEY.group_key)
    world.pass_time(SECOND_S)
    world.read(1, KEY.group_key, ReadMode.STORE)
    world.pass_time(SECOND_S)
    world.kill(1, None, restart=False)
    watch = forget(world)
    world.commit(0, {KEY: 7})
    world.pass_time(SECOND_S)
    world.start(1)
    world.pass_time(SECOND_S)
    watch.check()
    stands = world.service.standing(KEY)
    assert stands is not None
    assert (stands.live, stands.offset) == (True, 7)


def test_an_adapter_that_runs_takes_up_no_tombstone_that_was_forgotten(world: ForgetfulWorld) -> None:
    """A consumer reads from the store before a sweep has removed the tombstone here."""
    world.delete(0, KEY.group_key)
    world.pass_time(SECOND_S)
    watch = forget(world, swept=False)
    world.read(0, KEY.group_key, ReadMode.STORE)
    world.pass_time(SECOND_S)
    watch.check()
    assert world.service.standing(KEY) is None


@pytest.mark.parametrize("whole", [True, False])
def test_a_tombstone_of_an_adapter_that_runs_hides_nothing(world: ForgetfulWorld, whole: bool) -> None:
    """Another one has begun anew since it was forgotten: here as well, whether the group is loaded or the key."""
    world.move(1, 0, KEY.group_key)
    world.pass_time(SECOND_S)
    world.delete(0, KEY.group_key)
    world.pass_time(SECOND_S)
    watch = forget(world, swept=False)
    world.commit(1, {KEY: 7})
    world.pass_time(SECOND_S)
    running = world.brokers[0].running
    assert running
    wanted = Wanted(KEY.group_key, [] if whole else [KEY.shard])
    running.call(lambda: running.serving().reader.begin([wanted], ReadMode.STORE))
    world.pass_time(SECOND_S)
    watch.check()
    for stands in (world.service.standing(KEY), held_by(world.brokers[0]).stored[KEY].record):
        assert stands is not None
        assert (stands.live, stands.offset) == (True, 7)


def test_a_take_up_that_could_not_be_sent_for_long_is_not_sent_any_more(world: ForgetfulWorld) -> None:
    """An adapter that was cut off for days holds a tombstone of which the Meta Service does not know that it was taken up."""
    world.delete(0, KEY.group_key)
    world.pass_time(SECOND_S)
    world.trouble(0, [Fault.NONE, Fault.NONE, *[Fault.LOST] * 3])
    world.read(0, KEY.group_key, ReadMode.STORE)
    world.pass_time(0.02)
    world.cut(0, cut=True)
    world.pass_time(SECOND_S)
    watch = forget(world)
    world.cut(0, cut=False)
    world.pass_time(SECOND_S)
    watch.check()
    assert world.service.standing(KEY) is None
