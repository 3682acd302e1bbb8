"""Inputs that are made by changing known ones, and the targets for our own inputs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fuzz import mutations
from tests.fuzz.own_inputs import OWN_INPUTS
from tests.fuzz.own_seeds import OWN_SEEDS
from tests.fuzz.targets import TARGETS


def test_a_seed_always_makes_the_same_inputs() -> None:
    """And another one others."""
    first, again, other = (list(mutations.inputs("requests", 50, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) > 40


@pytest.mark.parametrize("target", OWN_INPUTS)
def test_the_promises_hold_on_some_changed_inputs(target: str) -> None:
    """`python -m tests.fuzz.mutations` goes on."""
    for data in mutations.inputs(target, 60, 3):
        TARGETS[target](data)


def test_each_target_of_ours_has_whole_examples() -> None:
    """From which changes are drawn."""
    assert set(OWN_SEEDS) == set(OWN_INPUTS)
    assert all(list(examples()) for examples in OWN_SEEDS.values())


def test_a_broken_promise_ends_the_run_with_its_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A parser that lets an error through; until then everything is counted."""

    def broken(_: bytes) -> None:
        raise KeyError("names")

    monkeypatch.setitem(TARGETS, "settings", broken)
    counts = tmp_path / "counts"
    chosen = ["--inputs", "5", "--seed", "1", "--counts", str(counts)]
    found = CliRunner().invoke(mutations.main, [*chosen, "--only", "forms", "--only", "settings"])
    assert found.exit_code == 1
    assert "TARGETS['settings'](b" in found.stderr
    assert "KeyError" in found.stderr
    assert json.loads(counts.read_text()) == {"inputs": 5}
