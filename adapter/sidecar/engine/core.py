"""An open local store with everything that works on it. When the store fails, the whole core is replaced by a new one."""

import asyncio
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
from adapter.meta.epochless import Saver
from adapter.meta.labels import ShardLabels
from adapter.runtime.clocks import REAL, Clocks
from adapter.runtime.large_calls import LargeCalls
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.broadcast import Broadcasts
from adapter.sidecar.engine.changed_elsewhere import ChangedElsewhere
from adapter.sidecar.engine.commit_rules import Holds
from adapter.sidecar.engine.committer import Committer
from adapter.sidecar.engine.expiry import Expiry
from adapter.sidecar.engine.fast_path import FastPath
from adapter.sidecar.engine.flush_spans import FlushSpans
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.engine.group_loader import GroupLoader
from adapter.sidecar.engine.groups import Groups
from adapter.sidecar.engine.handover import Handover
from adapter.sidecar.engine.meta_watch import MetaWatch
from adapter.sidecar.engine.policies import Router, WriteThrough
from adapter.sidecar.engine.reads import OffsetReader
from adapter.sidecar.engine.recovery import Recovery
from adapter.sidecar.engine.renewal import Renewal
from adapter.sidecar.engine.resets import Resets
from adapter.sidecar.engine.tombstones import Tombstones
from adapter.sidecar.engine.watching import Watches
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.ledger.dirty import DirtyKeys
from adapter.sidecar.ledger.recovered import Recovered
from adapter.sidecar.metrics import AdapterMetrics
from adapter.sidecar.shard_bounds import ReportedBounds
from adapter.sidecar.storage.store import LocalStore


@dataclass(frozen=True)
class Core:
    """The parts of a core. `running_core` composes them."""

    store: LocalStore
    dirty: DirtyKeys
    committer: Committer
    router: Router
    fast_path: FastPath
    bounds: ReportedBounds
    broker_log: BrokerLog
    meta: MetaClient
    loader: GroupLoader
    groups: Groups
    broadcasts: Broadcasts
    resets: Resets
    reader: OffsetReader
    flusher: Flusher
    handover: Handover
    recovery: Recovery
    recovered: Recovered
    meta_watch: MetaWatch
    elsewhere: ChangedElsewhere
    expiry: Expiry
    watches: Watches
    holds: Holds
    renewal: Renewal
    large: LargeCalls
    admin_calls: LargeCalls
    clocks: Clocks
    tasks: anyio.abc.TaskGroup

    def take(self, config: AdapterConfig) -> None:
        """Put the settings in force that may change while the core runs.

        A commit that has begun is answered by the policy of then; it says itself if it was written through.
        """
        self.router.take(config)
        if not self.router.at_once:
            self.fast_path.possible = False
        # Else behind what was offered to it in this iteration: a stream that did so counts on the policies of then.
        asyncio.get_running_loop().call_soon(self._open_fast_path)
        self.flusher.take(config.flush)
        self.expiry.take(config.expiry)
        self.broadcasts.take(config.expiry)
        self.renewal.take(config.expiry)

    def _open_fast_path(self) -> None:
        self.fast_path.possible = self.router.at_once


class Opening(Protocol):
    """Opens a local store; raises what `LocalStore.open` raises."""

    async def __call__(self, config: AdapterConfig, *, only: bytes | None) -> LocalStore:
        """Open or create the store; with `only`, open none but the one with this `store_id`."""


async def open_store(config: AdapterConfig, *, only: bytes | None) -> LocalStore:
    """Open the local store in a worker thread: a replay of its WAL may take a while."""
    return await anyio.to_thread.run_sync(partial(LocalStore.open, config.store.path, config.store.wal_sync, only=only))


@asynccontextmanager
async def running_core(
    config: AdapterConfig,
    store: LocalStore,
    meta: MetaClient,
    metrics: AdapterMetrics,
    broker_log: BrokerLog,
    clocks: Clocks = REAL,
    journal: Journal = NO_JOURNAL,
    spans: FlushSpans | None = None,
) -> AsyncIterator[Core]:
    """Run a core over an open store, which is closed at the end.

    Raises, in a group, StorageFailedError when the store fails meanwhile. Its callers then get errors, not acknowledgements.
    """
    recovered = Recovered()
    dirty = DirtyKeys(recovered)
    bounds = ReportedBounds()
    journal.sees(bounds)
    holds = Holds(config.reset.hold_seconds * 1000, clocks.now_ms)
    committer = Committer(store, dirty, clocks.monotonic, journal, holds)
    tombstones = Tombstones(meta, holds, clocks.now_ms)
    loader = GroupLoader(store, dirty, committer, meta, tombstones, recovered)
    saver = Saver(meta, ShardLabels(config.meta.shard_names, config.meta.topics))
    flusher = Flusher(config.flush, store, dirty, committer, saver, metrics, clocks, journal, spans)
    write_through = WriteThrough(committer, store, saver, metrics, journal, uncompared=lambda _: not recovered.now)
    recovery = Recovery(
        store,
        dirty,
        committer,
        flusher,
        meta,
        tombstones,
        recovered,
        batch_keys=config.recovery.batch_keys,
        clock=clocks.monotonic,
    )
    large = LargeCalls()
    groups = Groups(store, dirty, large)
    router = Router(config, loader, committer, write_through)
    reader = OffsetReader(store, committer, loader, large, tombstones, recovered)
    broadcasts = Broadcasts(config.expiry, store, groups, loader, reader, router, clocks.now_ms)
    expiry = Expiry(
        config.expiry,
        store,
        groups,
        broadcasts,
        committer,
        flusher,
        recovered,
        meta,
        tombstones,
        metrics,
        clocks.now_ms,
        journal=journal,
    )
    renewal = Renewal(config.meta, config.expiry, store, dirty, groups, committer, flusher, clocks.now_ms)
    elsewhere = ChangedElsewhere(store, loader, expiry, meta, clocks)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(committer.run, name="committer")
            tasks.start_soon(loader.run, name="loader")
            tasks.start_soon(write_through.run, name="write_through")
            tasks.start_soon(broadcasts.run, name="broadcasts")
            tasks.start_soon(store.watch, name="store.watch")
            tasks.start_soon(store.run_sync, flusher.interval, name="store.sync")
            yield Core(
                store=store,
                dirty=dirty,
                committer=committer,
                router=router,
                fast_path=FastPath(store, dirty, recovered, possible=router.at_once, clock=clocks.monotonic),
                bounds=bounds,
                broker_log=broker_log,
                meta=meta,
                loader=loader,
                groups=groups,
                broadcasts=broadcasts,
                resets=Resets(
                    store, committer, flusher, loader, meta, write_through, bounds, broker_log, metrics, clocks.now_ms, journal
                ),
                reader=reader,
                flusher=flusher,
                handover=Handover(store, dirty, committer, flusher, renewal, large),
                recovery=recovery,
                recovered=recovered,
                meta_watch=MetaWatch(config.broker, config.store.path, store, dirty, recovery, elsewhere, meta),
                elsewhere=elsewhere,
                expiry=expiry,
                watches=committer.watches,
                holds=holds,
                renewal=renewal,
                large=large,
                admin_calls=LargeCalls("calls of OffsetAdmin", at_once=4),
                clocks=clocks,
                tasks=tasks,
            )
            tasks.cancel_scope.cancel()
    finally:
        committer.watches.end()
        with anyio.CancelScope(shield=True):
            await store.apart(store.close)
