"""A small file system of its own for one adapter, which can be filled: an ext4 image over a loop device, else a tmpfs.

Both need root. Where neither can be mounted, `small_disk` says why, and the fault is left out by name.
"""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SIZE_MB = 96
UNMOUNT_S = 20.0
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
BLOCK = bytes(4_096)


@dataclass(frozen=True)
class SmallDisk:
    """A mounted file system. `kind`: what it is, for a person."""

    path: Path
    kind: str

    def fill(self) -> None:
        """Take every free byte."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(BLOCK)

    def free(self) -> None:
        """Give back what `fill` took."""
        self._ballast.unlink(missing_ok=True)

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"


@contextmanager
def small_disk(directory: Path, megabytes: int = SIZE_MB) -> Iterator[tuple[SmallDisk | None, str]]:
    """Mount one below a directory; yields it and an empty text, or None and why there is none."""
    where = directory / "disk"
    where.mkdir(parents=True)
    image = directory / "disk.image"
    kind, why = "", "needs root"
    if os.geteuid() == 0:
        kind, why = _mount(image, where, megabytes)
    if not kind:
        yield None, why
        return
    try:
        yield SmallDisk(where, kind), ""
    finally:
        _unmount(where)


def _mount(image: Path, where: Path, megabytes: int) -> tuple[str, str]:
    with image.open("wb") as file:
        file.truncate(megabytes * 2**20)
    refused = _run("mkfs.ext4", "-q", "-F", str(image)) or _run("mount", "-o", "loop,noatime", str(image), str(where))
    if not refused:
        return f"ext4 of {megabytes} MB over a loop device", ""
    also_refused = _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(where))
    return ("", f"{refused}; {also_refused}") if also_refused else (f"tmpfs of {megabytes} MB", "")


def _unmount(where: Path) -> None:
    """Unmount as soon as no process uses it; after a while from view at once, and from the kernel when the last one ends."""
    deadline = time.monotonic() + UNMOUNT_S
    while _run("umount", str(where)):
        if time.monotonic() > deadline:
            _run("umount", "-l", str(where))
            return
        time.sleep(0.05)


def _run(program: str, *arguments: str) -> str:
    """Run a tool; what it said if it failed, else empty."""
    found = shutil.which(program, path=PATH)
    if not found:
        return f"there is no {program}"
    done = subprocess.run([found, *arguments], capture_output=True, text=True, check=False)
    return f"{program}: {(done.stderr or done.stdout).strip()}" if done.returncode else ""
