"""The options of the data source `offsets`. Unknown options, and those of the other direction, are refused by their names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from adapter.errors import ConfigError
from adapter.meta.config import MetaSection
from adapter.model.names import name_problem
from adapter.pipeline.places import redacted
from adapter.runtime.settings.config import Address, ClientTls

FORMAT = "offsets"
MAX_PAGE = 20_000  # the Meta Service's limit
MAX_PARTS = 1_000


def _named(value: str) -> str:
    problem = name_problem(value)
    if problem:
        raise ValueError(problem)
    return value


def _listed(value: str) -> tuple[str, ...]:
    found = tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
    if not found:
        raise ValueError("is empty; give host:port of the Meta Service")
    return found


def _writable(value: Path) -> Path:
    if value.is_dir():
        raise ValueError("is a directory; name a file")
    if not value.absolute().parent.is_dir():
        raise ValueError("is in a directory that does not exist on the driver's machine")
    return value


Name = Annotated[str, AfterValidator(_named)]


class Connection(BaseModel):
    """The connection to the Meta Service. TLS files are read by Spark's workers, on their machines."""

    # Spark passes the names of options in lower case.
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=lambda name: name.replace("_", ""))

    endpoints: Annotated[tuple[Address, ...], BeforeValidator(_listed)]
    cluster: Name = "default"
    # Milliseconds: the timeout of one call to one endpoint, and how long calls are repeated while no endpoint answers.
    timeout_ms: int = Field(default=30_000, ge=10, le=600_000)
    retry_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    # PEM files; cert and key are the client certificate, for a server that requests one.
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tlsCert and tlsKey belong together: give both or none")
        if self.tls_cert and not self.tls_ca:
            raise ValueError("tlsCert needs tlsCa, by which the Meta Service is verified")
        return self

    @property
    def meta(self) -> MetaSection:
        """The options as a section of the adapter's configuration."""
        tls = ClientTls(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key) if self.tls_ca else None
        return MetaSection(cluster=self.cluster, endpoints=self.endpoints, timeout_ms=self.timeout_ms, tls=tls)


class ReadOptions(Connection):
    """The options of a read: of the Meta Service, or of a snapshot."""

    endpoints: Annotated[tuple[Address, ...], BeforeValidator(_listed)] = ()
    # The directory or URL of a snapshot, which is read instead of the Meta Service.
    snapshot: Annotated[str, Field(min_length=1)] | None = None
    namespace: Name | None = None
    # Requires a namespace.
    group: Name | None = None
    # The number of parts that are read in parallel; by default it follows from the number of records.
    partitions: int | None = Field(default=None, ge=1, le=MAX_PARTS)
    # Records in one call, and in one Arrow batch.
    page_size: int = Field(default=10_000, ge=1, le=MAX_PAGE)
    # Whether deleted and expired offsets are included (live = false).
    tombstones: bool = False

    @model_validator(mode="after")
    def _one_thing_is_read(self) -> Self:
        if not self.endpoints and not self.snapshot:
            raise ValueError(
                "option endpoints: is missing; give host:port of the Meta Service, several separated by commas, "
                "or the option snapshot"
            )
        if self.endpoints and self.snapshot:
            raise ValueError("options endpoints and snapshot: give one of them; a snapshot is read without a Meta Service")
        return self

    @model_validator(mode="after")
    def _group_has_a_namespace(self) -> Self:
        if self.group and not self.namespace:
            raise ValueError("group needs the option namespace as well (mostly 'default'); or filter the column `group`")
        return self


class WriteOptions(Connection):
    """The options of a write."""

    # Invalid rows: fail before any row of their batch is sent, or skip and count them.
    bad_rows: Literal["fail", "skip"] = "fail"
    # A JSON file on the driver's machine, written at the end, with the counts of written rows.
    report: Annotated[Path, AfterValidator(_writable)] | None = None


O = TypeVar("O", bound=Connection)  # noqa: E741 - options


def parse_options(kind: type[O], options: Mapping[str, str]) -> O:
    """Parse options as Spark passes them. Raises ConfigError that names every invalid one."""
    if "path" in options:
        raise ConfigError(
            f"{FORMAT}: there is no path ({redacted(options['path'])!r}): call load() or save() without an argument, "
            "and name the Meta Service by .option('endpoints', 'host:port')"
        )
    try:
        return kind.model_validate({name.lower(): value for name, value in options.items()})
    except ValidationError as error:
        problems = [_problem(kind, detail["loc"], detail["msg"], detail["type"], detail["input"]) for detail in error.errors()]
        raise ConfigError("; ".join(f"{FORMAT}: {problem}" for problem in problems)) from error


def _problem(kind: type[Connection], loc: tuple[int | str, ...], message: str, what: str, value: object) -> str:
    names = {name.replace("_", ""): to_camel(name) for name in kind.model_fields}
    others = {name.replace("_", ""): to_camel(name) for name in (*ReadOptions.model_fields, *WriteOptions.model_fields)}
    text = message.removeprefix("Value error, ")
    if not loc:
        return text
    name = str(loc[0])
    if what == "extra_forbidden":
        return f"{others.get(name, name)}: is no option of {_direction(kind)}; there are {', '.join(names.values())}"
    if what == "missing":
        return f"option {names[name]}: is missing; give host:port of the Meta Service, several separated by commas"
    return f"option {names[name]}: {text} (got {str(value)!r})"


def _direction(kind: type[Connection]) -> str:
    return "reading" if kind is ReadOptions else "writing"
