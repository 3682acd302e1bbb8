"""How much space the file system of a store has, for the metrics. A disk that hangs delays no scrape.

`statvfs` of a network file system or of a failing disk may hang for ever, and no thread can be made to leave it. It is called in
a daemon thread of its own, at most one at a time, for which a scrape waits shortly: without an answer, these metrics are absent.
"""

import os
import threading
from collections.abc import Callable
from pathlib import Path

WAIT_S = 0.2  # for an answer that takes microseconds; a scrape's own timeout is 10 s by default


class DiskSpace:
    """The space of the file system that holds `path`."""

    def __init__(self, path: Path, ask: Callable[[Path], os.statvfs_result] = os.statvfs) -> None:
        self._path = path
        self._ask = ask
        self._asking: threading.Thread | None = None
        self._found: os.statvfs_result | None = None

    def gauges(self) -> dict[str, tuple[str, float]]:
        """The values for the metrics: name -> (help, value). Empty while the path is not there, or the disk does not answer.

        For one thread at a time. Waits 0.2 s at most, and not at all while a former question has no answer.
        """
        found = self._look()
        if found is None:
            return {}
        return {
            "store_disk_free_bytes": (
                "Free space of the file system of the store, for a process without privileges.",
                float(found.f_bavail * found.f_frsize),
            ),
            "store_disk_size_bytes": ("Size of the file system of the store.", float(found.f_blocks * found.f_frsize)),
        }

    def _look(self) -> os.statvfs_result | None:
        if self._asking and self._asking.is_alive():
            return None
        self._found = None
        self._asking = threading.Thread(target=self._run, name="disk.space", daemon=True)
        self._asking.start()
        self._asking.join(WAIT_S)
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._ask(self._path)
        except OSError:
            self._found = None  # its metrics are absent; the store itself says what is wrong with the disk
