"""Real processes for the integration tests, and the choice of the gRPC server.

Tests of the commit API use the fixture `grpc_server`, and so run once with each server; others have the settings' default.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.runtime.config import GrpcServerKind
from adapter.testing import sidecars
from adapter.testing.processes import ServiceProcess, ended, meta_process
from adapter.testing.sidecars import GRPC_SERVERS


@pytest.fixture(params=GRPC_SERVERS)
def grpc_server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GrpcServerKind:
    """Run the test once with each gRPC server, for all adapters that it configures without naming one."""
    chosen: GrpcServerKind = request.param
    monkeypatch.setattr(sidecars, "default_grpc_server", chosen)
    return chosen


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
