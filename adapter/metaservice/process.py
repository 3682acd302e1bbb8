"""The Meta Service process: open the stores, serve, remove old tombstones, stop."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import grpc.aio
import structlog

from adapter.errors import DiskFullError, MetaUnavailableError, RefusedError
from adapter.metaservice.config import MetaConfig, TombstoneSection
from adapter.metaservice.engine import Engine
from adapter.metaservice.limits import Limits
from adapter.metaservice.metadata_service import SERVICE as METADATA_SERVICE
from adapter.metaservice.metadata_service import MetadataMetrics, MetadataService
from adapter.metaservice.metrics import MetaMetrics
from adapter.metaservice.offset_service import MetaService
from adapter.metaservice.stores import PREFIX, Stores, opened
from adapter.rpc import meta_grpc, metadata_grpc
from adapter.runtime import descriptors, metrics_http
from adapter.runtime.clocks import wall_ms
from adapter.runtime.listener import GrpcServer, listening
from adapter.runtime.metrics import GaugesCollector
from adapter.runtime.notify import manager
from adapter.runtime.process import Until

log = structlog.get_logger(__name__)

SERVICE = "meta.service.common.MetaServiceService"
HOUR_MS = 3_600_000
STORES_KEPT_MS = 90 * 24 * HOUR_MS  # since the last report of a local store
MAX_REQUEST_BYTES = 64 * 2**20  # above any `flush.max_batch_bytes` of an adapter
OPTIONS = (("grpc.max_receive_message_length", MAX_REQUEST_BYTES), ("grpc.max_send_message_length", MAX_REQUEST_BYTES))


@dataclass
class Readiness:
    """The state that `/readyz` reports."""

    ready: bool = False
    text: str = "starting: the stores are not open yet"


async def run(config: MetaConfig, until: Until, ready: Callable[[list[str]], None] = lambda _: None) -> int:
    """Serve until asked to stop; calls `ready` with the addresses. Returns the exit code.

    Raises the errors of opening the stores and listening, and StorageFailedError after a failed sync: only a new process may
    continue then.
    """
    stopped = anyio.Event()
    metrics = MetaMetrics()
    metrics.registry.register(GaugesCollector(PREFIX, descriptors.gauges))
    state = Readiness()
    async with opened(config, metrics.registry) as stores:
        services, add = _services(config, stores, metrics)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stores.run, name="stores")
            tasks.start_soon(until, stopped.set, name="signals")
            with metrics_http.serving(config.metrics, metrics.registry, lambda: (state.ready, state.text)):
                async with listening(config.server, services, add, options=OPTIONS) as server:
                    tasks.start_soon(_begin, server, stores, config, metrics, ready, state, name="begin")
                    await stopped.wait()
                    state.ready, state.text = False, "stopping"
                    manager().stopping()
                    await server.set_serving(serving=False)
                    await server.stop(config.stop.grace_ms / 1000)
            tasks.cancel_scope.cancel()
    log.info("meta.stopped")
    return 0


def _services(
    config: MetaConfig, stores: Stores, metrics: MetaMetrics
) -> tuple[Sequence[str], Callable[[grpc.aio.Server], None]]:
    """The names of the services, and a function that adds them to a server."""
    limits = Limits(config.limits, metrics)
    offsets = MetaService(stores.offsets, limits, metrics) if stores.offsets else None
    metadata = None
    if stores.metadata:
        metadata = MetadataService(stores.metadata, limits.metadata, MetadataMetrics(metrics.registry))

    def add(server: grpc.aio.Server) -> None:
        if offsets:
            meta_grpc.add_MetaServiceServiceServicer_to_server(offsets, server)
        if metadata:
            metadata_grpc.add_MetadataStoreServicer_to_server(metadata, server)

    return [name for name, service in ((SERVICE, offsets), (METADATA_SERVICE, metadata)) if service], add


async def _begin(
    server: GrpcServer,
    stores: Stores,
    config: MetaConfig,
    metrics: MetaMetrics,
    ready: Callable[[list[str]], None],
    state: Readiness,
) -> None:
    """Report readiness once the stores are open; then remove old tombstones until cancelled."""
    await stores.open()
    await server.set_serving(serving=True)
    state.ready, state.text = True, "serving"
    manager().ready()
    manager().status("serving")
    ready(list(server.addresses))
    if stores.offsets:
        await drop_tombstones(stores.offsets, config.tombstones, metrics)


async def drop_tombstones(
    engine: Engine, section: TombstoneSection, metrics: MetaMetrics, now_ms: Callable[[], int] = wall_ms
) -> None:
    """Remove tombstones older than the retention, once per interval; never without a retention.

    Also removes local stores that no adapter has reported for 90 days. Raises StorageFailedError.
    """
    while section.retention_hours:
        await anyio.sleep(section.interval_ms / 1000)
        try:
            dropped = await engine.drop_tombstones(now_ms() - section.retention_hours * HOUR_MS)
            await engine.forget_stores(now_ms() - STORES_KEPT_MS)
        except (DiskFullError, MetaUnavailableError, RefusedError) as error:
            log.warning("tombstones.kept", error=str(error), help="the next run tries again")
            continue
        metrics.tombstones_dropped.inc(dropped)
        if dropped:
            log.info("tombstones.dropped", count=dropped)
