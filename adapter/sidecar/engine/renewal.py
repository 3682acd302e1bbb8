"""Keeps offsets in a Meta Service that deletes by itself, without asking, the groups without a save (RobustMQ).

A group that this adapter keeps is saved once more before that, on condition that it stands there as it is here. What does not is
dirty again. A hand-over does the same first: a clean offset may be gone there, and the local one be the last.
"""

from collections.abc import Sequence

import anyio
import structlog

from adapter.errors import AdapterError
from adapter.meta.config import MetaSection
from adapter.model.codec import group_prefix
from adapter.model.records import GroupKey, OffsetKey
from adapter.sidecar.config import ExpirySection
from adapter.sidecar.engine.expiry import HOUR_MS
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.engine.groups import PAGE_KEYS, Groups
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Reconcile

log = structlog.get_logger(__name__)

SHARE = 4  # passes within the time after which the Meta Service deletes a group: each of them may fail or be late
BATCH_GROUPS = 256  # at most, between two flushes


class Renewal:
    """Saves groups again that nobody has committed to for a while. Must not run before the recovery is done."""

    def __init__(
        self,
        ledger: Ledger,
        section: MetaSection,
        expiry: ExpirySection,
        groups: Groups,
        flusher: Flusher,
    ) -> None:
        self._interval_s = section.expires_groups_after_seconds / SHARE
        self.take(expiry)
        self._store = ledger.store
        self._dirty = ledger.dirty
        self._groups = groups
        self._ledger = ledger
        self._flusher = flusher
        self._meta = flusher.saver.meta
        self._now_ms = ledger.clocks.now_ms

    def take(self, expiry: ExpirySection) -> None:
        """Keep groups for as long as these settings say."""
        self._retention_ms = expiry.retention_hours * HOUR_MS

    @property
    def needed(self) -> bool:
        """True before a Meta Service that may have deleted what it acknowledged."""
        return self._meta.kind.expires_unasked

    async def run(self) -> None:
        """Pass over all groups, at once and then at intervals. With a setting of 0, never."""
        while self._interval_s:
            try:
                await self.pass_once()
            except AdapterError as error:
                log.warning("renewal.failed", error=str(error), help="the next pass begins anew")
            await anyio.sleep(self._interval_s)

    async def pass_once(self) -> None:
        """Save one offset of each group that is idle, and not yet too old to be kept. Raises MetaUnavailableError, RefusedError.

        A group whose age is unknown, since it was only read, is left to those who commit to it.
        """
        if not self.needed:
            return
        now_ms = self._now_ms()
        idle_ms = now_ms - self._interval_s * 1000
        kept_ms = now_ms - self._retention_ms if self._retention_ms else 1
        some: list[OffsetKey] = []
        count = 0
        async for row in self._groups.rows():
            if not row.shards or row.dirty or not kept_ms <= row.last_commit_at_ms < idle_ms:
                continue
            some += self._one_of(row.group)
            count += 1
            if len(some) >= min(self._meta.limits.groups, BATCH_GROUPS):
                await self._renew(some)
                some = []
        await self._renew(some)
        if count:
            log.info("renewal.done", groups=count)

    async def confirm(self, keys: Sequence[OffsetKey]) -> list[OffsetKey]:
        """Save clean offsets once more that stand as they are here; returns those that do not, which are dirty now.

        Raises MetaUnavailableError, RefusedError.
        """
        async with self._flusher.paused():
            clean = {
                key: record
                for key in keys
                if (record := self._store.get(key)) is not None and record.live and key not in self._dirty
            }
            if not clean:
                return []
            differing = await self._flusher.saver.confirm(clean)
            # What was committed meanwhile is decided by its flush: read before a rewind, more than that looks like progress.
            await self._ledger.submit(Reconcile([entry for entry in differing.items() if entry[0] not in self._dirty]))
        if differing:
            key, held = next(iter(differing.items()))
            there = "nothing" if held is None else held.offset
            log.warning("renewal.differs", entries=len(differing), key="/".join(key), here=clean[key].offset, there=there)
        return list(differing)

    async def _renew(self, keys: Sequence[OffsetKey]) -> None:
        for group in {key.group_key for key in await self.confirm(keys)}:
            await self._confirm_all(group)

    async def _confirm_all(self, group: GroupKey) -> None:
        """Look at every offset of a group of which one is not there any more."""
        after: OffsetKey | None = None
        while page := await self._store.page(PAGE_KEYS, prefix=group_prefix(group), after=after):
            await self.confirm([stored.key for stored in page])
            after = page[-1].key

    def _one_of(self, group: GroupKey) -> list[OffsetKey]:
        """A live offset of a group: a save of one keeps all of them."""
        after: OffsetKey | None = None
        while page := self._store.first(PAGE_KEYS, prefix=group_prefix(group), after=after):
            found = [stored.key for stored in page if stored.record.live]
            if found:
                return found[:1]
            after = page[-1].key
        return []
