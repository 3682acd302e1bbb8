"""The Meta Service process: open the engine, serve, forget old tombstones, stop."""

from collections.abc import Callable

import anyio
import anyio.to_thread
import grpc.aio
import structlog

from adapter import metrics as metrics_http
from adapter.clocks import wall_ms
from adapter.errors import DiskFullError
from adapter.listen import listening
from adapter.metaservice.config import MetaConfig, TombstoneSection
from adapter.metaservice.engine import Engine
from adapter.metaservice.rocksdb_engine import RocksDbEngine
from adapter.metaservice.service import MetaService
from adapter.metrics import GaugesCollector, MetaMetrics
from adapter.process import Until
from adapter.rpc import meta_grpc

log = structlog.get_logger(__name__)

SERVICE = "meta.service.common.MetaServiceService"
HOUR_MS = 3_600_000
MAX_REQUEST_BYTES = 64 * 2**20  # whatever `flush.max_batch_bytes` an adapter is configured with


async def run(config: MetaConfig, until: Until, ready: Callable[[list[str]], None] = lambda _: None) -> int:
    """Serve until asked to stop; `ready` gets the addresses. Returns the exit code.

    Raises what opening and listening raise, and StorageFailedError after a failed sync: only a new process may go on then.
    """
    engine = await anyio.to_thread.run_sync(RocksDbEngine.open, config.store.path)
    stopped = anyio.Event()
    metrics = MetaMetrics()
    metrics.registry.register(GaugesCollector("offset_meta", engine.gauges))

    def add(server: grpc.aio.Server) -> None:
        meta_grpc.add_MetaServiceServiceServicer_to_server(MetaService(engine, metrics), server)

    options = [("grpc.max_receive_message_length", MAX_REQUEST_BYTES), ("grpc.max_send_message_length", MAX_REQUEST_BYTES)]
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run, name="engine")
            tasks.start_soon(drop_tombstones, engine, config.tombstones, metrics, name="tombstones")
            tasks.start_soon(until, stopped.set, name="signals")
            with metrics_http.serving(config.metrics, metrics.registry):
                async with listening(config.server, [SERVICE], add, options=options) as server:
                    await server.set_serving(serving=True)
                    ready(list(server.addresses))
                    await stopped.wait()
                    await server.set_serving(serving=False)
                    await server.stop(config.stop.grace_ms / 1000)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(engine.close)
    log.info("meta.stopped")
    return 0


async def drop_tombstones(
    engine: Engine, section: TombstoneSection, metrics: MetaMetrics, now_ms: Callable[[], int] = wall_ms
) -> None:
    """Forget tombstones older than the retention, once per interval; without a retention never. Raises StorageFailedError."""
    while section.retention_hours:
        await anyio.sleep(section.interval_ms / 1000)
        try:
            dropped = await engine.drop_tombstones(now_ms() - section.retention_hours * HOUR_MS)
        except DiskFullError as error:
            log.warning("tombstones.kept", error=str(error), help="the next look tries again")
            continue
        metrics.tombstones_dropped.inc(dropped)
        if dropped:
            log.info("tombstones.dropped", count=dropped)
