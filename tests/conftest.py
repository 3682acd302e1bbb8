"""What holds for all tests: Hypothesis has no time limits; what a command set up for logs ends with its test.

Hypothesis tries few examples in each run of the tests, many for mutants and before a release: cases that matter are named.

A test that fails, or that passes only when it is run again, is named at once: a run that is cut off has told it as well.

Adapters and Meta Services are forks of a process that has imported them, since importing is most of what a start costs.
"""

import gc
import os
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from adapter.testing.processes import ServiceProcess
from tests import forking
from tests.contract.etcd import stop_shared

ServiceProcess.by_default = forking.start
settings.register_profile("few", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)
settings.register_profile("many", settings.get_profile("few"), max_examples=100)
settings.load_profile("few")


class FailuresAtOnce:
    """Names each test that fails when it does."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called in the process that prints: without xdist in that of the tests."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.outcome in {"failed", "rerun"} and terminal:
            terminal.write_line(f"\n{report.outcome}: {report.nodeid} ({report.when}, {report.duration:.0f} s)")


def pytest_configure(config: pytest.Config) -> None:
    """Add it."""
    config.pluginmanager.register(FailuresAtOnce(config))


def pytest_collection_finish() -> None:
    """No collection of garbage looks at modules and tests again: half a million objects, a third of a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs in the process of the tests sets up the logs of that process."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True, scope="session")
def nothing_of_commands_is_in_the_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those of other tests, and of the person, would find a shift, and finish it, or a context, and call somebody else."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(autouse=True, scope="session")
def no_thread_of_fuzzing_is_left() -> Iterator[None]:
    """Its event loop goes on from test to test; a process waits for its threads at the end."""
    yield
    if running := sys.modules.get("tests.fuzz.running"):
        running.close()


@pytest.fixture(autouse=True, scope="module")
def no_etcd_is_left() -> Iterator[None]:
    """Those that the tests of a module share end with it."""
    yield
    stop_shared()
