"""A store over a simulated disk for the tests of the fast path."""

from collections.abc import Sequence

from adapter.errors import AdapterError
from adapter.model.records import OffsetKey
from adapter.runtime.clocks import Clocks
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.write_batch import Stored
from tests.model.disk import Platter, SimBatch, SimDisk
from tests.unit.helpers import key, record
from tests.unit.sidecar.engine.fast_requests import Request
from tests.unit.sidecar.engine.standing import NOW_MS

State = tuple[dict[OffsetKey, Stored], int, set[OffsetKey]]


class Disk(SimDisk):
    """A disk that fails the operation that a test names, once."""

    refuses: AdapterError | None = None
    watermark_fails = False

    def write(self, batch: object) -> None:
        """Write a batch, unless the test wants it to fail."""
        if self.refuses:
            error, self.refuses = self.refuses, None
            raise error
        assert isinstance(batch, SimBatch)
        super().write(batch)

    def advance_watermark(self, value: int) -> None:
        """Write the watermark, unless the test wants it to fail."""
        if self.watermark_fails:
            raise OSError("failed by the test")
        super().advance_watermark(value)


class Store:
    """A store with its dirty keys and the fast path, over a simulated disk that outlives it."""

    def __init__(self, platter: Platter | None = None) -> None:
        self.platter = platter or Platter()
        self.disk = Disk(self.platter, lambda: None)
        self.store = LocalStore.over(self.disk, "interval")
        self.ledger = Ledger(self.store, Clocks(lambda: 0.0))
        self.ledger.recovered.finish()
        self.ledger.takes_plain = True
        self.dirty = self.ledger.dirty

    def holds(self, **offsets: int) -> "Store":
        """Store clean records, which are then also in memory."""
        self.store.write({key(shard): record(offset) for shard, offset in offsets.items()})
        return self

    def commit(self, *runs: Sequence[Request], now_ms: int = NOW_MS) -> list[int]:
        """Commit runs that arrive in one iteration of the event loop."""
        return self.ledger.commit_plain(runs, now_ms).counts

    def state(self) -> State:
        """The records, after checking that memory has what the disk has; and the dirty keys."""
        stored = {found.key: found for found in self.store.scan()}
        for where, found in stored.items():
            assert self.store.find(where) == found[1:]
        return stored, self.store.seq, self.dirty.keys()

    def offsets(self) -> dict[str, int]:
        """The stored offset of each shard."""
        return {where.shard: found.record.offset for where, found in self.state()[0].items()}

    def again(self) -> "Store":
        """Open the store as the next process does, and check that it finds no loss."""
        opened = Store(self.platter)
        assert opened.store.loss is None
        assert opened.state()[:2] == self.state()[:2]
        return opened
