"""Removes groups without commits, here and in the Meta Service, and local copies of tombstones.

Proposes by this machine's clock; the Meta Service decides by the newest commit that it holds. A group with dirty keys stays, and
one that is committed to meanwhile is put back. Never on the path of a commit.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import anyio
import structlog

from adapter.errors import AdapterError, ContendedError, TransientError
from adapter.meta.store_marks import SKEW_HELP
from adapter.model.broadcast_names import is_of_client
from adapter.model.codec import group_prefix
from adapter.model.records import GroupKey, OffsetKey, expired
from adapter.runtime.settings.live import Live
from adapter.runtime.telemetry import logs
from adapter.sidecar.config import ExpirySection
from adapter.sidecar.engine.broadcast import Broadcasts
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.engine.groups import PAGE_KEYS, GroupRow
from adapter.sidecar.engine.tombstones import Tombstones
from adapter.sidecar.journal.notes import Moved
from adapter.sidecar.ledger.ledger import Ledger
from adapter.sidecar.ledger.operations import Forget, Reconcile
from adapter.sidecar.ledger.write_batch import Stored
from adapter.sidecar.metrics import AdapterMetrics

log = structlog.get_logger(__name__)
audit = logs.audit()

HOUR_MS = 3_600_000
PAUSE_S = 0.05  # after each call to the Meta Service: at most 20 a second, however many groups expire at once
LOOKED_AT = 500  # groups between two pauses of a sweep that finds nothing


class Expiry:
    """Sweeps all groups. Must not run before the recovery is complete: until then dirty keys may be unknown."""

    def __init__(
        self,
        ledger: Ledger,
        section: ExpirySection,
        broadcasts: Broadcasts,
        flusher: Flusher,
        tombstones: Tombstones,
        metrics: AdapterMetrics,
    ) -> None:
        self._section = Live(section)
        self._store = ledger.store
        self._groups = broadcasts.groups
        self._broadcasts = broadcasts
        self._ledger = ledger
        self._flusher = flusher
        self._recovered = ledger.recovered
        self._meta = flusher.saver.meta
        self._metrics = metrics
        self.now_ms = ledger.clocks.now_ms
        self._tombstones = tombstones
        self.pause_s = PAUSE_S
        self._journal = ledger.journal
        self._last_logged = ""
        self._looked_at = 0

    def take(self, section: ExpirySection) -> None:
        """Use these settings from the next group on."""
        self._section.take(section)

    @property
    def retention_s(self) -> float:
        """How long an idle group is kept, in seconds; 0: for ever."""
        return self._section.now.retention_hours * 3_600

    async def run(self) -> None:
        """Sweep once per interval, first after one interval, as Kafka does: consumers that were away have time to return."""
        while True:
            await self._section.pause(lambda section: section.interval_ms / 1000)
            try:
                await self.sweep_once()
            except AdapterError as error:
                self._warn_once("expiry.failed", error=str(error), help="the next sweep begins anew")

    async def look_at(self, group: GroupKey) -> None:
        """Expire this group if it is old, as the next sweep would. Raises as that does."""
        if self._may_expire():
            async for row in self._groups.rows(group_prefix(group)):
                if row.shards and not row.dirty:
                    await self._expire_if_old(row)

    def _may_expire(self) -> bool:
        if self._meta.kind.expires_unasked:
            self._warn_once("expiry.off", reason="this Meta Service cannot expire offsets: nothing is taken away, here neither")
            return False
        skew = self._meta.server_reports.skew
        if skew.off:
            self._warn_once("expiry.clock", skew_seconds=f"{skew.ms / 1000:.0f}", help=SKEW_HELP)
            return False
        return self._recovered.now  # else the Meta Service lost something: all that is dirty is known by the next sweep

    async def sweep_once(self) -> None:
        """Look at every local group. Holds a page of keys at a time.

        Raises MetaUnavailableError, or RefusedError when the Meta Service does not know how to expire; the rest stays as it is.
        """
        if not self._may_expire():
            return
        async for row in self._groups.rows():
            await self._pace()
            if row.tombstones:
                await self._forget_tombstones(row.group)
            if row.shards and not row.dirty:
                await self._expire_if_old(row)
        self._metrics.swept.set(self.now_ms() / 1000)
        self._last_logged = ""

    async def _pace(self) -> None:
        self._looked_at += 1
        if self._looked_at % LOOKED_AT == 0:
            await anyio.sleep(self.pause_s)

    async def _expire_if_old(self, row: GroupRow) -> None:
        now_ms = self.now_ms()
        of_client = is_of_client(row.group)
        section = self._section.now
        retention_ms = section.broadcast_seconds * 1000 if of_client else section.retention_hours * HOUR_MS
        before_ms = now_ms - retention_ms
        if not retention_ms or row.last_commit_at_ms >= before_ms:
            return
        if of_client:
            await self._broadcasts.keep_last(row.group, row.last_commit_at_ms, now_ms)
        # While no flush is under way, a commit that came in stays dirty, and so cannot be overlooked.
        async with self._flusher.paused():
            if not await self._is_quiet(row.group, before_ms):
                return
            newest_ms = await self._propose(row.group, before_ms, now_ms)
            came_back = not newest_ms and not await self._is_quiet(row.group, before_ms)
        if came_back:
            await self._put_back(row.group)
        elif not newest_ms:
            await self._forget(row, before_ms)
        await anyio.sleep(self.pause_s)

    async def _propose(self, group: GroupKey, before_ms: int, now_ms: int) -> int:
        try:
            return await self._meta.expire(group, before_ms, now_ms)
        except TransientError:
            # It may have been done: then what is here would be the only copy, and clean.
            await self._put_back(group)
            raise

    async def _is_quiet(self, group: GroupKey, before_ms: int) -> bool:
        quiet = True
        async for row in self._groups.rows(group_prefix(group)):
            quiet = not row.dirty and row.last_commit_at_ms < before_ms
        return quiet

    async def _forget(self, row: GroupRow, before_ms: int) -> None:
        """Remove an expired group here, one page at a time, and its generation with the last page."""
        audit.info("expiry.expired", **row.group._asdict(), keys=row.shards, last_commit_at_ms=row.last_commit_at_ms)
        self._metrics.expired_groups.inc()
        self._metrics.expired_keys.inc(row.shards)
        try:
            async with aclosing(self._pages(row.group)) as pages:
                last = False
                while not last:
                    page, last = await anext(pages)  # read in a thread: what is committed meanwhile is not in it
                    _check_old(page, before_ms)
                    keys, stood = [stored.key for stored in page], [stored.record for stored in page]
                    await self._ledger.submit(Forget(keys, [row.group] if last else [], stood=stood))
                    now_ms = self.now_ms()
                    moved = [Moved(key, held, expired(held, now_ms)) for key, held, _ in page if held.live]
                    self._journal.moved("expire", moved)
        except ContendedError:
            await self._put_back(row.group)

    async def _put_back(self, group: GroupKey) -> None:
        """Mark the local records of a group dirty, because it got a commit while it was being removed."""
        log.info("expiry.put_back", **group._asdict())
        async for page, _ in self._pages(group):
            await self._ledger.submit(Reconcile([(stored.key, None) for stored in page if stored.record.live]))

    async def _forget_tombstones(self, group: GroupKey) -> None:
        """Remove past tombstones here, also dirty ones: they could not be sent for long, and would hide what began anew since."""
        async for page, _ in self._pages(group):
            past = [key for key, record, _ in page if self._tombstones.is_past(record)]
            if not past:
                continue
            async with self._flusher.paused():  # what a flush has taken is dirty again behind it
                found = ((key, self._store.get(key)) for key in past)  # now: some may have been committed over
                still = [key for key, record in found if record and self._tombstones.is_past(record)]
                if still:
                    await self._ledger.submit(Forget(still, gone=True))

    async def _pages(self, group: GroupKey) -> AsyncGenerator[tuple[list[Stored], bool], None]:
        """The records of a group, a page at a time; True with the last one."""
        after: OffsetKey | None = None
        while True:
            page = await self._store.page(PAGE_KEYS, prefix=group_prefix(group), after=after)
            last = len(page) < PAGE_KEYS
            yield page, last
            if last:
                return
            after = page[-1].key

    def _warn_once(self, event: str, **fields: str) -> None:
        """Log a warning, but not the same one repeatedly."""
        text = str(fields)
        if text != self._last_logged:
            log.warning(event, **fields)
        self._last_logged = text


def _check_old(page: Sequence[Stored], before_ms: int) -> None:
    if any(stored.record.live and stored.record.committed_at_ms >= before_ms for stored in page):
        raise ContendedError("the group was committed to meanwhile")
