"""Finds the files of an import and cuts large CSVs into pieces: one work item for each. Runs on the driver, parses nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from adapter.errors import ConfigError
from adapter.formats.files import BACKUP
from adapter.pipeline.config import OffsetFormat

NAMES: dict[OffsetFormat, tuple[str, ...]] = {
    "rocketmq": ("consumerOffset.json", "lmqConsumerOffset.json"),
    "rocketmq-client": ("offsets.json",),
    "kafka-csv": ("*.csv",),
}
# A piece is parsed as a whole, in some ten times as many bytes of memory.
PIECE_BYTES = 8 * 2**20
_WILD = frozenset("*?[")


@dataclass(frozen=True)
class Piece:
    """Complete lines of a file: the bytes from `start` to `end`; the first line has the number `line`, counted from 1."""

    file: str
    line: int
    start: int
    end: int


def pieces(files: Iterable[Path], kind: OffsetFormat) -> list[Piece]:
    """The work items, in the order of the files. JSON files stay whole. Raises ConfigError if a CSV cannot be read."""
    if kind == "kafka-csv":
        return [piece for path in files for piece in cut(path)]
    return [Piece(str(path), 1, 0, _size(path)) for path in files]


def _size(path: Path) -> int:
    return next((some.stat().st_size for some in (path, backup(path)) if some.exists()), 0)


def cut(path: Path, size: int = PIECE_BYTES) -> list[Piece]:
    """Split a file at line breaks into pieces of about `size` bytes. Raises ConfigError if it cannot be read."""
    pieces: list[Piece] = []
    line, start, at = 1, 0, 0
    try:
        with path.open("rb") as file:
            while data := file.read(size):
                last = data.rfind(b"\n") + 1
                if last:
                    pieces.append(Piece(str(path), line, start, at + last))
                    line += data.count(b"\n")
                    start = at + last
                at += len(data)
    except OSError as error:
        raise ConfigError(f"[import] files: {path}: cannot be read: {error.strerror}") from error
    return [*pieces, Piece(str(path), line, start, at)] if at > start else pieces


def find_files(places: Iterable[Path], kind: OffsetFormat) -> list[Path]:
    """The files that the settings name, without duplicates. Raises ConfigError for a path without a file."""
    found: dict[Path, None] = {}
    for place in (place.absolute() for place in places):
        some = _files_at(place, kind)
        if not some:
            raise ConfigError(f"[import] files: {place}: {_nothing(place, kind)}")
        found.update(dict.fromkeys(some))
    return list(found)


def _files_at(place: Path, kind: OffsetFormat) -> list[Path]:
    if place.is_dir():
        names = [name + end for name in NAMES[kind] for end in ("", BACKUP)]
        return sorted({_not_backup(_below(place, path)) for name in names for path in place.rglob(name) if path.is_file()})
    if place.exists() or backup(place).exists():
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


def _nothing(place: Path, kind: OffsetFormat) -> str:
    if place.is_dir():
        return f"has no file named {' or '.join(NAMES[kind])}; name the files, or a pattern"
    return "no file matches" if _WILD & set(str(place)) else "there is no such file or directory"


def backup(path: Path) -> Path:
    """RocketMQ's copy of the previous file."""
    return path.with_name(path.name + BACKUP)


def _not_backup(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(BACKUP))
