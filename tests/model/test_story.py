"""A broken run is told so that a person can follow it, and replays by the command that ends it."""

import shlex
from pathlib import Path

from tests.mutants.__main__ import apply, private_copy, run
from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
# Found by `python -m tests.model` with this bug, and made small by it.
MUTANT = "time-rule-dropped"
STEPS = '[["begin",1,[[0,0],[0,0]]],["commit_late",0,[[2,0]],0,0],["apart",1,2,0,[[0,0]],0,0,0,0]]'
STORY = """\
   0.020 s  A consumer commits 0 of h/a at b0 which it did 1 ms ago.
   0.020 s  FAULT: b1 is cut off from the Meta Service.
   0.020 s  A consumer commits 0 of h/a at b1.
   0.022 s      b0 acknowledged h/a: offset 0 (epoch 1)
   0.040 s      b0 has stored h/a: offset 0 (epoch 1)
   0.040 s  An admin resets h/a to 0 at b0.
"""
WHY = """
What broke:
  7: h/a at b1: [offset 0 (epoch 4294967297, after reset 1, committed at 0.020 s)] was committed at 0.020 s, before the change"""


def test_a_planted_bug_is_told_and_replayed() -> None:
    """Times, who did what, the fault, what was acknowledged, what stands, what broke, its invariant; and the command."""
    with private_copy(ROOT) as base:
        apply(next(mutant for mutant in MUTANTS if mutant.name == MUTANT), base)
        told = run(base, "-m", "tests.model", "--replay", STEPS)
        assert told.returncode == 1, told.stderr
        assert STORY in told.stdout
        assert WHY in told.stdout
        assert "Invariant 7 (DESIGN.md): A reset or delete is not undone" in told.stdout
        again = told.stdout.strip().splitlines()[-1].removeprefix("Again: python ")
        assert run(base, *shlex.split(again)).stdout == told.stdout


def test_steps_that_break_nothing_are_told_as_such() -> None:
    """Without the bug they are fine."""
    told = run(ROOT, "-m", "tests.model", "--replay", STEPS)
    assert (told.returncode, told.stdout) == (0, "Nothing broke.\n")
