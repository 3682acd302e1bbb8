"""The facts that a measured number depends on (machine, versions, commit), and the CPU time and memory of a process."""

import os
import platform
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent  # the working directory for `python -m benchmarks`
LIBRARIES = ("grpcio", "protobuf", "rocksdict", "anyio", "uvloop")


def facts() -> dict[str, str]:
    """Fact -> value, in the order in which they are printed."""
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


def cpu_s(pid: int) -> float:
    """Seconds of CPU time, user and system, that a process has used since its start."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process now, and its peak, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    rss, peak = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return rss, peak


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(path: Path) -> str:
    """The type of the file system that holds `path`; the cost of an fsync depends on it."""
    holding = [part for part in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(part.mountpoint)]
    return max(holding, key=lambda part: len(part.mountpoint)).fstype if holding else "unknown"


def _commit() -> str:
    """The commit that was measured, followed by `+` if the tree had uncommitted changes; `unknown` outside a git checkout."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
