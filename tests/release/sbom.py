"""The SBOM of a release, in CycloneDX's form, of what is locked: cyclonedx-py writes it; here it is compared with the lock."""

import json
import re
import subprocess
from pathlib import Path

from tests.release.artefacts import ReleaseError

LOCKED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", re.MULTILINE)
SHA256 = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def write(cyclonedx: Path, root: Path, file: Path, version: str) -> str:
    """Write it to `file`; returns what it has, as a sentence. Raises ReleaseError if it is not what the lock has."""
    lock = root / "requirements/runtime.lock"
    command = [str(cyclonedx), "requirements", "--pyproject", str(root / "pyproject.toml"), "--mc-type", "application"]
    options = ["--output-reproducible", "--spec-version", "1.6", "--output-format", "JSON", "--output-file", str(file)]
    subprocess.run([*command, *options, str(lock)], capture_output=True, text=True, check=True)
    if wrong := problem(json.loads(file.read_text(encoding="utf-8")), lock.read_text(encoding="utf-8"), version):
        raise ReleaseError(f"{file.name}: {wrong}")
    return f"{file.name}: {len(LOCKED.findall(lock.read_text()))} packages of runtime.lock, with their checksums"


def problem(sbom: dict[str, object], lock: str, version: str) -> str | None:
    """What an SBOM says otherwise than the lock."""
    document = json.loads(json.dumps(sbom))
    described = document.get("metadata", {}).get("component", {})
    if (found := (described.get("name"), described.get("version"))) != ("offset-adapter", version):
        return f"it is of {found[0]} {found[1]}, not of offset-adapter {version}"
    listed = {(part["name"], part.get("version")): json.dumps(part) for part in document["components"]}
    locked = {*LOCKED.findall(lock)}
    if missing := locked - {*listed}:
        return "it lacks " + ", ".join(sorted(" ".join(pair) for pair in missing))
    if more := {*listed} - locked:
        return "it has more than the lock: " + ", ".join(sorted(f"{name} {number}" for name, number in more))
    text = "".join(listed.values())
    if absent := [digest for digest in SHA256.findall(lock) if digest not in text]:
        return f"it lacks {len(absent)} checksums of the lock"
    return None
