"""Prometheus' own programs: those of the machine, or what `make tools` unpacked. Tests that need one say that it is missing."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.source.files import Options, generated

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RULES = generated(Options())
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


def check_rules(directory: Path, tests: list[dict[str, Any]]) -> None:
    """Run promtool's unit tests of the rules, as they are generated now; another test compares them with what is committed."""
    files = [directory / name for name in ("rules.yaml", "objectives.yaml")]
    for path in files:
        path.write_text(RULES[path.name])
    path = directory / "tests.yaml"
    described = {"rule_files": [str(path) for path in files], "evaluation_interval": "15s", "tests": tests}
    path.write_text(yaml.safe_dump(described, sort_keys=False))
    promtool("test", "rules", path)
