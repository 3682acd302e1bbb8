"""What wrong clocks may do (docs/design/epochs.md, Clocks), each shown in a run; and what they may not."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from adapter.model.records import OffsetRecord, ReadMode
from tests.model.broker import Setup
from tests.model.clocks import SkewedWatch, SkewedWorld
from tests.model.machines import KEYS, held_by

KEY = KEYS[0]
SECOND_S = 1.0


class Told(SkewedWorld):
    """The world; `does` lets a step happen and checks what is promised."""

    watch: SkewedWatch

    def does(self, seconds: float = SECOND_S) -> None:
        """Let it happen. Raises BrokenError."""
        self.pass_time(seconds)
        self.watch.check()

    @property
    def stands(self) -> OffsetRecord:
        """What the Meta Service has."""
        record = self.service.standing(KEY)
        assert record
        return record


@contextmanager
def skewed(*skews_ms: int) -> Iterator[Told]:
    """Adapters with such clocks, of which the last one has committed 200."""
    with closing(Told(0, [Setup("interval", writes_through=False)] * len(skews_ms), skews_ms)) as world:
        world.watch = SkewedWatch(world)
        world.commit(len(skews_ms) - 1, {KEY: 200})
        world.does()
        yield world


def unknown_commit_before_a_reset(world: Told) -> int:
    """The first adapter takes a commit of 240 while it is cut off; then the other one resets to 100. Returns what stands."""
    world.cut(0, cut=True)
    world.commit(0, {KEY: 240})
    world.does()
    world.reset(1, [KEY], 100)
    world.does()
    world.read(1, KEY.group_key, ReadMode.STORE)
    world.does()
    world.cut(0, cut=False)
    world.does(3)
    return world.stands.offset


@pytest.mark.parametrize(("skew_ms", "stands"), [(0, 100), (-29_000, 100), (29_000, 240), (60_000, 240), (-60_000, 100)])
def test_a_commit_of_unknown_epoch_is_taken_for_as_much_later_as_its_clock_is_ahead(skew_ms: int, stands: int) -> None:
    """Also beyond the bound: the Meta Service moves its time, but the adapter compares by its own when it hears of the reset."""
    with skewed(skew_ms, 0) as world:
        assert unknown_commit_before_a_reset(world) == stands


@pytest.mark.parametrize(("skew_ms", "stands"), [(200_000, 100), (400_000, 240)])
def test_a_hold_ends_as_much_too_early_as_a_clock_is_ahead(skew_ms: int, stands: int) -> None:
    """An adapter that is more than five minutes ahead holds nothing off that was reset just now."""
    with skewed(skew_ms, 0) as world:
        world.read(0, KEY.group_key, ReadMode.MEMORY_FIRST_THEN_STORE)
        world.does()
        world.reset(1, [KEY], 100)
        world.does()
        world.read(0, KEY.group_key, ReadMode.MEMORY)
        world.commit(0, {KEY: 201})  # meets the reset in the Meta Service, which is adopted
        world.does()
        world.commit(0, {KEY: 240})
        world.does()
        assert world.stands.offset == stands


@pytest.mark.parametrize("skew_ms", [60_000, -60_000, 400_000, -400_000])
def test_beyond_the_bound_the_meta_service_stores_its_own_time(skew_ms: int) -> None:
    """So a group that commits does not expire."""
    with skewed(skew_ms) as world:
        assert abs(world.now_ms() - world.stands.committed_at_ms) < 2_000 * SECOND_S


def test_a_known_epoch_is_decided_by_no_clock() -> None:
    """A commit from before a reset loses, however late its clock says that it was."""
    with skewed(29_000, 0) as world:
        world.read(0, KEY.group_key, ReadMode.STORE)
        world.does()
        assert unknown_commit_before_a_reset(world) == 100


def test_whose_clock_is_beyond_the_bound_expires_nothing() -> None:
    """Not even what is a day old; another adapter does."""
    with skewed(60_000) as world:
        world.a_day_passes()
        world.does(3)
        assert world.stands.live
        world.clock_steps(0, 0)
        world.does(15)  # with the next report it knows
        assert not world.stands.live


@pytest.mark.parametrize("skew_ms", [60_000, -60_000])
def test_what_a_clock_proposes_that_was_set_wrong_just_now_is_refused(skew_ms: int) -> None:
    """The adapter has heard nothing of the Meta Service since, and does not know."""
    with skewed(0) as world:
        world.does(15)
        world.a_day_passes()
        world.clock_steps(0, skew_ms)
        world.does()
        assert world.stands.live


@pytest.mark.parametrize("skew_ms", [29_000, 60_000, -60_000])
def test_times_that_were_moved_leave_nothing_dirty(skew_ms: int) -> None:
    """Two adapters commit the same offset, of which each has its own time."""
    with skewed(skew_ms, 0) as world:
        world.read(0, KEY.group_key, ReadMode.STORE)
        world.does()
        for at in (0, 1, 0):
            world.commit(at, {KEY: 300})
            world.does(0.02)
        world.does(3)
        for broker in world.brokers:
            core = broker.core()
            assert core
            assert len(core.ledger.dirty) == 0
            assert held_by(broker).stored[KEY].record.offset == 300
