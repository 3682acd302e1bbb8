"""Lists the segments of journals, in local directories or behind URLs that pyarrow supports. Segments are not opened.

Open segments, temporary files and other files are ignored. A directory that cannot be listed is reported; the others are listed.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from pyarrow import fs

from adapter.errors import ConfigError
from adapter.pipeline.places import Place, listed, redacted

_DATE = re.compile(r"date=(\d{4}-\d{2}-\d{2})")
_BROKER = re.compile(r"broker=(.+)")
_NAME = re.compile(r"(\d{13})-(\d{8})\.parquet")

# A directory that is listed this long after its last change gets a new modification time by the next change: the resolution of
# file systems is milliseconds, and a server's clock may be off by seconds.
_SETTLED_NS = 60 * 10**9

_ABSENT = "does not exist (yet): is the path right?"
_NO_DIRECTORY = "is no directory: name the one that has the date=... directories"
_EMPTY = "has no segments (yet): is it the [journal] path of an adapter, or where its segments are copied to?"
_VANISHED = "went away while it was listed: was it unmounted?"
# The adapter deletes directories that became empty. A listing that such a deletion met is repeated; an unmounted disk stays away.
_ATTEMPTS = 3
_OF_BROKER = re.compile(r".*/date=[^/]*/broker=([^/]*)")


class Segment(NamedTuple):
    """A segment: one file of a journal. `size` in bytes. `root` may be a URL with credentials: show `path` instead."""

    root: str
    date: str
    broker: str
    run: int
    number: int
    size: int

    @property
    def key(self) -> str:
        """The key of the segment's run in a stream's offset."""
        return run_key(self.broker, self.run)

    @property
    def relative(self) -> str:
        """Its path below the root."""
        return f"date={self.date}/broker={quote(self.broker, safe='')}/{self.run:013}-{self.number:08}.parquet"

    @property
    def path(self) -> str:
        """Its path or URL without credentials, as in the column `segment`."""
        return str(Place(self.root) / self.relative)

    def __repr__(self) -> str:
        """The path and the size."""
        return f"Segment({self.path!r}, {self.size} bytes)"


@lru_cache(maxsize=4096)  # called for each segment
def run_key(broker: str, run: int) -> str:
    """`broker/run`, the broker's name quoted as in a path."""
    return f"{quote(broker, safe='')}/{run}"


def parse_run_key(key: str) -> tuple[str, int]:
    """The broker's name and the run of a `run_key`."""
    broker, _, run = key.rpartition("/")
    return unquote(broker), int(run)


@dataclass(frozen=True)
class Listing:
    """All segments by run and number, and the problems by path or URL, without credentials."""

    runs: Mapping[str, Mapping[int, Segment]]
    troubles: Mapping[str, str]

    @property
    def failures(self) -> Mapping[str, str]:
        """The problems that may hide segments: all except that a directory is still empty."""
        return {path: trouble for path, trouble in self.troubles.items() if trouble not in {_ABSENT, _EMPTY}}

    def hiding(self, broker: str) -> Mapping[str, str]:
        """The problems that may hide segments of a broker: all except those of other brokers' directories."""
        mine = quote(broker, safe="")
        return {
            path: trouble
            for path, trouble in self.troubles.items()
            if not (found := _OF_BROKER.fullmatch(path)) or found[1] == mine
        }

    @property
    def newest_date(self) -> str:
        """The newest date of a segment; empty if there is none."""
        return max((segment.date for run in self.runs.values() for segment in run.values()), default="")


def roots_of(paths: Sequence[str]) -> list[str]:
    """The directories as absolute paths, without duplicates. URLs that differ in their credentials only are one: the first."""
    roots = (_without_slash(path) if "://" in path else str(Path(path).absolute()) for path in paths)
    return list({redacted(root): root for root in reversed(list(roots))}.values())[::-1]


def _without_slash(url: str) -> str:
    path, mark, parameters = url.partition("?")
    return f"{path.rstrip('/')}{mark}{parameters}"


class Wanted(Protocol):
    """Which segments are wanted, by what their paths tell."""

    def date(self, text: str) -> bool:
        """Whether those of this date, YYYY-MM-DD."""

    def broker(self, name: str) -> bool:
        """Whether those of this broker."""

    def run(self, number: int) -> bool:
        """Whether those of this run."""


