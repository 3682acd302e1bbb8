"""A seed is one run: neither addresses of objects, nor hashes of texts, nor real time change what happens in it.

Without that a run that broke might pass when it is played again.
"""

import os
import subprocess
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from tests.model.trace import trace
from tests.model.worlds import WORLDS

SEED = 2
AN_HOUR_S = 3_600.0


@pytest.fixture(scope="module")
def in_another_process() -> dict[str, str]:
    """What another process, whose texts have other hashes, prints of each world."""
    command = [sys.executable, "-m", "tests.model.trace", str(SEED)]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    printed = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    return dict(line.split() for line in printed.stdout.splitlines())


@pytest.mark.no_cover
@pytest.mark.parametrize("name", WORLDS)
def test_a_seed_is_one_run(name: str, in_another_process: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process each look at the real clock finds it an hour later."""
    for clock in ("monotonic", "perf_counter", "time"):
        monkeypatch.setattr(time, clock, partial(next, count(getattr(time, clock)(), AN_HOUR_S)))
    assert trace(WORLDS[name], SEED) == in_another_process[name]
