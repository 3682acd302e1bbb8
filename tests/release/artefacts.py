"""Builds sdist and wheel of the commit that is checked out, and tries the wheel as somebody who installs it."""

import os
import re
import shutil
import subprocess
import time
import venv
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from adapter.runtime.version import commit_of
from adapter.testing.processes import free_port
from tests.archives import unpack

PATIENCE_S = 120


class ReleaseError(Exception):
    """What keeps this from being a release."""


class Built(NamedTuple):
    """What was built, and of which commit."""

    wheel: Path
    sdist: Path
    commit: str


def build(root: Path, directory: Path) -> Built:
    """Both, and a wheel of the unpacked sdist, which has to have the same files. Raises ReleaseError."""
    commit = commit_of(root)
    if commit is None or commit.endswith("-dirty"):
        raise ReleaseError(f"the checkout is {commit or 'no git checkout'}: commit what is changed: a build is of a commit")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with TemporaryDirectory(prefix="release-") as work:
        python = environment(Path(work, "builder"), root / "requirements/build.lock")
        run(str(python), "-m", "hatchling", "build", "-d", str(directory.resolve()), cwd=root)
        (wheel,) = directory.glob("*.whl")
        (sdist,) = directory.glob("*.tar.gz")
        unpack(sdist, Path(work, "unpacked"))
        (unpacked,) = Path(work, "unpacked").iterdir()
        run(str(python), "-m", "hatchling", "build", "-t", "wheel", "-d", work, cwd=unpacked)
        (again,) = Path(work).glob("*.whl")
        if different := names(wheel) ^ names(again):
            raise ReleaseError(f"{sdist.name} makes another wheel: {', '.join(sorted(different)[:5])}")
    return Built(wheel, sdist, commit)


def names(wheel: Path) -> set[str]:
    """The files in a wheel, each with its checksum; but for RECORD, whose order depends on where the commit's file comes from."""
    with zipfile.ZipFile(wheel) as file:
        return {f"{one.filename} {one.CRC:08x}" for one in file.infolist() if not one.filename.endswith("/RECORD")}


def try_installed(root: Path, built: Built, version: str) -> str:
    """Install the wheel in a new environment, with what is locked; start both processes; commit and read. Raises ReleaseError."""
    with TemporaryDirectory(prefix="release-") as work:
        python = environment(Path(work, "venv"), root / "requirements/runtime.lock")
        run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(built.wheel.resolve()))
        command = python.parent / "offset-adapter"
        said = run(str(command), "--version", cwd=Path(work)).strip()
        if said != (expected := f"offset-adapter, version {version}, commit {built.commit}"):
            raise ReleaseError(f"the installed wheel says `{said}` instead of `{expected}`")
        for name, kind in (("adapter", "adapter"), ("meta", "meta")):
            file = root / f"config/{name}.toml"
            run(str(command), "check-config", "--kind", kind, str(file), cwd=Path(work))
            if run(str(command), "config", name, cwd=Path(work)) != file.read_text(encoding="utf-8"):
                raise ReleaseError(f"the installed wheel prints another {name}.toml than {file}")
        size = sum(path.stat().st_size for path in Path(work, "venv/lib").rglob("*") if path.is_file() and not path.is_symlink())
        _commit_and_read(command, Path(work))
    return f"the wheel, installed from the lock ({size / 1e6:.0f} MB), took a commit to the Meta Service and read it there"


def environment(directory: Path, lock: Path) -> Path:
    """A virtual environment with what a lock has; returns its Python."""
    venv.create(directory, with_pip=True)
    python = directory / "bin/python"
    run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r", str(lock))
    return python


def run(*command: str, cwd: Path | None = None) -> str:
    """Run a command without this process's own packages; returns its output. Raises CalledProcessError."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=cwd, env=inherited, capture_output=True, text=True, check=True).stdout


def _commit_and_read(command: Path, directory: Path) -> None:
    grpc, meta = free_port(), free_port()
    quiet = '[metrics]\nlisten = ""\n'
    settings = {
        "meta": f'[server]\nlisten = "127.0.0.1:{meta}"\n{quiet}',
        "serve": f'[server]\nlisten = "127.0.0.1:{grpc}"\n[meta]\nendpoints = ["127.0.0.1:{meta}"]\n{quiet}',
    }
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    processes = {}
    try:
        for name, text in settings.items():
            (directory / f"{name}.toml").write_text(text)
            with (directory / f"{name}.log").open("wb") as log:
                arguments = [str(command), name, "--config", str(directory / f"{name}.toml")]
                processes[name] = subprocess.Popen(arguments, cwd=directory, env=inherited, stdout=log, stderr=log)
        for name, port in (("meta", meta), ("serve", grpc)):
            _until_healthy(command, f"127.0.0.1:{port}", processes[name], directory / f"{name}.log")
        run(str(command), "commit", "g", "t/0", "42", cwd=directory)
        run(str(command), "flush", cwd=directory)
        listed = run(str(command), "list", "--meta", f"127.0.0.1:{meta}", cwd=directory)
        if not re.search(r"\b42\b", listed):
            raise ReleaseError(f"the Meta Service does not have the commit:\n{listed}")
        for name, process in processes.items():
            process.terminate()
            if process.wait(PATIENCE_S):
                raise ReleaseError(f"{name} ended with {process.returncode}:\n{(directory / f'{name}.log').read_text()}")
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def _until_healthy(command: Path, address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run([command, "health", "--address", address], capture_output=True, check=False).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise ReleaseError(f"not healthy at {address}:\n{log.read_text()}")
        time.sleep(0.1)
