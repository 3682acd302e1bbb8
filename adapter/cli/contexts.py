"""Contexts: names for the servers that commands call, in a file of the user, so that a folder does not decide who is asked.

`contexts.toml` below $XDG_CONFIG_HOME/offset-adapter (else ~/.config/offset-adapter) may be edited by hand. Commands that change
it take their turn, and replace it as a whole. It has no secret: only where the file with the token is.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from adapter.errors import ConfigError, InvalidInputError
from adapter.runtime.settings.addresses import check_target

VARIABLE = "OFFSET_ADAPTER_CONTEXT"
_UNIX = "unix:"
_ADDRESSES = ("address", "meta")
_FILES = ("token_file", "tls_ca", "tls_cert", "tls_key")
_HEAD = "# Written by `offset-adapter context`. It may be edited; comments are lost when a command changes it.\n"


class Context(NamedTuple):
    """Whom commands call. Empty: not said. `address` is the adapter's, `meta` the Meta Service's."""

    address: str = ""
    meta: str = ""
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


@dataclass
class Contexts:
    """What the file has: the name of the current context (empty: none), and all by their names."""

    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str, source: str) -> Context:
        """The context of a name, which stands in `source`. Raises ConfigError."""
        if name in self.by_name:
            return self.by_name[name]
        there = f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "there is none"
        raise ConfigError(
            f"{source}: no context {name!r} ({there}); offset-adapter context set {name} --address ADDRESS makes it"
        )


def path() -> Path | None:
    """The file of this user, whether it exists or not; None for a user without a home directory."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not base.startswith("/"):  # a relative path is to be ignored, says XDG's Base Directory Specification
        base = os.path.expanduser("~/.config")  # noqa: PTH111 - Path's raises without a home
    return Path(base) / "offset-adapter" / "contexts.toml" if base.startswith("/") else None


def load() -> Contexts:
    """The contexts of this user; none if there is no file. Raises ConfigError that names the file and the field."""
    place = path()
    try:
        return _read(place) if place else Contexts()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        if isinstance(error, PermissionError) and not _may_look(place):
            return Contexts()  # as in a container whose HOME is another user's: a probe must work there
        raise ConfigError(f"{place}: cannot be read: {error.strerror}") from error


def _may_look(place: Path | None) -> bool:
    """False where this user cannot even see whether there is such a file."""
    try:
        return place is not None and place.exists()
    except PermissionError:
        return False


def named(name: str | None) -> tuple[str, Context] | None:
    """The context that `--context` names, or else the environment, or else the current one; None if there is none.

    An empty name means none. Raises ConfigError.
    """
    source = "--context"
    if name is None:
        name, source = os.environ.get(VARIABLE), VARIABLE
    if name == "":
        return None
    contexts = load()
    if name is None:
        name, source = contexts.current, f"{path()}: current"
    return (name, contexts.find(name, source)) if name else None


@contextmanager
def changing() -> Iterator[Contexts]:
    """The contexts, to be changed: they are written when the block ends. Raises ConfigError, InvalidInputError.

    One command at a time: of two that change the file at once, none undoes what the other did.
    """
    import fcntl  # noqa: PLC0415 - only a change needs it

    place = path()
    if place is None:
        raise ConfigError("contexts: there is no home directory; set XDG_CONFIG_HOME to a directory where files stay")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{place.parent}: cannot be made: {error.strerror}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        contexts = load()
        yield contexts
        from adapter.runtime.durable import files  # noqa: PLC0415 - only a change needs it

        files.write(str(place), _text(contexts).encode())
    finally:
        os.close(directory)


def checked(values: Mapping[str, Any], source: str) -> Context:
    """A context of these fields. Raises ConfigError that names the field; `source` is what stands before it."""
    for name, value in values.items():
        if name not in Context._fields:
            raise ConfigError(f"{source}{name}: is not a field of a context; there are {', '.join(Context._fields)}")
        if not isinstance(value, str) or not value.isprintable():
            raise ConfigError(f"{source}{name}: {value!r} is not a text of printable characters")
    context = Context(**values)
    _check_paths(context, source)
    if not context.tls_ca and (context.tls_cert or context.tls_key):
        raise ConfigError(f"{source}tls_ca: is missing, which verifies the server")
    if bool(context.tls_cert) is not bool(context.tls_key):
        raise ConfigError(f"{source}tls_cert: tls_cert and tls_key belong together: give both or none")
    return context


def _check_paths(context: Context, source: str) -> None:
    for name in _ADDRESSES:
        if address := getattr(context, name):
            try:
                check_target(address)
            except ValueError as error:
                raise ConfigError(f"{source}{name}: {error}, nor unix:PATH") from None
            if address.startswith(_UNIX) and not address.startswith(f"{_UNIX}/"):
                raise ConfigError(f"{source}{name}: {address!r} is of another socket in each directory; write its whole path")
    for name in _FILES:
        if (file := getattr(context, name)) and not file.startswith("/"):
            raise ConfigError(f"{source}{name}: {file!r} is another file in each directory; write its whole path")


def absolute(name: str, value: str) -> str:
    """A value as it was typed for a field, with its path as seen from this directory."""
    if name in _FILES and value:
        return str(Path(value).expanduser().absolute())
    if name in _ADDRESSES and value.startswith(_UNIX):
        return f"{_UNIX}{Path(value.removeprefix(_UNIX)).expanduser().absolute()}"
    return value


def check_name(name: str) -> str:
    """The name of a context. Raises InvalidInputError."""
    if not name or not name.isprintable() or name != name.strip():
        raise InvalidInputError(f"NAME: {name!r} is empty, or has characters that cannot be seen")
    return name


def _read(place: Path) -> Contexts:
    """Raises OSError, ConfigError."""
    import tomllib  # noqa: PLC0415 - only who has contexts needs it

    with place.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in {0, os.geteuid()}:
            raise ConfigError(f"{place}: others could have written it, and tokens go where it says: chmod 600, as its owner")
        try:
            values = tomllib.loads(file.read().decode())
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{place}: is not valid TOML: {error}") from error
    current, tables = values.pop("current", ""), values.pop("contexts", {})
    if values:
        raise ConfigError(f"{place}: {next(iter(values))}: is not a field; there are current and [contexts.NAME]")
    if not isinstance(current, str):
        raise ConfigError(f"{place}: current: {current!r} is not the name of a context")
    if not isinstance(tables, dict):
        raise ConfigError(f"{place}: contexts: is not a table; write [contexts.NAME]")
    contexts = Contexts(current)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{place}: contexts.{name}: is not a table; write [contexts.{name}]")
        contexts.by_name[name] = checked(table, f"{place}: contexts.{name}.")
    return contexts


def _text(contexts: Contexts) -> str:
    """The file. TOML's strings in double quotes are those of JSON, but for characters that no field may have."""
    lines = [_HEAD]
    if contexts.current:
        lines.append(f"current = {_quoted(contexts.current)}\n")
    for name, context in sorted(contexts.by_name.items()):
        lines.append(f"\n[contexts.{_quoted(name)}]\n")
        lines += [f"{key} = {_quoted(value)}\n" for key, value in context._asdict().items() if value]
    return "".join(lines)


def _quoted(text: str) -> str:
    import json  # noqa: PLC0415 - as in `changing`

    return json.dumps(text, ensure_ascii=False)
