"""The hand-over of shards: a broker that loses one persists and removes it here; the next one reads it from the store."""

from collections.abc import Sequence

from adapter.cache import OffsetCache
from adapter.codec import group_prefix
from adapter.committer import Committer, Forget
from adapter.dirty import DirtyKeys
from adapter.errors import ContendedError, MetaUnavailableError, RefusedError
from adapter.flusher import Flusher
from adapter.model import OffsetKey
from adapter.reads import Wanted
from adapter.retry import retrying

REMOVE_LIMIT_S = 1.0  # after which keys that are still being committed are left alone


class Ownership:
    """Persists and removes keys; never removes one that the Meta Service does not have."""

    def __init__(self, cache: OffsetCache, dirty: DirtyKeys, committer: Committer, flusher: Flusher) -> None:
        self._cache = cache
        self._dirty = dirty
        self._committer = committer
        self._flusher = flusher

    async def persist(self, wanted: Sequence[Wanted]) -> None:
        """Return when the Meta Service has at least the values that these shards have now.

        Raises MetaUnavailableError, also when one of them has no answer, or RefusedError when the Meta Service refuses one.
        """
        keys = self._keys(wanted)
        if not any(key in self._dirty for key in keys):
            return
        await self._flusher.flush_once(refused_too=True, aside_too=True)
        unanswered = next((key for key in keys if self._dirty.is_aside(key)), None)
        if unanswered:
            raise MetaUnavailableError(f"{'/'.join(unanswered)}: has no answer: {self._flusher.last_error}")
        refused = next((key for key in keys if self._dirty.is_refused(key)), None)
        if refused:
            raise RefusedError(f"{'/'.join(refused)}: {self._flusher.last_error}")

    async def remove(self, wanted: Sequence[Wanted]) -> int:
        """Persist these shards, then forget them locally; returns how many keys were removed.

        Raises as `persist` does, and ContendedError when commits keep coming in; nothing is removed then.
        """
        attempts = retrying("remove", first_s=0.001, max_s=0.05, limit_s=REMOVE_LIMIT_S, on=ContendedError)
        return await attempts(self._remove_once, wanted)

    async def _remove_once(self, wanted: Sequence[Wanted]) -> int:
        await self.persist(wanted)
        return len(await self._committer.submit(Forget(self._keys(wanted))))

    def _keys(self, wanted: Sequence[Wanted]) -> list[OffsetKey]:
        keys: dict[OffsetKey, None] = {}
        for part in wanted:
            keys.update(dict.fromkeys(part.keys or (stored.key for stored in self._cache.scan(group_prefix(part.group)))))
        return list(keys)
