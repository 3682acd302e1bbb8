"""Any sequence of commits, resets, faults, crashes and hand-overs: the ten invariants hold after every step."""

import pytest

from tests.model.runs import run

CI_RUNS = 60  # always the same; CI plays others for a minute


@pytest.mark.no_cover  # it would take more than twice as long
@pytest.mark.timeout(900)  # about 5 s on an idle core, but they may be busy
def test_the_invariants_hold_whatever_happens() -> None:
    """Cited in the steps and in invariants.py: 1 to 10."""
    run(CI_RUNS)
