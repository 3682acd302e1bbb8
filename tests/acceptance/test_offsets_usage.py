"""The commands about offsets where nothing runs that they could call."""

from pathlib import Path

import pytest

from tests.acceptance.conftest import run

ERROR = 2
ROOT = Path(__file__).parents[2]


def test_an_argument_that_is_not_utf_8_is_told() -> None:
    """Names are UTF-8 everywhere; a shell can pass anything."""
    ran = run("offsets", "delete", "g", "\udcff")
    assert (ran.code, ran.err) == (ERROR, "error: argument 4: '\\udcff' is not UTF-8\n")


COMMANDS = (
    ["groups", "list"],
    ["groups", "describe", "g"],
    ["groups", "clone", "g", "h"],
    ["offsets", "reset", "g", "--to-latest"],
    ["offsets", "delete", "g", "s", "--execute"],
    ["export"],
    ["import", "offsets.csv"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(command[:2]) for command in COMMANDS])
def test_when_nothing_runs_there_it_says_so(tmp_path: Path, command: list[str]) -> None:
    """One line: the address, the status, and what to look at; an export leaves no file."""
    (tmp_path / "offsets.csv").write_text("g,t,0,5\n")
    ran = run(*command, cwd=tmp_path, OFFSET_ADAPTER_ADDRESS=f"unix:{tmp_path}/no.sock", PYTHONPATH=str(ROOT))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (ERROR, "", 1)
    assert ran.err.startswith(f"error: unix:{tmp_path}/no.sock: UNAVAILABLE: ")
    assert ran.err.endswith("is the adapter running there, and ready? (by OFFSET_ADAPTER_ADDRESS)\n")
    assert [path.name for path in tmp_path.iterdir()] == ["offsets.csv"]
