"""Unpacks our own tar archives, also with Debian 12's Python (3.11.2), which does not know `filter`."""

import tarfile
from pathlib import Path
from typing import Any


def unpack(archive: Path, directory: Path) -> None:
    """Unpack an archive into a directory, which is made."""
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as file:
        file.extractall(directory, **safe)  # noqa: S202 - made by us
