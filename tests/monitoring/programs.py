"""Prometheus' own programs: those of the machine, or what `make tools` unpacked. Tests that need one say that it is missing."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.source.files import Options, generated, rule_groups

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
    """Run promtool's unit tests of the rules, as they are generated now; another test compares them with what is committed.

    One that is named after an alert is run with the recordings and that alert alone: promtool evaluates all rules at each step.
    """
    (directory / "objectives.yaml").write_text(RULES["objectives.yaml"])
    paths = []
    for number, test in enumerate(tests):
        rules, path = directory / f"rules-{number}.yaml", directory / f"tests-{number}.yaml"
        rules.write_text(yaml.safe_dump({"groups": groups_for(test.get("name"))}))
        files = [str(rules), str(directory / "objectives.yaml")]
        path.write_text(yaml.safe_dump({"rule_files": files, "evaluation_interval": "15s", "tests": [test]}, sort_keys=False))
        paths.append(path)
    promtool("test", "rules", *paths)


def groups_for(alert: str | None) -> list[dict[str, Any]]:
    """The groups of rules, of alerts only this one; None: all."""
    return [
        {**group, "rules": [rule for rule in group["rules"] if not alert or rule.get("alert", alert) == alert]}
        for group in rule_groups(Options())
    ]
