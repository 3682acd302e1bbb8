"""`python -m tests.model --seconds`: the time ends it with whole runs, what began is told whenever it ends."""

import itertools
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.model import __main__ as command
from tests.model.__main__ import PORTION, Portion
from tests.model.runs import Played

REPLAY = "Again: python -m tests.model --replay 1\nBefore it was made small: python -m tests.model --runs 1 --seed 7\n"
SEED = 7


def _plays(portion: Portion) -> tuple[Portion, Played | str]:
    return portion, Played(portion.runs, 1.0)


def _breaks_second(portion: Portion) -> tuple[Portion, Played | str]:
    return (portion, f"a story\n\n{REPLAY[:-1]}") if portion.seed == SEED + PORTION else _plays(portion)


def _run(monkeypatch: pytest.MonkeyPatch, play: object, limit: float, processes: int) -> int:
    """Each look at the clock is a second after the one before."""
    ticks = itertools.count()
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(command, "_run_portion", play)
    return command._run_all(command.MOST, limit, SEED, processes, None, None)


@pytest.mark.parametrize("processes", [0, 2])
def test_it_ends_with_whole_runs_when_the_time_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], processes: int
) -> None:
    """The seed is told before and after."""
    assert _run(monkeypatch, _plays, 3, processes) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"3 s from seed {SEED},")
    assert last.split(" (")[0] in {f"{runs} runs from seed {SEED} broke nothing" for runs in (PORTION, 2 * PORTION)}


@pytest.mark.parametrize("processes", [0, 2])
def test_without_a_single_run_it_fails(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """However little time there was."""
    assert _run(monkeypatch, _plays, 0, processes) == 1


def test_what_breaks_after_the_time_fails_and_its_replay_comes_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It began before. The clock is at 3 when the third would begin; the second has not been told then."""
    assert _run(monkeypatch, _breaks_second, 3, 2) == 1
    assert capsys.readouterr().out.endswith(f"1 portions broke an invariant\n{REPLAY}")


def test_ci_plays_the_seeds_of_the_commit_for_a_minute() -> None:
    """After the tests, and what fails there fails all. Others for each commit, none twice within a run; none is chosen."""
    steps = Path(".ci/run").read_text(encoding="utf-8").splitlines()
    assert "set -euo pipefail" in steps
    tests, model = steps[-2:]
    assert tests == "make test RERUNS=3"
    command, _, seed = model.partition(" SEED=")
    assert command == "make model SECONDS=60"
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    told = subprocess.run(["bash", "-c", f"echo {seed}"], capture_output=True, text=True, check=True).stdout
    assert int(told) == int(head[:7], 16) * 16 < 2**32
    assert "$(if $(SEED),--seed $(SEED))" in Path("Makefile").read_text(encoding="utf-8")
