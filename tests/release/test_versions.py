"""The version stands in many files; a release has one."""

import re
import shutil
from pathlib import Path

import pytest

from tests.release.versions import changelog_problem, disagreeing, project_version

ROOT = Path(__file__).parents[2]
LINES = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-23\n\n- It begins.\n"


def test_the_tree_agrees_on_its_version() -> None:
    """Chart, manifests, and the CHANGELOG, but for lines that wait for the next version."""
    assert [line for line in disagreeing(ROOT) if "[Unreleased]" not in line] == []


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("deploy/helm/offset-adapter/Chart.yaml", "\nversion: ", "\nversion: 9"),
        ("deploy/helm/offset-adapter/Chart.yaml", "appVersion: ", "appVersion: 9"),
        (
            "deploy/kubernetes/kustomization.yaml",
            "newName: offset-adapter\n    newTag: ",
            "newName: offset-adapter\n    newTag: 9",
        ),
        ("deploy/kubernetes/meta.yaml", "image: offset-adapter:", "image: offset-adapter:9"),
        ("deploy/kubernetes/broker.yaml", "          image: offset-adapter:", "          image: offset-adapter:9"),
        ("clients/rust/Cargo.toml", '\nversion = "', '\nversion = "9'),
        (
            "clients/rust/Cargo.lock",
            'name = "offset-adapter-client"\nversion = "',
            'name = "offset-adapter-client"\nversion = "9',
        ),
        ("clients/java/pom.xml", "client</artifactId>\n  <version>", "client</artifactId>\n  <version>9"),
        ("CHANGELOG.md", f"## [{project_version(ROOT)}]", "## [9.9.9]"),
    ],
)
def test_a_place_with_another_version_is_named(file: str, old: str, new: str, tmp_path: Path) -> None:
    """One sentence for each: the file, and what it has."""
    clients = ("clients/rust/Cargo.toml", "clients/rust/Cargo.lock", "clients/java/pom.xml")
    for part in ("deploy", *clients, "CHANGELOG.md", "pyproject.toml"):
        source = ROOT / part
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, tmp_path / part)
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    found = [line for line in disagreeing(tmp_path) if "[Unreleased]" not in line]
    assert found
    assert all(line.startswith(file) for line in found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (LINES, None),
        (LINES.replace("[0.1.0]", "[0.2.0]"), "newest dated section is 0.2.0"),
        (LINES.replace(" - 2026-11-23", ""), "newest dated section is none"),
        (LINES.replace("- It begins.", ""), "0.1.0 is empty"),
        (LINES.replace("[Unreleased]\n", "[Unreleased]\n\n- One more.\n"), "[Unreleased] has lines"),
        (LINES.replace("- It begins.", "\n## [0.0.9] - 2026-01-01\n\n- Before.\n"), "0.1.0 is empty"),
    ],
)
def test_the_changelog_has_a_section_of_the_version(text: str, problem: str | None) -> None:
    """The newest one, with a date and with lines."""
    found = changelog_problem(text, "0.1.0")
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_the_version_is_a_semantic_one() -> None:
    """As CHANGELOG.md says, and as Helm demands of a chart."""
    assert re.fullmatch(r"\d+\.\d+\.\d+", project_version(ROOT))
