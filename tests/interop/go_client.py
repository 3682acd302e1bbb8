"""The own tests of the Go client of clients/go, and its generated code. clients.py has the conformance suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.client_programs import ROOT

MODULE = ROOT / "clients/go"

pytestmark = pytest.mark.timeout(1_800)


def told(*command: str, **environment: str) -> str:
    """What a command says. Raises AssertionError with it, if it fails."""
    given = (
        os.environ | {"PATH": f"{os.environ['PATH']}:/usr/local/go/bin", "GOFLAGS": "-mod=readonly -buildvcs=false"} | environment
    )
    done = subprocess.run(command, cwd=MODULE, env=given, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass() -> None:
    """What it refuses by itself, what shares a request, what is repeated; the examples of its documentation."""
    told("go", "test", "./...")


def test_it_is_formatted_and_vet_finds_nothing() -> None:
    """As gofmt has it."""
    assert told("gofmt", "-l", ".") == ""
    told("go", "vet", "./...")


def test_its_generated_code_is_current(tmp_path: Path) -> None:
    """As generate.sh makes it of proto/."""
    told("sh", "generate.sh", OUT=str(tmp_path), PYTHON=sys.executable)
    made = {path.name: path.read_text() for path in (tmp_path / "offsetspb").iterdir()}
    assert made == {path.name: path.read_text() for path in (MODULE / "offsetspb").iterdir()}
