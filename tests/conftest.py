"""What holds for all tests: Hypothesis has no time limits; what a command set up for logs ends with its test.

Adapters and Meta Services are forks of a process that has imported them, since importing is most of what a start costs.
"""

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from adapter.testing.processes import ServiceProcess
from tests import forking

ServiceProcess.by_default = forking.start
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs in the process of the tests sets up the logs of that process."""
    yield
    structlog.reset_defaults()
