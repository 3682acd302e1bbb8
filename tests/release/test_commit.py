"""Which commit a build is of: in wheel and sdist by hatch_build.py, in a checkout by git, else unknown."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from adapter.runtime.version import commit_of
from tests.archives import unpack

ROOT = Path(__file__).parents[2]
PLACE = "adapter/runtime/commit"
TREE = ("adapter", "pyspark_offsets", "pyspark_offset_journal", "config", "proto", "pyproject.toml", "README.md", "LICENSE")
OTHERS = ("CHANGELOG.md", "hatch_build.py")


def git(root: Path, *arguments: str) -> str:
    """Run git there, with no settings of this machine."""
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(root), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what is built, without history."""
    root = tmp_path / "tree"
    root.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", "commit")
    for part in (*TREE, *OTHERS):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=ignored)
        else:
            shutil.copyfile(source, root / part)
    return root


def build(root: Path, *targets: str, **environment: str) -> Path:
    """Build with hatchling; returns the directory of the result."""
    into = root.parent / "dist"
    shutil.rmtree(into, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-d",
        str(into),
        *(word for target in targets for word in ("-t", target)),
    ]
    inherited = {name: value for name, value in os.environ.items() if name not in {"OFFSET_ADAPTER_COMMIT", "PYTHONPATH"}}
    subprocess.run(command, cwd=root, env={**inherited, **environment}, capture_output=True, check=True)
    return into


def in_wheel(directory: Path) -> str | None:
    """The commit that the wheel has."""
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        return file.read(PLACE).decode().strip() if PLACE in file.namelist() else None


def configurations(directory: Path) -> dict[str, bytes]:
    """The files that `offset-adapter config` prints, as the wheel has them."""
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        return {name.rpartition("/")[2]: file.read(name) for name in file.namelist() if name.startswith("adapter/config/")}


def test_wheel_and_sdist_of_a_checkout_say_its_commit_and_so_does_a_wheel_of_the_sdist(tree: Path, tmp_path: Path) -> None:
    """The sdist has no history any more, but brings the commit along."""
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "all")
    commit = git(tree, "rev-parse", "HEAD")
    built = build(tree, "sdist", "wheel")
    assert in_wheel(built) == commit
    assert configurations(built) == {file.name: file.read_bytes() for file in (ROOT / "config").iterdir()}
    (sdist,) = built.glob("*.tar.gz")
    unpack(sdist, tmp_path / "unpacked")
    (root,) = (tmp_path / "unpacked").iterdir()
    assert (root / PLACE).read_text().strip() == commit
    assert in_wheel(build(root, "wheel")) == commit
    (tree / "README.md").write_text("changed")
    assert in_wheel(build(tree, "wheel")) == f"{commit}-dirty"
    assert not (tree / PLACE).exists(), "a build leaves no file in the checkout"


def test_an_image_is_told_its_commit_and_a_tree_without_history_has_none(tree: Path) -> None:
    """By a variable; without one there is no file, and `--version` says unknown."""
    assert in_wheel(build(tree, "wheel", OFFSET_ADAPTER_COMMIT="0123abcd")) == "0123abcd"
    assert in_wheel(build(tree, "wheel", OFFSET_ADAPTER_COMMIT="")) is None


def test_a_program_in_somebody_elses_checkout_is_not_of_its_commit(tmp_path: Path) -> None:
    """As in a virtual environment inside of one: only a history beside the package itself counts."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "theirs")
    inside = tmp_path / "venv/lib"
    inside.mkdir(parents=True)
    assert commit_of(inside) is None
    assert commit_of(tmp_path) == git(tmp_path, "rev-parse", "HEAD")


def test_a_history_that_git_does_not_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged, or no git: `--version` works all the same."""
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert commit_of(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) is None


def test_nobody_asks_git_before_the_version_is_wanted() -> None:
    """An import is not slower for it."""
    code = "import sys, adapter.cli.main; sys.exit('subprocess' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
