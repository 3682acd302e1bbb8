"""Frozen settings, read from TOML. A bad value is an error that names the setting; nothing is corrected or guessed.

Here are the sections that several processes share. The files in config/ explain every setting, with its unit and default.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from adapter.errors import ConfigError
from adapter.runtime.addresses import is_loopback, split_address

GrpcServerKind = Literal["builtin", "grpcio"]

FilePath = Annotated[Path, Strict(strict=False)]


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


class ServerSection(Section):
    """The addresses of a gRPC server."""

    listen: Address
    unix_socket: str = ""
    tls: ServerTls | None = None
    allow_plaintext_beyond_loopback: bool = False

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


def load(path: Path, kind: type[C]) -> C:
    """Read a configuration file. Raises ConfigError that names every bad setting."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    return parse(values, kind, source=str(path))


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
    text = message.removeprefix("Value error, ")
    shown = "" if isinstance(value, (dict, BaseModel)) else f" (got {value!r})"
    return f"{name}: {text}{shown}"
