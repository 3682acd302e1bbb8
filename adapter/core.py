"""An open local store with everything that works on it. When the store fails, the whole core is replaced."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.abc
import anyio.to_thread

from adapter.cache import OffsetCache
from adapter.commit import Router, WriteBack, WriteThrough
from adapter.committer import Committer
from adapter.config import AdapterConfig
from adapter.dirty import DirtyKeys
from adapter.flusher import Flusher
from adapter.meta_client import MetaClient
from adapter.metrics import AdapterMetrics
from adapter.ownership import Ownership
from adapter.reads import GroupLoader, OffsetReader
from adapter.recovery import Recovery


@dataclass(frozen=True)
class Core:
    """The parts, composed along the path of a commit."""

    cache: OffsetCache
    dirty: DirtyKeys
    committer: Committer
    commits: Router
    reader: OffsetReader
    flusher: Flusher
    ownership: Ownership
    recovery: Recovery
    tasks: anyio.abc.TaskGroup


async def open_cache(config: AdapterConfig, *, create: bool) -> OffsetCache:
    """Open the local store in a worker thread: a replay of its WAL may take a while."""
    return await anyio.to_thread.run_sync(partial(OffsetCache.open, config.cache.path, config.cache.wal_sync, create=create))


@asynccontextmanager
async def running_core(
    config: AdapterConfig, cache: OffsetCache, meta: MetaClient, metrics: AdapterMetrics
) -> AsyncIterator[Core]:
    """Run a core over an open cache, which is closed at the end.

    Raises, in a group, StorageFailedError when the store fails meanwhile. Its callers then get errors, not acknowledgements.
    """
    dirty = DirtyKeys()
    committer = Committer(cache, dirty)
    loader = GroupLoader(cache, committer, meta)
    write_through = WriteThrough(committer, cache, meta, metrics)
    flusher = Flusher(config.flush, cache, dirty, committer, meta, metrics)
    try:
        async with anyio.create_task_group() as tasks:
            for run, name in (
                (committer.run, "committer"),
                (loader.run, "loader"),
                (write_through.run, "write_through"),
                (cache.watch, "cache.watch"),
            ):
                tasks.start_soon(run, name=name)
            tasks.start_soon(cache.run_sync, config.flush.interval_ms / 1000, name="cache.sync")
            yield Core(
                cache=cache,
                dirty=dirty,
                committer=committer,
                commits=Router(config, loader, WriteBack(committer), write_through),
                reader=OffsetReader(cache, loader),
                flusher=flusher,
                ownership=Ownership(cache, dirty, committer, flusher),
                recovery=Recovery(cache, dirty, committer, flusher, meta, batch_keys=config.recovery.batch_keys),
                tasks=tasks,
            )
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(cache.close)
