"""CPU time and memory of processes with their children, and of the whole machine, at an instant. From /proc."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

import psutil

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user. Waiting and stolen time is not use.
BUSY = (0, 1, 2, 5, 6)
RESET_PEAK = "5"  # to clear_refs; see proc(5)


@dataclass(frozen=True)
class Used:
    """CPU seconds up to an instant, or between two; `at` is the time, or the time between."""

    at: float
    server_s: float
    client_s: float
    machine_s: float

    def since(self, earlier: "Used") -> "Used":
        """What was used since an earlier instant."""
        return Used(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    def per_million(self, commits_per_s: float) -> "Used":
        """For each million commits at such a rate; zeros without any. `at` becomes the time that they take.

        By the rate, since these edges need not be those of the window to the millisecond.
        """
        factor = 1e6 / (commits_per_s * self.at) if commits_per_s else 0.0
        return Used(*(seconds * factor for seconds in astuple(self)))


def used(servers: Iterable[int], client: int) -> Used:
    """What servers and a client have used so far."""
    servers_s, client_s = (sum(map(_cpu_s, family(pids))) for pids in (servers, [client]))
    return Used(time.monotonic(), servers_s, client_s, machine_s(Path("/proc/stat").read_text("utf-8")))


def machine_s(stat: str) -> float:
    """Busy seconds of all cores, from the text of /proc/stat."""
    ticks = [int(word) for word in stat.splitlines()[0].split()[1:]]
    return sum(ticks[at] for at in BUSY) / TICKS_PER_S


def family(pids: Iterable[int]) -> list[psutil.Process]:
    """The processes with all that descend from them."""
    parents = [psutil.Process(pid) for pid in pids]
    return [*parents, *(child for parent in parents for child in parent.children(recursive=True))]


def reset_peak(pids: Iterable[int]) -> None:
    """Let the peak memory of these processes count from now."""
    for process in family(pids):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            Path(f"/proc/{process.pid}/clear_refs").write_text(RESET_PEAK, "utf-8")


def peak_bytes(pids: Iterable[int]) -> int:
    """Peak resident memory since then, together.

    What several processes share would count as often: it is taken off at the share of now.
    """
    return sum(map(_peak, family(pids)))


def _peak(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):  # a worker that has just ended
        memory = process.memory_full_info()
        status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
        peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
        return max(peak - int(memory.rss - memory.pss), 0)
    return 0


def _cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.NoSuchProcess):  # its parent has its time
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0
