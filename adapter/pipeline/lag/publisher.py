"""Makes batches of the lag job complete, and deletes what nobody needs. Only the driver that holds the lock may use it.

The manifest is the commit: before it is written, a batch does not exist; then all its files do. What a crash leaves behind:

- Before the manifest: files that no manifest lists. Spark repeats the batch from the same state, with the same segments.
- After the manifest, before Spark has noted the batch: Spark repeats it, and it is found to be done already.
- While old batches are deleted: the rest is deleted at the next start.

Neither the files nor Spark's checkpoint are synced. After a power cut they may be torn: the state has checksums, so the next
batch says so, and the directory has to be removed.

Of the state and the shards, which are as large as the fleet, two batches are kept. Shards stay READERS_S longer, for those who
are still reading them. Batches with a higher number than the one that begins are of a stream whose checkpoint is gone: the batch
is refused, because journals may not have the rows of all that is kept any more.
"""

import time
from collections import deque
from collections.abc import Callable

from adapter.errors import AdapterError
from adapter.pipeline.lag.files import LARGE, NEWEST, STATE, TABLES, BatchInfo, LagFiles, relative, start_again

# The shards of a batch stay readable for at least so many seconds after a newer batch is complete.
READERS_S = 60.0
_HOUR_US = 3_600_000_000
_ALL = (*TABLES, STATE)


class Publisher:
    """The complete batches of one output, in memory, and the order of changes to them. Each call may raise OSError.

    `keep_hours`: how long batches are kept, in the time of the journals. `check` raises AdapterError if this driver has lost its
    lock.
    """

    def __init__(
        self,
        files: LagFiles,
        keep_hours: int,
        check: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Where they are.
        self.files, self._keep_us, self._check, self._clock = files, keep_hours * _HOUR_US, check, clock
        self._complete = files.complete()
        self._newest: BatchInfo | None = None
        # The time of the oldest complete batch; None: not read yet.
        self._oldest_now: int | None = None
        # Batches whose shards may still be read, and the seconds of the clock at which they may be deleted.
        self._superseded: deque[tuple[float, int]] = deque()

    def sweep(self) -> None:
        """Delete the batches that are not complete, and what no manifest of the newest ones lists. Once, at the start."""
        newest = self._complete[-NEWEST:]
        for name in _ALL:
            kept = set(newest if name in LARGE else self._complete)
            for batch in self.files.directories(name):
                if batch not in kept:
                    self.files.directory(name, batch).delete_tree()
        for batch in newest:
            self._delete_unlisted(batch, self.files.info(batch))

    def done(self, batch: int, plan: str) -> BatchInfo | None:
        """The manifest of this batch, if it is complete already, with the same segments."""
        if batch not in self._complete[-NEWEST:]:
            return None
        info = self._info(batch)
        return info if plan and info.plan == plan else None

    def begin(self, batch: int) -> BatchInfo | None:
        """Begin a batch: returns the complete one before it, None for the first.

        Raises AdapterError if its state is missing, and if batches after it are complete.
        """
        if self._complete and self._complete[-1] > batch:
            raise AdapterError(
                f"{self.files.output}: has batches up to {self._complete[-1]}, and by the checkpoint {batch} is next: the "
                f"checkpoint is gone, an older copy, or of another output. Bring it back; or, {start_again(self.files.output)}"
            )
        return self._before(batch)

    def newest(self) -> BatchInfo | None:
        """The newest complete batch."""
        return self._info(self._complete[-1]) if self._complete else None

    def publish(self, info: BatchInfo) -> None:
        """Make a batch complete, then delete old ones. Its files are written already. Raises AdapterError without the lock."""
        again = self._info(info.batch) if info.batch in self._complete else None
        # Before the manifest, so that whoever reads the directory as a whole finds each row once.
        self._delete_unlisted(info.batch, info, again)
        self._check()
        self.files.manifest(info.batch).write(info.to_json())
        if again:
            self._delete_unlisted(info.batch, info)
        else:
            self._complete.append(info.batch)
        previous, self._newest = self._newest, info
        if previous and previous.batch < info.batch:
            self._delete_unlisted(previous.batch, previous)  # by tasks that went on after they were thought dead
        self._expire(info.now - self._keep_us)

    def _before(self, batch: int) -> BatchInfo | None:
        earlier = [number for number in self._complete[-NEWEST - 1 :] if number < batch]
        if not earlier and batch == 0:
            return None
        found = self._info(earlier[-1]) if earlier else None
        if found is None or not (found is self._newest or self._has_state(found)):
            raise AdapterError(f"there is no state of a batch before {batch}; {start_again(self.files.output)}")
        return found

    def _has_state(self, info: BatchInfo) -> bool:
        directory = self.files.directory(STATE, info.batch)
        names = {entry.path for entry in directory.entries()}
        return all(path.rpartition("/")[2] in names for path in info.files[STATE])

    def _expire(self, since: int) -> None:
        """Delete what is old, always the manifest first. Of what is as large as the fleet, two batches are kept."""
        for batch in self._complete[-NEWEST - 1 : -NEWEST]:
            self.files.directory(STATE, batch).delete_tree()
            self._superseded.append((self._clock() + READERS_S, batch))
        while self._superseded and self._superseded[0][0] <= self._clock():
            self.files.directory("shards", self._superseded.popleft()[1]).delete_tree()
        while len(self._complete) > NEWEST:
            oldest = self._complete[0]
            if self._oldest_now is None:
                self._oldest_now = self.files.info(oldest).now
            if self._oldest_now >= since:
                return
            self.files.manifest(oldest).delete()
            del self._complete[0]
            self._oldest_now = None
            self._delete_batch(oldest)

    def _delete_batch(self, batch: int) -> None:
        for name in _ALL:
            self.files.directory(name, batch).delete_tree()

    def _delete_unlisted(self, batch: int, *listed: BatchInfo | None) -> None:
        kept = {path for info in listed if info for paths in info.files.values() for path in paths}
        for name in _ALL:
            for entry in self.files.directory(name, batch).entries():
                if f"{relative(name, batch)}/{entry.path}" not in kept:
                    (self.files.directory(name, batch) / entry.path).delete()

    def _info(self, batch: int) -> BatchInfo:
        if self._newest and self._newest.batch == batch:
            return self._newest
        return self.files.info(batch)
