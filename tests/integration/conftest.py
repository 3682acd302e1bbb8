"""Real processes for the integration tests, and the fronts.

Tests of the commit API ask for `front`, and so run once with each; others have the settings' default.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.runtime.config import Front
from adapter.testing.processes import ServiceProcess, ended, meta_process
from adapter.testing.sidecars import FRONTS, served_by


@pytest.fixture(params=FRONTS)
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """The front of all adapters that the test configures."""
    chosen: Front = request.param
    with served_by(chosen):
        yield chosen


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name is short enough for a unix socket in it."""
    return tmp_path_factory.mktemp("d")


@pytest.fixture
def meta(directory: Path) -> Iterator[ServiceProcess]:
    """A running Meta Service process."""
    service = meta_process(directory)
    with ended(service):
        service.start()
        yield service
