"""A snapshot of the local store: every record as it stood at one instant, read while commits go on.

It shows all that was written before it and nothing that came later; where it cannot show all, it raises an error. Read in slices
on the event loop: RocksDB is called with the GIL held, so that a thread would hold up commits longer.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import chain
from typing import NamedTuple, Self

from adapter.errors import StorageFailedError, StoreDamagedError
from adapter.runtime.slices import others

PAGE_RECORDS = 1_000  # about 1 ms on the event loop
PAGE_BYTES = 2**20  # with metadata of 4 KiB a page would be large
IDLE_S = 60.0  # a reader that stands still would keep files on the disk that RocksDB no longer needs

_Rows = Iterator[tuple[bytes, bytes]]


class Page(NamedTuple):
    """Raw keys and records, in key order. An empty page is the end."""

    keys: list[bytes]
    records: list[bytes]


class Snapshot:
    """What `LocalStore.snapshot` returns; a context manager. `records` is how many there are.

    Records whose write counter is not above `flushed_seq` were in the Meta Service when it was taken.
    """

    def __init__(self, rows: _Rows, records: int, flushed_seq: int, closed: Callable[["Snapshot"], None]) -> None:
        self.records = records
        self.flushed_seq = flushed_seq
        self._closed = closed
        self._left = records
        self._why_closed = ""
        # The store is closed in a thread, which has to wait for a slice that is being read.
        self._lock = threading.Lock()
        # The first step makes RocksDB's iterator, which shows what is there at this moment.
        self._rows: _Rows = chain([first], rows) if (first := next(rows, None)) else rows

    def __enter__(self) -> Self:
        """Return the snapshot, which is closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the store."""
        self.close("it was closed")

    def read(self) -> Page:
        """The next page.

        Raises StoreDamagedError when something cannot be read or is missing, StorageFailedError once it was closed.
        """
        page = Page([], [])
        with self._lock:
            if self._why_closed:
                raise StorageFailedError(f"the snapshot cannot be read to its end: {self._why_closed}")
            size = 0
            for key, record in self._rows:
                page.keys.append(key)
                page.records.append(record)
                size += len(key) + len(record)
                if len(page.keys) == PAGE_RECORDS or size >= PAGE_BYTES:
                    break
        self._left -= len(page.keys)
        if self._left and not page.keys:
            raise StoreDamagedError(f"the store has {self.records - self._left} records, not {self.records} as it should")
        return page

    async def pages(self) -> AsyncGenerator[Page, None]:
        """All pages; the event loop runs other tasks between two of them. Raises what `read` does."""
        loop = asyncio.get_running_loop()
        while (page := self.read()).keys:
            idle = loop.call_later(IDLE_S, self.close, f"its reader did nothing for {IDLE_S:g} s")
            try:
                yield page
            finally:
                idle.cancel()
            await others()

    def close(self, why: str) -> None:
        """Release the store; a later `read` raises an error with `why`. Thread-safe; a second call does nothing."""
        with self._lock:
            self._why_closed = self._why_closed or why
            self._rows = iter(())  # RocksDB's iterator goes with the last reference: until then it would keep the store's lock
        self._closed(self)


class Snapshots:
    """The open snapshots of a store."""

    def __init__(self) -> None:
        self._open: set[Snapshot] = set()

    def take(self, rows: _Rows, records: int, flushed_seq: int) -> Snapshot:
        """A snapshot of what `rows`, a scan that has not begun, shows from now on."""
        taken = Snapshot(rows, records, flushed_seq, self._open.discard)
        self._open.add(taken)
        return taken

    def close(self, why: str) -> None:
        """Close all of them, because the store is about to be closed. Thread-safe."""
        for snapshot in list(self._open):
            snapshot.close(why)

    def __len__(self) -> int:
        """How many snapshots are open."""
        return len(self._open)
