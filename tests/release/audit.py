"""Known vulnerabilities of what is locked: `python -m tests.release.audit PIP-AUDIT LOCK...`, which is `make audit`.

Exit code 0: the registry had data of every package, and none is vulnerable. 1: some are. 3: there were no data of some of
them, or of none; that says nothing about them. pip-audit itself ends with 0 in that case.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

CLEAN, VULNERABLE, NO_DATA = 0, 1, 3
SECONDS_MAX = 600


class Audit(NamedTuple):
    """What is known of a lock: of how many packages there are data, what is vulnerable (a line each), of what there are none."""

    known: int
    vulnerable: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """CLEAN, VULNERABLE or NO_DATA."""
        if self.vulnerable:
            return VULNERABLE
        return NO_DATA if self.unknown else CLEAN


def audit(pip_audit: str, lock: Path) -> Audit:
    """Ask the registry."""
    command = [pip_audit, "--requirement", str(lock), "--no-deps", "--disable-pip", "--require-hashes", "--format", "json"]
    try:
        done = subprocess.run(
            [*command, "--progress-spinner", "off"], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return Audit(0, (), ("all: the registry did not answer",))
    return read(done.stdout, done.stderr)


def read(stdout: str, stderr: str) -> Audit:
    """What pip-audit wrote. Without a report, as without a network, there are no data."""
    try:
        dependencies = json.loads(stdout)["dependencies"]
    except (ValueError, KeyError):
        last = (stderr.strip().splitlines() or ["pip-audit wrote no report"])[-1]
        return Audit(0, (), (f"all: {last}",))
    vulnerable = []
    for found in dependencies:
        for known in found.get("vulns", []):
            fixed = ", ".join(known["fix_versions"]) or "no version"
            vulnerable.append(f"{found['name']} {found['version']}: {known['id']}, fixed by {fixed}")
    unknown = tuple(found["name"] for found in dependencies if "skip_reason" in found)
    return Audit(len(dependencies) - len(unknown), tuple(vulnerable), unknown)


def told(lock: Path, found: Audit) -> str:
    """For a person."""
    if found.vulnerable:
        return "\n".join(
            [f"{lock.name}: {len(found.vulnerable)} known vulnerabilities", *(f"  {line}" for line in found.vulnerable)]
        )
    if found.unknown:
        first = ", ".join(found.unknown[:3])
        more = f" and {len(found.unknown) - 3} more" if len(found.unknown) > 3 else ""
        return (
            f"{lock.name}: NOT AUDITED: the registry has no data here of {first}{more} ({found.known} packages without a finding)"
        )
    return f"{lock.name}: {found.known} packages, no known vulnerability"


def main(pip_audit: str, *locks: str) -> int:
    """The worst of all locks: vulnerable before unknown before clean."""
    codes = set()
    for lock in map(Path, locks):
        found = audit(pip_audit, lock)
        print(told(lock, found))  # noqa: T201 - a command for a person
        codes.add(found.exit_code)
    return VULNERABLE if VULNERABLE in codes else max(codes, default=NO_DATA)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
