"""The settings of the jobs: job.toml, see config/job.toml. An invalid value is refused by its name, never corrected."""

from string import Formatter
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from adapter.errors import InvalidInputError
from adapter.model.lag_rows import LagSettings
from adapter.model.names import check_name
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.pipeline import places
from adapter.runtime.settings.config import Address, ClientTls, LogSection, MetricsSection, Section

OffsetFormat = Literal["rocketmq", "rocketmq-client", "kafka-csv"]

SHARD_FIELDS = ("topic", "partition", "broker")
GROUP_FIELDS = ("group", "client")


def fields_of(pattern: str) -> list[str]:
    """The field names of a pattern such as `{topic}/{partition}`, in order. Raises ValueError for an invalid pattern."""
    parts = list(Formatter().parse(pattern))
    if any(spec or conversion for _, _, spec, conversion in parts):
        raise ValueError("a field is only its name in braces")
    return [name for _, name, _, _ in parts if name is not None]


def _check_fields(pattern: str, known: tuple[str, ...]) -> list[str]:
    names = fields_of(pattern)
    for name in names:
        if name not in known:
            raise ValueError(f"{{{name}}} is not a field; there are {', '.join(known)}")
    if len(names) != len(set(names)):
        raise ValueError("has a field twice")
    return names


def _shard_pattern(pattern: str) -> str:
    if not {"topic", "partition"} <= set(_check_fields(pattern, SHARD_FIELDS)):
        raise ValueError("needs {topic} and {partition}: else two queues would share one offset")
    return pattern


def _group_pattern(pattern: str) -> str:
    names = _check_fields(pattern, GROUP_FIELDS)
    if "client" in names and "group" not in names:
        raise ValueError("has {client} without {group}")
    if not names:
        return _name(pattern)
    return pattern


def _name(value: str) -> str:
    try:
        return check_name(value, "the name")
    except InvalidInputError as error:
        raise ValueError(str(error)) from error


def _optional_name(value: str) -> str:
    return _name(value) if value else value


def _some(values: tuple[object, ...]) -> tuple[object, ...]:
    if not values:
        raise ValueError("is empty; name at least one")
    return values


