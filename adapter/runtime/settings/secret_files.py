"""Files that hold a secret. They are accepted only if nobody else can have read them; their content is never logged.

A file of this process's user, or of any other user but root, may be open to that user alone (0600). A file of root may also be
readable by its group (0640): only root gave it that group. Kubernetes makes such files for a pod with `fsGroup`, whose members
are the containers of that pod; systemd makes them as well. PostgreSQL has the same rule for its keys. Symbolic links are
followed, and what counts is the file at their end.
"""

import stat
from pathlib import Path

from adapter.errors import ConfigError
from adapter.runtime.settings.reading import read_file

TOKEN_MIN = 16  # characters: 64 bits even when it is written in hex


def read_token(path: Path, name: str) -> str:
    """Read the token in a file; `name` is its setting or option, for errors. Raises ConfigError."""
    token = read_secret(path, name)
    if len(token) < TOKEN_MIN:
        raise ConfigError(f"{name}: {path}: holds {len(token)} characters, a token needs at least {TOKEN_MIN}")
    return token


def read_secret(path: Path, name: str) -> str:
    """Read the line of printable ASCII in a file, which may be empty; `name` as in `read_token`. Raises ConfigError."""
    secret = _read(path, name).strip()
    if not secret.isprintable():
        raise ConfigError(f"{name}: {path}: is not one line of printable ASCII characters")
    return secret


def read_secret_lines(path: Path, name: str) -> list[str]:
    """Read the lines of printable ASCII in a file, without empty ones and without what begins with `#`. Raises ConfigError."""
    lines = [line.strip() for line in _read(path, name).split("\n")]
    if not all(line.isprintable() for line in lines):
        raise ConfigError(f"{name}: {path}: has other characters than printable ASCII")
    return [line for line in lines if line and not line.startswith("#")]


def _read(path: Path, name: str) -> str:
    """The text of a file that nobody else can have read. Raises ConfigError."""
    try:
        content, found = read_file(path)
        secret = content.decode("ascii")
    except OSError as error:
        raise ConfigError(f"{name}: {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: {path}: has other characters than printable ASCII") from None
    if found.st_mode & _closed_to(found.st_uid):
        raise ConfigError(
            f"{name}: {path}: others than its owner have access to it: chmod 600"
            " (a file of root may be readable by its group: chmod 640, or defaultMode: 0440 of a Kubernetes volume)"
        )
    return secret


def _closed_to(owner: int) -> int:
    """The permissions that must not be set on a file of this user."""
    if owner == 0:
        return stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
    return stat.S_IRWXG | stat.S_IRWXO
