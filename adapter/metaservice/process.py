"""The Meta Service process: open the stores, serve, remove old tombstones, stop."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import grpc.aio
import structlog

from adapter.errors import DiskFullError, MetaUnavailableError, RefusedError
from adapter.metaservice.backup_service import MetaBackup
from adapter.metaservice.config import LIVE, EtcdSection, MetaConfig, TombstoneSection
from adapter.metaservice.engine import Engine
from adapter.metaservice.limits import Limits
from adapter.metaservice.metadata_service import SERVICE as METADATA_SERVICE
from adapter.metaservice.metadata_service import MetadataMetrics, MetadataService
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.offset_service import MetaService
from adapter.metaservice.stores import PREFIX, Stores, opened
from adapter.rpc import backup_grpc, meta_grpc, metadata_grpc
from adapter.runtime import descriptors
from adapter.runtime.clocks import wall_ms
from adapter.runtime.notify import manager
from adapter.runtime.process import Until
from adapter.runtime.serving.listener import GrpcServer, listening
from adapter.runtime.serving.request_sizes import NAMES, Sizes
from adapter.runtime.serving.store_backup import FIELDS as BACKUP_FIELDS
from adapter.runtime.serving.store_backup import SERVICE as BACKUP_SERVICE
from adapter.runtime.settings.certificates import ServerCertificate
from adapter.runtime.settings.config import Loaded
from adapter.runtime.settings.live import NOTHING_NEW, Live, Prepared
from adapter.runtime.settings.reloading import Reloading, ReloadingCollector
from adapter.runtime.telemetry import logs, metrics_http
from adapter.runtime.telemetry.metrics import GaugesCollector

if TYPE_CHECKING:
    from adapter.fleet.scaler import ExternalScaler

log = structlog.get_logger(__name__)

SERVICE = "meta.service.common.MetaServiceService"
SCALER_SERVICE = "externalscaler.ExternalScaler"
HOUR_MS = 3_600_000
STORES_KEPT_MS = 90 * 24 * HOUR_MS  # since the last report of a local store
MAX_REQUEST_BYTES = 64 * 2**20  # above any `flush.max_batch_bytes` of an adapter
LARGE = {  # the methods whose requests take lists, or a value, and how many fields
    f"{SERVICE}/SaveOffsetData": 110_000,  # 25,000 entries, each in a group with its name and its tenant
    f"{SERVICE}/DeleteOffsetData": 55_000,
    f"{SERVICE}/BatchGetOffsetData": NAMES,
    f"{SERVICE}/MergeOffsetData": 45_000,  # 20,000 keys and records
    f"{METADATA_SERVICE}/Put": 100,
    f"{BACKUP_SERVICE}/BackupStore": BACKUP_FIELDS,
}
SIZES = Sizes({f"/{method}": fields for method, fields in LARGE.items()}, MAX_REQUEST_BYTES)


@dataclass
class Readiness:
    """The state that `/readyz` reports."""

    ready: bool = False
    text: str = "starting: the stores are not open yet"


async def run(
    config: MetaConfig,
    until: Until,
    ready: Callable[[list[str]], None] = lambda _: None,
    loaded: Loaded[MetaConfig] | None = None,
) -> int:
    """Serve until asked to stop; calls `ready` with the addresses. Returns the exit code.

    `loaded` says what the settings were read from, so that they can be read again.

    Raises the errors of opening the stores and listening, and StorageFailedError after a failed sync: only a new process may
    continue then.
    """
    stopped = anyio.Event()
    metrics = MetaMetrics()
    metrics.registry.register(GaugesCollector(PREFIX, descriptors.gauges))
    state = Readiness()
    reloading = Reloading(config, LIVE, loaded, around=lambda: manager().reloading())
    metrics.registry.register(ReloadingCollector(PREFIX, reloading))
    certificate, tombstones = _join(reloading)

    def join(prepare: Callable[[EtcdSection], Prepared]) -> None:
        reloading.add(lambda config: prepare(config.etcd))

    async with opened(config, metrics.registry, join) as stores, _scaling(config) as scaler:
        services, add = _services(config, stores, metrics, scaler)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stores.run, name="stores")
            tasks.start_soon(until, stopped.set, name="signals")
            tasks.start_soon(reloading.run, name="reloading")
            with metrics_http.serving(config.metrics, metrics.registry, lambda: (state.ready, state.text)):
                listener = listening(config.server, services, add, sizes=SIZES, certificate=certificate)
                async with listener as server:
                    tasks.start_soon(_begin, server, stores, tombstones, metrics, ready, state, name="begin")
                    await stopped.wait()
                    state.ready, state.text = False, "stopping"
                    manager().stopping()
                    await server.set_serving(serving=False)
                    if scaler:
                        scaler.end_streams()
                    await server.stop(config.stop.grace_ms / 1000)
            tasks.cancel_scope.cancel()
    log.info("meta.stopped")
    return 0


def _join(reloading: Reloading[MetaConfig]) -> tuple[ServerCertificate | None, Live[TombstoneSection]]:
    """What takes part in reloads: the server's certificate, if it has one, and the settings of tombstones. Raises ConfigError."""
    tls = reloading.settings.server.tls
    certificate = ServerCertificate(tls) if tls else None
    tombstones = Live(reloading.settings.tombstones)

    def take(config: MetaConfig) -> None:
        logs.set_level(config.log)
        tombstones.take(config.tombstones)

    if certificate:
        reloading.add(lambda config: certificate.prepare(config.server.tls) if config.server.tls else NOTHING_NEW)
    reloading.add(lambda config: Prepared(lambda: take(config)))
    return certificate, tombstones


