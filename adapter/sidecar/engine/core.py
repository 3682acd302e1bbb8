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
from adapter.runtime.serving.large_calls import LargeCalls
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.broadcast import Broadcasts
from adapter.sidecar.engine.changed_elsewhere import ChangedElsewhere
from adapter.sidecar.engine.expiry import Expiry
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
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.rules import Holds
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.sidecar.shard_bounds import ReportedBounds


@dataclass(frozen=True)
class Core:
    """The parts of a core. `running_core` composes them."""

    ledger: Ledger
    router: Router
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
    meta_watch: MetaWatch
    elsewhere: ChangedElsewhere
    expiry: Expiry
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
            self.ledger.takes_plain = False
        # Else behind what was offered to it in this iteration: a stream that did so counts on the policies of then.
        asyncio.get_running_loop().call_soon(self._open_plain)
        self.flusher.take(config.flush)
        self.expiry.take(config.expiry)
        self.broadcasts.take(config.expiry)
        self.renewal.take(config.expiry)

    def _open_plain(self) -> None:
        self.ledger.takes_plain = self.router.at_once


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
    bounds = ReportedBounds()
    journal.sees(bounds)
    ledger = Ledger(store, clocks, journal, Holds(config.reset.hold_seconds * 1000, clocks.now_ms))
    tombstones = Tombstones(meta, ledger.holds, clocks.now_ms)
    loader = GroupLoader(ledger, meta, tombstones)
    saver = Saver(meta, ShardLabels(config.meta.shard_names, config.meta.topics), ledger.states.note_rewind)
    flusher = Flusher(ledger, config.flush, saver, metrics, tombstones, spans)
    write_through = WriteThrough(ledger, saver, metrics)
    recovery = Recovery(ledger, flusher, meta, tombstones, batch_keys=config.recovery.batch_keys)
    large = LargeCalls()
    groups = Groups(ledger, large)
    router = Router(config, ledger, loader, write_through)
    reader = OffsetReader(ledger, loader, large, tombstones)
    broadcasts = Broadcasts(ledger, config.expiry, groups, loader, reader, router)
    expiry = Expiry(ledger, config.expiry, broadcasts, flusher, tombstones, metrics)
    renewal = Renewal(ledger, config.meta, config.expiry, groups, flusher)
    elsewhere = ChangedElsewhere(store, loader, expiry, meta, clocks)
    ledger.takes_plain = router.at_once
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ledger.run, name="ledger")
            tasks.start_soon(ledger.rest, name="ledger.rest")
            tasks.start_soon(loader.run, name="loader")
            tasks.start_soon(write_through.run, name="write_through")
            tasks.start_soon(broadcasts.run, name="broadcasts")
            tasks.start_soon(store.watch, name="store.watch")
            tasks.start_soon(store.run_sync, flusher.interval, name="store.sync")
            yield Core(
                ledger=ledger,
                router=router,
                bounds=bounds,
                broker_log=broker_log,
                meta=meta,
                loader=loader,
                groups=groups,
                broadcasts=broadcasts,
                resets=Resets(ledger, flusher, loader, write_through, bounds, broker_log),
                reader=reader,
                flusher=flusher,
                handover=Handover(ledger, flusher, renewal, loader, large),
                recovery=recovery,
                meta_watch=MetaWatch(ledger, config.broker, config.store.path, recovery, elsewhere, meta),
                elsewhere=elsewhere,
                expiry=expiry,
                renewal=renewal,
                large=large,
                admin_calls=LargeCalls("calls of OffsetAdmin", at_once=4),
                clocks=clocks,
                tasks=tasks,
            )
            tasks.cancel_scope.cancel()
    finally:
        ledger.watches.end()
        with anyio.CancelScope(shield=True):
            await store.apart(store.close)
