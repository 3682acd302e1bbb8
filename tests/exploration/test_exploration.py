"""The small scopes, each explored wholly, and random walks through the large ones."""

from random import Random

import pytest

from tests.exploration.explore import explore
from tests.exploration.scope import M0, Scope, save
from tests.exploration.scopes import SMALL, WALKS
from tests.exploration.story import choices, lines
from tests.exploration.walks import walk

SEED = 1
FEW = 15  # walks


@pytest.mark.parametrize("scope", SMALL, ids=lambda scope: scope.name)
def test_every_interleaving_of_a_small_scope_keeps_all_properties(scope: Scope) -> None:
    """Nothing acknowledged is lost or goes back, no read is outdated, and every change can be finished (1, 2)."""
    found = explore(scope)
    assert not found.violation, "\n".join(lines(scope, choices(scope, found.trace)))
    assert not found.cut
    assert found.executions > found.states


@pytest.mark.parametrize("scope", [*WALKS[:2], WALKS[-1]], ids=lambda scope: scope.name)
def test_random_walks_through_a_large_scope_keep_all_properties(scope: Scope) -> None:
    """With several faults, two rebalances, and a Raft group that may fall silent."""
    done = walk(scope, FEW, Random(SEED))
    assert not done.violation, "\n".join(lines(scope, done.choices))
    assert done.walks == FEW


def test_what_a_limit_cuts_off_is_counted() -> None:
    """Nothing is left out silently."""
    found = explore(Scope("limited", "", ((save(5, M0),),)), max_states=100)
    assert found.cut > 0
    assert found.cut_depth > 0
