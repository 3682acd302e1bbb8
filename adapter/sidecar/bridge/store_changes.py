"""What others changed in the local store: resets of this adapter, values adopted from the Meta Service, imports, other clients.

This is the one place where the bridge learns of changes that are not its own. The store's watch tells it of all but ordinary
commits, at once. Ordinary commits of others are found by comparing the whole store, in slices, with what the bridge has agreed on
with the broker: rarely, because it takes microseconds for each record, and never while the store's write counter stands still.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import islice

import anyio

from adapter.model.codec import pack_names
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.serving.large_calls import SLICE_ROWS
from adapter.runtime.slices import others
from adapter.sidecar.bridge.agreement import Agreed
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.watching import Watcher

WHOLE_S = 10.0  # the shortest time between two comparisons of the whole store
KEYS_AT_ONCE = 2_000
REST_CPU = 20  # so many times the CPU time of a look or a poll passes until the next one


class StoreChanges:
    """Finds the records of a namespace that differ from what was agreed on."""

    def __init__(self, store: LocalStore, watcher: Watcher, namespace: str) -> None:
        self._store = store
        self._watcher = watcher
        self._prefix = pack_names(namespace)
        self._keys: dict[OffsetKey, None] = {}
        self._seen_seq = -1
        self._whole_at = 0.0

    @property
    def pending(self) -> bool:
        """True when there may be something to find."""
        return bool(self._keys) or self._watcher.pending or self._is_whole_due()

    def look_at(self, keys: Iterable[OffsetKey]) -> None:
        """Let the next `differing` look at these records too."""
        self._keys.update(dict.fromkeys(keys))

    def is_waiting(self, key: OffsetKey) -> bool:
        """True for a record that the next `differing` is to look at."""
        return key in self._keys

    def look_at_all(self) -> None:
        """Let the next `differing` compare the whole store."""
        self._seen_seq, self._whole_at = -1, 0.0

    async def records(self) -> AsyncIterator[tuple[OffsetKey, OffsetRecord]]:
        """All records of the namespace, tombstones included. Others may write between two slices."""
        after: OffsetKey | None = None
        while page := self._store.first(SLICE_ROWS, prefix=self._prefix, after=after):
            for stored in page:
                yield stored.key, stored.record
            after = page[-1].key
            await others()

    async def differing(
        self, agreed: Mapping[OffsetKey, Agreed], is_ours: Callable[[OffsetKey], bool]
    ) -> dict[OffsetKey, OffsetRecord]:
        """The records that are not what was agreed on, or on which nothing was agreed; in slices.

        Of records that were named, as many as `KEYS_AT_ONCE`; `is_waiting` tells those that were not looked at.
        `is_ours` tells keys of this broker: the store has those of others, too, as a group is loaded as a whole.
        """
        while self._watcher.pending:
            news = await self._watcher.next()
            if news.resync:
                self.look_at_all()
            self.look_at(news.keys)
        whole, seq, began = self._is_whole_due(), self._store.seq, time.thread_time()
        if whole:
            self._keys.clear()
        keys = list(islice(self._keys, KEYS_AT_ONCE))
        for key in keys:
            del self._keys[key]
        records = self.records() if whole else self._records_of(keys)
        differing = {key: record async for key, record in records if _differs(record, agreed.get(key)) and is_ours(key)}
        if whole:
            self._seen_seq = seq
            self._whole_at = anyio.current_time() + max(WHOLE_S, REST_CPU * (time.thread_time() - began))
        return differing

    async def _records_of(self, keys: Iterable[OffsetKey]) -> AsyncIterator[tuple[OffsetKey, OffsetRecord]]:
        """Those of the keys that are stored. A reset may name thousands."""
        for done, key in enumerate(keys, start=1):
            if record := self._store.get(key):
                yield key, record
            if done % SLICE_ROWS == 0:
                await others()

    def _is_whole_due(self) -> bool:
        return self._store.seq != self._seen_seq and anyio.current_time() >= self._whole_at


def _differs(record: OffsetRecord, agreed: Agreed | None) -> bool:
    return agreed is None or not agreed.is_stored(record)
