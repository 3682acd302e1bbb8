"""Frozen settings, read from TOML. A bad value is an error that names the setting; nothing is corrected or guessed.

Here are the sections that several processes share. The files in config/ explain every setting, with its unit and default.
"""

import grp
import hashlib
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from adapter.errors import ConfigError
from adapter.runtime.clocks import wall_ms
from adapter.runtime.settings.addresses import is_loopback, split_address
from adapter.runtime.settings.reading import read_file

OWNER_MODE = stat.S_IRUSR | stat.S_IWUSR  # what a server's owner needs to use its own socket


def _path(value: Path) -> Path:
    if "\0" in str(value):
        raise ValueError("has a zero byte, which no path can have")
    return value


FilePath = Annotated[Path, Strict(strict=False), AfterValidator(_path)]


def _address(value: str) -> str:
    split_address(value)
    return value


def _optional_address(value: str) -> str:
    return _address(value) if value else value


def not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    """Check that there is at least one endpoint. Raises ValueError."""
    if not value:
        raise ValueError("is empty; at least one endpoint is needed")
    return value


Address = Annotated[str, AfterValidator(_address)]
OptionalAddress = Annotated[str, AfterValidator(_optional_address)]


class Section(BaseModel):
    """A part of the configuration: frozen, typed strictly, unknown keys refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", validate_default=True)


class ServerTls(Section):
    """A server's certificate. With `client_ca` clients must show one as well (mTLS)."""

    cert: FilePath
    key: FilePath
    client_ca: FilePath | None = None


class ClientTls(Section):
    """The CA that verifies the Meta Service, and this side's own certificate for mTLS."""

    ca: FilePath
    cert: FilePath | None = None
    key: FilePath | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: give both or none")
        return self


def _mode(value: str) -> str:
    if not re.fullmatch("0?[0-7]{3}", value) or int(value, 8) & OWNER_MODE != OWNER_MODE:
        raise ValueError(f"{value!r} is not a mode like 0660: three octal digits, of which the first is 6 or 7")
    return value


def gid_of(group: str) -> int:
    """The number of a group, by its name or number. Raises ValueError if this machine has no such group."""
    if group.isascii() and group.isdecimal():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ValueError(f"this machine has no group {group!r}; name another, or give its number") from None


def _group(value: str) -> str:
    if value:
        gid_of(value)
    return value


class ServerSection(Section):
    """The addresses of a gRPC server, and who may open its Unix socket besides its owner."""

    listen: Address
    unix_socket: str = ""
    unix_socket_mode: Annotated[str, AfterValidator(_mode)] = "0600"
    unix_socket_group: Annotated[str, AfterValidator(_group)] = ""
    tls: ServerTls | None = None
    allow_plaintext_beyond_loopback: bool = False

    @property
    def socket_mode(self) -> int:
        """The permissions of the Unix socket."""
        return int(self.unix_socket_mode, 8)

    @model_validator(mode="after")
    def _socket_of_a_group(self) -> Self:
        if self.unix_socket_group and not self.unix_socket:
            raise ValueError(f"unix_socket_group = {self.unix_socket_group!r}: there is no unix_socket")
        if self.unix_socket_group and not self.socket_mode & stat.S_IWGRP:
            raise ValueError(
                f"unix_socket_group = {self.unix_socket_group!r}: cannot open the socket with unix_socket_mode = "
                f"{self.unix_socket_mode!r}; 0660 lets it"
            )
        return self

    @model_validator(mode="after")
    def _plaintext_stays_here(self) -> Self:
        if self.tls is None and not self.allow_plaintext_beyond_loopback and not is_loopback(self.listen):
            raise ValueError(
                f"listen = {self.listen!r} is reachable from other machines, without TLS. "
                "Add a tls table with cert and key, listen on 127.0.0.1, "
                "or set allow_plaintext_beyond_loopback = true if the network is trusted"
            )
        return self


class MetricsSection(Section):
    """The HTTP address of the metrics. Empty: none."""

    listen: OptionalAddress
    allow_beyond_loopback: bool = False

    @model_validator(mode="after")
    def _stays_here(self) -> Self:
        if self.listen and not self.allow_beyond_loopback and not is_loopback(self.listen):
            raise ValueError(
                f"listen = {self.listen!r} is reachable from other machines. "
                "Listen on 127.0.0.1, or set allow_beyond_loopback = true"
            )
        return self


class StopSection(Section):
    """How long SIGTERM waits for calls in flight."""

    grace_ms: int = Field(default=5_000, ge=0, le=600_000)


class LogSection(Section):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


C = TypeVar("C", bound=Section)


class Loaded(NamedTuple, Generic[C]):
    """The settings in a file, and what was read: the SHA-256 of all of it, and the Unix time in milliseconds.

    `given` has the settings that stand in it, and how often: more than once only in a list of tables.
    """

    settings: C
    path: Path
    sha256: str
    read_at_ms: int
    given: Mapping[str, int] = MappingProxyType({})
    ends_in_newline: bool = True

    def lost(self, later: "Loaded[C]", changed: Iterable[str]) -> str:
        """What a later reading of the file lacks, of what `changed` between them; empty for nothing.

        A file that was cut off, or that is written right now, is still valid TOML, without what it said last.
        """
        for name in changed:
            for given, times in self.given.items():
                if later.given.get(given, 0) < times and (given == name or given.startswith(f"{name}.")):
                    return f"{given} was given" + (f" {times} times" if times > 1 else "")
            if self.ends_in_newline and not later.ends_in_newline:  # a number may have lost its last digits
                return "its last line was complete"
        return ""


def load(path: Path, kind: type[C]) -> C:
    """Read a configuration file. Raises ConfigError that names every bad setting."""
    return load_file(path, kind).settings


def load_file(path: Path, kind: type[C]) -> Loaded[C]:
    """Read a configuration file, and what identifies its content. Raises as `load`."""
    read_at_ms = wall_ms()
    try:
        content, _ = read_file(path)
        values = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits, and of as many open brackets
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    settings = parse(values, kind, source=str(path))
    # Absolute: a reload reads the same file wherever the process is then.
    return Loaded(
        settings, path.absolute(), hashlib.sha256(content).hexdigest(), read_at_ms, _given(values), content.endswith(b"\n")
    )


def _given(values: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    """The settings that stand in a file, by their names."""
    found: dict[str, int] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _given(value, f"{prefix}{name}.")
        else:
            tables = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
            found[f"{prefix}{name}"] = len(value) if tables else 1
    return found


def parse(values: dict[str, Any], kind: type[C], *, source: str) -> C:
    """Build a configuration from parsed TOML. Raises ConfigError that names every bad setting."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [_problem(detail["loc"], detail["msg"], detail["type"], detail["input"]) for detail in error.errors()]
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems)) from error


def _problem(loc: tuple[int | str, ...], message: str, kind: str, value: object) -> str:
    name = ".".join(str(part) for part in loc) or "(top level)"
    if kind == "extra_forbidden":
        return f"{name}: is not a setting; see the commented file in config/"
    text = "is not a list: write it in [brackets]" if kind == "tuple_type" else message.removeprefix("Value error, ")
    # A URL may hold credentials.
    shown = "" if isinstance(value, (dict, BaseModel)) or "://" in repr(value) else f" (got {value!r})"
    return f"{name}: {text}{shown}"
