"""Exported offset files, unpacked."""

import subprocess
from pathlib import Path


def unpack(archive: Path, directory: Path) -> Path:
    """The directory, with what is in the archive."""
    directory.mkdir(parents=True)
    subprocess.run(["tar", "-xzf", archive, "-C", directory], check=True)
    return directory
