"""One adapter of the model: the production sidecar and built-in server over a simulated disk and network, without sockets.

`Broker` is the machine, which outlives its processes; `Running` is one process, from a start to a stop, a kill or a power cut.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple, cast

import grpc
from prometheus_client.registry import Collector, CollectorRegistry

from adapter.client.broker_log import BrokerLog, NoBrokerLog
from adapter.errors import AdapterError, ContendedError, DiskFullError, NotReadyError, StorageFailedError
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rpc import offsets_grpc, offsets_pb
from adapter.runtime.clocks import Clocks
from adapter.runtime.serving.http2.admission import SHARE_S
from adapter.runtime.serving.http2.server import Http2Server
from adapter.runtime.serving.listener import GrpcServer
from adapter.sidecar.config import AdapterConfig, WalSync
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.recovery import RecoveryReport
from adapter.sidecar.ledger.operations import Forget, Operation, Standing
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.sidecar.process import Sidecar
from adapter.testing.sidecars import adapter_config
from tests.model.disk import Platter, SimDisk
from tests.model.http2_client import COMMIT, Client
from tests.model.loop import Process, VirtualLoop
from tests.model.model import HOUR_MS
from tests.model.network import Link, SaveCall, Service, SimMeta

INTERVAL_S = 0.1
ENDS_EARLY = 0.2  # turns of new connections at the server, of all
WRITE_THROUGH = "w"  # the group that is not cached, where any is written through


class _Unread(CollectorRegistry):
    """Metrics that nobody reads."""

    def register(self, collector: Collector) -> None:
        """Keep nothing of a process that has ended."""


METRICS = AdapterMetrics()  # one for all: nothing here reads them
METRICS.registry = _Unread()

State = offsets_pb.StatusReply
Apply = Callable[[Operation], list[Standing]]
Comparing = Callable[[], Coroutine[Any, Any, RecoveryReport]]


class Setup(NamedTuple):
    """What differs between brokers. Where nothing is written through or synced one by one, plain commits take the fast path."""

    wal_sync: WalSync
    writes_through: bool


@cache
def config_of(setup: Setup) -> AdapterConfig:
    """Short limits: virtual time is free, but each tick in it takes work."""
    return adapter_config(
        Path("nowhere"),
        store={"wal_sync": setup.wal_sync},
        policy=[{"groups": WRITE_THROUGH, "mode": "write_through"}] if setup.writes_through else [],
        flush={"interval_ms": 100, "max_batch_bytes": 16_384, "backoff_max_ms": 400, "refused_retry_ms": 500},
        recovery={"timeout_ms": 500, "batch_keys": 2},
        expiry={"retention_hours": 1, "interval_ms": 300},
        stop={"grace_ms": 300, "drain_timeout_ms": 1_000},
        lag={"shards": 0},  # evaluated in a thread, which has no virtual time
    )


class _Server(GrpcServer):
    """Instead of a server that listens: the built-in server, and calls that come from nowhere."""

    def __init__(self, process: "Running", server: Http2Server) -> None:
        self._process = process
        self._grpc_server = server
        self._calls = process.calls
        self.addresses = []

    async def set_serving(self, *, serving: bool, only: str | None = None) -> None:
        pass

    async def accept_waiting(self) -> None:
        pass

    def drain(self) -> None:
        self._process.grpc_server = None
        self._grpc_server.drain()

    async def drained(self, grace_s: float) -> None:
        await self._grpc_server.drained(grace_s)

    async def stop(self, grace_s: float) -> None:
        self._process.grpc_server = None
        stopping = asyncio.create_task(self._grpc_server.stop(grace_s))
        if self._calls:
            await asyncio.wait(self._calls, timeout=grace_s)
        for call in self._calls:
            call.cancel()
        await stopping


class SimSidecar(Sidecar):
    """The production sidecar with its surroundings passed in."""

    process: "Running"

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[GrpcServer]:
        server = Http2Server(clock=self.process.broker.shares)
        offsets_grpc.add_OffsetStoreServicer_to_server(self.offsets, cast("grpc.Server", server))
        server.take_together({COMMIT: self.offsets.take})
        self.process.grpc_server = server
        yield _Server(self.process, server)

    async def _recover(self, core: Core) -> None:
        self.process.recovery_began(core)
        await super()._recover(core)

    def _recovered(self, core: Core) -> None:
        self.process.recovery_ended(core)
        super()._recovered(core)


class Machine:
    """What a broker's process needs of the world."""

    def __init__(self, seed: int, loop: VirtualLoop, clocks: Clocks, service: Service, keys: list[OffsetKey]) -> None:
        self.seed = seed
        self.loop = loop
        self.clocks = clocks
        self.service = service
        self.keys = keys
        self.violations: list[str] = []
        self.on_loss: Callable[[Broker], None] = lambda _: None
        self.on_forget: Callable[[Broker, Forget], None] = lambda _, __: None


