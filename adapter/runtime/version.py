"""Which build this is: the version of pyproject.toml, and the commit. It imports little and runs nothing until it is asked."""

import re
import shlex
from functools import cache
from pathlib import Path

UNKNOWN = "unknown"
GIT_S_MAX = 10  # a file system that hangs must not hang `--version`


@cache
def version() -> str:
    """The version, as `0.1.0`, of the installed package."""
    from importlib.metadata import version  # noqa: PLC0415 - a third of the time in which a command starts

    return version("offset-adapter")


def install_extra(extra: str) -> str:
    """The command that installs what an extra of this package needs: the packages themselves, wherever this one came from."""
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - as above

    try:
        needed = requires("offset-adapter") or ()
    except PackageNotFoundError:  # a source tree that nobody installed
        return f"pip install '.[{extra}]', in the checkout"
    marker = re.compile(rf"""extra == ['"]{extra}['"]""")
    found = [requirement.partition(";")[0].strip() for requirement in needed if marker.search(requirement)]
    return "pip install " + " ".join(shlex.quote(requirement) for requirement in sorted(found))


def commit() -> str:
    """The commit that this was built of: 40 hex digits, with `-dirty` if files had been changed; or `unknown`.

    A wheel or an image has it in a file (hatch_build.py). A checkout asks git.
    """
    here = Path(__file__)
    try:
        built_of = (here.parent / "commit").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        built_of = ""
    return built_of or commit_of(here.parents[2]) or UNKNOWN


def commit_of(root: Path) -> str | None:
    """The commit of the checkout at `root`; None if it is none, or git is absent or refuses.

    A directory inside somebody else's checkout, such as a virtual environment's, is none.
    """
    if not (root / ".git").exists():
        return None
    import subprocess  # noqa: PLC0415 - few ask

    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=GIT_S_MAX, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip() or None if asked.returncode == 0 else None
