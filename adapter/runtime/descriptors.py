"""File descriptors: what the store needs is kept for it, whoever connects. Without one for its next file it would fail.

A process begins with the most that it may have. Connections get what the store and everything else leave of it.
"""

import os
import resource
from functools import cache

import structlog

log = structlog.get_logger(__name__)

STORE_PART, STORE_MIN, STORE_MAX = 4, 32, 4_096  # of RocksDB's files: a quarter of all, within these bounds
STORE_SPARE = 32  # of them for logs, manifests and what is being written; the others are open tables
OTHERS = 128  # metrics, channels, event loops, the journal, libraries
FEW = 1_024  # below this a server is told to raise it


def raise_limit() -> None:
    """Allow this process as many open files as it may have, once, at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if limit() < FEW:
        log.warning(
            "files.few", limit=limit(), connections=connections(), help=f"raise the limit of open files (nofile) to {FEW} or more"
        )


def limit() -> int:
    """How many files may be open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def store_files() -> int:
    """How many of them are the store's."""
    return min(max(limit() // STORE_PART, STORE_MIN), STORE_MAX)


def store_tables() -> int:
    """How many tables the store may keep open."""
    return max(store_files() - STORE_SPARE, STORE_MIN)


def connections() -> int:
    """How many connections may be open."""
    return max(limit() - store_files() - OTHERS, 1)


def is_reserved(descriptor: int) -> bool:
    """True for a descriptor that no connection may have. The lowest free one is given first: all below it are in use."""
    return descriptor >= _first_reserved()


def open_files() -> int:
    """How many are open now. Reads /proc: not for the path of a call."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - of names only


def gauges() -> dict[str, tuple[str, float]]:
    """For the metrics."""
    return {
        "open_files": ("Open file descriptors of this process.", float(open_files())),
        "open_files_limit": ("How many it may have.", float(limit())),
        "connections_limit": ("How many gRPC connections may be open; the rest is kept for the store.", float(connections())),
    }


@cache
def _first_reserved() -> int:
    return connections() + OTHERS // 2
