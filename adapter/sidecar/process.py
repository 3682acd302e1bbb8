"""The adapter process: listen, open, take commits, recover, serve, stop intake, drain, close.

Composes the process from its parts. A failed local store is closed and opened again; nothing is acknowledged meanwhile.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import grpc.aio
import structlog

from adapter.client.broker_log import BrokerLog
from adapter.client.broker_log import opened as opened_broker_log
from adapter.errors import (
    AdapterError,
    MetaUnavailableError,
    NotReadyError,
    StorageFailedError,
    StoreLockedError,
    TransientError,
    leaves,
)
from adapter.fleet.scaler import SERVICE as SCALER
from adapter.fleet.scaler import ExternalScaler
from adapter.meta.client import GrpcMetaClient, MetaClient
from adapter.rpc import backup_grpc, lag_grpc, offsets_grpc
from adapter.runtime import descriptors
from adapter.runtime.clocks import REAL, Clocks
from adapter.runtime.durable.disk_space import DiskSpace
from adapter.runtime.notify import manager
from adapter.runtime.process import Until
from adapter.runtime.retry import Attempts, retrying
from adapter.runtime.serving.listener import GrpcServer, listening
from adapter.runtime.serving.request_sizes import NAMES, Sizes
from adapter.runtime.serving.store_backup import FIELDS as BACKUP_FIELDS
from adapter.runtime.settings.certificates import ServerCertificate
from adapter.runtime.settings.config import Loaded
from adapter.runtime.settings.live import NOTHING_NEW, Prepared
from adapter.runtime.settings.reloading import Reloading, ReloadingCollector
from adapter.runtime.telemetry import logs, metrics_http
from adapter.runtime.telemetry.metrics import CountersCollector, GaugesCollector
from adapter.runtime.telemetry.opening import telemetry_of
from adapter.sidecar.api.access import Access
from adapter.sidecar.api.commits import Commits
from adapter.sidecar.api.gauges import SidecarGauges
from adapter.sidecar.api.offset_admin import OffsetAdmin
from adapter.sidecar.api.offset_service import OffsetService
from adapter.sidecar.api.state import SidecarState, State
from adapter.sidecar.api.status import SidecarStatus
from adapter.sidecar.api.store_backup import AdapterBackup
from adapter.sidecar.api.traced import TracedOffsetService
from adapter.sidecar.config import LIVE, AdapterConfig
from adapter.sidecar.engine.core import Core, Opening, open_store, running_core
from adapter.sidecar.engine.flush_spans import FlushSpans
from adapter.sidecar.engine.history import History
from adapter.sidecar.journal.opening import journal_of
from adapter.sidecar.lag.entry import LagEntry
from adapter.sidecar.lag.scaler_source import LiveLagSource
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics

if TYPE_CHECKING:
    from adapter.sidecar.bridge.bridge import Bridge
    from adapter.sidecar.front.front import Front
    from adapter.sidecar.lag.live import LiveLag
    from adapter.sidecar.lag.metrics import LagMetrics
    from adapter.sidecar.lag.service import Serving

log = structlog.get_logger(__name__)

SERVICES = ("offsets.v1.OffsetStore", "offsets.v1.OffsetAdmin", "offsets.v1.OffsetLag", "offsets.v1.StoreBackup")
COMMITS = "commits"  # in the health service: SERVING as soon as commits are taken, which is before the recovery
MAX_REQUEST_BYTES = 4 * 2**20
_OFFSETS = 25_000  # fields of a request that commits: 5,000 offsets, in 2,500 groups that have up to seven fields each
LARGE = {  # the methods whose requests take lists
    "OffsetStore/CommitOffsets": _OFFSETS,
    "OffsetStore/StreamCommits": _OFFSETS,
    "OffsetStore/CommitBroadcast": _OFFSETS,
    "OffsetStore/ReadOffsets": NAMES,
    "OffsetStore/PersistOffsets": NAMES,
    "OffsetStore/RemoveOffsets": NAMES,
    "OffsetStore/ReadBroadcast": _OFFSETS,
    "OffsetAdmin/ImportOffsets": _OFFSETS,
    "OffsetAdmin/DescribeGroup": _OFFSETS,
    "OffsetAdmin/DescribeGroups": NAMES,
    "OffsetAdmin/ResetOffsets": _OFFSETS,
    "OffsetAdmin/DeleteOffsets": _OFFSETS,
    "OffsetAdmin/CloneGroup": _OFFSETS,
    "OffsetAdmin/ExportOffsets": NAMES,
    "OffsetLag/GetGroupLags": NAMES,
    "StoreBackup/BackupStore": BACKUP_FIELDS,
}
SIZES = Sizes({f"/offsets.v1.{method}": fields for method, fields in LARGE.items()}, MAX_REQUEST_BYTES)
REOPEN_FIRST_S, REOPEN_MAX_S = 0.1, 1.0  # pauses between attempts to open a failed store
RECOVER_FIRST_S, RECOVER_MAX_S = 0.1, 2.0  # pauses between attempts to reach the Meta Service for the recovery


class Sidecar:
    """One adapter over one local store."""

    def __init__(
        self,
        config: AdapterConfig,
        meta: MetaClient,
        broker_log: BrokerLog,
        *,
        opening: Opening = open_store,
        clocks: Clocks = REAL,
        metrics: AdapterMetrics | None = None,
        reloading: Reloading[AdapterConfig] | None = None,
    ) -> None:
        self._config = config
        self._reloading = reloading or Reloading(config, LIVE)
        self._meta = meta
        self._broker_log = broker_log
        self._access = Access.of(config)
        self._certificate = ServerCertificate(config.server.tls) if config.server.tls else None
        self._opening = opening
        self._clocks = clocks
        self._metrics = metrics or AdapterMetrics()
        self._journal = self._history = History(journal_of(config.broker, config.journal, clocks), clocks.now_ms)
        self._stop = anyio.Event()
        self._comparing = anyio.CancelScope()
        self.state = SidecarState()
        self.gauges = SidecarGauges(meta, self.state, self._journal)
        self._telemetry = telemetry_of(config.telemetry, config.broker, self._metrics.registry)
        self._spans: FlushSpans | None = None
        if self._telemetry:
            self._spans = FlushSpans(self._telemetry.record, config.telemetry.sample_ratio)
            self.offsets: OffsetService = TracedOffsetService(
                self.state.serving, self.state.committing_core, self._metrics, self._spans
            )
        else:
            self.offsets = OffsetService(self.state.serving, self.state.committing_core, self._metrics)
        self._bridge = _bridge_of(config, self.offsets.commits)
        self._front = _front_of(config, meta, self.offsets.commits, self.state)
        rocketmq = self._bridge.counts.status if self._bridge else None
        front = self._front
        robustmq = (lambda: front.look().status()) if front else None
        self.status = SidecarStatus(self._reloading, meta, self._metrics, self.state, self._journal, rocketmq, robustmq)
        self._lag: LiveLag | None = None  # of the core that serves
        self._lag_metrics: LagMetrics | None = None
        self._lag_entry = LagEntry(self._compared_core, kept=config.lag.shards > 0)
        self._scaler = ExternalScaler(LiveLagSource(self._serving_lag)) if config.lag.shards else None
        self._join_reloading()
        self.taking_commits = anyio.Event()  # the store is open
        self.ready = anyio.Event()  # recovered, or degraded: all calls are taken
        self.addresses: list[str] = []

    def _compared_core(self) -> Core:
        """The core for a request that goes by all offsets. Raises NotReadyError before all are compared."""
        core = self.core()
        if not core.ledger.recovered.settled.is_set():
            raise NotReadyError(f"lag is not known before all offsets are compared: {self.state.full_reason()}")
        return core

    def _serving_lag(self) -> "Serving":
        """The core and its lag for a request that begins now. Raises NotReadyError while none may begin."""
        from adapter.sidecar.lag.service import Serving  # noqa: PLC0415 - loads numpy

        core = self._compared_core()
        if self._lag is None:
            raise NotReadyError("the adapter has just begun to serve: try again at once")
        return Serving(core, self._lag)

    async def _keep_lag(self, core: Core) -> None:
        """Keep the lag of what this core is given from now on, and of what its store holds. Loads numpy, in a thread."""
        await core.ledger.recovered.settled.wait()
        names = ("live", "metrics", "service")
        live, metrics, service = [await anyio.to_thread.run_sync(import_module, f"adapter.sidecar.lag.{name}") for name in names]
        if self._lag_metrics is None:
            self._lag_metrics = metrics.LagMetrics(self._config.lag, self._metrics.registry)
        parts = (self._config.lag, core.ledger.store, core.bounds, core.broker_log, core.clocks, self._lag_metrics)
        windows = self._config.store.path / "lag-windows.npz"
        lag: LiveLag = live.LiveLag(*parts, windows=windows, note=self._history.logs_made_anew)
        self._lag = lag
        self._lag_entry.open(service.OffsetLag(self._serving_lag))
        await lag.run()

    def _join_reloading(self) -> None:
        self._metrics.registry.register(ReloadingCollector("offset_adapter", self._reloading))
        self._reloading.add(self._access.prepare)
        if certificate := self._certificate:
            self._reloading.add(lambda config: certificate.prepare(config.server.tls) if config.server.tls else NOTHING_NEW)
        if self._front:
            self._reloading.add(self._front.prepare)
        self._reloading.add(lambda config: Prepared(lambda: self._take(config)))

    def _take(self, config: AdapterConfig) -> None:
        """Put the settings in force that may change while the adapter runs."""
        before, self._config = self._config, config
        logs.set_level(config.log)
        if core := self.state.core:
            core.take(config)
            if config.meta.endpoints != before.meta.endpoints:
                core.flusher.try_now()

    def stop(self) -> None:
        """Ask for the orderly end (invariant 8)."""
        self._stop.set()

    def core(self) -> Core:
        """The core for a request that begins now. Raises NotReadyError while none may begin."""
        return self.state.serving_core()

    async def run(self) -> int:
        """Serve until `stop`; returns how many keys stayed dirty, -1 when the store could not even be opened again.

        Raises what listening raises, and what opening the store raises at the first attempt.
        """
        telemetry = self._telemetry.running() if self._telemetry else nullcontext()
        async with telemetry, self._listening() as server, self._journal.running():
            store: LocalStore | None = await self._opening(self._config, only=None)
            while store:
                left = await self._serve(store, server)
                if left is not None:
                    return left
                store = await self._reopen(store)
        return -1

    async def _serve(self, store: LocalStore, server: GrpcServer) -> int | None:
        """Serve until `stop` and return the number of keys left dirty; None if the store failed before."""
        reason = ""
        try:
            parts = (self._config, store, self._meta, self._metrics, self._broker_log, self._clocks, self._journal, self._spans)
            async with running_core(*parts) as core:
                try:
                    return await self._run_core(core, server)
                finally:
                    # Before the store is closed, which may take long on a bad disk: no request may reach it from here on.
                    await self._leave_core(core, server)
        except* StorageFailedError as group:
            reason = str(leaves(group)[0])
        self.state.enter(State.FAILED, reason)
        self._metrics.reopened.inc()
        log.error("store.failed", reason=reason, help="nothing is acknowledged until the store is open again")
        return None

    async def _run_core(self, core: Core, server: GrpcServer) -> int:
        self.state.attach(core)
        core.take(self._config)  # again: they may have been replaced while it was made
        core.tasks.start_soon(core.flusher.run, name="flusher")
        if self._front:
            core.tasks.start_soon(self._front.run, core, name="robustmq")
        await self._unless_stopped(lambda: self._take_commits(server))
        await self._unless_stopped(lambda: self._recover(core))
        await self._unless_stopped(lambda: self._take_all(core, server))
        await self._stop_intake(server)
        left = await self._drain(core)
        if self._front:
            await self._front.stop()  # only now: before, a read at RobustMQ would miss what was not flushed
        return left

    async def _leave_core(self, core: Core, server: GrpcServer) -> None:
        self.state.detach()
        if self._lag:
            self._lag.end()
            self._lag = None
        if not self._stop.is_set():
            self.state.enter(State.FAILED, core.ledger.store.failure)
        with anyio.CancelScope(shield=True):
            await server.set_serving(serving=False)
            if core.ledger.store.missing or core.ledger.store.damaged:
                await self._rescue(core)

    async def _rescue(self, core: Core) -> None:
        """Send what was acknowledged into missing or damaged files to the Meta Service: only memory may still have it.

        Until that is done, or the same files are back. A stop waits for it as long as for a drain.
        """
        log.error(
            "store.gone",
            reason=core.ledger.store.failure,
            dirty=len(core.ledger.dirty),
            help="what is dirty goes to the Meta Service",
        )
        if not core.ledger.recovered.now:
            # What a former process left is read from the files, which are still open here.
            with suppress(AdapterError):
                await core.flusher.mark_unflushed()

        async def until_sent() -> None:
            attempts = retrying("rescue", first_s=REOPEN_FIRST_S, max_s=REOPEN_MAX_S, on=AdapterError)
            await attempts(self._rescue_once, core)

        async def until_stopped(scope: anyio.CancelScope) -> None:
            await self._stop.wait()
            await anyio.sleep(self._config.stop.drain_timeout_ms / 1000)
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_stopped, tasks.cancel_scope)
            await until_sent()
            tasks.cancel_scope.cancel()
        left = len(core.ledger.dirty)
        log.log(logging.ERROR if left else logging.WARNING, "store.rescued", left=left, reason=core.flusher.last_error)

    async def _rescue_once(self, core: Core) -> None:
        unusable = core.ledger.store.damaged or await core.ledger.store.look()
        if core.ledger.dirty and unusable and await core.flusher.rescue() > core.ledger.dirty.refused:
            raise MetaUnavailableError(core.flusher.last_error or "a part of the Meta Service does not answer")

    async def _take_commits(self, server: GrpcServer) -> None:
        await server.accept_waiting()
        await server.set_serving(serving=True, only=COMMITS)
        log.info("sidecar.takes_commits", addresses=self.addresses, help="all else waits for the Meta Service's first answer")
        self.taking_commits.set()

    async def _recover(self, core: Core) -> None:
        """Begin to compare with the Meta Service, or after `recovery.timeout_ms` without it serve degraded (invariant 9)."""
        limit_s = self._config.recovery.timeout_ms / 1000
        try:
            await self._recovering(limit_s)(core.meta_watch.begin)
        except AdapterError as error:
            await core.flusher.mark_unflushed()
            core.ledger.recovered.degrade()
            self.state.enter(State.DEGRADED, str(error))
            log.error("sidecar.degraded", reason=str(error), help="commits are taken; reads of the store are refused")
        else:
            self.state.enter(State.SERVING)
        self._comparing = anyio.CancelScope()
        core.tasks.start_soon(self._compare, core, self._comparing, name="recovery")

    async def _compare(self, core: Core, scope: anyio.CancelScope) -> None:
        """Compare all keys, while reads have their own groups compared first, until `scope` is cancelled.

        A part of the Meta Service that does not answer holds up the comparison, but not what is to be sent to the others.
        """
        with scope:
            if core.ledger.recovered.degraded:
                await self._recovering(None)(core.meta_watch.begin)
                core.ledger.recovered.degraded = False
                if not self._stop.is_set():
                    self.state.enter(State.SERVING)
            try:
                await self._recovering(self._config.recovery.timeout_ms / 1000)(core.recovery.run)
            except AdapterError:
                await core.flusher.mark_unflushed()
                await self._recovering(None)(core.recovery.run)
            self._recovered(core)

    def _recovered(self, core: Core) -> None:
        # Not before: until here, not all that is dirty is known.
        core.tasks.start_soon(core.expiry.run, name="expiry")
        core.tasks.start_soon(core.renewal.run, name="renewal")
        core.tasks.start_soon(core.meta_watch.run, lambda: self._compared(core), name="meta_watch")
        core.tasks.start_soon(core.elsewhere.run, name="changed_elsewhere")
        self._compared(core)

    def _compared(self, core: Core) -> None:
        report = core.recovery.report
        for result in ("compared", "pushed", "adopted", "equal", "failed"):
            self._metrics.recovered.labels(result).set(getattr(report, result))
        self._metrics.recovery_seconds.set(report.seconds)

    async def _take_all(self, core: Core, server: GrpcServer) -> None:
        if self._stop.is_set():
            return  # it ended the recovery
        if self._config.lag.shards:
            core.tasks.start_soon(self._keep_lag, core, name="lag")
        await server.set_serving(serving=True)
        manager().ready()
        log.info("sidecar.serving", addresses=self.addresses, state=State.State.Name(self.state.state))
        self.ready.set()
        async with anyio.create_task_group() as tasks:
            if self._bridge:
                await core.ledger.recovered.settled.wait()  # a broker gets no offset that is less than another one has saved
                tasks.start_soon(self._bridge.run, core, name="rocketmq")
            await anyio.sleep_forever()

    async def _stop_intake(self, server: GrpcServer) -> None:
        log.info("sidecar.stopping")
        manager().stopping()
        until = anyio.current_time() + self._config.stop.grace_ms / 1000
        # First, so that clients which watch the health have left when it changes.
        server.drain()
        await server.set_serving(serving=False)
        self.offsets.end_streams()
        if self._lag:
            self._lag.watches.end()
        if self._scaler:
            self._scaler.end_streams()
        await server.drained(until - anyio.current_time())
        self.state.enter(State.STOPPING)
        if self._front:
            await self._front.end_saves(max(until - anyio.current_time(), 0))
        await server.stop(max(until - anyio.current_time(), 0))

    async def _drain(self, core: Core) -> int:
        self._comparing.cancel()  # the next start makes it; beside it, all that follows takes several times as long
        if not core.ledger.recovered.now:
            await core.flusher.mark_unflushed()
        left = await core.flusher.drain(self._config.stop.drain_timeout_ms / 1000)
        if left:
            slow = core.flusher.pace
            log.error(
                "sidecar.drained",
                left=left,
                reason=core.flusher.last_error or slow or "stop.drain_timeout_ms has passed",
                help="they are on disk; the next start pushes them" + ("; raise stop.drain_timeout_ms" if slow else ""),
            )
        else:
            log.info("sidecar.drained", left=0)
        return left

    async def _reopen(self, failed: LocalStore) -> LocalStore | None:
        """Open the failed store again, and no other one, for as long as it takes; None if stopped meanwhile."""
        opened: list[LocalStore] = []

        async def attempt() -> None:
            try:
                store = await self._opening(self._config, only=failed.store_id)
            except StoreLockedError as error:  # a read of the failed store may be under way still, in a thread
                self.state.enter(State.FAILED, f"{failed.failure}; {error}")
                raise StorageFailedError(str(error)) from error
            except AdapterError as error:
                self.state.enter(State.FAILED, f"{failed.failure}; {error}")
                raise
            opened[:] = [store]
            reached = failed.acknowledged_seq
            if failed.missing and store.seq < reached:
                await store.note_loss(reached - store.seq, "an older copy was put in the place of the store", reached)

        # Where files are missing there may be anything for a while, such as half a copy: keep trying.
        on = AdapterError if failed.missing else TransientError
        await self._unless_stopped(lambda: retrying("reopen", first_s=REOPEN_FIRST_S, max_s=REOPEN_MAX_S, on=on)(attempt))
        return opened[0] if opened else None

    async def _unless_stopped(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` until it ends or `stop` is called. Raises the error of `work`."""
        failure: list[Exception] = []

        async def guarded(scope: anyio.CancelScope) -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
                failure.append(error)
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(guarded, tasks.cancel_scope)
            await self._stop.wait()
            tasks.cancel_scope.cancel()
        if failure:
            raise failure[0]

    @staticmethod
    def _recovering(limit_s: float | None) -> Attempts:
        return retrying("recovery", first_s=RECOVER_FIRST_S, max_s=RECOVER_MAX_S, limit_s=limit_s, on=AdapterError)

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[GrpcServer]:
        def add(server: grpc.aio.Server) -> None:
            offsets_grpc.add_OffsetStoreServicer_to_server(self.offsets, server)
            offsets_grpc.add_OffsetAdminServicer_to_server(
                OffsetAdmin(self._reloading, self.status, self.state.serving, self._access, self._history), server
            )
            lag_grpc.add_OffsetLagServicer_to_server(self._lag_entry, server)
            backup = AdapterBackup(self.state.serving, self._access, self._config.broker)
            backup_grpc.add_StoreBackupServicer_to_server(backup, server)
            if self._scaler:
                self._scaler.add_to(server)

        self._metrics.registry.register(GaugesCollector("offset_adapter", self.gauges.gauges))
        self._metrics.registry.register(CountersCollector("offset_adapter", self.gauges.counters))
        if self._bridge:
            self._metrics.registry.register(GaugesCollector("offset_adapter", self._bridge.counts.gauges))
            self._metrics.registry.register(CountersCollector("offset_adapter", self._bridge.counts.counters))
        if front := self._front:
            self._metrics.registry.register(GaugesCollector("offset_adapter", lambda: front.look().gauges()))
            self._metrics.registry.register(CountersCollector("offset_adapter", lambda: front.look().counters()))
        if self._telemetry:
            self._metrics.registry.register(CountersCollector("offset_adapter", self._telemetry.counters))
        self._metrics.registry.register(GaugesCollector("offset_adapter", descriptors.gauges))
        self._metrics.registry.register(GaugesCollector("offset_adapter", DiskSpace(self._config.store.path).gauges))
        with metrics_http.serving(self._config.metrics, self._metrics.registry, self.state.ready):
            together = {"/offsets.v1.OffsetStore/CommitOffsets": self.offsets.take}
            listener = listening(
                self._config.server,
                (*SERVICES, SCALER) if self._scaler else SERVICES,
                add,
                together=together,
                parts=(COMMITS,),
                refused=self._metrics.refused_connections.inc,
                sizes=SIZES,
                certificate=self._certificate,
                other=("robustmq.listen", self._config.robustmq.listen),
            )
            async with listener as server, self._front.listening(server.others) if self._front else nullcontext():
                self.addresses = list(server.addresses)
                yield server


