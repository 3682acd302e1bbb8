"""The Python client through the conformance suite, so that the suite itself is tested with each change.

`make interop` has the Rust client through the same (tests/interop/rust_client.py).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.cases import CASES
from tests.conformance.world import World, world

PYTHON = (sys.executable, "-m", "tests.conformance.python_driver")
SPEC = Path(__file__).parents[2] / "clients/SPEC.md"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One Meta Service and one adapter for all cases."""
    with world(PYTHON, tmp_path_factory.mktemp("w")) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
async def test_the_python_client_conforms(case: str, shared: World) -> None:
    """Each case, with a group of its own."""
    await CASES[case](World(shared.command, shared.directory, shared.meta, shared.adapter))
