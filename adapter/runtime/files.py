"""Whole files for the tools. A file that is written is there as a whole or not at all. `-` is standard input or output."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from adapter.errors import InvalidInputError

STDIO = "-"


def name_of(path: str, standard: str) -> str:
    """The file as a message names it; `standard` for `-`."""
    return standard if path == STDIO else path


@contextmanager
def on_disk(path: str) -> Iterator[Path]:
    """The file, or a copy of standard input that is gone at the end: one that can be read from any place. Raises OSError."""
    if path != STDIO:
        yield Path(path)
        return
    with tempfile.NamedTemporaryFile(prefix="offset-adapter-") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)


def write(path: str, data: bytes) -> None:
    """Write a file anew: beside it, synced, then renamed. Raises InvalidInputError; the file is then as it was."""
    if path == STDIO:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """Takes the place and the mode of `path` once it is whole and synced. Raises InvalidInputError; all is then as it was."""
    whole = Path(path).resolve()
    if whole.exists() and not whole.is_file():
        raise InvalidInputError(f"{path}: is neither a regular file nor a new one")
    fresh = whole.with_name(f".{whole.name}.{os.getpid()}")
    try:
        file = fresh.open("wb")  # a process of the same pid may have been killed here: in a container they begin anew
        try:
            with file:
                if whole.exists():  # whoever could read it still can
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
    """Make a rename in it durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
