"""Finds the files of an import and cuts large CSVs into pieces: one work item for each. Runs on the driver, parses nothing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from adapter.errors import ConfigError
from adapter.formats import broker_places
from adapter.formats.broker_places import JSON_FILE
from adapter.formats.files import BACKUP, LMQ_FILE
from adapter.pipeline.config import OffsetFormat
from adapter.pipeline.places import Place

NAMES: dict[OffsetFormat, tuple[str, ...]] = {
    "rocketmq": (JSON_FILE, LMQ_FILE),
    "rocketmq-client": ("offsets.json",),
    "kafka-csv": ("*.csv",),
}
# A piece is parsed as a whole, in some ten times as many bytes of memory.
PIECE_BYTES = 8 * 2**20
_WILD = frozenset("*?[")  # in a URL, ? begins its parameters


@dataclass(frozen=True)
class Piece:
    """Complete lines of a file: the bytes from `start` to `end`; the first line has the number `line`, counted from 1."""

    file: Place
    line: int
    start: int
    end: int


def pieces(files: Iterable[Place], kind: OffsetFormat) -> list[Piece]:
    """The work items, in the order of the files. JSON files stay whole. Raises ConfigError if a CSV cannot be read."""
    if kind == "kafka-csv":
        return [piece for file in files for piece in cut(file)]
    return [Piece(file, 1, 0, file.size() or backup(file).size() or 0) for file in files]


def cut(file: Place, size: int = PIECE_BYTES) -> list[Piece]:
    """Split a file at line breaks into pieces of about `size` bytes. Raises ConfigError if it cannot be read."""
    pieces: list[Piece] = []
    line, start, at = 1, 0, 0
    try:
        with file.open() as opened:
            while data := opened.read(size):
                last = data.rfind(b"\n") + 1
                if last:
                    pieces.append(Piece(file, line, start, at + last))
                    line += data.count(b"\n")
                    start = at + last
                at += len(data)
    except OSError as error:
        raise ConfigError(f"[import] files: {file}: cannot be read: {error.strerror or error}") from error
    return [*pieces, Piece(file, line, start, at)] if at > start else pieces


def find_files(places: Iterable[Place], kind: OffsetFormat) -> list[Place]:
    """The files that the settings name, without duplicates. Raises ConfigError for a place without a file, or not readable."""
    found: dict[Place, None] = {}
    for place in places:
        try:
            some = _files_behind(place, kind) if place.is_remote else [Place.of(path) for path in _files_at(place.path, kind)]
            if not some:
                raise ConfigError(f"[import] files: {place}: {_nothing(place, kind)}")
        except OSError as error:
            raise ConfigError(f"[import] files: {place}: cannot be read: {error.strerror or error}") from error
        found.update(dict.fromkeys(some))
    return list(found)


def doubts(files: Sequence[Place]) -> list[str]:
    """A line for each file of a broker beside which another one seems to be in use. Times at a URL tell nothing."""
    every = set(files)
    lines = []
    for file in files:
        if not file.is_remote:
            other = broker_places.in_use_instead(file.path)
        elif file.name == JSON_FILE and file.parent / LMQ_FILE in every:
            other = f"{LMQ_FILE} beside it is read, too, and a broker keeps all its groups in one of them: name that one"
        else:
            other = ""
        if other:
            lines.append(f"{file}: {other}")
    return lines


def _files_behind(place: Place, kind: OffsetFormat) -> list[Place]:
    """The files of a URL. Raises OSError."""
    if place.size() is not None or backup(place).size() is not None:
        return [place]
    if place.is_directory():
        names = [name + end for name in NAMES[kind] for end in ("", BACKUP)]
        return _matching(place, [["**", name] for name in names])
    parts = urlsplit(place.url)
    steps = parts.path.split("/")
    wild = next((at for at, step in enumerate(steps) if _WILD & set(step)), None)
    if wild is None:
        return []
    base = Place(urlunsplit(parts._replace(path="/".join(steps[:wild]))))
    return _matching(base, [[unquote(step) for step in steps[wild:]]])


def _matching(base: Place, patterns: Sequence[Sequence[str]]) -> list[Place]:
    """The files below a directory that match a pattern; of a backup, the file that it is of. By name."""
    files = (entry.path for entry in base.entries(recursive=True) if not entry.is_directory)
    found = {path for path in files if any(_matches(path.split("/"), pattern) for pattern in patterns)}
    return [base / path for path in sorted({path.removesuffix(BACKUP) for path in found})]


def _matches(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the steps of a path match those of a pattern; ** is any number of them."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(path[at:], pattern[1:]) for at in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _files_at(place: Path, kind: OffsetFormat) -> list[Path]:
    """The files of a path, or of a pattern of paths."""
    if place.is_dir():
        names = [name + end for name in NAMES[kind] for end in ("", BACKUP)]
        return sorted({_not_backup(_below(place, path)) for name in names for path in place.rglob(name) if path.is_file()})
    if place.exists() or backup(Place.of(place)).path.exists():
        return [place]
    if _WILD & set(str(place)):
        root = Path(place.anchor)
        return sorted(path for path in root.glob(str(place.relative_to(root))) if path.is_file())
    return []


def _below(place: Path, path: Path) -> Path:
    """Check that a found file lies below its directory: a symlink must not lead to other files. Raises ConfigError."""
    if not path.resolve().is_relative_to(place.resolve()):
        raise ConfigError(
            f"[import] files: {path}: links to {path.resolve()}, out of {place}, and is not followed; name the file itself"
        )
    return path


def _nothing(place: Place, kind: OffsetFormat) -> str:
    if place.is_directory():
        return f"has no file named {' or '.join(NAMES[kind])}; name the files, or a pattern"
    named = urlsplit(place.url).path if place.is_remote else place.url
    return "no file matches" if _WILD & set(named) else "there is no such file or directory"


def backup(file: Place) -> Place:
    """RocketMQ's copy of the previous file."""
    return file.parent / (file.name + BACKUP)


def _not_backup(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(BACKUP))
