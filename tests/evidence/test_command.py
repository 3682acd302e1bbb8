"""`python -m tests.evidence`: exit codes, what is told of a violation, and how one is closed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.evidence import __main__ as command
from tests.evidence.machines import MACHINES
from tests.evidence.records import Slice, append, read
from tests.evidence.test_records import BROKEN, SLICE


def _invoke(path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(command.main, ["--file", str(path), *arguments])


@pytest.mark.parametrize(("record", "code"), [(SLICE, 0), (BROKEN, 1)])
def test_the_exit_code_is_1_after_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Slice, code: int) -> None:
    """With the command that finds it again, and the end of what it wrote."""

    def spend(machines: Any, seconds: float, _: object, path: Path, told: Any) -> list[Slice]:
        assert ([machine.name for machine in machines], seconds) == (["model"], 120)
        append(path, record)
        told(machines[0], record)
        return [record]

    monkeypatch.setattr(command, "spend", spend)
    found = _invoke(tmp_path / "runs.jsonl", "--minutes", "2", "--only", "model")
    assert found.exit_code == code
    assert ("Again: python -m x" in found.output) == (code == 1)


def test_a_violation_is_closed_by_its_name_and_a_reason(tmp_path: Path) -> None:
    """Neither may be missing; a name that is not open is told with those that are."""
    path = tmp_path / "runs.jsonl"
    append(path, BROKEN)
    assert "--because" in _invoke(path, "--close", BROKEN.name).output
    assert BROKEN.name in _invoke(path, "--close", "x", "--because", "y").output
    assert read(path).open == [BROKEN]
    assert _invoke(path, "--close", BROKEN.name, "--because", "fixed in abc").exit_code == 0
    assert read(path).open == []


@pytest.mark.parametrize(("runs", "code"), [(20_000, 0), (19_999, 1)])
def test_the_status_is_that_of_the_code_as_it_is_here(tmp_path: Path, runs: int, code: int) -> None:
    """Exit code 0: enough runs of the model, and no open violation. Runs of other code do not count."""
    path = tmp_path / "runs.jsonl"
    model = MACHINES["model"].code
    append(path, replace(SLICE, counts={"runs": runs}, code=model))
    append(path, replace(SLICE, at="2099", counts={"runs": 30_000}, code="another"))
    found = _invoke(path, "--status")
    assert f"model {model}: {runs:,} runs\n" in found.output
    assert found.output.endswith("open violations: 0\n" if code == 0 else "none known; 19,999 of 20,000 runs of the model\n")
    assert found.exit_code == code
    append(path, BROKEN)
    assert _invoke(path, "--status").exit_code == 1


def test_torn_lines_are_told_with_the_page(tmp_path: Path) -> None:
    """By file and line."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{"at": ')
    words = _invoke(path, "--page").output.split()  # lines end where the screen does
    assert "runs.jsonl:1:isnorecord" in "".join(words)
