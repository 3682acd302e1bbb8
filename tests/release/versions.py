"""The version in every place that names it. pyproject.toml says which it is; the others have to agree."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.release.manifests import images, parts

CRATE = "offset-adapter-client"
POM = re.compile(rf"<artifactId>{CRATE}</artifactId>\s*<version>([^<]*)</version>")
DATED = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d{2}-\d{2}$", re.MULTILINE)


def project_version(root: Path) -> str:
    """The version in pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return str(project["project"]["version"])


def disagreeing(root: Path) -> Iterator[str]:
    """Each place that has another version than pyproject.toml, as a sentence."""
    version = project_version(root)
    (chart,) = parts(root / "deploy/helm/offset-adapter/Chart.yaml")
    for field in ("version", "appVersion"):
        if chart[field] != version:
            yield f"deploy/helm/offset-adapter/Chart.yaml: {field} is {chart[field]}, not {version}"
    (kustomization,) = parts(root / "deploy/kubernetes/kustomization.yaml")
    tags = {image["name"]: str(image["newTag"]) for image in kustomization["images"]}
    if tags["offset-adapter"] != version:
        yield f"deploy/kubernetes/kustomization.yaml: the image offset-adapter is {tags['offset-adapter']}, not {version}"
    for path in sorted((root / "deploy/kubernetes").glob("*.yaml")):
        for image in images(path):
            name, _, tag = image.rpartition(":")
            if name == "offset-adapter" and tag != version:
                yield f"{path.relative_to(root)}: the image is {image}, not {version}: run make chart"
    yield from _disagreeing_clients(root, version)
    if problem := changelog_problem((root / "CHANGELOG.md").read_text(encoding="utf-8"), version):
        yield f"CHANGELOG.md: {problem}"


def _disagreeing_clients(root: Path, version: str) -> Iterator[str]:
    for name in ("Cargo.toml", "Cargo.lock"):
        package = tomllib.loads((root / "clients/rust" / name).read_text(encoding="utf-8"))["package"]
        (found,) = (each for each in (package if isinstance(package, list) else [package]) if each["name"] == CRATE)
        if found["version"] != version:
            yield f"clients/rust/{name}: the version is {found['version']}, not {version}"
    (found,) = POM.findall((root / "clients/java/pom.xml").read_text(encoding="utf-8"))
    if found != version:
        yield f"clients/java/pom.xml: the version is {found}, not {version}"


def changelog_problem(text: str, version: str) -> str | None:
    """What keeps CHANGELOG.md from being that of a version: its newest dated section has to be that of it, and say something."""
    found = DATED.search(text)
    if found is None or found[1] != version:
        newest = found[1] if found else "none"
        return f"its newest dated section is {newest}; a release of {version} needs `## [{version}] - YYYY-MM-DD`"
    section = re.split(r"^## ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    if not re.search(r"^- ", section, re.MULTILINE):
        return f"the section of {version} is empty"
    before = text[: found.start()]
    unreleased = before.partition("## [Unreleased]\n")[2]
    if re.search(r"^- ", unreleased, re.MULTILINE):
        return f"[Unreleased] has lines; a release of {version} has them in its own section"
    return None
