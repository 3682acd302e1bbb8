"""The faults themselves, where a test could take one of them for a failure of the product."""

import errno
import subprocess
import sys
from pathlib import Path

from adapter.testing.waiting import PATIENCE_S
from tests.durability import machine

SYNCS_UNTIL_IT_FAILS = """
import os, sys
with open(sys.argv[1], "w") as file:
    print("ready", flush=True)
    try:
        while True:
            os.fsync(file.fileno())
    except OSError as error:
        os._exit(error.errno)
"""


def test_a_process_that_ends_at_its_first_failed_call_ends_while_strace_attaches(tmp_path: Path) -> None:
    """It syncs all the time, so it is gone before it is seen to be traced: that is the fault, and no error of strace."""
    machine.require("fsync EIO", machine.strace)
    command = [sys.executable, "-c", SYNCS_UNTIL_IT_FAILS, str(tmp_path / "file")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            with machine.Strace(process.pid, tmp_path / "trace", error="EIO") as fault:
                assert process.wait(PATIENCE_S) == errno.EIO
            assert fault.failures
        finally:
            process.kill()
