"""The metrics that are read from the sidecar when Prometheus asks, and not counted as things happen (`sidecar.metrics`)."""

import contextlib
import time

from adapter.errors import StorageFailedError
from adapter.meta.client import MetaClient
from adapter.sidecar.api.state import SidecarState
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.ledger.store import LocalStore


class SidecarGauges:
    """Reads the present values from a sidecar. Called in the metrics thread."""

    def __init__(self, meta: MetaClient, state: SidecarState, journal: Journal = NO_JOURNAL) -> None:
        self._meta = meta
        self._state = state
        self._journal = journal
        self._unsynced = UnsyncedAge()

    def counters(self) -> dict[str, tuple[str, float]]:
        """Counters by name, each with its help text."""
        core, counts = self._state.core, self._journal.counts
        found: dict[str, tuple[str, float]] = {}
        if core:
            text = "Groups that this adapter was told of, since others have changed them by hand or expired them."
            found["changes_told_groups"] = (text, core.elsewhere.groups)
        if counts is None:
            return found
        return found | {
            "journal_rows": ("Rows that the journal handed to the kernel.", counts.rows),
            "journal_dropped_rows": ("Rows that are left out of the journal: its disk was too slow, or failed.", counts.dropped),
            "journal_failures": ("Attempts to write the journal that failed.", counts.failures),
            "journal_deleted_segments": (
                "Segments that were deleted to stay in journal.disk_max_bytes.",
                counts.deleted_segments,
            ),
        }

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Gauges by name, each with its help text."""
        core = self._state.core
        values = {
            "up_state": ("1 recovering, 2 serving, 3 degraded, 4 failed, 5 stopping, 6 starting.", float(self._state.state))
        }
        values["meta_available"] = ("1 while the last call to the Meta Service was answered.", float(self._meta.available))
        values["meta_knows_epochs"] = (
            "0 when the Meta Service knows only offsets, as RobustMQ does.",
            float(self._meta.kind.knows_epochs),
        )
        told = self._meta.server_reports
        values["meta_losses"] = ("Times that the Meta Service came back with less than it had acknowledged.", float(told.losses))
        values["meta_clock_skew_seconds"] = ("How far this clock is ahead of the Meta Service's.", told.skew.ms / 1000)
        if counts := self._journal.counts:
            values |= {
                "journal_queued_rows": ("Rows that wait to be written to the journal.", counts.queued),
                "journal_segments": ("Finished segments of the journal on this disk.", counts.segments),
                "journal_bytes": ("Their size.", counts.bytes),
            }
        if core is None:
            return values
        elsewhere = core.elsewhere
        if elsewhere.told_at_ms:
            text = (
                "When all that was changed elsewhere before was known here (Unix time). Absent if the Meta Service tells nothing."
            )
            values["changes_told_timestamp_seconds"] = (text, elsewhere.told_at_ms / 1000)
        values["changes_comparing"] = (
            "1 while all local keys are compared, since it is not known which groups were changed elsewhere.",
            float(elsewhere.comparing),
        )
        loss = core.ledger.store.loss
        report = core.recovery.report
        values |= {
            "recovery_compared": ("Keys that the recovery has compared with the Meta Service.", float(report.compared)),
            "recovery_of": ("About how many it compares.", float(report.of)),
            "recovery_done": ("0 while it goes on: a read has its group compared first.", float(core.ledger.recovered.now)),
            "dirty_keys": ("Keys that the Meta Service has not acknowledged.", float(len(core.ledger.dirty))),
            "refused_keys": ("Keys that the Meta Service refused.", float(core.ledger.dirty.refused)),
            "oldest_dirty_age_seconds": ("Age of the oldest dirty key.", core.ledger.dirty.oldest_age(time.monotonic())),
            "watchers": ("Open calls of WatchOffsets.", float(core.ledger.watches.callers)),
            "last_flush_timestamp_seconds": (
                "When the last flush ended that was answered (Unix time); 0: none since the store was opened.",
                core.flusher.last_flush_at_ms / 1000,
            ),
            "unsynced_writes": ("Acknowledged writes that a power cut would lose now.", float(core.ledger.store.unsynced_writes)),
            "store_lost_writes": ("Acknowledged writes that were found missing, about.", float(loss.writes if loss else 0)),
        }
        if core.ledger.store.wal_sync != "never":
            text = (
                "For how long the store has not been synced, as seen from scrape to scrape; 0: all is, or was at the last scrape."
            )
            values["unsynced_age_seconds"] = (text, self._unsynced.age_s(core.ledger.store, time.monotonic()))
        with contextlib.suppress(StorageFailedError):  # it is being closed meanwhile
            for name, value in core.ledger.store.rocksdb_properties().items():
                values[f"rocksdb_{name}"] = (f"RocksDB: {name}.", float(value))
        return values


class UnsyncedAge:
    """How long writes have waited for a sync, by what is seen at each scrape: no commit has to note its time for it.

    What is returned is a lower bound; the truth is larger by at most the time between two scrapes.
    """

    def __init__(self) -> None:
        self._store: LocalStore | None = None
        self._seq = 0  # the newest write of a scrape, for whose sync is waited
        self._since_s = 0.0

    def age_s(self, store: LocalStore, now_s: float) -> float:
        """The seconds for which the newest write of an earlier scrape has not been synced."""
        if store is not self._store or store.synced_seq >= self._seq:
            self._store, self._seq, self._since_s = store, store.seq, now_s
        return now_s - self._since_s if store.unsynced_writes else 0.0
