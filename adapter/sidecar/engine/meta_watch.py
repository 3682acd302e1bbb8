"""Detects that the local store, or the Meta Service, has lost something, and starts a comparison of all keys then.

At the start the Meta Service is asked which store it remembers for this broker: another one, or the same one with later writes,
means that acknowledged commits are missing here. Later a light call, every few seconds also without commits, detects a Meta
Service that holds less than it acknowledged; everything local is then compared and pushed again, while commits go on.
"""

from collections.abc import Callable
from pathlib import Path

import anyio
import structlog

from adapter.errors import AdapterError, RefusedError, UnknownCallError
from adapter.meta.client import MetaClient
from adapter.model.records import StoreReport
from adapter.runtime.backoff import jitter
from adapter.runtime.retry import retrying
from adapter.sidecar.engine.changed_elsewhere import ChangedElsewhere
from adapter.sidecar.engine.recovery import Recovery
from adapter.sidecar.ledger.ledger import Ledger

log = structlog.get_logger(__name__)

REPORT_S = 5.0  # between two reports, at most
PAUSE_S = 0.5  # after a report that had no answer
AGAIN_FIRST_S, AGAIN_MAX_S = 0.1, 2.0  # pauses between attempts to go on with a comparison


class MetaWatch:
    """Reports one local store to the Meta Service, and compares the replies with what it acknowledged before."""

    def __init__(
        self,
        ledger: Ledger,
        broker: str,
        path: Path,
        recovery: Recovery,
        elsewhere: ChangedElsewhere,
        meta: MetaClient,
    ) -> None:
        self._broker = broker
        self._path = str(path.absolute())
        self._store = ledger.store
        self._dirty = ledger.dirty
        self._recovery = recovery
        self._elsewhere = elsewhere
        self._meta = meta
        self._identified = False
        self._reported_seq = 0  # that the Meta Service has acknowledged, of this store
        self._others: set[bytes] = set()  # other stores that were reported in place of this one
        self._handled = meta.server_reports.comparisons  # those that began before are covered by the recovery
        self._refused = ""
        meta.server_reports.set_local_store(self.local)

    def local(self) -> StoreReport:
        """The report of the local store: its identity, and the flushed write counter."""
        covered = self._dirty.covered(self._store.flushed_seq, self._store.acknowledged_seq)
        return StoreReport(self._broker, self._path, self._store.store_id, covered)

    async def begin(self) -> None:
        """Ask the Meta Service for the last report of this store, before keys are compared. Call it again if it raised.

        A question that was refused is then asked again: the Meta Service may let this adapter in a moment later.
        """
        if not self._identified:
            try:
                await self._identify()
                answered = True
            except RefusedError as error:
                self._refused_by(error)
                answered = isinstance(error, UnknownCallError)
            if answered:
                self._store.asked()
                self._identified = True
        await self._elsewhere.begin()
        await self._meta.get([])  # it may have refused all questions so far

    async def run(self, done: Callable[[], None]) -> None:
        """Report until cancelled. Compare again, and call `done`, whenever the Meta Service holds less than it acknowledged."""
        server_reports = self._meta.server_reports
        while True:
            await server_reports.wait_for_change(REPORT_S * jitter.uniform(0.8, 1))
            try:
                await self.report()
            except AdapterError as error:
                log.debug("meta.report", error=str(error))
                await anyio.sleep(PAUSE_S)
            while self._handled != server_reports.comparisons:
                self._handled = server_reports.comparisons
                await self._compare_again()
                done()

    async def report(self) -> None:
        """Ask what the Meta Service remembers of the local store, then report how far it is. Raises MetaUnavailableError.

        The first call reports no progress: if its answer got lost, it would hide from the next one what the Meta Service has
        forgotten.
        """
        local = self.local()
        try:
            known = await self._report(local._replace(flushed_seq=0))
        except RefusedError as error:
            self._refused_by(error)
            return
        reported_seq, self._reported_seq = self._reported_seq, 0
        if known is None:
            if reported_seq:
                self._lost("remembers nothing of this broker's store any more")
        elif known.store_id != local.store_id:
            await self._replace(known)
        else:
            self._reported_seq = known.flushed_seq
            if known.flushed_seq < reported_seq:
                self._lost(f"remembers the write {known.flushed_seq} of this broker's store, and had acknowledged {reported_seq}")
        if self._reported_seq < local.flushed_seq:
            await self._report(local)
            self._reported_seq = local.flushed_seq

    async def _report(self, store: StoreReport, replaces: bytes = b"") -> StoreReport | None:
        known = await self._meta.report_store(store, replaces)
        return known.store if known else None

    def _refused_by(self, error: RefusedError) -> None:
        """Give up reports for now. That a server does not know the call (RobustMQ) is no error.

        A store that was replaced or put back is not detected then.
        """
        self._reported_seq = 0
        if not isinstance(error, UnknownCallError) and str(error) != self._refused:
            log.error("meta.report_refused", error=str(error), help="a store that was replaced or put back is not noticed")
        self._refused = str(error)

    async def _identify(self) -> None:
        local = self.local()
        known = await self._report(local)
        if known and known.store_id != local.store_id:
            await self._store.note_loss(
                max(known.flushed_seq, 1),
                f"the Meta Service remembers another store here, {known.store_id.hex()}, for the broker {self._broker}: "
                "this one was made anew, or the disk of that one is not mounted",
            )
            await self._report(local, known.store_id)
        elif known and known.flushed_seq > self._store.unasked_seq:
            # Not `seq`, which has moved on with the commits that were taken since the open.
            await self._store.note_loss(
                known.flushed_seq - self._store.unasked_seq,
                f"the Meta Service has the write {known.flushed_seq} of this store, whose newest was {self._store.unasked_seq}: "
                "it was put back from an older copy",
                known.flushed_seq,
            )
        self._reported_seq = local.flushed_seq

    async def _replace(self, known: StoreReport) -> None:
        """Replace another store that is reported for this broker and path while this one is open."""
        if known.store_id not in self._others:
            self._others.add(known.store_id)
            self._lost(
                f"remembers another store of this broker, {known.store_id.hex()}: it was restored from a backup, "
                "or another adapter has the same `broker` and `store.path`"
            )
        await self._report(self.local(), known.store_id)

    def _lost(self, why: str) -> None:
        self._meta.server_reports.record_loss(f"{self._meta.endpoint}: {why}")

    async def _compare_again(self) -> None:
        self._recovery.again()
        await retrying("compare", first_s=AGAIN_FIRST_S, max_s=AGAIN_MAX_S, on=AdapterError)(self._recovery.run)
        report = self._recovery.report
        log.warning("meta.compared_again", compared=report.compared, pushed=report.pushed, adopted=report.adopted)