def _bridge_of(config: AdapterConfig, commits: Commits) -> "Bridge | None":
    """The bridge to a RocketMQ broker, if one is configured."""
    if not config.rocketmq.broker:
        return None
    from adapter.sidecar.bridge.bridge import Bridge  # noqa: PLC0415 - takes time to import, and most adapters need none

    return Bridge(config, commits)


def _front_of(config: AdapterConfig, meta: MetaClient, commits: Commits, state: SidecarState) -> "Front | None":
    """Where a RobustMQ broker calls in place of its Meta Service, if that is configured."""
    if not config.robustmq.listen:
        return None
    from adapter.sidecar.front.front import Front  # noqa: PLC0415 - as above

    return Front(config, meta, commits, state.serving, state.committing_core)


def _broker_log(config: AdapterConfig) -> AbstractAsyncContextManager[BrokerLog]:
    """What knows the bounds of the shards: a RocketMQ broker by its own calls, a broker that serves BrokerLog, or nobody."""
    if config.rocketmq.broker:
        from adapter.sidecar.bridge.broker_log import RocketmqLog  # noqa: PLC0415 - as above

        return nullcontext(RocketmqLog(config.rocketmq))
    return opened_broker_log(config.broker_log)


async def run(config: AdapterConfig, until: Until, loaded: Loaded[AdapterConfig] | None = None) -> int:
    """Run an adapter; `until` gets its stop function and is cancelled at its end. Returns the exit code.

    `loaded` says what the settings were read from, so that they can be read again.
    """
    reloading = Reloading(config, LIVE, loaded, around=lambda: manager().reloading())
    async with (
        GrpcMetaClient.open(config.meta, spread=True) as meta,
        _broker_log(config) as broker_log,
        anyio.create_task_group() as tasks,
    ):
        sidecar = Sidecar(config, meta, broker_log, reloading=reloading)
        reloading.add(lambda config: meta.prepare(config.meta))
        tasks.start_soon(until, sidecar.stop, name="signals")
        tasks.start_soon(reloading.run, name="reloading")
        left = await sidecar.run()
        tasks.cancel_scope.cancel()
    return 0 if left == 0 else 1
