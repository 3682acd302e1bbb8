"""What the storage tests share: what this machine can do, and the faults themselves.

A check that a machine cannot do is skipped by name and with what is missing; pytest's `-ra` summary lists each one.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from adapter.testing.waiting import PATIENCE_S

INSTALL = "sh tests/install-tools.sh installs it on Debian"
TOOLS_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
FAKETIME = "/usr/lib/*/faketime/libfaketimeMT.so.1"

NOWHERE = "127.0.0.1:1"  # a Meta Service that is stopped: nobody listens on a privileged port
ALONE = "[recovery]\ntimeout_ms = 0\n[stop]\ndrain_timeout_ms = 0\n"  # such an adapter does not wait for it

Need = Callable[[], str]


def require(check: str, *needs: Need) -> None:
    """Skip the running test, naming the check and what is missing, unless the machine can do all of `needs`."""
    lacking = [why for need in needs if (why := need())]
    if lacking:
        pytest.skip(f"{check}: not run: {'; '.join(dict.fromkeys(lacking))}")


@cache
def root() -> str:
    """Why mounting is out of the question; empty when it is not."""
    return "" if os.geteuid() == 0 else "needs root"


@cache
def tmpfs() -> str:
    """Why no tmpfs can be mounted."""
    return (
        root() or _tool("mount") or _attempt(lambda here: _mount_and_unmount(here, tmpfs_options(1)), "a tmpfs cannot be mounted")
    )


@cache
def loop_ext4() -> str:
    """Why no ext4 image can be made and mounted over a loop device."""

    def attempt(here: Path) -> None:
        image = make_ext4(here / "image", megabytes=1)
        _mount_and_unmount(here, loop_options(image))

    tools = _tool("mount") or _tool("mkfs.ext4", "e2fsprogs")
    return root() or tools or _attempt(attempt, "an ext4 image cannot be mounted over a loop device")


@cache
def other_boot() -> str:
    """Why a process cannot be shown another boot id."""
    return root() or _attempt(lambda here: run(*after_a_reboot(here / "boot_id"), "true"), "a boot id cannot be faked")


@cache
def strace() -> str:
    """Why strace cannot attach to a process of this user."""
    missing = _tool("strace")
    if missing:
        return missing
    target = subprocess.Popen(["sleep", "60"])
    try:
        with tempfile.TemporaryDirectory() as here, Strace(target.pid, Path(here) / "trace", error="EIO"):
            return ""
    except RuntimeError as error:
        return f"strace may not attach to a process ({error})"
    finally:
        target.kill()
        target.wait()


@cache
def faketime() -> str:
    """Why the clock of a process cannot be faked."""
    return "" if faketime_library() else f"libfaketimeMT.so.1 is missing ({INSTALL})"


def faketime_library() -> Path | None:
    """Debian's libfaketime for programs with threads."""
    return next(iter(sorted(Path("/").glob(FAKETIME.lstrip("/")))), None)