def _services(
    config: MetaConfig, stores: Stores, metrics: MetaMetrics, scaler: "ExternalScaler | None"
) -> tuple[Sequence[str], Callable[[grpc.aio.Server], None]]:
    """The names of the services, and a function that adds them to a server."""
    limits = Limits(config.limits, metrics)
    overwrite = config.saves.without_epoch == "overwrite"
    offsets = MetaService(stores.offsets, limits, metrics, overwrite=overwrite) if stores.offsets else None
    metadata = None
    if stores.metadata:
        metadata = MetadataService(stores.metadata, limits.metadata, MetadataMetrics(metrics.registry))

    backup = MetaBackup(stores.embedded, metrics)

    def add(server: grpc.aio.Server) -> None:
        backup_grpc.add_StoreBackupServicer_to_server(backup, server)
        if offsets:
            meta_grpc.add_MetaServiceServiceServicer_to_server(offsets, server)
        if metadata:
            metadata_grpc.add_MetadataStoreServicer_to_server(metadata, server)
        if scaler:
            scaler.add_to(server)

    all_services = ((SERVICE, offsets), (METADATA_SERVICE, metadata), (SCALER_SERVICE, scaler), (BACKUP_SERVICE, backup))
    return [name for name, service in all_services if service], add


@asynccontextmanager
async def _scaling(config: MetaConfig) -> AsyncIterator["ExternalScaler | None"]:
    """The external scaler, if adapters are configured for it."""
    if not config.fleet.adapters:
        yield None
        return
    from adapter.metaservice.scaler import scaling  # noqa: PLC0415 - takes time to import, and most processes need none

    async with scaling(config.fleet) as scaler:
        yield scaler


async def _begin(
    server: GrpcServer,
    stores: Stores,
    tombstones: Live[TombstoneSection],
    metrics: MetaMetrics,
    ready: Callable[[list[str]], None],
    state: Readiness,
) -> None:
    """Report readiness once the stores are open; then remove old tombstones until cancelled."""
    await stores.open()
    await server.accept_waiting()
    await server.set_serving(serving=True)
    state.ready, state.text = True, "serving"
    manager().ready()
    manager().status("serving")
    ready(list(server.addresses))
    if stores.offsets:
        await drop_tombstones(stores.offsets, tombstones, metrics)


async def drop_tombstones(
    engine: Engine, section: Live[TombstoneSection], metrics: MetaMetrics, now_ms: Callable[[], int] = wall_ms
) -> None:
    """Remove tombstones older than the retention, once per interval; none while there is no retention.

    Also then everything is read, which finds a damaged block of the embedded store, and local stores are removed that no adapter
    has reported for 90 days. Raises StorageFailedError, StoreDamagedError.
    """
    while True:
        await section.pause(lambda section: section.interval_ms / 1000)
        retention_hours = section.now.retention_hours
        try:
            dropped = await engine.drop_tombstones(now_ms() - retention_hours * HOUR_MS if retention_hours else 0)
            await engine.forget_stores(now_ms() - STORES_KEPT_MS)
        except (DiskFullError, MetaUnavailableError, RefusedError) as error:
            log.warning("tombstones.kept", error=str(error), help="the next run tries again")
            continue
        metrics.tombstones_dropped.inc(dropped)
        if dropped:
            log.info("tombstones.dropped", count=dropped)