class Shares:
    """The clock by which the built-in server ends a turn of new connections, in seconds: some turns end early."""

    def __init__(self, seed: str) -> None:
        self._chance = Random(seed)
        self._now = 0.0

    def __call__(self) -> float:
        if self._chance.random() < ENDS_EARLY:
            self._now += SHARE_S
        return self._now


class Broker:
    """A machine with a disk and a network."""

    meta_type: ClassVar[type[SimMeta]] = SimMeta
    platter_type: ClassVar[type[Platter]] = Platter
    sidecar_type: ClassVar[type[SimSidecar]] = SimSidecar

    def __init__(self, machine: Machine, name: str, setup: Setup) -> None:
        self.machine = machine
        self.name = name
        self.setup = setup
        self.config = config_of(setup).model_copy(update={"broker": name})
        self.platter = self.platter_type(f"{machine.seed} {name}", self.disturb)
        self.shares = Shares(f"{machine.seed} {name}")
        self.link = Link(machine.service)
        self.clocks = machine.clocks
        self.running: Running | None = None
        self.disturbed_at = 0.0

    @property
    def troubled_at(self) -> float:
        """When it was last kept from working: by its network, its disk, or a pause."""
        now = self.machine.loop.now
        if self.platter.full or self.platter.failing_syncs or (self.running and self.running.paused):
            return now
        return max(self.disturbed_at, self.link.troubled_at)

    def disturb(self) -> None:
        """Something begins or ends that may keep it from working."""
        self.disturbed_at = self.machine.loop.now

    @property
    def wal_sync(self) -> WalSync:
        """When it syncs."""
        return self.setup.wal_sync

    def writes_through(self, key: OffsetKey) -> bool:
        """True where its commits wait for the Meta Service."""
        return self.setup.writes_through and key.group == WRITE_THROUGH

    def start(self) -> None:
        """Start a process."""
        self.running = Running(self)

    def core(self) -> Core | None:
        """The core, while one serves or recovers."""
        return self.running.core if self.running and not self.running.dead else None

    def kill(self, after: int | None = None) -> None:
        """Kill -9: now, or before the disk operation after so many more."""
        if not self.running:
            return
        if after is None or self.running.disk is None:
            self.running.die()
        else:
            self.running.disk.fuse = after

    def power_cut(self, keep: int, *, keep_watermark: bool) -> None:
        """The machine goes down: of the unsynced batches so many are kept."""
        self.kill()
        self.platter.power_cut(min(keep, self.platter.unsynced), keep_watermark=keep_watermark)
        self.machine.on_loss(self)

    def broker_log(self) -> BrokerLog:
        """What its processes ask for bounds."""
        return NoBrokerLog()

    def disk_for(self, running: "Running") -> SimDisk:
        """The disk as the program of a process uses it."""
        return SimDisk(self.platter, running.die)

    def opening(self, running: "Running") -> LocalStore:
        """Open the store as a process does. A full disk may refuse even that."""
        if self.platter.full:
            raise DiskFullError("full by the test")
        if self.platter.opened():
            self.machine.on_loss(self)
        running.disk = self.disk_for(running)
        return LocalStore.over(running.disk, self.wal_sync)


