"""Files that hold a secret. They are accepted only if nobody but their owner has access; their content is never logged."""

import os
import stat
from pathlib import Path

from adapter.errors import ConfigError

TOKEN_MIN = 16  # characters: 64 bits even when it is written in hex


def read_token(path: Path, name: str) -> str:
    """Read the token in a file; `name` is its setting or option, for errors. Raises ConfigError."""
    token = read_secret(path, name)
    if len(token) < TOKEN_MIN:
        raise ConfigError(f"{name}: {path}: holds {len(token)} characters, a token needs at least {TOKEN_MIN}")
    return token


def read_secret(path: Path, name: str) -> str:
    """Read the line of printable ASCII in a file, which may be empty; `name` as in `read_token`. Raises ConfigError."""
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read().strip()
    except OSError as error:
        raise ConfigError(f"{name}: {path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{name}: {path}: is not one line of printable ASCII characters") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{name}: {path}: others than its owner have access to it: chmod 600")
    if not secret.isprintable():
        raise ConfigError(f"{name}: {path}: is not one line of printable ASCII characters")
    return secret
