"""The search for plans that take new decisions: what it keeps are plans, and can be played again."""

from pathlib import Path

import pytest

from tests.model.guided import Kept, Search, needed, read
from tests.model.plans import draw, play
from tests.model.runs import quiet
from tests.model.worlds import WORLDS

KEPT = Path(__file__).with_name("kept.txt")


@pytest.mark.no_cover
def test_a_search_keeps_plans_that_take_something_new() -> None:
    """Of the same plan twice, it keeps one."""
    kept = Kept("two", draw(WORLDS["two"], 0))
    search = Search(0, ["two"], [kept, kept])
    with quiet():
        for _ in range(2):  # what the process does only once, such as to fill a cache and to find it filled, is done then
            play(WORLDS["two"], kept.plan)
        search.step()
        search.step()
        assert search.kept == [kept]
        search.step()
        assert search.runs == len([kept, kept]) + 1
        assert search.taken


@pytest.mark.no_cover
def test_plans_that_take_nothing_more_are_not_needed() -> None:
    """The one that takes most comes first."""
    kept = Kept("two", draw(WORLDS["two"], 0))
    assert needed([kept, kept]) == [kept]


@pytest.mark.no_cover
def test_what_was_kept_can_be_played() -> None:
    """A rule that is renamed, or takes other arguments, would leave it unplayable: search anew then."""
    found = list(read(KEPT))
    assert found
    with quiet():
        for one in found[:5]:
            play(WORLDS[one.world], one.plan)
