"""The Meta Service's settings. config/meta.toml explains each, with unit and default."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from adapter.fleet.section import FleetSection
from adapter.model.names import name_of_part
from adapter.runtime.settings.addresses import META_LISTEN, split_address
from adapter.runtime.settings.config import (
    Address,
    ClientTls,
    FilePath,
    LogSection,
    MetricsSection,
    OptionalAddress,
    Section,
    ServerSection,
    StopSection,
    not_empty,
)
from adapter.runtime.settings.live import LiveSettings

Served = Literal["offsets", "metadata"]

_Name = Annotated[str, AfterValidator(name_of_part)]


class MetaServerSection(ServerSection):
    """The Meta Service's gRPC addresses."""

    listen: Address = META_LISTEN


class MetaMetricsSection(MetricsSection):
    """The Meta Service's metrics."""

    listen: OptionalAddress = "127.0.0.1:9531"


class StoreSection(Section):
    """The embedded engine's store."""

    path: FilePath = Path("data/meta")


class LimitsSection(Section):
    """How many offsets and metadata calls may be in progress; further ones are refused, with a time to come back."""

    offsets: int = Field(default=100_000, ge=1, le=10_000_000)
    metadata: int = Field(default=1_000, ge=1, le=1_000_000)


class SavesSection(Section):
    """What a lower offset in a save without epoch and commit time is, as brokers send it that know no epochs."""

    without_epoch: Literal["increase_only", "overwrite"] = "increase_only"


class TombstoneSection(Section):
    """How long tombstones are kept, so that late saves cannot restore what was deleted. 0 hours: for ever."""

    retention_hours: int = Field(default=168, ge=0, le=876_000)
    interval_ms: int = Field(default=600_000, ge=10, le=86_400_000)


class MembersSection(Section):
    """The members of an etcd cluster, which is one Raft group, and the node that each runs on."""

    endpoints: Annotated[tuple[Address, ...], Strict(strict=False), AfterValidator(not_empty)]
    nodes: Annotated[tuple[_Name, ...], Strict(strict=False)] = ()

    @model_validator(mode="after")
    def _match(self) -> Self:
        if self.nodes and len(self.nodes) != len(self.endpoints):
            raise ValueError(f"nodes are {len(self.nodes)}, for {len(self.endpoints)} endpoints: name one for each, or none")
        if len({*self.endpoints}) != len(self.endpoints):
            raise ValueError("endpoints: one of them occurs twice")
        return self

    def node_of(self, endpoint: str) -> str:
        """The node of an endpoint; its host if no nodes are configured."""
        return self.nodes[self.endpoints.index(endpoint)] if self.nodes else split_address(endpoint)[0]


class RaftGroupSection(MembersSection):
    """One of the Raft groups that store offsets."""

    name: _Name


class PlacementSection(Section):
    """Whether this process moves Raft leaders apart, how often it checks, and how long a moved leader stays."""

    balance: bool = False
    interval_ms: int = Field(default=2_000, ge=100, le=3_600_000)
    cooldown_ms: int = Field(default=30_000, ge=0, le=86_400_000)


class EtcdSection(Section):
    """The etcd clusters of `engine = "etcd"`, and how they are called."""

    prefix: str = Field(default="offsets/", min_length=1, max_length=255)
    timeout_ms: int = Field(default=500, ge=10, le=60_000)
    max_txn_ops: int = Field(default=128, ge=8, le=100_000)
    quota_bytes: int = Field(default=2 * 2**30, ge=2**20, le=2**40)
    user: str = ""
    password_file: FilePath | None = None
    tls: ClientTls | None = None
    metadata: MembersSection | None = None
    offsets: Annotated[tuple[RaftGroupSection, ...], Strict(strict=False)] = ()
    placement: PlacementSection = PlacementSection()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [group.name for group in self.offsets]
        if len({*names}) != len(names):
            raise ValueError("offsets: two Raft groups have the same name")
        members = [name for group in (*self.offsets, self.metadata) if group for name in group.endpoints]
        if len({*members}) != len(members):
            raise ValueError("an endpoint is in two Raft groups: each needs an etcd cluster of its own")
        if bool(self.user) != bool(self.password_file):
            raise ValueError("user and password_file belong together: give both or none")
        return self


class MetaConfig(Section):
    """The whole of config/meta.toml."""

    engine: Literal["rocksdb", "etcd"] = "rocksdb"
    serve: Annotated[tuple[Served, ...], Strict(strict=False), Field(min_length=1)] = ("offsets", "metadata")
    server: MetaServerSection = MetaServerSection()
    metrics: MetaMetricsSection = MetaMetricsSection()
    store: StoreSection = StoreSection()
    etcd: EtcdSection = EtcdSection()
    limits: LimitsSection = LimitsSection()
    saves: SavesSection = SavesSection()
    tombstones: TombstoneSection = TombstoneSection()
    fleet: FleetSection = FleetSection()
    stop: StopSection = StopSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.engine == "etcd" and self.etcd.metadata is None:
            raise ValueError('engine = "etcd" needs [etcd.metadata] with the endpoints of the metadata Raft group')
        if self.engine == "etcd" and "offsets" in self.serve and not self.etcd.offsets:
            raise ValueError('engine = "etcd" needs [[etcd.offsets]] with a name and the endpoints of a Raft group')
        return self


DEFAULT_CLUSTER = "default"

LIVE = LiveSettings(
    names=frozenset(
        {
            "etcd.tls.ca",
            "etcd.tls.cert",
            "etcd.tls.key",
            "log.level",
            "server.tls.cert",
            "server.tls.key",
            "tombstones",
        }
    ),
    exchanged=frozenset({"server.tls.client_ca"}),
)
