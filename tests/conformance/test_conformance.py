"""The Python client through the conformance suite, so that the suite itself is tested with each change.

`make interop` has the Rust client through the same (tests/interop/rust_client.py).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.cases import CASES
from tests.conformance.kills import TARGETS, Run
from tests.conformance.world import World, world

PYTHON = (sys.executable, "-m", "tests.conformance.python_driver")
BROKEN = (sys.executable, "-m", "tests.conformance.broken_driver")
SPEC = Path(__file__).parents[2] / "clients/SPEC.md"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One Meta Service and one adapter for all cases."""
    with world(PYTHON, tmp_path_factory.mktemp("w")) as found:
        yield found


@pytest.mark.parametrize("case", CASES)
async def test_the_python_client_conforms(case: str, shared: World) -> None:
    """Each case, with a group of its own."""
    await CASES[case](World(shared.command, shared.directory, shared.meta, shared.adapter))


async def test_no_acknowledged_commit_is_lost_under_kills(tmp_path: Path) -> None:
    """Each target once: adapter, Meta Service and driver by kill -9, a drain, and a reset that is followed by one."""
    with world(PYTHON, tmp_path) as apart:
        report = await Run(apart, 1).kills(len(TARGETS))
    assert report.violations == []
    assert (report.kills, report.acknowledged > 0) == (dict.fromkeys(TARGETS, 1), True)


@pytest.mark.parametrize(
    ("fault", "targets", "problem"),
    [("answers_first", ["adapter"], "was acknowledged"), ("counts_ahead", ["driver"], "was sent")],
)
async def test_a_client_that_loses_or_skips_is_found(fault: str, targets: list[str], problem: str, tmp_path: Path) -> None:
    """One that acknowledges before the reply, and one that commits more than it was told."""
    with world((*BROKEN, fault), tmp_path) as apart:
        report = await Run(apart, 1, targets, watches=False).kills(20)
    assert any(problem in violation for violation in report.violations), report


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        ("answers_first", "a_reset_is_not_undone_by_a_commit_with_an_epoch"),
        ("counts_ahead", "a_commit_is_stored_with_what_came_with_it"),
        ("repeats_overwrites", "an_overwrite_is_sent_once"),
        ("hides_resync", "a_watch_begins_anew_and_says_so"),
        ("takes_up", "a_reset_holds_off_who_knows_no_epochs"),
    ],
)
async def test_a_client_that_breaks_a_rule_fails_its_case(
    fault: str, case: str, shared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault by the case that SPEC.md names."""
    monkeypatch.setattr("tests.conformance.driver.PATIENCE_S", 5.0)  # what is waited for does not come
    broken = World((*BROKEN, fault), shared.directory, shared.meta, shared.adapter)
    with pytest.raises((AssertionError, KeyError, TimeoutError)):
        await CASES[case](broken)


def test_the_specification_names_the_cases() -> None:
    """Each case is named, and each name is one of a case."""
    text = SPEC.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:a|an|each|many|the|what|absent)_\w+)`", text))
    assert named == set(CASES)
