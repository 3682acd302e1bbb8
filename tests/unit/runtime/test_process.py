"""What a process sets up before its own code runs."""

import subprocess
import sys


def test_a_process_looks_for_garbage_although_its_command_was_imported_without() -> None:
    """Cycles that nobody frees would fill the memory of a server that runs for weeks."""
    code = (
        "import gc; gc.disable(); from adapter.runtime.process import run_process\n"
        "async def main(_): return 0 if gc.isenabled() else 1\n"
        "raise SystemExit(run_process(main))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
