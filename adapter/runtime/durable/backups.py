"""A backup on disk: the files of a store's database in `db`, and `backup.json`, which says what they are. Puts one back.

A backup is a directory that stands for itself, written once and never changed. Where several of one store are beside each other,
they share files by hard links. Knows RocksDB's files, and nothing of what is in them.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from adapter.errors import InvalidInputError, StoreDamagedError
from adapter.runtime.clocks import wall_ms
from adapter.runtime.durable import format_mark, rocks
from adapter.runtime.durable.checkpoint import File
from adapter.runtime.durable.files import refuse_root_for, sync_directory
from adapter.runtime.durable.format_mark import BACKUP
from adapter.runtime.times import utc

MANIFEST = "backup.json"
DATABASE = "db"
ADAPTER, META = "adapter", "meta"  # kinds of stores
WATERMARK = "watermark"
RESTORING = "db.restoring"  # beside a store's `db`: what a restore has not finished
# One of these in a directory shows that there is a store, or was one.
_OF_A_STORE = (DATABASE, "running", format_mark.FILE, "db.repaired", WATERMARK)
_NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z", re.ASCII)  # of a backup: its time in UTC
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}", re.ASCII)
# Write counters that a store has not used between a backup and `unused_seq`: more than it can have written meanwhile.
_MOST_WRITES_PER_MS, _MOST_WRITES_IN_A_STEP_OF_THE_CLOCK = 2**13, 2**32


class Backup(NamedTuple):
    """What `backup.json` says. `kind`: ADAPTER or META. `store_id`, and SHA-256 of files, are hexadecimal there.

    `seq`: a write counter that the database has reached at least; `rows`: how many records it has. `broker` is empty for a Meta
    Service. `version` is that of the program which wrote the store.
    """

    path: Path
    kind: str
    store_id: bytes
    seq: int
    rows: int
    taken_at_ms: int
    broker: str
    version: str
    files: tuple[File, ...]

    @property
    def database(self) -> Path:
        """The directory of the files."""
        return self.path / DATABASE

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def taken_at(self) -> str:
        """When it was taken."""
        return utc(self.taken_at_ms)

    def write(self) -> None:
        """Write `backup.json`, synced. Raises OSError."""
        values = self._asdict() | {
            "store_id": self.store_id.hex(),
            "files": [file._asdict() | {"sha256": file.sha256.hex()} for file in self.files],
        }
        del values["path"]
        with (self.path / MANIFEST).open("wb") as file:
            # `version` is that of the form, as in every format mark.
            values["program"] = values.pop("version")
            file.write(format_mark.marked(json.dumps({**BACKUP._asdict(), **values}).encode()))
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: Path) -> "Backup":
        """Read `backup.json`. Raises InvalidInputError if there is none, StoreDamagedError, StoreVersionError."""
        manifest = path / MANIFEST
        try:
            data = manifest.read_bytes()
        except OSError as error:
            raise InvalidInputError(f"{path}: is no backup: {manifest}: {error.strerror}") from error
        format_mark.check(BACKUP, data, str(manifest), "Take another backup.")
        try:
            values = json.loads(format_mark.unmarked(data))
            files = tuple(_file(**file) for file in values["files"])
            names = ("kind", "store_id", "seq", "rows", "taken_at_ms", "broker", "program")
            kind, store_id, seq, rows, taken_at_ms, broker, program = (values[name] for name in names)
            return cls(path, kind, bytes.fromhex(store_id), seq, rows, taken_at_ms, broker, program, files)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamagedError(f"{manifest}: is damaged: {error}. Take another backup.") from error

    def damaged(self) -> dict[str, str]:
        """The files that are not as they were written, and why. Reads all of them. Raises OSError but for a missing file."""
        found = {}
        for name, size, sha256 in self.files:
            try:
                with (self.database / name).open("rb") as file:
                    has = os.fstat(file.fileno()).st_size
                    if has != size:
                        found[name] = f"has {has:,} bytes, not {size:,}"
                    elif hashlib.file_digest(file, "sha256").digest() != sha256:
                        found[name] = "has other content than was written"
            except FileNotFoundError:
                found[name] = "is not there"
        return found

    def check_files(self) -> None:
        """Raise StoreDamagedError, with the name of each file that is not as it was written."""
        try:
            damaged = self.damaged()
        except OSError as error:
            raise StoreDamagedError(f"{error.filename}: cannot be read: {error.strerror}. Restore another backup.") from error
        if damaged:
            lines = (f"{self.database / name}: {why}" for name, why in damaged.items())
            raise StoreDamagedError("\n".join([*lines, f"{self.path}: is damaged; restore another backup"]))

    def unused_seq(self, seq: int) -> int:
        """A write counter that no store used which went on from this backup, nor one that was put back from it earlier.

        `seq`: the one that the backup has reached. So no two values ever get the same.
        """
        elapsed_ms = max(wall_ms() - self.taken_at_ms, 0)
        return seq + elapsed_ms * _MOST_WRITES_PER_MS + _MOST_WRITES_IN_A_STEP_OF_THE_CLOCK


def backups_in(directory: Path) -> list[Path]:
    """The backups in a directory, the oldest first. Raises OSError."""
    return sorted(entry for entry in directory.iterdir() if _NAME.fullmatch(entry.name))


def name_at(taken_at_ms: int) -> str:
    """The name of a backup that was taken then (Unix ms)."""
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(taken_at_ms / 1000)) + f".{taken_at_ms % 1000:03}Z"


def _file(name: str, size: int, sha256: str) -> File:
    if not is_file_name(name):
        raise ValueError(f"{name!r} is no name of a file of a store")
    return File(name, size, bytes.fromhex(sha256))


def is_file_name(name: str) -> bool:
    """Whether a file of a backup may be named so: it stays in its directory."""
    return bool(_FILE_NAME.fullmatch(name))


def find(path: Path, kind: str) -> Backup:
    """The backup at `path`, or the newest one in that directory, checked as a whole. Reads all of it.

    Raises InvalidInputError if there is none, or one of the other kind; StoreDamagedError, StoreVersionError.
    """
    try:
        place = path if (path / MANIFEST).exists() else max(backups_in(path), default=path)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
    if place == path and not (path / MANIFEST).exists():
        raise InvalidInputError(f"{path}: is no backup, and has none in it: name what `backup` printed, or its directory")
    found = Backup.load(place)
    if found.kind != kind:
        command = "restore" if found.kind == ADAPTER else "meta restore"
        raise InvalidInputError(f"{place}: is a backup of another kind of store ({found.kind}): use `offset-adapter {command}`")
    found.check_files()
    return found


def refuse_unfinished(path: Path) -> None:
    """Raise StoreDamagedError if a restore into this directory is under way, or was stopped before its end."""
    if (path / RESTORING).exists():
        raise StoreDamagedError(
            f"{path}: a restore has not come to its end here. Let it end, or run it again; or delete {path / RESTORING} and all "
            "that is beside it, to begin with an empty store"
        )


def make_directory(path: Path) -> None:
    """Make the directory of a store, unless it is there. Raises StorageFailedError if this is root in another user's; OSError."""
    refuse_root_for(next(place for place in (path, *path.parents) if place.exists()))
    path.mkdir(0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def putting_back(backup: Backup, path: Path) -> Iterator[Path]:
    """Yield a copy of the database of a backup, to be changed; when the block ends without an error, it is the store at `path`.

    Before that `path` is no store: `refuse_unfinished` says so, and this can be repeated. The caller keeps other processes from
    opening it. Blocks. Raises InvalidInputError unless there is no store at `path`; DiskFullError, StorageFailedError.
    """
    fresh, watermark = path / RESTORING, path / WATERMARK
    try:
        there = next((name for name in _OF_A_STORE if _is_there(path / name)), None)
        # With it, a watermark is what the restore had begun.
        if there and not (fresh.exists() and there == WATERMARK):
            raise InvalidInputError(
                f"{path}: there is a store already ({there}). To put the backup in its place, stop what uses it, and move the "
                f"whole directory away: mv {path} {path}.before"
            )
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(0o700)
        try:
            for name, _, _ in backup.files:
                shutil.copyfile(backup.database / name, fresh / name)
            yield fresh
        except Exception:
            if not watermark.exists():  # as it was before
                shutil.rmtree(fresh, ignore_errors=True)
            raise
        rocks.publish(fresh, path / DATABASE)
        sync_directory(path)
    except OSError as error:
        raise rocks.unusable(error, path) from error


def _is_there(path: Path) -> bool:
    """Whether there is a file, or a directory with something in it."""
    return any(path.iterdir()) if path.is_dir() else path.exists()
