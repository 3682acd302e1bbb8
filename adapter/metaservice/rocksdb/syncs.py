"""The syncs of the embedded store: concurrent callers share one (group commit), and the watermark follows. A failure is final."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
from rocksdict import Rdict

from adapter.errors import StorageFailedError
from adapter.runtime.coalescing import Coalescer
from adapter.runtime.durable import rocks
from adapter.runtime.durable.watermark import Watermark

WATERMARK_SYNC_S = 1.0
MAX_SYNC_CALLERS = 1_024


class Syncs:
    """Of one open store, whose newest write has the number `seq`. `run` must be running."""

    def __init__(self, db: Rdict, watermark: Watermark, path: Path, seq: int) -> None:
        self.seq = self._written_seq = self._marked_seq = seq
        self.failure = ""
        self._db = db
        self._watermark = watermark
        self._path = path
        self._written = self._synced = 0  # batches
        self._limiter = anyio.CapacityLimiter(1)
        self._failed = anyio.Event()
        self._calls: Coalescer[None, None] = Coalescer(self._sync, max_items=MAX_SYNC_CALLERS)

    async def run(self) -> None:
        """Sync for callers. Raises StorageFailedError after a failure."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._calls.run, name="engine.sync")
            tasks.start_soon(self._run_watermark, name="engine.watermark")
            await self._failed.wait()
            raise StorageFailedError(f"{self._path}: {self.failure}")

    def wrote(self, seq: int) -> None:
        """Take note of a batch that was written, up to this number. `seq` becomes that of the newest synced write by a sync."""
        self._written += 1
        self._written_seq = seq

    async def next(self) -> None:
        """Wait for the next sync, also if nothing was written. Raises StorageFailedError."""
        await self._calls.submit(None)

    async def wait(self) -> None:
        """Call after a read: waits until everything written so far is synced.

        Otherwise an adapter could mark a record as clean that a power cut still removes (invariant 3). Shares the sync of others;
        returns at once if everything is synced. Raises StorageFailedError.
        """
        if self._synced < self._written:
            await self.next()

    def check(self) -> None:
        """Raise StorageFailedError after a failure."""
        if self.failure:
            raise StorageFailedError(self.failure)

    def fail(self, reason: str) -> None:
        """Let everything fail from now on, and end `run`."""
        self.failure = self.failure or reason
        self._failed.set()

    def finish(self) -> None:
        """Sync the store, then set the watermark to it, unless a sync has failed. Blocks. Raises StorageFailedError."""
        if self.failure:
            return
        rocks.guarded(self._db.flush_wal, True)
        try:
            self._watermark.advance(self._written_seq)
            self._watermark.sync()
        except OSError as error:
            raise StorageFailedError(f"{self._path}: the watermark could not be synced: {error}") from error

    async def _sync(self, callers: Sequence[None]) -> Sequence[None]:
        self.check()
        written, seq = self._written, self._written_seq
        try:
            await anyio.to_thread.run_sync(rocks.guarded, self._db.flush_wal, True, limiter=self._limiter)
            # After the sync and before the reply: so a watermark above the store always means a loss.
            self._watermark.advance(seq)
        except Exception as error:
            self.fail(f"the sync of the store failed: {error}")
            raise StorageFailedError(str(error)) from error
        self._synced, self.seq = written, seq
        return callers

    async def _run_watermark(self) -> None:
        """Sync the watermark once a second, so that after a power cut it is about as new as the store."""
        while True:
            await anyio.sleep(WATERMARK_SYNC_S)
            marked = self.seq
            if marked == self._marked_seq:
                continue
            try:
                await anyio.to_thread.run_sync(self._watermark.sync)
            except OSError as error:
                self.fail(f"the sync of the watermark failed: {error}")
            self._marked_seq = marked
