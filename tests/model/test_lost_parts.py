"""A Meta Service of which one part comes back as an older copy of itself: what adapters hold is there again, and they say so."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.model.broker import Setup
from tests.model.lost_parts import NOTICED_S, How, LossyWatch, LossyWorld
from tests.model.machines import KEYS

FIRST, OTHER = KEYS[0], KEYS[2]  # in two parts
SECOND_S = 1.0


@pytest.fixture
def world() -> Iterator[LossyWorld]:
    """Two adapters, of which the first has an offset in each of two parts; of the second part there is an old copy."""
    with closing(LossyWorld(0, [Setup("interval", writes_through=False)] * 2)) as world:
        world.commit(0, {FIRST: 5, OTHER: 5})
        world.pass_time(SECOND_S)
        world.back_up(OTHER.group_key)
        world.commit(0, {FIRST: 6, OTHER: 6})
        world.pass_time(SECOND_S)
        yield world


@pytest.mark.parametrize("how", How)
def test_what_an_adapter_holds_of_a_part_that_was_lost_is_there_again(world: LossyWorld, how: How) -> None:
    """Within the interval of its reports, and it has told so."""
    watch = LossyWatch(world)
    world.restore(OTHER.group_key, how)
    watch.lost()
    watch.check()
    lost = world.service.standing(OTHER)
    assert (lost.offset if lost else None) == (None if how is How.EMPTY else 5)
    assert world.held
    world.pass_time(NOTICED_S)
    watch.check()
    watch.expect_everything()
    assert [standing.offset for key in (FIRST, OTHER) if (standing := world.service.standing(key))] == [6, 6]
    running = world.brokers[0].running
    assert running
    assert running.meta.server_reports.losses == 1


def test_an_adapter_that_was_away_pushes_what_it_holds_when_it_is_back(world: LossyWorld) -> None:
    """The other one, which was there all the time, has nothing of it."""
    watch = LossyWatch(world)
    world.kill(0, None, restart=False)
    world.restore(OTHER.group_key, How.SAME)
    watch.lost()
    world.pass_time(NOTICED_S)
    watch.check()
    with pytest.raises(AssertionError, match="lost: b0 has"):
        watch.expect_everything()
    world.start(0)
    world.pass_time(SECOND_S)
    watch.check()
    watch.expect_everything()
