"""What a number is worth only together with: the machine, the versions, the code."""

import os
import platform
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import psutil

LIBRARIES = ("grpcio", "protobuf", "rocksdict", "anyio")


def facts() -> dict[str, str]:
    """Name -> value, in the order in which a reader wants them."""
    return {
        "CPU": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "file system": _file_system(Path(tempfile.gettempdir())),
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "commit": _commit(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    """The type of the file system that holds `path`: it decides what a sync costs."""
    holding = [part for part in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(part.mountpoint)]
    return max(holding, key=lambda part: len(part.mountpoint)).fstype if holding else "unknown"


def _commit() -> str:
    """The code that was measured; a plus says that the tree had changes."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
