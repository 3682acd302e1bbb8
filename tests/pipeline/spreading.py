"""How `make test` spreads tests over its workers: by file, but all that share the Spark session on one; unit tests fill the end.

A plugin of pytest (`-p tests.pipeline.spreading`), for `--dist=loadfile`. It changes nothing of what is tested.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

SPARK = "Spark"
# What takes longest in one piece: a worker that began it last would end long after the others.
FIRST = (
    SPARK,
    "tests/pipeline/test_exactly_once.py",
    "tests/acceptance/test_all_benchmarks.py",
    "tests/pipeline/test_session.py",
    "tests/pipeline/test_end_to_end.py",
    "tests/pipeline/test_connect.py",
    "tests/model/test_model.py",
    "tests/acceptance/test_demo.py",
)
# Files that take seconds each, most of them with many tests. xdist would begin with them, and end with files of a few slow tests.
LAST = "tests/unit/"


class Scheduling(LoadFileScheduling):  # type: ignore[misc]
    """FIRST, then the files in xdist's order, those with more tests before others, and LAST."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return SPARK if shares_the_session(self.config.rootpath / file) else file

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


def rank(scope: str) -> int:
    """The place of a file among others; of those with the same rank, xdist's order decides."""
    return FIRST.index(scope) if scope in FIRST else len(FIRST) + scope.startswith(LAST)


@cache
def shares_the_session(file: Path) -> bool:
    """Whether a test of the file uses the fixture `spark`."""
    return file.parent.name == "pipeline" and "spark: SparkSession" in file.read_text()


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Use this order instead of xdist's own."""
    return Scheduling(config, log)
