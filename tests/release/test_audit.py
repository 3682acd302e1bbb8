"""What pip-audit says of the locks. It ends with 0 also when it knows of nothing: that is not clean."""

import json
from pathlib import Path

import pytest

from tests.release.audit import CLEAN, NO_DATA, VULNERABLE, Audit, audit, main, read, told

KNOWN = {"name": "anyio", "version": "4.16.0", "vulns": []}
BAD = {"name": "hpack", "version": "4.1.0", "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["4.1.1"]}]}
UNKNOWN = {"name": "rocksdict", "skip_reason": "Dependency not found and could not be audited: rocksdict (0.3.29)"}


def report(*dependencies: object) -> str:
    """As `pip-audit --format json` writes it."""
    return json.dumps({"dependencies": dependencies, "fixes": []})


@pytest.mark.parametrize(
    ("stdout", "stderr", "code"),
    [
        (report(KNOWN), "No known vulnerabilities found", CLEAN),
        (report(KNOWN, UNKNOWN), "No known vulnerabilities found", NO_DATA),
        (report(UNKNOWN), "No known vulnerabilities found", NO_DATA),
        (report(KNOWN, BAD), "", VULNERABLE),
        (report(UNKNOWN, BAD), "", VULNERABLE),
        ("", "requests.exceptions.ConnectionError: no such host", NO_DATA),
        ("not JSON", "", NO_DATA),
    ],
)
def test_clean_means_that_there_were_data_of_every_package(stdout: str, stderr: str, code: int) -> None:
    """Nothing known is not the same as known to be good."""
    assert read(stdout, stderr).exit_code == code


def test_what_is_found_is_told_with_what_to_do() -> None:
    """The package, its version, the advisory, and the version that has it no more; or why nothing is known."""
    lock = Path("runtime.lock")
    assert "hpack 4.1.0: PYSEC-2026-1, fixed by 4.1.1" in told(lock, read(report(BAD), ""))
    assert "NOT AUDITED" in told(lock, read(report(UNKNOWN), ""))
    assert "no such host" in told(lock, read("", "Traceback\nConnectionError: no such host\n"))
    assert told(lock, Audit(3, (), ())) == "runtime.lock: 3 packages, no known vulnerability"


def test_the_worst_of_all_locks_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a pip-audit that reports what the lock's name says."""
    (tmp_path / "clean").write_text(report(KNOWN))
    (tmp_path / "bad").write_text(report(BAD))
    (tmp_path / "unknown").write_text(report(UNKNOWN))
    program = tmp_path / "pip-audit"
    program.write_text('#!/bin/sh\ncat "$2"\n')
    program.chmod(0o700)

    def code(*names: str) -> int:
        return main(str(program), *(str(tmp_path / name) for name in names))

    assert audit(str(program), tmp_path / "clean").exit_code == CLEAN
    assert [code("clean"), code("clean", "unknown"), code("unknown", "bad", "clean")] == [CLEAN, NO_DATA, VULNERABLE]
    assert "hpack 4.1.0" in capsys.readouterr().out