def _place(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError("is empty; name a path or a URL")
    return places.Place.of(value)


def _openable(place: places.Place) -> places.Place:
    if place.scheme not in places.SCHEMES:
        raise ValueError(f"{place}: no such URL can be opened; name a path, or a URL of s3, s3a, gs or hdfs")
    return place


def _console_url(text: str) -> str:
    parts = urlsplit(text)
    if text and (parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username):
        raise ValueError("is no address of a console, such as https://console.example")
    return text.rstrip("/")


# A local path, on a cluster one that every machine shares, or a URL. AnyPlace: Spark or deltalake open it, who know other URLs.
AnyPlace = Annotated[places.Place, BeforeValidator(_place)]
Place = Annotated[AnyPlace, AfterValidator(_openable)]
Places = Annotated[tuple[Place, ...], Strict(strict=False), AfterValidator(_some)]

ConsoleUrl = Annotated[str, AfterValidator(_console_url)]

Name = Annotated[str, AfterValidator(_name)]
Broker = Annotated[str, AfterValidator(_optional_name)]
ShardPattern = Annotated[str, AfterValidator(_shard_pattern)]
GroupPattern = Annotated[str, AfterValidator(_group_pattern)]


class MetaSection(Section):
    """The Meta Service that the jobs call. Timeouts are long, because their calls are large."""

    cluster: Name = "default"
    endpoints: Annotated[tuple[Address, ...], Strict(strict=False), AfterValidator(_some)] = ("127.0.0.1:9530",)
    timeout_ms: int = Field(default=30_000, ge=10, le=600_000)
    retry_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    tls: ClientTls | None = None

    def options(self) -> dict[str, str]:
        """These settings as options of the data source `offsets`, for reading and writing."""
        tls = {f"tls{name.title()}": str(path) for name, path in (self.tls or ()) if path}
        numbers = {"timeoutMs": str(self.timeout_ms), "retryMs": str(self.retry_ms)}
        return {"endpoints": ",".join(self.endpoints), "cluster": self.cluster, **numbers, **tls}


class HistorySection(Section):
    """Where the job `lag` keeps a history: a directory or URL of Delta tables, and for how many days of the journals' time."""

    delta: AnyPlace | None = None
    keep_days: int = Field(default=365, ge=1, le=36_500)


class LagSection(Section):
    """Settings of the job `lag`: lag, rates and status from the journals of the fleet."""

    journals: Places = (places.Place.of("data/journal"),)
    output: Place = places.Place.of("data/lag")
    # None: a directory below the output.
    checkpoint: AnyPlace | None = None
    keep_hours: int = Field(default=48, ge=1, le=876_000)
    trigger_ms: int = Field(default=10_000, ge=100, le=3_600_000)
    max_files: int = Field(default=1_000, ge=1, le=1_000_000)
    window_points: int = Field(default=10, ge=3, le=60)
    minimum_points: int = Field(default=3, ge=2, le=60)
    point_distance_ms: int = Field(default=1_000, ge=1, le=3_600_000)
    allowed_lag: int = Field(default=0, ge=0, le=2**53)
    head_points: int = Field(default=60, ge=2, le=1_000)
    head_distance_ms: int = Field(default=30_000, ge=1, le=3_600_000)
    metrics: MetricsSection = MetricsSection(listen="")
    history: HistorySection = HistorySection()

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.minimum_points > self.window_points:
            raise ValueError(f"minimum_points = {self.minimum_points} is more than window_points = {self.window_points}")
        if self.output.is_remote and self.checkpoint is None:
            raise ValueError("output is a URL: give checkpoint as well, a place that Spark's own file systems can write")
        if self.checkpoint and str(self.checkpoint) != self.checkpoint.url:
            raise ValueError(
                f"checkpoint: {self.checkpoint} has credentials, which Spark would show: give them to its file system, "
                "as by --conf spark.hadoop.fs.s3a.access.key"
            )
        return self

    @property
    def rules(self) -> LagSettings:
        """What lag is judged by."""
        return LagSettings(
            window_points=self.window_points,
            minimum_points=self.minimum_points,
            point_distance_ms=self.point_distance_ms,
            allowed_lag=self.allowed_lag,
            head_points=self.head_points,
            head_distance_ms=self.head_distance_ms,
        )


class ReconcileSection(Section):
    """Settings of the job `reconcile`: snapshots of adapters against the Meta Service."""

    snapshots: Places = (places.Place.of("data/snapshots"),)
    output: Place = places.Place.of("data/reconcile")


class ImportSection(Section):
    """Settings of the job `import`: files of RocketMQ or Kafka into the Meta Service."""

    files: Places = (places.Place.of("store/config/consumerOffset.json"),)
    format: OffsetFormat = "rocketmq"
    output: Place = places.Place.of("data/import")
    namespace: Name = DEFAULT_NAMESPACE
    shard: ShardPattern = "{topic}/{partition}"
    group: GroupPattern = "{group}"
    broker: Broker = ""

    @model_validator(mode="after")
    def _check_name_sources(self) -> Self:
        if "broker" in fields_of(self.shard) and not self.broker and self.format != "rocketmq-client":
            raise ValueError(f"shard = {self.shard!r}: a {self.format} file does not tell the broker; name it in broker")
        if "client" in fields_of(self.group) and self.format != "rocketmq-client":
            raise ValueError(f"group = {self.group!r}: only rocketmq-client files have a client")
        return self


class ExportSection(Section):
    """Settings of the job `export`: the Meta Service's offsets as files of RocketMQ or Kafka."""

    format: OffsetFormat = "rocketmq"
    output: Place = places.Place.of("data/export")
    namespace: Name = DEFAULT_NAMESPACE
    shard: ShardPattern = "{topic}/{partition}"
    group: GroupPattern = "{group}"
    broker: Broker = ""

    @model_validator(mode="after")
    def _check_name_patterns(self) -> Self:
        if self.format == "rocketmq-client" and not self.broker and "broker" not in fields_of(self.shard):
            raise ValueError("rocketmq-client files name a broker: give broker, or a shard pattern with {broker}")
        if "client" in fields_of(self.group) and self.format != "rocketmq-client":
            raise ValueError(f"group = {self.group!r}: only rocketmq-client files have a client")
        return self


class ReportSection(Section):
    """Settings of the job `report`: a page of the lag tables. `console`: the console's address; empty: no links to it."""

    tables: Place = places.Place.of("data/lag")
    output: Place = places.Place.of("data/report")
    console: ConsoleUrl = ""
    hours: int = Field(default=48, ge=1, le=876_000)
    worst: int = Field(default=20, ge=1, le=500)


class JobConfig(Section):
    """The file job.toml: the Meta Service, and a section for each job."""

    meta: MetaSection = MetaSection()
    lag: LagSection = LagSection()
    reconcile: ReconcileSection = ReconcileSection()
    # `import` is a keyword of Python.
    import_: ImportSection = Field(default=ImportSection(), alias="import")
    export: ExportSection = ExportSection()
    report: ReportSection = ReportSection()
    log: LogSection = LogSection()
