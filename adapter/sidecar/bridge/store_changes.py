"""What others changed in the local store: resets of this adapter, values adopted from the Meta Service, imports, other clients.

This is the one place where the bridge learns of changes that are not its own. It reads the store in slices and compares it with
what the bridge has agreed on with the broker; nothing is read while the store's write counter stands still.
"""

from collections.abc import AsyncIterator, Mapping

from adapter.model.codec import pack_names
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.large_calls import SLICE_ROWS
from adapter.runtime.slices import others
from adapter.sidecar.bridge.agreement import Agreed
from adapter.sidecar.storage.store import LocalStore


class StoreChanges:
    """Finds the records of a namespace that differ from what was agreed on."""

    def __init__(self, store: LocalStore, namespace: str) -> None:
        self._store = store
        self._prefix = pack_names(namespace)
        self._seen_seq = -1

    @property
    def pending(self) -> bool:
        """True when something was written since the last complete look."""
        return self._store.seq != self._seen_seq

    async def records(self) -> AsyncIterator[tuple[OffsetKey, OffsetRecord]]:
        """All records of the namespace, tombstones included. Others may write between two slices."""
        seq = self._store.seq
        after: OffsetKey | None = None
        while page := self._store.first(SLICE_ROWS, prefix=self._prefix, after=after):
            for stored in page:
                yield stored.key, stored.record
            after = page[-1].key
            await others()
        self._seen_seq = seq

    async def differing(self, agreed: Mapping[OffsetKey, Agreed]) -> list[tuple[OffsetKey, OffsetRecord]]:
        """The records that are not what was agreed on, or on which nothing was agreed."""
        found = []
        async for key, record in self.records():
            known = agreed.get(key)
            if known is None or not known.is_stored(record):
                found.append((key, record))
        return found
