"""The sidecar's settings; config/adapter.toml shows them all."""

import socket
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from adapter.client.broker_log import BrokerLogSection
from adapter.meta.config import MetaSection
from adapter.model.names import name_of_part
from adapter.model.records import HOLD_MS
from adapter.rocketmq.config import RocketmqSection
from adapter.runtime.settings.addresses import ADAPTER_LISTEN, ADAPTER_SOCKET, is_loopback
from adapter.runtime.settings.config import (
    Address,
    FilePath,
    LogSection,
    MetricsSection,
    OptionalAddress,
    Section,
    ServerSection,
    ServerTls,
    StopSection,
)
from adapter.runtime.settings.live import LiveSettings
from adapter.runtime.telemetry.spans import TelemetrySection

Mode = Literal["write_back", "write_through"]

WalSync = Literal["always", "interval", "never"]


class AdapterServerSection(ServerSection):
    """The adapter's gRPC addresses."""

    listen: Address = ADAPTER_LISTEN
    unix_socket: str = ADAPTER_SOCKET


class AdapterMetricsSection(MetricsSection):
    """The address of the adapter's metrics and probes; empty turns them off."""

    listen: OptionalAddress = "127.0.0.1:9521"


class StoreSection(Section):
    """The path of the local store, and when its writes are synced: before the reply, once per interval, or never."""

    path: FilePath = Path("data/adapter")
    wal_sync: WalSync = "interval"


class FlushSection(Section):
    """When and how dirty offsets are sent to the Meta Service."""

    interval_ms: int = Field(default=100, ge=1, le=60_000)
    max_batch_bytes: int = Field(default=3 * 2**20, ge=16_384, le=64 * 2**20)
    backoff_max_ms: int = Field(default=2_000, ge=1, le=600_000)
    refused_retry_ms: int = Field(default=5_000, ge=1, le=3_600_000)


class AdminSection(Section):
    """How callers of OffsetAdmin over TCP are authenticated: by this token; without one, by mTLS; else all are refused."""

    token_file: FilePath | None = None


class ExpirySection(Section):
    """When a group without commits expires. 0 hours: never. Clients of broadcasting groups expire sooner."""

    retention_hours: int = Field(default=168, ge=0, le=876_000)
    broadcast_seconds: int = Field(default=300, ge=1, le=2_592_000)
    interval_ms: int = Field(default=600_000, ge=10, le=86_400_000)


