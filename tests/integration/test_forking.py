"""Servers that are forks of a process that has imported everything: started, signalled and ended as others are."""

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from adapter.testing.processes import ended, meta_process
from tests import forking


def test_a_forked_server_is_a_process_that_ends_by_signals(tmp_path: Path) -> None:
    """With the exit codes that subprocess gives; what it logs is in its file; it starts again on what it left."""
    meta = replace(meta_process(tmp_path), launched_by=forking.start)
    with ended(meta):
        meta.start()
        first = meta.process
        assert first is not None
        assert Path(f"/proc/{meta.pid}/exe").exists()
        assert first.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0)
        meta.kill()
        assert (first.returncode, first.poll(), first.wait()) == (-signal.SIGKILL,) * 3
        meta.signal(signal.SIGTERM)  # nobody is there any more
        meta.start()
        assert meta.pid != first.pid
        assert meta.stop() == 0


def test_a_forked_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Exit code and log are those of the command."""
    meta = replace(meta_process(tmp_path, extra="unknown = 1\n"), launched_by=forking.start)
    with ended(meta), pytest.raises(RuntimeError, match="unknown"):
        meta.start()
    assert meta.process is not None
    assert meta.process.wait() == 2
