"""What an adapter that was away for longer than tombstones are kept brings back, and what it does not."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from adapter.model.records import ReadMode
from tests.model.broker import Setup
from tests.model.forgotten import SETTLED_S, ForgetfulWatch, ForgetfulWorld
from tests.model.machines import KEYS

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


def forget(world: ForgetfulWorld) -> ForgetfulWatch:
    """Tombstones become old and are forgotten, first by the adapters that are there, then by the Meta Service."""
    watch = ForgetfulWatch(world)
    watch.check()
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
