"""The fronts, as for the integration tests."""

from tests.integration.conftest import front as front  # noqa: PLC0414 - a fixture