class Running(Process):
    """A process of a broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker
        self.machine = broker.machine
        self.meta = broker.meta_type(broker.link, self._saved)
        self.disk: SimDisk | None = None
        self.sidecar: SimSidecar | None = None
        self.calls: set[asyncio.Task[None]] = set()
        self.grpc_server: Http2Server | None = None
        self._clients: dict[int, Client] = {}
        self.asked = False  # the Meta Service, what it knows of this store
        self.compared = False  # all keys were; that they are once more, after a loss there, takes nothing back
        self.forgets = 0  # how often keys or members were forgotten
        self.dead = False
        self.stopping_since: float | None = None
        self.stopped_without_store = False  # told to stop between a failed sync and the next open
        self.left: int | None = None
        self.demanding = 0
        self._flushes = 0
        self._window_began = 0.0
        self._last_batch: object = None
        self.before: dict[OffsetKey, OffsetRecord] = {}  # what the Meta Service held at the start of what is here
        self._context = self.context()
        self.task = self.machine.loop.create_task(self._run(), context=self._context.copy())

    @property
    def core(self) -> Core | None:
        """The core, while there is one."""
        return self.sidecar.state.core if self.sidecar else None

    @property
    def state(self) -> int:
        return self.sidecar.state.state if self.sidecar else State.STARTING

    def call(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something in this process, as one of its callers asks for it."""

        async def guarded() -> None:
            try:
                await work()
            except AdapterError:
                pass
            except Exception as error:  # noqa: BLE001 - told by the next step
                self.machine.violations.append(f"{self.broker.name}: a call ended with {error!r}")

        task = self.machine.loop.create_task(guarded(), context=self._context.copy())
        self.calls.add(task)
        task.add_done_callback(self.calls.discard)

    def read(self, requests: Callable[[], None]) -> None:
        """Let requests come in, in one turn of its event loop."""
        self.machine.loop.call_soon(requests, context=self._context)

    def client(self, number: int) -> Client | None:
        """A connection of this number; None while there is none, and none can be had."""
        found = self._clients.get(number)
        if self.grpc_server and not self.dead and (found is None or not found.open):
            found = self._clients[number] = Client(self.grpc_server)
        return found if found and found.open else None

    async def demand(self, work: Awaitable[Any]) -> Any:
        """Do something that may flush besides the loop, so that saves are not counted meanwhile (5)."""
        self.demanding += 1
        try:
            return await work
        finally:
            self.demanding -= 1
            self._count_anew()
            self._flushes = -1  # one that it interrupted goes on now

    def serving(self) -> Core:
        """The core, as any call but a commit gets it. Raises NotReadyError."""
        if self.sidecar is None:
            raise NotReadyError("not yet")
        core = self.sidecar.core()
        if not (self.asked or self.state == State.DEGRADED):
            self.machine.violations.append(f"9: {self.broker.name} answers more than commits before it has asked")
        return core

    def stop(self) -> None:
        """SIGTERM."""
        if self.sidecar and self.stopping_since is None:
            self.stopping_since = self.machine.loop.now
            self.stopped_without_store = self.state == State.FAILED
            self.sidecar.stop()

    def die(self) -> None:
        """From this moment on, nothing that it does is seen by anybody."""
        self.dead = self.meta.dead = True
        if self.disk:
            self.disk.dead = True
        if self.broker.running is self:
            self.broker.running = None
        loop = self.machine.loop
        loop.resume(self)
        for client in self._clients.values():
            self.read(client.wire.close)
        for task in (self.task, *self.calls):
            loop.call_soon(task.cancel)

    async def _run(self) -> None:
        self.sidecar = self.broker.sidecar_type(
            self.broker.config,
            self.meta,
            self.broker.broker_log(),
            opening=self._open,
            clocks=self.broker.clocks,
            metrics=METRICS,
        )
        self.sidecar.process = self
        try:
            self.left = await self.sidecar.run()
        except (DiskFullError, StorageFailedError):
            self.left = -1
        except Exception as error:  # noqa: BLE001 - told by the next step
            if not self.dead:
                self.machine.violations.append(f"{self.broker.name}: the process ended with {error!r}")

    async def _open(self, config: AdapterConfig, *, only: bytes | None) -> LocalStore:  # noqa: ARG002 - as `Opening` says
        if self.dead:  # the failure of its store took the place of the cancellation
            self.task.cancel()
            await asyncio.Event().wait()
        return self.broker.opening(self)

    def recovery_began(self, core: Core) -> None:
        """Remember what the Meta Service holds: the recovery has to find at least this (9)."""
        core.ledger.apply = self._watching(core.ledger.apply)  # type: ignore[assignment,method-assign]
        core.recovery.run = self._compared(core.recovery.run)  # type: ignore[method-assign]
        core.meta_watch.begin = self._asked(core.meta_watch.begin)  # type: ignore[assignment,method-assign]
        found = ((key, self.machine.service.standing(key)) for key in self.machine.keys)
        self.before = {key: record for key, record in found if record and core.ledger.store.get(key)}

    def _watching(self, apply: Apply) -> Apply:
        def watched(change: Operation) -> list[Standing]:
            if not isinstance(change, Forget):
                return apply(change)
            refused = False
            try:
                removed = apply(change)
            except ContendedError:
                refused = True
                raise
            finally:  # a kill in the middle of it may come behind the write
                if not refused:
                    self._forgot(change)
            if change.members and not change.gone:
                self._expect_expired(removed)
            return removed

        return watched

    def _forgot(self, change: Forget) -> None:
        self.forgets += 1
        for key in change.keys:
            self.before.pop(key, None)  # it begins anew (2)
        self.machine.on_forget(self.broker, change)

    def _expect_expired(self, removed: Sequence[Standing]) -> None:
        """An expiry forgets nothing that was committed lately, whenever it had looked at it, nor the generation with it."""
        since_ms = self.broker.clocks.now_ms() - HOUR_MS
        for key, record, _ in removed:
            if record and record.live and record.committed_at_ms > since_ms:
                self.machine.violations.append(f"expiry: {self.broker.name} forgot {record} of {key} and its generation")

    def _compared(self, run: Comparing) -> Comparing:
        async def compared() -> RecoveryReport:
            report = await run()
            self.compared = True
            return report

        return compared

    def _asked(self, begin: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def asked() -> None:
            await begin()
            self.asked = True

        return asked

    def recovery_ended(self, core: Core) -> None:
        """Invariant 9: every local key was compared, so none is below what the Meta Service held when it began."""
        self._count_anew()
        for key, record in self.before.items():
            here = core.ledger.store.get(key)
            if here is not None and here.position < record.position:
                self.machine.violations.append(f"9: {self.broker.name} recovered {key} as {here}, though {record} stood")

    def expect_less(self, key: OffsetKey) -> None:
        """The Meta Service holds less of a key than when the recovery began (9)."""
        self.before.pop(key, None)

    def _saved(self, call: SaveCall) -> None:
        """Invariants 5 and 6: at most one flush per interval, and the one of a stop at once, of nothing but dirty keys."""
        core = self.core
        keys = [entry.key for entry in call.entries]
        if core is None or not set(keys) <= set(core.ledger.dirty._in_flight) or all(map(self.broker.writes_through, keys)):
            return
        if len(keys) != len(set(keys)) or len(keys) > len(core.ledger.dirty):
            self.machine.violations.append(f"6: {self.broker.name} sent {keys} of {len(core.ledger.dirty)} dirty keys")
        if core.ledger.dirty._in_flight is self._last_batch:
            return  # another chunk of it
        self._last_batch = core.ledger.dirty._in_flight
        self._flushes += 1
        allowed = (call.at - self._window_began) / INTERVAL_S + 2 + (self.stopping_since is not None)
        if not self.demanding and core.ledger.recovered.now and self._flushes > allowed:
            self.machine.violations.append(f"5: {self.broker.name} sent {self._flushes} flushes where {allowed:.1f} are allowed")

    def _count_anew(self) -> None:
        self._flushes = 0
        self._window_began = self.machine.loop.now
