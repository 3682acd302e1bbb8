"""Frozen settings, read from TOML. A bad value is rejected by its name; nothing is corrected or guessed.

The adapter's settings, and what both processes share. Every setting is explained in config/, with its unit and its default.
"""

import socket
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from adapter.addresses import ADAPTER_LISTEN, ADAPTER_SOCKET, is_loopback, split_address
from adapter.errors import ConfigError, InvalidInputError
from adapter.model import check_name

Mode = Literal["cached", "write_through"]
WalSync = Literal["always", "interval", "never"]
Front = Literal["lean", "grpcio"]

FilePath = Annotated[Path, Strict(strict=False)]


def _address(value: str) -> str:
    split_address(value)
    return value


def _optional_address(value: str) -> str:
    return _address(value) if value else value


def name_of_part(value: str) -> str:
    """A name as those of groups. Raises ValueError."""
    try:
        return check_name(value, "the name")
    except InvalidInputError as error:
        raise ValueError(str(error)) from error


def not_empty(value: tuple[str, ...]) -> tuple[str, ...]:
    """Some endpoints. Raises ValueError."""
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
    """How the Meta Service is verified, and what this side shows."""

    ca: FilePath
    cert: FilePath | None = None
    key: FilePath | None = None

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("cert and key belong together: give both or none")
        return self


class ServerSection(Section):
    """Where gRPC is served."""

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


class AdapterServerSection(ServerSection):
    """The adapter's gRPC addresses, and what serves them."""

    listen: Address = ADAPTER_LISTEN
    unix_socket: str = ADAPTER_SOCKET
    front: Front = "grpcio"


class MetricsSection(Section):
    """Where Prometheus scrapes over HTTP. Empty: nowhere."""

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


class AdapterMetricsSection(MetricsSection):
    """The adapter's metrics."""

    listen: OptionalAddress = "127.0.0.1:9521"


class CacheSection(Section):
    """The local store."""

    path: FilePath = Path("data/adapter")
    wal_sync: WalSync = "interval"


class FlushSection(Section):
    """When and how dirty offsets go to the Meta Service."""

    interval_ms: int = Field(default=100, ge=1, le=60_000)
    max_batch_bytes: int = Field(default=3 * 2**20, ge=16_384, le=64 * 2**20)
    backoff_max_ms: int = Field(default=2_000, ge=1, le=600_000)
    refused_retry_ms: int = Field(default=5_000, ge=1, le=3_600_000)


class MetaSection(Section):
    """The Meta Service as this adapter sees it."""

    cluster: Annotated[str, AfterValidator(name_of_part)] = "default"
    endpoints: Annotated[tuple[Address, ...], Strict(strict=False), AfterValidator(not_empty)] = ("127.0.0.1:9530",)
    timeout_ms: int = Field(default=3_000, ge=10, le=600_000)
    load_timeout_ms: int = Field(default=500, ge=10, le=60_000)
    tls: ClientTls | None = None


class BrokerLogSection(Section):
    """Where the broker serves `offsets.v1.BrokerLog`. Empty: it does not."""

    address: OptionalAddress = ""
    timeout_ms: int = Field(default=2_000, ge=10, le=600_000)


class AdminSection(Section):
    """Who may call OffsetAdmin over TCP: who shows this token; without one, with mTLS, every client; else nobody."""

    token_file: FilePath | None = None


class ExpirySection(Section):
    """When the offsets of a group without commits go. 0 hours: never. Those of a broadcasting group's client go sooner."""

    retention_hours: int = Field(default=168, ge=0, le=876_000)
    broadcast_seconds: int = Field(default=300, ge=1, le=2_592_000)
    interval_ms: int = Field(default=600_000, ge=10, le=86_400_000)


class JournalSection(Section):
    """A record of what changed, for the pipeline. Without a path: none."""

    path: FilePath | None = None
    segment_max_bytes: int = Field(default=16 * 2**20, ge=65_536, le=2**30)
    segment_max_age_ms: int = Field(default=60_000, ge=100, le=86_400_000)
    disk_max_bytes: int = Field(default=2**30, ge=2**20, le=2**50)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.disk_max_bytes < 2 * self.segment_max_bytes:
            raise ValueError(f"disk_max_bytes = {self.disk_max_bytes} is less than two segments of segment_max_bytes")
        return self


class RecoverySection(Section):
    """The comparison with the Meta Service at start."""

    timeout_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    batch_keys: int = Field(default=2_000, ge=1, le=20_000)


class StopSection(Section):
    """What SIGTERM waits for."""

    grace_ms: int = Field(default=5_000, ge=0, le=600_000)


class AdapterStopSection(StopSection):
    """The adapter has dirty offsets to flush as well."""

    drain_timeout_ms: int = Field(default=10_000, ge=0, le=600_000)


class LogSection(Section):
    """What goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class PolicyRule(Section):
    """A mode for the groups whose names match shell patterns (fnmatch, case-sensitive). The first match counts."""

    groups: str = Field(min_length=1)
    namespaces: str = Field(default="*", min_length=1)
    mode: Mode

    def matches(self, namespace: str, group: str) -> bool:
        """True when this rule decides for the group."""
        return fnmatchcase(group, self.groups) and fnmatchcase(namespace, self.namespaces)


class AdapterConfig(Section):
    """config/adapter.toml."""

    broker: Annotated[str, AfterValidator(name_of_part)] = Field(default_factory=socket.gethostname)
    mode: Mode = "cached"
    policy: Annotated[tuple[PolicyRule, ...], Strict(strict=False)] = ()
    server: AdapterServerSection = AdapterServerSection()
    metrics: AdapterMetricsSection = AdapterMetricsSection()
    cache: CacheSection = CacheSection()
    flush: FlushSection = FlushSection()
    meta: MetaSection = MetaSection()
    recovery: RecoverySection = RecoverySection()
    expiry: ExpirySection = ExpirySection()
    broker_log: BrokerLogSection = BrokerLogSection()
    admin: AdminSection = AdminSection()
    journal: JournalSection = JournalSection()
    stop: AdapterStopSection = AdapterStopSection()
    log: LogSection = LogSection()

    def mode_of(self, namespace: str, group: str) -> Mode:
        """The mode of a group: its first matching policy, else the general one."""
        return next((rule.mode for rule in self.policy if rule.matches(namespace, group)), self.mode)


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
