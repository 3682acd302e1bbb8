"""Which version a durable form has: a mark beside it, which is read before anything else of it is opened or written.

In a directory the mark is the file FORMAT. It is text with a checksum, so that a person can read it, and a damaged one is not
taken for another version. What has no mark is of version 1, unless something else in it says otherwise: that version existed
before the marks did. docs/upgrade.md has the rules for a new version.
"""

import json
import os
import zlib
from pathlib import Path
from typing import NamedTuple

from adapter.errors import StoreDamagedError, StoreVersionError
from adapter.runtime.durable.files import sync_directory

FILE = "FORMAT"
FIRST = 1  # the version of what has no mark
MAX_BYTES = 4096  # of a mark; a longer file is none


class Form(NamedTuple):
    """A durable form as this program writes it. `since` is the first release that reads this version."""

    name: str
    version: int = FIRST
    since: str = "0.1.0"


ADAPTER_STORE = Form("adapter store")
META_STORE = Form("Meta Service store")
META_ETCD = Form("Meta Service in etcd")
OFFSET_FILE = Form("offset file")
BACKUP = Form("backup", since="0.3.0")


def encode(form: Form) -> bytes:
    """The mark of a form: one line of JSON, then the CRC-32 of that line."""
    return marked(json.dumps(form._asdict()).encode())


def marked(line: bytes) -> bytes:
    """A line with its checksum."""
    return line + b"\n%08x\n" % zlib.crc32(line)


def unmarked(data: bytes) -> bytes:
    """The inverse of `marked`. Raises ValueError if the checksum is wrong."""
    line = data.partition(b"\n")[0]
    if data != marked(line):
        raise ValueError("its checksum is wrong")
    return line


def decode(data: bytes) -> Form:
    """The inverse of `encode`; fields that a later version has added are ignored. Raises ValueError for a damaged mark."""
    found = json.loads(unmarked(data))
    form = Form(str(found["name"]), found["version"], str(found["since"]))
    if type(form.version) is not int or form.version < FIRST:
        raise ValueError(f"it has version {form.version}")
    return form


def check(form: Form, data: bytes, where: str, advice: str) -> None:
    """Refuse what this program cannot read. `where` names the mark, `advice` says what to do about a damaged one.

    Raises StoreVersionError for a later version, or for a form of another name; StoreDamagedError for a damaged mark.
    """
    try:
        found = decode(data)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamagedError(f"{where}: is damaged, so the version of what it marks is unknown. {advice}") from error
    if found.name != form.name:
        raise StoreVersionError(
            f"{where}: belongs to another form, {found.name!r}, and this is for {form.name!r}: give this process another place"
        )
    refuse_later(form, found.version, where, found.since)


def refuse_later(form: Form, version: int, where: str, since: str = "") -> None:
    """Raise StoreVersionError if `version` is later than the one that this program reads. `since`: which release reads it."""
    if version > form.version:
        raise StoreVersionError(
            f"{where}: the {form.name} has version {version}, and this program reads version {form.version}: start "
            f"{f'offset-adapter {since} or later' if since else 'a later offset-adapter'}; docs/upgrade.md tells how to go back"
        )


def read(directory: Path) -> bytes | None:
    """The mark of a directory; None if it has none. Raises OSError."""
    try:
        with (directory / FILE).open("rb") as file:
            return file.read(MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_marked(form: Form, directory: Path) -> bool:
    """Whether the directory has a mark; then it is checked. Raises what `check` does, or OSError."""
    data = read(directory)
    if data is None:
        return False
    advice = f"Nothing was changed. Restore that file, or delete it alone: the {form.name} itself then says its version."
    check(form, data, str(directory / FILE), advice)
    return True


def write(form: Form, directory: Path) -> None:
    """Mark a directory, durably: it has the whole mark or none. Raises OSError."""
    fresh = directory / f"{FILE}.new"
    with fresh.open("wb") as file:
        file.write(encode(form))
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(directory / FILE)
    sync_directory(directory)
