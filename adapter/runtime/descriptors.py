"""File descriptors: some are reserved for the store, which would fail without one for its next file.

A process raises its limit to the most that it may have. Connections get what the store and everything else leave of it.
"""

import os
import resource
from functools import cache

import structlog

log = structlog.get_logger(__name__)

STORE_PART, STORE_MIN, STORE_MAX = 4, 32, 4_096  # files of RocksDB: a quarter of the limit, within these bounds
STORE_SPARE = 32  # of them for logs, manifests and what is being written; the others are open tables
OTHERS = 128  # metrics, channels, event loops, the journal, libraries
FEW = 1_024  # below this limit a server logs a warning


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit; called once, at the start of a process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if limit() < FEW:
        log.warning(
            "files.few", limit=limit(), connections=connections(), help=f"raise the limit of open files (nofile) to {FEW} or more"
        )


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def store_files() -> int:
    """Return how many of them are reserved for the store."""
    return min(max(limit() // STORE_PART, STORE_MIN), STORE_MAX)


def store_tables() -> int:
    """Return how many table files the store may keep open."""
    return max(store_files() - STORE_SPARE, STORE_MIN)


def connections() -> int:
    """Return how many gRPC connections may be open."""
    return max(limit() - store_files() - OTHERS, 1)


def is_reserved(descriptor: int) -> bool:
    """True for a descriptor that no connection may use. The kernel gives the lowest free one: all below it are in use."""
    return descriptor >= _first_reserved()


def open_files() -> int:
    """Return how many files are open now. Reads /proc: too slow for each call."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only names are needed


def gauges() -> dict[str, tuple[str, float]]:
    """Return the values for the metrics: name -> (help, value)."""
    return {
        "open_files": ("Open file descriptors of this process.", float(open_files())),
        "open_files_limit": ("How many it may have.", float(limit())),
        "connections_limit": ("How many gRPC connections may be open; the rest is kept for the store.", float(connections())),
    }


@cache
def _first_reserved() -> int:
    return connections() + OTHERS // 2
