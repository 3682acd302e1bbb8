"""Whole files for the tools. A file that is written is there as a whole or not at all. `-` is standard input or output."""

import os
import sys
from pathlib import Path

from adapter.errors import InvalidInputError

STDIO = "-"
READ_MAX_BYTES = 2**30


def name_of(path: str, standard: str) -> str:
    """The file as a message names it; `standard` for `-`."""
    return standard if path == STDIO else path


def read(path: str) -> bytes:
    """All of a file. Raises InvalidInputError when it cannot be read, or is over 1 GiB."""
    if path == STDIO:
        return sys.stdin.buffer.read()
    try:
        with Path(path).open("rb") as file:
            data = file.read(READ_MAX_BYTES + 1)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > READ_MAX_BYTES:
        raise InvalidInputError(f"{path}: is over 1 GiB; import it in parts")
    return data


def write(path: str, data: bytes) -> None:
    """Write a file anew: beside it, synced, then renamed. Raises InvalidInputError; the file is then as it was."""
    if path == STDIO:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    whole = Path(path).resolve()
    if whole.exists() and not whole.is_file():
        raise InvalidInputError(f"{path}: is not a regular file; - is standard output")
    fresh = whole.with_name(f".{whole.name}.{os.getpid()}")
    try:
        file = fresh.open("xb")
        try:
            with file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(whole)
        finally:
            fresh.unlink(missing_ok=True)
        sync_directory(whole.parent)
    except OSError as error:
        raise InvalidInputError(f"{path}: cannot be written: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """Make a rename in it durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
