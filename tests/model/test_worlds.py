"""The worlds beside that of two adapters: whatever happens in them, what is promised there holds after every step."""

import pytest

from tests.model.runs import Everything, run
from tests.model.worlds import WORLDS

CI_RUNS = 6  # of each; `make model` and `make evidence` play as many as there is time for


@pytest.mark.no_cover
@pytest.mark.timeout(900)  # a second or two on an idle core, but they may be busy
@pytest.mark.parametrize(
    "world", [world for world in WORLDS.values() if world is not Everything], ids=lambda world: world.__name__
)
def test_what_is_promised_in_a_world_holds_whatever_happens(world: type[Everything]) -> None:
    """Each module of a world says what that is."""
    run(CI_RUNS, world=world)
