"""The listener in a driver that is killed, in a process of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.client import BlockingOffsetClient
from adapter.pipeline.java import java_home
from adapter.testing.sidecars import sidecar_in_thread
from adapter.testing.waiting import PATIENCE_S
from tests.acceptance.documents import ROOT
from tests.pipeline.jvm import killed_in
from tests.pipeline.number_queries import ROWS, committed

LIMIT_S = 550  # far above what it takes
# It dies in its fourth batch, after the work, and when the adapter has all that is done.
DRIVER = """
import os, signal, sys, time
from pathlib import Path

from adapter.client import BlockingOffsetClient
from adapter.pipeline.session import spark_session
from tests.pipeline.number_queries import ROWS, committed, run

address, directory = sys.argv[1], Path(sys.argv[2])

def batch(rows, number):
    (directory / "processed").write_text(str(max(row["value"] for row in rows.collect()) + 1))
    if number == 3:
        with BlockingOffsetClient(address) as client:
            while committed(client) < 3 * ROWS:
                time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

run(spark_session("driver", "local[2]"), address, directory, batch, 4)
"""


@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_has_committed_nothing_that_was_not_done(tmp_path: Path) -> None:
    """The batch in which it died is processed, and its offsets are not committed: behind, never ahead."""
    environment = {**os.environ, "JAVA_HOME": str(java_home(os.environ)), "PYTHONPATH": str(ROOT)}
    with sidecar_in_thread(tmp_path) as address, BlockingOffsetClient(address, PATIENCE_S) as client:
        killed = subprocess.run(
            [sys.executable, "-c", DRIVER, address, tmp_path],
            env={**environment, **killed_in(tmp_path)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
        assert (tmp_path / "processed").read_text() == str(4 * ROWS)
        assert committed(client) == 3 * ROWS
