"""Spending time on machines: every slice that ended is in the file, whatever ends the run."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from adapter.testing.waiting import eventually
from tests.evidence.machines import Machine
from tests.evidence.pretended import pretended
from tests.evidence.records import Slice, append, read
from tests.evidence.spend import run, spend

LONG_S = 3_600
WAITS = "import time; time.sleep(3600)"


def _silent(_: Machine, record: Slice | None) -> None:
    """Tell nothing."""
    assert record is None or record.counts == {"runs": 7}


def test_a_slice_is_recorded_with_what_it_counted_and_the_command_that_repeats_it(tmp_path: Path) -> None:
    """With the commit, and whether there are changes beside it."""
    record = run(pretended(tmp_path, "fine"), 5)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert (record.commit, record.machine, record.seeds) == (head, "fine", (5, 5))
    assert record.counts == {"runs": 7}
    assert record.command == f"PYTHONPATH={tmp_path} python -m pretended_fine"
    assert record.violations == ()


def test_a_command_that_fails_is_a_violation_with_the_end_of_its_words(tmp_path: Path) -> None:
    """And it counts for what it did until then."""
    record = run(pretended(tmp_path, "broken", "sys.exit('offset 5 was lost')"), 5)
    assert [violation.command for violation in record.violations] == [record.command]
    assert "exit code 1" in record.violations[0].output
    assert "offset 5 was lost" in record.violations[0].output
    assert record.counts == {"runs": 7}


def test_a_slice_has_the_digest_of_the_code_that_it_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None if the code changed meanwhile. Code that is no Python yet ends no run."""
    monkeypatch.chdir(tmp_path)
    _git = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run([*_git, "init", "--quiet"], check=True)
    subprocess.run([*_git, "commit", "--quiet", "--allow-empty", "-m", "x"], check=True)
    Path("code.py").write_text("x = 1")
    fine = replace(pretended(tmp_path, "fine"), roots=("code",))
    assert run(fine, 5).code == fine.code != ""
    edits = replace(pretended(tmp_path, "edits", "pathlib.Path('code.py').write_text('x = = 2')"), roots=("code",))
    assert run(edits, 5).code == ""
    assert run(edits, 5).counts == {"runs": 7}


def _spent(machines: list[Machine], path: Path, slices: int) -> list[Slice]:
    """A run that a signal ends after so many slices."""
    ended = 0

    def told(machine: Machine, record: Slice | None) -> None:
        nonlocal ended
        _silent(machine, record)
        ended += record is not None
        if record and ended == slices:
            os.kill(os.getpid(), signal.SIGINT)

    return spend(machines, LONG_S, random.Random(1), path, told)


def test_each_machine_gets_a_share_of_the_time(tmp_path: Path) -> None:
    """The next one is the one that had the least."""
    path = tmp_path / "runs.jsonl"
    done = _spent([pretended(tmp_path, name) for name in ("a", "b", "c")], path, 3)
    assert sorted(each.machine for each in done) == ["a", "b", "c"]
    assert read(path).slices == tuple(done)


def test_runs_of_one_slice_reach_every_machine(tmp_path: Path) -> None:
    """Each begins with the machine that had the least in all runs before."""
    path = tmp_path / "runs.jsonl"
    machines = [pretended(tmp_path, name) for name in ("a", "b", "c")]
    done = [_spent(machines, path, 1)[0].machine for _ in machines]
    assert done == ["a", "b", "c"]


def test_a_new_machine_comes_first_and_then_shares(tmp_path: Path) -> None:
    """However much the others had before: in a run each has its turn."""
    path = tmp_path / "runs.jsonl"
    machines = [pretended(tmp_path, name) for name in ("a", "b", "new")]
    for name, seconds in (("a", 9_000.0), ("b", 8_000.0), ("b", 2_000.0)):
        append(
            path,
            Slice("then", "commit", dirty=False, machine=name, seeds=(1, 1), seconds=seconds, cpu_seconds=seconds, command=name),
        )
    done = _spent(machines, path, 3)
    assert [each.machine for each in done] == ["new", "a", "b"]


def test_a_signal_ends_the_slice_that_runs_which_counts_for_what_it_did(tmp_path: Path) -> None:
    """SIGTERM: its process is gone, the handlers are as before."""
    path = tmp_path / "runs.jsonl"
    pid = tmp_path / "pid"
    fine, waits = (
        pretended(tmp_path, "fine"),
        pretended(tmp_path, "waits", f"pathlib.Path({str(pid)!r}).write_text('x'); {WAITS}"),
    )
    before = signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        anyio.run(eventually, pid.exists)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    done = spend([fine, waits], LONG_S, random.Random(1), path, _silent)
    stopping.join()
    assert [(each.machine, each.counts, each.violations) for each in done] == [
        (name, {"runs": 7}, ()) for name in ("fine", "waits")
    ]
    assert read(path).slices == tuple(done)
    assert signal.getsignal(signal.SIGTERM) is before


def test_kill_9_leaves_the_slices_that_ended(tmp_path: Path) -> None:
    """Whole lines, one for each."""
    path = tmp_path / "runs.jsonl"
    pretended(tmp_path, "fine")
    script = (
        "import random, pathlib; from tests.evidence.pretended import pretended; from tests.evidence.spend import spend; "
        f"spend([pretended(pathlib.Path({str(tmp_path)!r}), 'fine')], 3600, random.Random(1), pathlib.Path({str(path)!r}), print)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL) as process:
        try:
            anyio.run(eventually, lambda: len(read(path).slices) >= 2)
        finally:
            process.kill()
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"\n") and json.loads(line)["counts"] == {"runs": 7} for line in lines)
    assert read(path).torn == ()
