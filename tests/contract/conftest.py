"""Runs the tests of the contract with each engine."""

from pathlib import Path

import pytest

from tests.contract.engines import ENGINES, Opened


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the engine, as often as a test wants, over the same data."""
    return lambda: ENGINES[request.param](tmp_path)