class Lister:
    """Lists the roots repeatedly. A local directory that has not changed is not read again.

    `wanted`: what to list; None: everything. Raises ConfigError if no root is given, and for a URL that cannot be opened.
    """

    def __init__(self, roots: Sequence[str], wanted: Wanted | None = None) -> None:
        if not roots:
            raise ConfigError(
                "offset-journal: no path; name a directory of journals by load(path), or several by the option `paths`"
            )
        self._wanted = wanted
        self._roots = [(root, *Place(root).opened()) for root in roots]
        self._settled: dict[tuple[str, str], tuple[int, list[Segment]]] = {}
        self._logged: Mapping[str, str] = {}
        self._first = True

    def list(self) -> Listing:
        """The segments now. A problem is logged when it begins.

        Raises ConfigError if none of the roots exists at the first call.
        """
        for _ in range(_ATTEMPTS):
            listing = self._listed()
            if _VANISHED not in listing.troubles.values():
                break
        self._check(listing.troubles)
        return listing

    def _listed(self) -> Listing:
        troubles: dict[str, str] = {}
        runs: dict[str, dict[int, Segment]] = {}
        for root, files, base in self._roots:
            found = 0
            for segment in self._segments(root, files, base, troubles):
                found += 1
                # A copy in another root or under another date is the same segment: broker, run and number identify it.
                runs.setdefault(segment.key, {}).setdefault(segment.number, segment)
            if not found and not self._wanted:
                troubles.setdefault(redacted(root), _EMPTY)
        return Listing(runs, troubles)

    def _check(self, troubles: Mapping[str, str]) -> None:
        if self._first and all(troubles.get(redacted(root), _EMPTY) != _EMPTY for root, _, _ in self._roots):
            text = "; ".join(f"{path}: {trouble}" for path, trouble in troubles.items())
            raise ConfigError(f"offset-journal: none of the paths is a directory of journals: {text}")
        self._first = False
        for path, trouble in troubles.items():
            if self._logged.get(path) != trouble:
                _log_trouble(path, trouble)
        self._logged = troubles

    def _segments(self, root: str, files: fs.FileSystem, base: str, troubles: dict[str, str]) -> Iterator[Segment]:
        try:
            kind = files.get_file_info(base).type
        except OSError as error:
            troubles[redacted(root)] = _problem_of(error)
            return
        if kind != fs.FileType.Directory:
            troubles[redacted(root)] = _ABSENT if kind == fs.FileType.NotFound else _NO_DIRECTORY
            return
        wanted = self._wanted
        for day, date_text in _folders(files, base, _DATE, troubles):
            if not _is_date(date_text) or (wanted and not wanted.date(date_text)):
                continue
            for folder, quoted in _folders(files, day.path, _BROKER, troubles):
                broker = unquote(quoted)
                if quote(broker, safe="") == quoted and (not wanted or wanted.broker(broker)):
                    found = self._of_broker(files, folder, Segment(root, date_text, broker, 0, 0, 0), troubles)
                    yield from (segment for segment in found if not wanted or wanted.run(segment.run))

    def _of_broker(self, files: fs.FileSystem, folder: fs.FileInfo, like: Segment, troubles: dict[str, str]) -> Sequence[Segment]:
        changed: int | None = folder.mtime_ns  # None on storage without modification times, such as S3
        place = (like.root, folder.path)
        known = self._settled.get(place)
        if known and known[0] == changed:
            return known[1]
        began = time.time_ns()
        found = []
        for info in _entries(files, folder.path, troubles):
            name = _NAME.fullmatch(info.base_name)
            if name and info.type == fs.FileType.File:
                found.append(like._replace(run=int(name[1]), number=int(name[2]), size=info.size))
        if changed is not None and changed + _SETTLED_NS < began and folder.path not in troubles:
            self._settled[place] = (changed, found)
        else:
            self._settled.pop(place, None)
        return found


def _folders(
    files: fs.FileSystem, path: str, name: re.Pattern[str], troubles: dict[str, str]
) -> Iterator[tuple[fs.FileInfo, str]]:
    """The directories with names of the form `NAME=value`, in order, with their values."""
    for info in sorted(_entries(files, path, troubles), key=lambda info: str(info.path)):
        found = name.fullmatch(info.base_name)
        if found and info.type == fs.FileType.Directory:
            yield info, found[1]


def _entries(files: fs.FileSystem, path: str, troubles: dict[str, str]) -> Sequence[fs.FileInfo]:
    try:
        return listed(files, path)
    except FileNotFoundError:
        troubles[path] = _VANISHED
        return []
    except OSError as error:
        troubles[path] = _problem_of(error)
        return []


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _log_trouble(path: str, trouble: str) -> None:
    import structlog  # noqa: PLC0415 - takes 90 ms to import, in each process that Spark starts for a step of a query

    log = structlog.get_logger(__name__)
    log.warning("journal.not_listed", path=path, trouble=trouble)


def _problem_of(error: OSError) -> str:
    return f"cannot be listed: {error}"
