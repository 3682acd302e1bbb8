"""What a process holds in memory, as Linux tells it."""

from pathlib import Path


def memory(pid: int, field: str) -> int:
    """Bytes in a field of its status: VmRSS now, VmHWM at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def reset_peak(pid: int) -> None:
    """Measure the peak from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
