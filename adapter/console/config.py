"""The settings of the console. config/console.toml explains each, with its unit and default."""

import re
from typing import Annotated, Self

from pydantic import AfterValidator, Field, Strict, model_validator

from adapter.console.access.config import AccessSection, check_access
from adapter.fleet.section import FleetSection
from adapter.runtime.settings.addresses import CONSOLE_LISTEN, is_loopback
from adapter.runtime.settings.config import (
    Address,
    ClientTls,
    FilePath,
    LogSection,
    MetricsSection,
    Section,
    ServerTls,
    StopSection,
)
from adapter.runtime.settings.live import LiveSettings

_HOST = re.compile(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]")


def _root_path(value: str) -> str:
    if value and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", value):
        raise ValueError(
            f"{value!r} is not a path like /console: it begins with a slash, does not end with one, and needs no escapes"
        )
    return value


def _hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _HOST.fullmatch(value):
            raise ValueError(f"{value!r} is not a host name in lower case, without a port (an IPv6 address: in brackets)")
    return values


class ConsoleServerSection(Section):
    """[server]: the address of the pages, TLS, the names by which they are called, and what one client may cost."""

    listen: Address = CONSOLE_LISTEN
    tls: ServerTls | None = None
    allow_plaintext_beyond_loopback: bool = False
    hosts: Annotated[tuple[str, ...], Strict(strict=False), AfterValidator(_hosts)] = ()
    root_path: Annotated[str, AfterValidator(_root_path)] = ""
    connections: int = Field(default=200, ge=10, le=10_000)
    streams: int = Field(default=50, ge=0, le=5_000)

    @model_validator(mode="after")
    def _plaintext_stays_here(self) -> Self:
        if self.tls is None and not self.allow_plaintext_beyond_loopback and not is_loopback(self.listen):
            raise ValueError(
                f"listen = {self.listen!r} is reachable from other machines, without TLS. "
                "Add a tls table with cert and key, listen on 127.0.0.1 behind a proxy, "
                "or set allow_plaintext_beyond_loopback = true if the network is trusted"
            )
        return self

    @model_validator(mode="after")
    def _streams_leave_room(self) -> Self:
        if self.streams * 2 > self.connections:
            raise ValueError(
                f"streams = {self.streams}: is more than half of connections = {self.connections}; "
                "pages that are only read would find no connection"
            )
        return self


class MetaInstancesSection(Section):
    """[meta]: the Meta Service's instances that the fleet page shows, and the Raft groups of etcd."""

    endpoints: Annotated[tuple[Address, ...], Strict(strict=False)] = ()
    tls: ClientTls | None = None
    timeout_ms: int = Field(default=1_000, ge=10, le=60_000)
    interval_ms: int = Field(default=500, ge=100, le=600_000)
    raft_config: FilePath | None = None


class ChartSection(Section):
    """[charts]: how much of the past the console keeps in memory, for the charts of groups."""

    interval_ms: int = Field(default=2_000, ge=500, le=600_000)
    points: int = Field(default=300, ge=10, le=5_000)
    groups: int = Field(default=50, ge=0, le=1_000)


class ConsoleConfig(Section):
    """The whole file."""

    server: ConsoleServerSection = ConsoleServerSection()
    metrics: MetricsSection = MetricsSection(listen="")
    fleet: FleetSection = FleetSection()
    meta: MetaInstancesSection = MetaInstancesSection()
    charts: ChartSection = ChartSection()
    access: AccessSection = AccessSection()
    stop: StopSection = StopSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _somebody_may_come_in(self) -> Self:
        tls = self.server.tls
        check_access(self.access, self.server.listen, tls=tls is not None)
        return self


LIVE = LiveSettings({"log.level"})
