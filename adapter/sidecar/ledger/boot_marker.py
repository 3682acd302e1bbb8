"""The file `running`, which is there while an adapter has the store open: it names the boot of the machine and `wal_sync`.

Found at an open with another boot's id, it shows that the machine went down under a running adapter. Acknowledged writes that
were not synced then left no trace on the disk: neither in the WAL nor in the watermark.
"""

import os
from pathlib import Path

from adapter.runtime.durable.files import sync_directory
from adapter.sidecar.config import WalSync

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_went_down(path: Path) -> bool:
    """True if unsynced acknowledged writes of a former adapter may be lost. Raises OSError."""
    try:
        boot, _, wal_sync = path.read_text(encoding="utf-8", errors="replace").strip().partition(" ")
    except FileNotFoundError:
        return False
    return boot != _boot_id() and wal_sync != "always"


def begin(path: Path, wal_sync: WalSync) -> None:
    """Write the file, synced. Raises OSError."""
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(f"{_boot_id()} {wal_sync}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_directory(path.parent)


def end(path: Path) -> None:
    """Remove the file: everything is synced. Raises OSError."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def _boot_id() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip()
