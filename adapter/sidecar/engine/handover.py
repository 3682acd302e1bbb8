"""Hands shards over: a broker that loses a shard persists and removes it here, and the next one reads it from the store."""

from collections.abc import Iterator, Sequence

from adapter.errors import ContendedError, MetaUnavailableError, RefusedError
from adapter.model.codec import group_prefix
from adapter.model.records import GroupKey, OffsetKey
from adapter.runtime.retry import retrying
from adapter.runtime.serving.large_calls import SLICE_ROWS, LargeCalls
from adapter.runtime.slices import others
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.engine.group_loader import GroupLoader, Wanted
from adapter.sidecar.engine.renewal import Renewal
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Forget

CONFIRMATIONS = 3  # after which an offset that the Meta Service does not keep is given up
REMOVE_LIMIT_S = 1.0  # after which keys that are still being committed are left alone


class Handover:
    """Persists and removes keys. It never removes a key that the Meta Service does not have."""

    def __init__(
        self,
        ledger: Ledger,
        flusher: Flusher,
        renewal: Renewal,
        loader: GroupLoader,
        large: LargeCalls,
    ) -> None:
        self._store = ledger.store
        self._dirty = ledger.dirty
        self._ledger = ledger
        self._flusher = flusher
        self._renewal = renewal
        self._loader = loader
        self._large = large

    async def persist(self, wanted: Sequence[Wanted]) -> None:
        """Return when the Meta Service has at least the values that these shards have now.

        One that may have deleted what it acknowledged is asked. Raises MetaUnavailableError, also when one of them has no answer,
        or RefusedError when the Meta Service refuses one; ContendedError when it does not keep one.
        """
        await self._loader.compare(wanted)
        await self._flush(wanted)
        if self._renewal.needed:
            for keys in self._slices(wanted):
                await self._confirm(keys)

    async def _flush(self, wanted: Sequence[Wanted]) -> None:
        """Send these shards if they are dirty."""
        if not any(self._dirty.any_of(part.group, part.shards) for part in wanted):
            return
        await self._flusher.flush_groups({part.group for part in wanted})
        # Nothing is awaited since the end of the flush: the next one may already be sending what this one left.
        for part in wanted:
            if unanswered := self._dirty.aside_of(part.group, part.shards):
                raise MetaUnavailableError(f"{_name(part, unanswered)}: has no answer: {self._flusher.last_error}")
            if refused := self._dirty.refused_of(part.group, part.shards):
                raise RefusedError(f"{_name(part, refused)}: {self._flusher.last_error}")

    async def _confirm(self, keys: Sequence[OffsetKey]) -> None:
        """Make sure that the Meta Service still has what it acknowledged, and send again what it has not."""
        for _ in range(CONFIRMATIONS):
            differing = await self._renewal.confirm(keys)
            if not differing:
                return
            await self._flush(_by_group(differing))
        raise ContendedError(f"{'/'.join(differing[0])}: the Meta Service acknowledges it, and has something else each time")

    async def remove(self, wanted: Sequence[Wanted]) -> int:
        """Persist these shards, then forget them locally, a slice at a time; returns how many keys were removed.

        Raises as `persist` does, and ContendedError when commits of a slice keep coming in: nothing of that slice is removed
        then, and what was removed before is in the Meta Service. OverloadedError when too many do this.
        """
        await self._flush(wanted)
        slices = self._slices(wanted)
        first = next(slices, None)
        if first is None:
            return 0
        removed = await self._forget(first)
        more = next(slices, None)
        if more is not None:
            async with self._large.one():
                while more is not None:
                    removed += await self._forget(more)
                    await others()
                    more = next(slices, None)
        await self._ledger.sync()  # with `always`, the one sync for all of them
        return removed

    async def _forget(self, keys: Sequence[OffsetKey]) -> int:
        attempts = retrying("remove", first_s=0.001, max_s=0.05, limit_s=REMOVE_LIMIT_S, on=ContendedError)
        return await attempts(self._forget_once, keys)

    async def _forget_once(self, keys: Sequence[OffsetKey]) -> int:
        await self.persist(_by_group(keys))
        return len(self._ledger.apply(Forget(keys)))

    def _slices(self, wanted: Sequence[Wanted]) -> Iterator[list[OffsetKey]]:
        """The keys that may be in the store, in slices; each slice is read when it is needed."""
        keys: list[OffsetKey] = []
        for part in wanted:
            for found in self._keys(part):
                keys += found
                if len(keys) >= SLICE_ROWS:
                    yield keys
                    keys = []
        if keys:
            yield keys

    def _keys(self, part: Wanted) -> Iterator[list[OffsetKey]]:
        for at in range(0, len(part.shards), SLICE_ROWS):
            yield [OffsetKey(*part.group, shard) for shard in part.shards[at : at + SLICE_ROWS]]
        after: OffsetKey | None = None
        while not part.shards and (page := self._store.first(SLICE_ROWS, prefix=group_prefix(part.group), after=after)):
            yield [stored.key for stored in page]
            after = page[-1].key


def _by_group(keys: Sequence[OffsetKey]) -> list[Wanted]:
    shards: dict[GroupKey, list[str]] = {}
    for key in keys:
        shards.setdefault(key.group_key, []).append(key.shard)
    return [Wanted(*part) for part in shards.items()]


def _name(part: Wanted, shard: str) -> str:
    return "/".join((*part.group, shard))
