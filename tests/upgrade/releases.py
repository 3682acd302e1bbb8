"""The releases in releases.toml, and the program of one: its files from git, and an interpreter with what it imports.

A shallow clone does not have the commit: then the files come from program.tar.xz, which was made from git with the fixtures.
"""

import lzma
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from adapter.testing.processes import ServiceProcess

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "releases"
LIST = Path(__file__).with_name("releases.toml")
# What an adapter with a journal imports, exactly.
LOCK = "requirements/journal.lock"
BUILD_LOCK = "requirements/build.lock"  # what builds and installs it
# Beside other tools that tests fetch; `make clean` removes it.
BUILT = Path(sys.prefix) / "tools" / "releases"
# What is kept of a release, if it has it: what runs, and what an environment of its own is built from.
KEPT = ("adapter", "proto", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", LOCK, BUILD_LOCK)


class Release(NamedTuple):
    """A release: its name, and its commit in full."""

    name: str
    commit: str

    @property
    def data(self) -> Path:
        """The directory with what it wrote."""
        return DATA / self.name

    @property
    def program(self) -> Path:
        """What is kept of its program, for a clone without its commit."""
        return self.data / "program.tar.xz"


def releases() -> tuple[Release, ...]:
    """All of them, oldest first."""
    with LIST.open("rb") as file:
        return tuple(Release(**found) for found in tomllib.load(file)["release"])


def add(name: str, commit: str) -> None:
    """Add a release as the newest one. Raises RuntimeError when git does not know the commit, or the name is there."""
    if name in {release.name for release in releases()}:
        raise RuntimeError(f"{LIST}: {name} is there already")
    found = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if found.returncode:
        raise RuntimeError(f"there is no commit {commit} in the git repository at {ROOT}")
    with LIST.open("a") as file:
        file.write(f'\n[[release]]\nname = "{name}"\ncommit = "{found.stdout.decode().strip()}"\n')


def last_release() -> Release:
    """The newest one."""
    return releases()[-1]


class Program(NamedTuple):
    """A program that can be run: `command` takes the arguments of `offset-adapter`, or with `python` those of an interpreter."""

    tree: Path
    interpreter: Path

    @property
    def python(self) -> tuple[str, ...]:
        """The interpreter, which does not import from the current directory."""
        return str(self.interpreter), "-P"

    @property
    def command(self) -> tuple[str, ...]:
        """The `offset-adapter` of this program."""
        return *self.python, "-m", "adapter"

    @property
    def environment(self) -> dict[str, str]:
        """What has to be added to the environment."""
        return {"PYTHONPATH": str(self.tree)}


def tree_of(release: Release) -> Path:
    """What is kept of a release, as files. Raises RuntimeError that says what to do where nobody has it."""
    tree = BUILT / release.commit
    if not tree.exists():
        _extract(release, tree)
    return tree


def program_of(release: Release) -> Program:
    """The program of a release, built on first use. Raises what `tree_of` does."""
    tree = tree_of(release)
    if (tree / LOCK).read_bytes() == (ROOT / LOCK).read_bytes():
        return Program(tree, Path(sys.executable))
    return Program(tree, _own_interpreter(tree))


def of_release(service: ServiceProcess, program: Program) -> ServiceProcess:
    """The same service, with the same settings and directory, as another program."""
    return replace(service, program=program.command, environment={**service.environment, **program.environment})


def from_git(release: Release) -> bytes:
    """A tar of what is kept of a release. Raises RuntimeError when git does not have its commit."""
    kept = _git("ls-tree", "--name-only", "-z", release.commit, *KEPT).stdout.decode().split("\0")
    archive = _git("archive", release.commit, *filter(None, kept))
    if archive.returncode:
        raise RuntimeError(archive.stderr.decode().strip())
    return archive.stdout


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments], capture_output=True, check=False)


def _archive_of(release: Release) -> bytes:
    try:
        return from_git(release)
    except RuntimeError as error:
        if release.program.exists():
            return lzma.decompress(release.program.read_bytes())
        raise RuntimeError(
            f"the release {release.name} cannot be built: its commit {release.commit} is not in the git repository at {ROOT}, "
            f"and there is no {release.program}; in a shallow clone run `git fetch --unshallow`. git says: {error}"
        ) from error


def _extract(release: Release, tree: Path) -> None:
    archive = _archive_of(release)
    tree.parent.mkdir(parents=True, exist_ok=True)
    fresh = tree.with_name(f"{tree.name}.{os.getpid()}")
    fresh.mkdir()
    subprocess.run(["tar", "-x", "-C", str(fresh)], input=archive, check=True)
    _into_place(fresh, tree)


def _own_interpreter(tree: Path) -> Path:
    """An environment from the release's own lock file: its programs must not run on newer libraries than it was released with."""
    environment = tree.with_name(f"{tree.name}-venv")
    python = environment / "bin" / "python"
    if not environment.exists():
        fresh = environment.with_name(f"{environment.name}.{os.getpid()}")
        subprocess.run([sys.executable, "-m", "venv", str(fresh)], check=True)
        pip = [str(fresh / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(tree / LOCK), "-r", str(tree / BUILD_LOCK)], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", str(tree)], check=True)
        _into_place(fresh, environment)
    return python


def _into_place(fresh: Path, target: Path) -> None:
    try:
        fresh.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(fresh)
