"""Real processes for the integration tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.testing.processes import ServiceProcess, ended, meta_process


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
