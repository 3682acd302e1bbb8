"""Files that the command reads and writes. A file is replaced as a whole or not at all. `-` is standard input or output."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwuid
from typing import IO

from adapter.errors import InvalidInputError, StorageFailedError

STDIO = "-"


def name_of(path: str, standard: str) -> str:
    """Return the name of a file for messages; `standard` for `-`."""
    return standard if path == STDIO else path


@contextmanager
def on_disk(path: str) -> Iterator[Path]:
    """Yield a seekable file: `path`, or a temporary copy of standard input. Raises OSError."""
    if path != STDIO:
        yield Path(path)
        return
    with tempfile.NamedTemporaryFile(prefix="offset-adapter-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)


def write(path: str, data: bytes) -> None:
    """Replace a file: write a new one beside it, sync it, rename it. Raises InvalidInputError; the file is unchanged then."""
    if path == STDIO:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path`, with its mode, once it is synced. Raises InvalidInputError; `path` is unchanged then."""
    whole = Path(path).resolve()
    if whole.exists() and not whole.is_file():
        raise InvalidInputError(f"{path}: is neither a regular file nor a new one")
    fresh = whole.with_name(f".{whole.name}.{os.getpid()}")
    try:
        file = fresh.open("wb")  # overwrites what a killed process of the same pid left: in a container pids repeat
        try:
            with file:
                if whole.exists():  # the same users can read it
                    os.fchmod(file.fileno(), stat.S_IMODE(whole.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(whole)
        finally:
            fresh.unlink(missing_ok=True)
        sync_directory(whole.parent)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written: {error.strerror or error}") from error


def sync_directory(path: Path) -> None:
    """Sync a directory, which makes a rename in it durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def refuse_root_for(path: Path) -> None:
    """Raise StorageFailedError if this is root and `path` belongs to another user, who could not read what root writes there."""
    owner = path.stat().st_uid
    if os.geteuid() == 0 and owner != 0:
        name = user_name(owner)
        raise StorageFailedError(f"{path}: belongs to {name}, who could not open what root writes there: run this as {name}")


def user_name(uid: int) -> str:
    """The name of a user; the number, if it has none."""
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
