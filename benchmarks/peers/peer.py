"""The interface of a peer: a server that the benchmark starts, a client library for it, and the durability of an answer."""

import importlib
import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PAGE_CACHE = "page cache"  # answered after the write to the OS: survives a killed process, not a power cut
SYNCED = "fsync"  # answered after a sync
UNANSWERED = "no answer"

CONNECTIONS = 64  # at most, where a client library pools connections; also the smaller number of consumers

Batch = Mapping[str, Mapping[str, int]]  # group -> shard -> offset


class Connection(Protocol):
    """One client of a peer. Many tasks may commit at the same time. Whatever the library raises ends the measurement."""

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Commit one offset in a call of its own; returns when it is acknowledged."""
        ...

    async def commit_many(self, batch: Batch) -> None:
        """Commit all of them in the way that the peer does best; returns when all are acknowledged."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


class Peer(Protocol):
    """A server with its client. `start` and `stop` are called in one process, `connect` in another."""

    @property
    def facts(self) -> "Facts":
        """The facts that are shown with its results."""
        ...

    @property
    def pids(self) -> Sequence[int]:
        """The ids of the started processes; their children count too."""
        ...

    @property
    def log(self) -> str:
        """The end of their logs."""
        ...

    def missing(self) -> list[str]:
        """The programs and libraries that are missing."""
        ...

    def start(self, directory: Path) -> str:
        """Start it with its data in `directory`; returns its address. Raises RuntimeError if it does not start."""
        ...

    def stop(self) -> None:
        """Stop it, if it was started."""
        ...

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> Connection:
        """A client for this many concurrent consumers; creates what the server needs for these groups."""
        ...


@dataclass(frozen=True)
class Facts:
    """The facts about a peer that are shown with its results."""

    name: str
    durability: str  # PAGE_CACHE, SYNCED or UNANSWERED: equal is compared with equal
    promise: str  # what an answer means, as configured
    how: str  # how the client commits
    coalesces: bool = False  # its client itself puts concurrent commits into one call
    ours: bool = False
    warm_ups: int = 1  # lengths of a warm-up that the server gets before its first load


Factory = Callable[[], Peer]


def program(name: str, *places: str) -> str | None:
    """The path of a program, first in `places` (with wildcards), where Debian keeps what is not for everybody's PATH."""
    found = [path for place in places for path in Path("/").glob(f"{place.lstrip('/')}/{name}")]
    return str(max(found)) if found else shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def absent(programs: Mapping[str, str | None], *libraries: str) -> list[str]:
    """The names of what is not here: programs without a path, libraries without a module."""
    without = [
        f"{name} (Python, by make bench)" for name in libraries if importlib.util.find_spec(name.partition(".")[0]) is None
    ]
    return [name for name, path in programs.items() if path is None] + without


def library(name: str) -> Any:  # noqa: ANN401 - its types are known only where it is installed
    """A client library. They are imported by name so that everything else works, and type-checks, without them."""
    return importlib.import_module(name)