class Strace:
    """Makes some system calls of a running process fail, from the entry of this context to its end.

    The calls are not executed. `paths` limits it to these files; without it every call of the process fails.
    """

    def __init__(
        self, pid: int, trace: Path, *, error: str, calls: str = "fdatasync,fsync", paths: Sequence[Path] = (), when: str = "1+"
    ) -> None:
        self._pid = pid
        self._trace = trace
        only = [part for path in paths for part in ("-P", str(path))]
        inject = f"inject={calls}:error={error}:when={when}"
        self._command = [_which("strace"), "-f", "-q", "-ttt", "-o", str(trace), *only]
        self._command += ["-e", f"trace={calls}", "-e", inject, "-p", str(pid)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Return when every thread of the process is traced, or the first failed calls have ended it already.

        Raises RuntimeError when tracing is not permitted.
        """
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while not self._attached():
            if self._process.poll() is not None:
                assert self._process.stderr is not None
                message = self._process.stderr.read().decode(errors="replace").strip()
                if self._process.returncode == 0 and not message:  # it ended with the process that it traced
                    break
                self._process.stderr.close()
                raise RuntimeError(message or f"strace ended with {self._process.returncode}")
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        """Detach; the process goes on untouched."""
        assert self._process is not None
        assert self._process.stderr is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)
        self._process.stderr.close()

    @property
    def failures(self) -> list[float]:
        """When (Unix seconds) the calls that failed had begun."""
        lines = self._trace.read_text(errors="replace").splitlines()
        return [float(line.split()[1]) for line in lines if "(INJECTED)" in line]

    def _attached(self) -> bool:
        assert self._process is not None
        tracer = f"TracerPid:\t{self._process.pid}\n"
        try:
            return all(tracer in (task / "status").read_text() for task in Path(f"/proc/{self._pid}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            return False


def tmpfs_options(megabytes: int) -> list[str]:
    """What `mounted` takes for a tmpfs of this size."""
    return ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs"]


def loop_options(image: Path, options: str = "noatime") -> list[str]:
    """What `mounted` takes for the file system in an image."""
    return ["-o", f"loop,{options}", str(image)]


def copied(image: Path, copy: Path) -> Path:
    """A copy of an image as it is now, for a mount of its own.

    A mount namespace that another process made meanwhile has a copy of every mount, and keeps its file system in use after our
    unmount: a second mount of the same image would show that file system, read-only where it was.
    """
    run("cp", "--sparse=always", str(image), str(copy))
    return copy


def make_ext4(image: Path, megabytes: int) -> Path:
    """Make an ext4 file system in a sparse file."""
    with image.open("wb") as file:
        file.truncate(megabytes * 2**20)
    run(_which("mkfs.ext4"), "-q", "-F", str(image))
    return image


@contextmanager
def mounted(where: Path, options: Sequence[str]) -> Iterator[Path]:
    """A mount at `where` meanwhile."""
    where.mkdir(exist_ok=True)
    run(_which("mount"), *options, str(where))
    try:
        yield where
    finally:
        unmount(where)


def unmount(where: Path) -> None:
    """Unmount as soon as nobody uses it; by force when somebody still does after a while. Raises RuntimeError in that case."""
    deadline = time.monotonic() + PATIENCE_S
    while (done := subprocess.run([_which("umount"), str(where)], capture_output=True, text=True, check=False)).returncode:
        if time.monotonic() > deadline:
            users = _users_of(where)
            run(_which("umount"), "-l", str(where))
            raise RuntimeError(f"{where} was still in use: {done.stderr.strip()}; by {users}")
        time.sleep(0.01)


def _users_of(where: Path) -> list[str]:
    """Which processes have which files below a directory open, or work in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            for link in (process / "cwd", *(process / "fd").iterdir()):
                target = str(link.readlink())
                if target.startswith(str(where)):
                    found.append(f"{link} -> {target} ({command})")
    return found


def after_a_reboot(boot_id: Path) -> list[str]:
    """What goes before a command that shall find another boot id (written to this file), as it does after a power cut."""
    boot_id.write_text("00000000-0000-4000-8000-000000000000\n")
    bind_and_run = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", bind_and_run, str(boot_id)]


def run(*command: str) -> None:
    """Run a tool. Raises RuntimeError with what it printed when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


def _mount_and_unmount(here: Path, options: Sequence[str]) -> None:
    with mounted(here / "mount", options):
        pass


def _attempt(attempt: Callable[[Path], None], what: str) -> str:
    try:
        with tempfile.TemporaryDirectory() as here:
            attempt(Path(here))
    except RuntimeError as error:
        return f"{what} ({error})"
    return ""


def _tool(name: str, package: str = "") -> str:
    return "" if shutil.which(name, path=TOOLS_PATH) else f"{package or name} is missing ({INSTALL})"


def _which(name: str) -> str:
    return shutil.which(name, path=TOOLS_PATH) or name
