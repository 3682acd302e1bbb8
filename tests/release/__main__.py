"""`python -m tests.release TOOLS DIRECTORY`: a release but for the upload, the chart and the image. `make release-check` runs it.

It compares all versions, builds sdist and wheel of what is committed into DIRECTORY, installs the wheel with what is locked in a
new environment, runs it until a commit comes back, writes the SBOM, and audits the locks. TOOLS is the environment of
requirements/release.lock. Exit code 0: all that could be checked is right, and what could not be is said. 1: something is wrong.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tests.release import artefacts, audit, sbom
from tests.release.versions import disagreeing, project_version

ROOT = Path(__file__).parents[2]
LOCKS = ("runtime.lock", "console.lock", "journal.lock", "spark.lock")


def main() -> int:
    """All steps, each with its line; the first wrong one ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", type=Path)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    version = project_version(ROOT)
    try:
        say(check_versions(version))
        built = artefacts.build(ROOT, arguments.directory)
        say(f"built {built.wheel.name} and {built.sdist.name}, of {built.commit}; the wheel of the sdist has the same files")
        say(artefacts.try_installed(ROOT, built, version))
        file = arguments.directory / f"offset-adapter-{version}.cdx.json"
        say(sbom.write(arguments.tools / "bin/cyclonedx-py", ROOT, file, version))
        say(check_advisories(arguments.tools / "bin/pip-audit"))
    except artefacts.ReleaseError as error:
        print(f"NOT READY: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"NOT READY: {error}\n{error.stdout or ''}{error.stderr or ''}", file=sys.stderr)
        return 1
    return 0


def say(line: str) -> None:
    """One line for each step."""
    print(f"release-check: {line}", flush=True)


def check_versions(version: str) -> str:
    """Raises ReleaseError with everything that has another version."""
    if wrong := [*disagreeing(ROOT)]:
        raise artefacts.ReleaseError("\n".join(wrong))
    return f"version {version} in pyproject.toml, CHANGELOG.md, the chart and the manifests"


def check_advisories(pip_audit: Path) -> str:
    """Raises ReleaseError for known vulnerabilities. Where the registry has no data, that is said, and is no error."""
    lines = []
    for lock in (ROOT / "requirements" / name for name in LOCKS):
        found = audit.audit(str(pip_audit), lock)
        if found.exit_code == audit.VULNERABLE:
            raise artefacts.ReleaseError(audit.told(lock, found))
        lines.append(audit.told(lock, found))
    return "\nrelease-check: ".join(lines)


if __name__ == "__main__":
    sys.exit(main())
