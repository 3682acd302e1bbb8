"""The choice of the gRPC server, as for the integration tests."""

from tests.integration.conftest import grpc_server as grpc_server  # noqa: PLC0414 - a fixture
