"""An open local store with everything that works on it. When the store fails, the whole core is replaced."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread

from adapter.client.broker_log import BrokerLog
from adapter.meta.client import MetaClient
from adapter.runtime.clocks import REAL, Clocks
from adapter.runtime.large_calls import LargeCalls
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.broadcast import Broadcasts
from adapter.sidecar.engine.committer import Committer
from adapter.sidecar.engine.dirty import DirtyKeys
from adapter.sidecar.engine.expiry import Expiry
from adapter.sidecar.engine.fast_path import LoneCommits
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.engine.group_loader import GroupLoader
from adapter.sidecar.engine.groups import Groups
from adapter.sidecar.engine.handover import Ownership
from adapter.sidecar.engine.meta_watch import MetaWatch
from adapter.sidecar.engine.policies import Router, WriteThrough
from adapter.sidecar.engine.reads import OffsetReader
from adapter.sidecar.engine.recovery import Recovery
from adapter.sidecar.engine.resets import Resets
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.metrics import AdapterMetrics
from adapter.sidecar.shard_bounds import ReportedBounds
from adapter.sidecar.storage.store import OffsetCache


@dataclass(frozen=True)
class Core:
    """The parts, composed along the path of a commit."""

    cache: OffsetCache
    dirty: DirtyKeys
    committer: Committer
    commits: Router
    lone: LoneCommits
    bounds: ReportedBounds
    broker_log: BrokerLog
    meta: MetaClient
    loader: GroupLoader
    groups: Groups
    broadcasts: Broadcasts
    resets: Resets
    reader: OffsetReader
    flusher: Flusher
    ownership: Ownership
    recovery: Recovery
    meta_watch: MetaWatch
    expiry: Expiry
    large: LargeCalls
    admin_calls: LargeCalls
    clocks: Clocks
    tasks: anyio.abc.TaskGroup


class Opening(Protocol):
    """How a local store is opened; raises what `OffsetCache.open` raises."""

    async def __call__(self, config: AdapterConfig, *, only: bytes | None) -> OffsetCache:
        """Open it, or make it; with `only` none but the one that has this `store_id`."""


async def open_cache(config: AdapterConfig, *, only: bytes | None) -> OffsetCache:
    """Open the local store in a worker thread: a replay of its WAL may take a while."""
    return await anyio.to_thread.run_sync(partial(OffsetCache.open, config.cache.path, config.cache.wal_sync, only=only))


@asynccontextmanager
async def running_core(
    config: AdapterConfig,
    cache: OffsetCache,
    meta: MetaClient,
    metrics: AdapterMetrics,
    broker_log: BrokerLog,
    clocks: Clocks = REAL,
    journal: Journal = NO_JOURNAL,
) -> AsyncIterator[Core]:
    """Run a core over an open cache, which is closed at the end.

    Raises, in a group, StorageFailedError when the store fails meanwhile. Its callers then get errors, not acknowledgements.
    """
    dirty = DirtyKeys()
    bounds = ReportedBounds()
    journal.sees(bounds)
    committer = Committer(cache, dirty, clocks.monotonic, journal)
    loader = GroupLoader(cache, committer, meta)
    write_through = WriteThrough(committer, cache, meta, metrics, journal)
    flusher = Flusher(config.flush, cache, dirty, committer, meta, metrics, clocks, journal)
    recovery = Recovery(cache, dirty, committer, flusher, meta, batch_keys=config.recovery.batch_keys, clock=clocks.monotonic)
    large = LargeCalls()
    groups = Groups(cache, dirty, large)
    commits = Router(config, loader, committer, write_through)
    reader = OffsetReader(cache, loader, large)
    broadcasts = Broadcasts(config.expiry, cache, groups, loader, reader, commits, clocks.now_ms)
    expiry = Expiry(
        config.expiry, cache, dirty, groups, broadcasts, committer, flusher, meta, metrics, clocks.now_ms, journal=journal
    )
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(committer.run, name="committer")
            tasks.start_soon(loader.run, name="loader")
            tasks.start_soon(write_through.run, name="write_through")
            tasks.start_soon(broadcasts.run, name="broadcasts")
            tasks.start_soon(cache.watch, name="cache.watch")
            tasks.start_soon(cache.run_sync, config.flush.interval_ms / 1000, name="cache.sync")
            yield Core(
                cache=cache,
                dirty=dirty,
                committer=committer,
                commits=commits,
                lone=LoneCommits(cache, dirty, possible=commits.at_once, clock=clocks.monotonic),
                bounds=bounds,
                broker_log=broker_log,
                meta=meta,
                loader=loader,
                groups=groups,
                broadcasts=broadcasts,
                resets=Resets(
                    cache, committer, flusher, loader, meta, write_through, bounds, broker_log, metrics, clocks.now_ms, journal
                ),
                reader=reader,
                flusher=flusher,
                ownership=Ownership(cache, dirty, committer, flusher, large),
                recovery=recovery,
                meta_watch=MetaWatch(config.broker, config.cache.path, cache, flusher, recovery, meta),
                expiry=expiry,
                large=large,
                admin_calls=LargeCalls("calls of OffsetAdmin", at_once=4),
                clocks=clocks,
                tasks=tasks,
            )
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await cache.apart(cache.close)
