"""What Status shows: the state of the sidecar, its store, its flushes and what was lost."""

import time
from collections.abc import Callable

from adapter import __version__
from adapter.meta.client import MetaClient
from adapter.rpc import offsets_pb
from adapter.runtime.settings.reloading import Reloading
from adapter.sidecar.api.state import SidecarState
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
    """Composes the reply to Status from the components of a sidecar."""

    def __init__(
        self,
        reloading: Reloading[AdapterConfig],
        meta: MetaClient,
        metrics: AdapterMetrics,
        state: SidecarState,
        journal: Journal = NO_JOURNAL,
        rocketmq: Callable[[], offsets_pb.RocketmqStatus] | None = None,
        robustmq: Callable[[], offsets_pb.RobustmqStatus] | None = None,
    ) -> None:
        self._reloading = reloading
        self._meta = meta
        self._metrics = metrics
        self._state = state
        self._journal = journal
        self._rocketmq = rocketmq
        self._robustmq = robustmq
        self._started = time.monotonic()

    def reply(self) -> offsets_pb.StatusReply:
        """The reply to Status now."""
        config, server_reports = self._reloading.settings, self._meta.server_reports
        reply = offsets_pb.StatusReply(
            state=self._state.state,
            reason=self._state.full_reason(),
            version=__version__,
            uptime_seconds=time.monotonic() - self._started,
            mode=config.mode,
            policies=[f"{rule.namespaces}/{rule.groups}: {rule.mode}" for rule in config.policy],
            store_path=str(config.store.path),
            wal_sync=config.store.wal_sync,
            at_risk=AT_RISK[config.store.wal_sync],
            meta_endpoints=config.meta.endpoints,
            meta_endpoint=self._meta.endpoint,
            meta_available=self._meta.available,
            commits=self._metrics.commit_count,
            save_calls=self._metrics.save_call_count,
            meta_losses=server_reports.losses,
            meta_loss=server_reports.why,
            meta_loss_at_ms=server_reports.at_ms,
            clock_skew_seconds=server_reports.skew.ms / 1000,
            clock_is_off=server_reports.skew.off,
            weaker=self._meta.kind.weaker,
        )
        if core := self._state.core:
            _fill(reply, core)
        if counts := self._journal.counts:
            reply.journal.path = counts.path
            reply.journal.rows = counts.rows
            reply.journal.dropped_rows = counts.dropped
            reply.journal.segments = counts.segments
            reply.journal.bytes = counts.bytes
            reply.journal.deleted_segments = counts.deleted_segments
            reply.journal.last_error = counts.last_error
        if self._reloading.path:
            reply.config.CopyFrom(config_status(self._reloading))
        if self._rocketmq:
            reply.rocketmq.CopyFrom(self._rocketmq())
        if self._robustmq:
            reply.robustmq.CopyFrom(self._robustmq())
        return reply


def config_status(reloading: Reloading[AdapterConfig]) -> offsets_pb.ConfigStatus:
    """What is known of the configuration file."""
    return offsets_pb.ConfigStatus(
        path=str(reloading.path),
        read_at_ms=reloading.read_at_ms,
        sha256=reloading.sha256,
        differs=reloading.differs,
        needs_restart=reloading.needs_restart,
        last_error=reloading.last_error,
        files_error=reloading.files_error,
    )


def _fill(reply: offsets_pb.StatusReply, core: Core) -> None:
    reply.stored_keys = core.ledger.store.keys
    reply.dirty_keys = len(core.ledger.dirty)
    reply.oldest_dirty_seconds = core.ledger.dirty.oldest_age(time.monotonic())
    reply.unsynced_writes = core.ledger.store.unsynced_writes
    reply.last_flush_at_ms = core.flusher.last_flush_at_ms
    reply.last_flush_seconds = core.flusher.last_flush_seconds
    reply.last_flush_error = core.flusher.last_error
    reply.flush_pace = core.flusher.pace
    reply.refused_keys = core.ledger.dirty.refused
    reply.recovery.CopyFrom(offsets_pb.RecoveryStatus(**vars(core.recovery.report), done=core.ledger.recovered.now))
    told = core.elsewhere
    reply.changes_elsewhere.CopyFrom(
        offsets_pb.ChangesElsewhereStatus(
            told_at_ms=told.told_at_ms, groups=told.groups, comparing=told.comparing, problem=told.problem
        )
    )
    loss = core.ledger.store.loss
    if loss:
        reply.loss.CopyFrom(offsets_pb.LossStatus(**loss._asdict()))
    local = core.meta_watch.local()
    reply.store.id, reply.store.broker = local.store_id.hex(), local.broker
    reply.store.flushed_seq, reply.store.seq = local.flushed_seq, core.ledger.store.seq
    reply.store.disk_full = core.ledger.store.disk_full
