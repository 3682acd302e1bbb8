"""What is drawn, played and made small: the same for a seed, and as small as it can be."""

import pytest

from tests.model import choices as st
from tests.model.choices import rule
from tests.model.machines import KEYS, held_by
from tests.model.plans import BrokenRunError, Plan, draw, plan_of, play, shrink
from tests.model.runs import Everything, quiet

SEEDS = range(8)


class Counting:
    """Breaks once three `add` of at least 5 have come after an `arm`; all else is noise."""

    def __init__(self) -> None:
        self.armed = False
        self.large = 0
        self.closed = 0

    @rule(ways=st.lists(st.booleans(), max_size=3))
    def begin(self, ways: list[bool]) -> None:
        """Nothing."""

    @rule(by=st.integers(0, 9), noise=st.none() | st.integers(0, 3))
    def add(self, by: int, noise: int | None) -> None:
        """Count."""
        self.large += self.armed and by >= 5
        if self.large == 3:
            raise ValueError(f"three: {noise}")

    @rule(word=st.sampled_from("abc"))
    def arm(self, word: str) -> None:
        """From now on."""
        self.armed |= word != "a"

    @rule(order=st.permutations("xyz"))
    def mix(self, order: list[str]) -> None:
        """Nothing."""

    def end(self) -> None:
        """All is well."""

    def close(self) -> None:
        """Once."""
        self.closed += 1


def broken_run() -> BrokenRunError:
    """The first seed that breaks."""
    for seed in range(1_000):
        try:
            play(Counting, draw(Counting, seed))
        except BrokenRunError as broken:
            return broken
    raise AssertionError("no seed breaks it")


def test_a_broken_run_is_made_as_small_as_it_can_be() -> None:
    """The steps that it takes, each with its simplest arguments."""
    small = shrink(Counting, broken_run())
    assert small.plan == plan_of('[["begin",[]],["arm",1],["add",5,[0,0]],["add",5,[0,0]],["add",5,[0,0]]]')
    assert small.at == len(small.plan.steps) - 1


def test_another_error_is_not_taken_for_the_same() -> None:
    """A smaller run that breaks otherwise is another bug."""

    class Both(Counting):
        @rule(by=st.integers(0, 9))
        def add(self, by: int) -> None:  # type: ignore[override]
            if by == 0:
                raise KeyError("another")
            super().add(by, None)

    plan = plan_of('[["begin",[]],["arm",2],["add",7],["add",8],["add",9]]')
    with pytest.raises(BrokenRunError) as found:
        play(Both, plan)
    assert shrink(Both, found.value).plan.steps[-1].forms == [5]


def test_a_plan_is_read_as_it_was_written() -> None:
    """By the command that replays it."""
    plan = draw(Everything, 3)
    assert str(plan_of(str(plan))) == str(plan)


def test_a_world_is_closed_however_its_run_ends() -> None:
    """Also behind an error."""
    ended: list[Counting] = []
    with pytest.raises(BrokenRunError):
        play(Counting, broken_run().plan, lambda rules, _: ended.append(rules))  # type: ignore[arg-type]
    assert ended[-1].closed == 1
    assert play(Counting, Plan(broken_run().plan.steps[:1])).closed == 1  # type: ignore[attr-defined]


def _ends(seed: int) -> str:
    rules = play(Everything, draw(Everything, seed))
    assert isinstance(rules, Everything)
    world = rules.world
    standing = [world.service.standing(key) for key in KEYS]
    return repr((world.loop.now, standing, [held_by(broker).stored for broker in world.brokers]))


def test_a_seed_ends_the_same_whatever_was_played_before() -> None:
    """Otherwise nobody could repeat what broke."""
    with quiet():
        forwards = {seed: _ends(seed) for seed in SEEDS}
        assert {seed: _ends(seed) for seed in reversed(SEEDS)} == forwards
