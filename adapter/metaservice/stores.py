"""Opens the stores that the settings choose: one embedded RocksDB, or Raft groups in etcd."""

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import anyio.to_thread
from prometheus_client import CollectorRegistry

from adapter.errors import ConfigError
from adapter.metaservice.config import MetaConfig
from adapter.metaservice.engine import Engine
from adapter.metaservice.etcd import leader_balancer, raft_watch
from adapter.metaservice.etcd.client import EtcdCluster, Join
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.leader_balancer import Leaders, Watched
from adapter.metaservice.etcd.leader_placement import METADATA
from adapter.metaservice.etcd.metadata import EtcdMetadata
from adapter.metaservice.etcd.raft_watch import RaftMetrics
from adapter.metaservice.metadata import MetadataStore
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.metaservice.rocksdb.metadata import RocksDbMetadata
from adapter.runtime.durable.disk_space import DiskSpace
from adapter.runtime.retry import retrying
from adapter.runtime.telemetry.metrics import GaugesCollector

PREFIX = "offset_meta"  # of the names of metrics
FIRST_TRY_S, MAX_PAUSE_S = 0.1, 2.0  # backoff while a start waits for etcd


class Stores(NamedTuple):
    """The stores to serve; None if not served. `run` must be running. Calls fail until `open` has returned.

    `embedded`: the engine whose files a backup copies; None with etcd.
    """

    offsets: Engine | None
    metadata: MetadataStore | None
    embedded: RocksDbEngine | None
    run: Callable[[], Coroutine[Any, Any, None]]
    open: Callable[[], Awaitable[None]]


@asynccontextmanager
async def opened(config: MetaConfig, registry: CollectorRegistry, join: Join = lambda _: None) -> AsyncIterator[Stores]:
    """Open the stores; closes them at the end. Raises the errors of opening them. `join` is for clients of etcd."""
    async with _etcd(config, registry, join) if config.engine == "etcd" else _rocksdb(config, registry) as stores:
        yield stores


@asynccontextmanager
async def _rocksdb(config: MetaConfig, registry: CollectorRegistry) -> AsyncIterator[Stores]:
    engine = await anyio.to_thread.run_sync(RocksDbEngine.open, config.store.path)
    registry.register(GaugesCollector(PREFIX, engine.gauges))
    registry.register(GaugesCollector(PREFIX, DiskSpace(config.store.path).gauges))
    try:
        yield Stores(
            engine if "offsets" in config.serve else None,
            RocksDbMetadata(engine) if "metadata" in config.serve else None,
            engine,
            engine.run,
            anyio.lowlevel.checkpoint,
        )
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(engine.close)


@asynccontextmanager
async def _etcd(config: MetaConfig, registry: CollectorRegistry, join: Join) -> AsyncIterator[Stores]:
    section = config.etcd
    if section.metadata is None:
        raise ConfigError("etcd.metadata: no endpoints are configured")
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(EtcdCluster.open("metadata", section.metadata, section, join))
        groups = [
            await stack.enter_async_context(EtcdCluster.open(group.name, group, section, join)) for group in section.offsets
        ]
        engine = EtcdEngine(metadata, groups, section) if "offsets" in config.serve else None
        entries = EtcdMetadata(metadata, section.prefix) if "metadata" in config.serve else None
        version_known = anyio.Event()
        if engine:
            registry.register(GaugesCollector(PREFIX, engine.gauges))
        watched = [Watched(group.name, cluster, group) for group, cluster in zip(section.offsets, groups, strict=True)]
        leaders = Leaders(Watched(METADATA, metadata, section.metadata), watched)
        raft_metrics = RaftMetrics(section.quota_bytes)
        registry.register(raft_metrics)

        async def run() -> None:
            async with anyio.create_task_group() as tasks:
                if engine:
                    tasks.start_soon(engine.run, name="engine")
                tasks.start_soon(raft_watch.run, leaders, raft_metrics, name="raft_watch")
                if section.placement.balance:
                    await version_known.wait()
                    tasks.start_soon(leader_balancer.run, section, registry, join, name="leaders")

        async def open_stores() -> None:
            for store in (engine, entries):
                if store:
                    await retrying("open", first_s=FIRST_TRY_S, max_s=MAX_PAUSE_S)(store.open)
            version_known.set()

        yield Stores(engine, entries, None, run, open_stores)
