"""Where the sidecar is between start and stop: what Status and the metrics read."""

import contextlib
import time

from adapter import __version__
from adapter.errors import StorageFailedError
from adapter.meta.client import MetaClient
from adapter.rpc import offsets_pb
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.core import Core
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.metrics import AdapterMetrics

AT_RISK = {
    "always": "nothing: every acknowledged commit is synced",
    "interval": "a killed process loses nothing; a power cut at most one flush interval",
    "never": "a killed process loses nothing; a power cut whatever the kernel has not written",
}


class SidecarStatus:
    """Where the sidecar is between start and stop; what Status and the metrics read."""

    def __init__(self, config: AdapterConfig, meta: MetaClient, metrics: AdapterMetrics, journal: Journal = NO_JOURNAL) -> None:
        self.config = config
        self.journal = journal
        self.meta = meta
        self.metrics = metrics
        self.state: offsets_pb.StatusReply.State.ValueType = offsets_pb.StatusReply.RECOVERING
        self.reason = ""
        self.core: Core | None = None
        self.started = time.monotonic()

    def enter(self, state: offsets_pb.StatusReply.State.ValueType, reason: str = "") -> None:
        """Note a new state."""
        self.state = state
        self.reason = reason

    def attach(self, core: Core) -> None:
        """A store is open, and its recovery begins."""
        self.core = core
        self.enter(offsets_pb.StatusReply.RECOVERING)

    def detach(self) -> None:
        """The store is about to be closed: nothing may reach it from now on."""
        self.core = None

    def ready(self) -> tuple[bool, str]:
        """For `/readyz`: whether commits are taken, also while the Meta Service is away; and the state, with its reason."""
        name = offsets_pb.StatusReply.State.Name(self.state).lower()
        return self.state in {offsets_pb.StatusReply.SERVING, offsets_pb.StatusReply.DEGRADED}, ": ".join(
            filter(None, [name, self.reason])
        )

    def status(self) -> offsets_pb.StatusReply:
        """Everything a person asks first."""
        config, server_reports = self.config, self.meta.server_reports
        reply = offsets_pb.StatusReply(
            state=self.state,
            reason=self._reason(),
            version=__version__,
            uptime_seconds=time.monotonic() - self.started,
            mode=config.mode,
            policies=[f"{rule.namespaces}/{rule.groups}: {rule.mode}" for rule in config.policy],
            cache_path=str(config.store.path),
            wal_sync=config.store.wal_sync,
            at_risk=AT_RISK[config.store.wal_sync],
            meta_endpoints=config.meta.endpoints,
            meta_endpoint=self.meta.endpoint,
            meta_available=self.meta.available,
            commits=self.metrics.commit_count,
            save_calls=self.metrics.save_call_count,
            meta_losses=server_reports.losses,
            meta_loss=server_reports.why,
            meta_loss_at_ms=server_reports.at_ms,
            clock_skew_seconds=server_reports.skew.ms / 1000,
            clock_is_off=server_reports.skew.off,
        )
        if self.core:
            _fill(reply, self.core)
        if counts := self.journal.counts:
            reply.journal.path = counts.path
            reply.journal.rows = counts.rows
            reply.journal.dropped_rows = counts.dropped
            reply.journal.segments = counts.segments
            reply.journal.bytes = counts.bytes
            reply.journal.deleted_segments = counts.deleted_segments
            reply.journal.last_error = counts.last_error
        return reply

    def _reason(self) -> str:
        if self.core is None or self.state != offsets_pb.StatusReply.DEGRADED:
            return self.reason
        report = self.core.recovery.report
        return f"{self.reason}; the recovery has compared {report.compared} of {report.of} keys, and goes on"

    def counters(self) -> dict[str, tuple[str, float]]:
        """Counters for the metrics. Called from the metrics thread."""
        counts = self.journal.counts
        if counts is None:
            return {}
        return {
            "journal_rows": ("Rows that the journal handed to the kernel.", counts.rows),
            "journal_dropped_rows": ("Rows that are left out of the journal: its disk was too slow, or failed.", counts.dropped),
            "journal_failures": ("Attempts to write the journal that failed.", counts.failures),
            "journal_deleted_segments": (
                "Segments that were deleted to stay in journal.disk_max_bytes.",
                counts.deleted_segments,
            ),
        }

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Gauges for the metrics. Called from the metrics thread."""
        core = self.core
        values = {"up_state": ("1 recovering, 2 serving, 3 degraded, 4 failed, 5 stopping.", float(self.state))}
        values["meta_available"] = ("1 while the last call to the Meta Service was answered.", float(self.meta.available))
        values["meta_knows_epochs"] = (
            "0 when the Meta Service knows only offsets, as RobustMQ does.",
            float(self.meta.knows_epochs),
        )
        server_reports = self.meta.server_reports
        values["meta_losses"] = (
            "Times that the Meta Service came back with less than it had acknowledged.",
            float(server_reports.losses),
        )
        values["meta_clock_skew_seconds"] = ("How far this clock is ahead of the Meta Service's.", server_reports.skew.ms / 1000)
        if counts := self.journal.counts:
            values |= {
                "journal_queued_rows": ("Rows that wait to be written to the journal.", counts.queued),
                "journal_segments": ("Finished segments of the journal on this disk.", counts.segments),
                "journal_bytes": ("Their size.", counts.bytes),
            }
        if core is None:
            return values
        loss = core.store.loss
        report = core.recovery.report
        values |= {
            "recovery_compared": ("Keys that the recovery has compared with the Meta Service.", float(report.compared)),
            "recovery_of": ("About how many it compares.", float(report.of)),
            "dirty_keys": ("Keys that the Meta Service has not acknowledged.", float(len(core.dirty))),
            "refused_keys": ("Keys that the Meta Service refused.", float(core.dirty.refused)),
            "oldest_dirty_age_seconds": ("Age of the oldest dirty key.", core.dirty.oldest_age(time.monotonic())),
            "unsynced_writes": ("Acknowledged writes that a power cut would lose now.", float(core.store.unsynced_writes)),
            "store_lost_writes": ("Acknowledged writes that were found missing, about.", float(loss.writes if loss else 0)),
        }
        with contextlib.suppress(StorageFailedError):  # it is being closed meanwhile
            for name, value in core.store.rocksdb_properties().items():
                values[f"rocksdb_{name}"] = (f"RocksDB: {name}.", float(value))
        return values


def _fill(reply: offsets_pb.StatusReply, core: Core) -> None:
    reply.stored_keys = core.store.keys
    reply.dirty_keys = len(core.dirty)
    reply.oldest_dirty_seconds = core.dirty.oldest_age(time.monotonic())
    reply.unsynced_writes = core.store.unsynced_writes
    reply.last_flush_at_ms = core.flusher.last_flush_at_ms
    reply.last_flush_seconds = core.flusher.last_flush_seconds
    reply.last_flush_error = core.flusher.last_error
    reply.refused_keys = core.dirty.refused
    reply.recovery.CopyFrom(offsets_pb.RecoveryStatus(**vars(core.recovery.report)))
    loss = core.store.loss
    if loss:
        reply.loss.CopyFrom(offsets_pb.LossStatus(**loss._asdict()))
    local = core.meta_watch.local()
    reply.store.id, reply.store.broker = local.store_id.hex(), local.broker
    reply.store.flushed_seq, reply.store.seq = local.flushed_seq, core.store.seq
