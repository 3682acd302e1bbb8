"""The clients in Go, Java and Rust through the conformance suite. `make interop` builds them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.cases import CASES
from tests.conformance.kills import TARGETS, Run
from tests.conformance.world import World, world
from tests.interop.client_programs import PROGRAMS, RUST_TARGET

GROUP_MANAGER = (str(RUST_TARGET / "debug/examples/robustmq"),)
KILLS = 15

pytestmark = pytest.mark.timeout(1_800)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One Meta Service and one adapter for all cases."""
    with world((), tmp_path_factory.mktemp("w")) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("language", PROGRAMS)
async def test_a_client_conforms(language: str, case: str, shared: World) -> None:
    """Each case, with a group of its own."""
    await CASES[case](World(PROGRAMS[language].driver, shared.directory, shared.meta, shared.adapter))


@pytest.mark.parametrize("language", PROGRAMS)
async def test_no_acknowledged_commit_is_lost_under_kills(language: str, tmp_path: Path) -> None:
    """`python -m tests.conformance --kills 200` goes on for longer."""
    with world(PROGRAMS[language].driver, tmp_path) as apart:
        report = await Run(apart, 1).kills(KILLS)
    assert report.violations == []


async def test_a_group_manager_without_a_map_loses_nothing_under_kills(tmp_path: Path) -> None:
    """RobustMQ's, over the Rust client. The double of a broker is killed as well: it has nothing that is not at the adapter."""
    targets = [target for target in TARGETS if target != "reset"]
    with world(GROUP_MANAGER, tmp_path) as apart:
        report = await Run(apart, 1, targets, watches=False).kills(KILLS)
    assert report.violations == []
