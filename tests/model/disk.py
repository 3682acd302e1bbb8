"""A disk in memory: what was written survives a kill, what was synced a power cut. It can be full, and fail a sync.

`Platter` is what lies on it, `SimDisk` what one process has open of it. A fuse ends the process between any two operations.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

from adapter.errors import DiskFullError, StorageFailedError
from adapter.runtime.durable.checkpoint import Checkpoints
from adapter.sidecar.config import WalSync
from adapter.sidecar.ledger.disk import Batch

R = TypeVar("R")

SYNC_S = 0.002
# For how long what a thread has read is on its way to the event loop; most often for no time.
LATE_S = (*[0.0] * 5, 0.0015, 0.02, 0.15)

Change = tuple[bytes, bytes | None]


class Platter:
    """The contents, and what is broken about it."""

    def __init__(self, seed: str = "", on_failed_sync: Callable[[], None] = lambda: None) -> None:
        self._chance = Random(seed)
        self._on_failed_sync = on_failed_sync
        self.contents: dict[bytes, bytes] = {}
        self._synced: dict[bytes, bytes] = {}
        self._unsynced: list[list[Change]] = []
        self.watermark = 0
        self._synced_watermark = 0
        self.mark: tuple[int, WalSync] | None = None
        self.boot = 1
        self.full = False
        self.failing_syncs = 0
        self._dropped = 0
        self.version = 0  # changes with the contents
        self._removed: set[bytes] = set()

    @property
    def unsynced(self) -> int:
        """Batches that a power cut could take."""
        return len(self._unsynced)

    @property
    def fails(self) -> bool:
        """True from a failed sync until it is opened again."""
        return self._dropped > 0

    def late_s(self) -> float:
        """How late the next answer of a thread is."""
        return self._chance.choice(LATE_S)

    def write(self, changes: list[Change]) -> None:
        """To the kernel."""
        self.version += 1
        _apply(self.contents, changes)
        self._removed.update(key for key, value in changes if value is None)
        self._unsynced.append(changes)

    def take_removed(self) -> set[bytes]:
        """The keys that were removed since this was asked last, whether or not they were written again."""
        removed, self._removed = self._removed, set()
        return removed

    def synced(self, batches: int) -> None:
        """The oldest unsynced batches are durable now, unless a sync has failed: then this one proves nothing."""
        if self._dropped:
            return
        for changes in self._unsynced[:batches]:
            _apply(self._synced, changes)
        del self._unsynced[:batches]

    def sync_watermark(self) -> None:
        """It is durable now."""
        self._synced_watermark = self.watermark

    def drop(self, batches: int) -> None:
        """A sync of these failed: the kernel will drop them, and with them what was written behind."""
        self._on_failed_sync()
        self._dropped = max(self._dropped, batches)

    def power_cut(self, keep: int, *, keep_watermark: bool) -> None:
        """Keep some of the batches that were written and not synced: the log is read up to the first gap."""
        self.version += 1
        self.synced(keep)
        self._unsynced.clear()
        self.contents = dict(self._synced)
        self.watermark = self.watermark if keep_watermark else self._synced_watermark
        self._synced_watermark = self.watermark
        self.boot += 1

    def opened(self) -> bool:
        """Read it as RocksDB does: what is there is written anew, and synced. True when a failed sync took something."""
        lost = bool(self._dropped and self._unsynced)
        if lost:
            self.version += 1
            self._unsynced.clear()
            self.contents = dict(self._synced)
        self._dropped = 0
        self.synced(len(self._unsynced))
        return lost


class SimBatch:
    """Changes that are kept in memory until they are written."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append((key, value))

    def delete(self, key: bytes) -> None:
        self.changes.append((key, None))


class SimDisk:
    """A disk in memory. `died` is called when the fuse blows: the process ends before that operation."""

    name = "simulated"

    def __init__(self, platter: Platter, died: Callable[[], None]) -> None:
        self._platter = platter
        self._died = died
        self._stuck = False
        self._syncing = asyncio.Lock()
        self.dead = False
        self.fuse: int | None = None

    @property
    def watermark(self) -> int:
        return self._platter.watermark

    @property
    def watermark_intact(self) -> bool:
        """Nothing damages it here."""
        return True

    def shrink(self, *, sort: bool) -> None:
        """Nothing is in memory here that is not on the disk."""

    def missing(self) -> str:
        """Nothing goes away here."""
        return ""

    def get(self, key: bytes) -> bytes | None:
        self._check_alive()
        return self._platter.contents.get(key)

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        return [self.get(key) for key in keys]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check_alive()
        contents = self._platter.contents
        yield from [(key, contents[key]) for key in sorted(contents) if start <= key and (not end or key < end)]

    def batch(self) -> SimBatch:
        return SimBatch()

    def write(self, batch: Batch) -> None:
        assert isinstance(batch, SimBatch)
        self._burn()
        if self._platter.full or self._stuck:
            self._stuck = True
            raise DiskFullError("full by the test")
        self._platter.write(batch.changes)

    def sync_now(self) -> None:
        self._burn()
        self._check_sync()
        self._platter.synced(self._platter.unsynced)

    async def sync(self) -> None:
        """It covers what was written when it began."""
        async with self._syncing:
            self._burn()
            batches = self._platter.unsynced
            await asyncio.sleep(SYNC_S)
            self._burn()
            self._check_sync(batches)
            self._platter.synced(batches)

    async def apart(self, work: Callable[[], R]) -> R:
        """Not in this moment, as in a thread; and what it has read may be out of date when it comes."""
        await asyncio.sleep(0)
        found = work()
        late_s = self._platter.late_s()
        if late_s:
            await asyncio.sleep(late_s)
        return found

    def advance_watermark(self, value: int) -> None:
        self._burn()
        self._platter.watermark = value

    async def sync_watermark(self) -> None:
        async with self._syncing:
            await asyncio.sleep(SYNC_S)
            self._burn()
            self._platter.sync_watermark()

    def machine_went_down(self) -> bool:
        mark = self._platter.mark
        return mark is not None and mark[0] != self._platter.boot and mark[1] != "always"

    def begin(self, wal_sync: WalSync) -> None:
        self._burn()
        self._platter.mark = (self._platter.boot, wal_sync)

    def finish(self) -> None:
        self.sync_now()
        self._burn()
        self._platter.sync_watermark()
        self._burn()
        self._platter.mark = None

    def has_room(self) -> bool:
        return not self._platter.full

    def properties(self) -> dict[str, int]:
        return {}

    @property
    def checkpoints(self) -> Checkpoints:
        """It has no files."""
        raise StorageFailedError("nothing takes a backup here")

    def close(self) -> None:
        self.dead = True

    def _check_alive(self) -> None:
        if self.dead:
            raise StorageFailedError("this process is dead")

    def _burn(self) -> None:
        """Nothing of a process that was killed reaches the disk."""
        self._check_alive()
        if self.fuse is None:
            return
        self.fuse -= 1
        if self.fuse < 0:
            self.dead = True
            self._died()
            raise StorageFailedError("killed by the test")

    def _check_sync(self, batches: int = 0) -> None:
        if self._stuck:
            raise StorageFailedError("no intact log on a full disk")
        if self._platter.failing_syncs:
            self._platter.failing_syncs -= 1
            self._platter.drop(batches)
            raise StorageFailedError("failed by the test")


def _apply(contents: dict[bytes, bytes], changes: list[Change]) -> None:
    for key, value in changes:
        if value is None:
            contents.pop(key, None)
        else:
            contents[key] = value