class ResetSection(Section):
    """How long a reset, delete or clone holds its shards against commits without an epoch, at most. 0: not at all."""

    hold_seconds: int = Field(default=HOLD_MS // 1000, ge=0, le=86_400)


class JournalSection(Section):
    """A record of all changes, for the pipeline. Without a path there is none."""

    path: FilePath | None = None
    segment_max_bytes: int = Field(default=16 * 2**20, ge=65_536, le=2**30)
    segment_max_age_ms: int = Field(default=60_000, ge=100, le=86_400_000)
    disk_max_bytes: int = Field(default=2**30, ge=2**20, le=2**50)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.disk_max_bytes < 2 * self.segment_max_bytes:
            raise ValueError(f"disk_max_bytes = {self.disk_max_bytes} is less than two segments of segment_max_bytes")
        return self


class RobustmqSection(Section):
    """Where an unmodified RobustMQ broker calls the adapter in place of its Meta Service, and where it is told of changes."""

    listen: OptionalAddress = ""
    tls: ServerTls | None = None
    broker: OptionalAddress = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.listen and self.tls is None and not is_loopback(self.listen):
            raise ValueError(
                f"listen = {self.listen!r} is reachable from other machines, without TLS: listen on 127.0.0.1, where the "
                "broker is, or add a tls table with cert and key"
            )
        if self.broker and not self.listen:
            raise ValueError("broker: is of no use without listen")
        return self


class LagSection(Section):
    """How far consumer groups are behind, live. `shards` = 0: nothing is kept, and nothing of it is loaded."""

    shards: int = Field(default=100_000, ge=0, le=1_000_000)
    interval_ms: int = Field(default=1_000, ge=100, le=60_000)
    bounds_interval_ms: int = Field(default=3_000, ge=100, le=3_600_000)
    window_points: int = Field(default=10, ge=3, le=60)
    minimum_points: int = Field(default=3, ge=2, le=60)
    point_distance_ms: int = Field(default=1_000, ge=1, le=3_600_000)
    allowed_lag: int = Field(default=0, ge=0, le=2**53)
    head_points: int = Field(default=30, ge=2, le=1_000)
    head_distance_ms: int = Field(default=20_000, ge=1, le=3_600_000)
    metric_groups_max: int = Field(default=100, ge=0, le=10_000)
    metric_groups: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=255)], ...], Strict(strict=False)] = Field(
        default=(), max_length=100
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.minimum_points > self.window_points:
            raise ValueError(f"minimum_points = {self.minimum_points} is more than window_points = {self.window_points}")
        return self


class RecoverySection(Section):
    """The comparison with the Meta Service at start."""

    timeout_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    batch_keys: int = Field(default=2_000, ge=1, le=20_000)


class AdapterStopSection(StopSection):
    """The adapter has dirty offsets to flush as well."""

    drain_timeout_ms: int = Field(default=10_000, ge=0, le=600_000)


class PolicyRule(Section):
    """A commit policy for the groups whose names match shell patterns (fnmatch, case-sensitive). The first match counts."""

    groups: str = Field(min_length=1)
    namespaces: str = Field(default="*", min_length=1)
    mode: Mode

    def matches(self, namespace: str, group: str) -> bool:
        """True if this rule applies to the group."""
        return fnmatchcase(group, self.groups) and fnmatchcase(namespace, self.namespaces)


class AdapterConfig(Section):
    """All settings of an adapter, as in config/adapter.toml."""

    broker: Annotated[str, AfterValidator(name_of_part)] = Field(default_factory=socket.gethostname)
    mode: Mode = "write_back"
    policy: Annotated[tuple[PolicyRule, ...], Strict(strict=False)] = ()
    server: AdapterServerSection = AdapterServerSection()
    metrics: AdapterMetricsSection = AdapterMetricsSection()
    store: StoreSection = StoreSection()
    flush: FlushSection = FlushSection()
    meta: MetaSection = MetaSection()
    recovery: RecoverySection = RecoverySection()
    reset: ResetSection = ResetSection()
    expiry: ExpirySection = ExpirySection()
    broker_log: BrokerLogSection = BrokerLogSection()
    rocketmq: RocketmqSection = RocketmqSection()
    robustmq: RobustmqSection = RobustmqSection()
    lag: LagSection = LagSection()
    admin: AdminSection = AdminSection()
    journal: JournalSection = JournalSection()
    telemetry: TelemetrySection = TelemetrySection()
    stop: AdapterStopSection = AdapterStopSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _one_log(self) -> Self:
        if self.rocketmq.broker and self.broker_log.address:
            raise ValueError(
                "broker_log.address: must be empty beside rocketmq.broker, whose own calls give the bounds of its queues"
            )
        return self

    def mode_of(self, namespace: str, group: str) -> Mode:
        """The commit policy of a group: of its first matching rule, else the default one."""
        return next((rule.mode for rule in self.policy if rule.matches(namespace, group)), self.mode)


LIVE = LiveSettings(
    names=frozenset(
        {
            "admin.token_file",
            "expiry",
            "flush",
            "log.level",
            "meta.endpoints",
            "meta.tls.ca",
            "meta.tls.cert",
            "meta.tls.key",
            "mode",
            "policy",
            "robustmq.tls.cert",
            "robustmq.tls.key",
            "server.tls.cert",
            "server.tls.key",
        }
    ),
    exchanged=frozenset({"robustmq.tls.client_ca", "server.tls.client_ca"}),
)
