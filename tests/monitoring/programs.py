"""Prometheus' own programs: those of the machine, or what `make tools` unpacked. Tests that need one say that it is missing."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
UNPACKED = [str(ROOT / ".venv" / "tools" / "usr" / name) for name in ("bin", "sbin")]


def program(name: str) -> str:
    """The path of a program; the test is skipped without it."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *UNPACKED]))
    if found is None:
        pytest.skip(f"no {name}: run `make tools`")
    return found


def promtool(*arguments: str | Path) -> str:
    """Run promtool; returns what it says. Fails the test with it otherwise."""
    ended = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    return said


def check_rules(directory: Path, tests: list[dict[str, Any]], rules: Path = MONITORING) -> None:
    """Run promtool's unit tests of rules."""
    path = directory / "tests.yaml"
    files = [str(rules / name) for name in ("rules.yaml", "objectives.yaml")]
    path.write_text(yaml.safe_dump({"rule_files": files, "evaluation_interval": "15s", "tests": tests}, sort_keys=False))
    promtool("test", "rules", path)
