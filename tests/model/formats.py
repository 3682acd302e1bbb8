"""A world in which adapters and the Meta Service go up to this release and back to the one before, with kills in between.

docs/upgrade.md allows that as long as no form has a new version: a program starts over what the other one left. The one before
knows neither the identity of a store nor that commits were taken before the Meta Service was asked (`UNASKED`): it leaves such
rows as they are, and may write past them; it reports no store. Its Meta Service knows no reports of stores, and sends no marks.

What is promised: all invariants, whoever runs; and no alarm. A change of the program is no loss of data.
"""

from collections.abc import Sequence

from adapter.errors import UnknownCallError
from adapter.model.records import STORE_ID_BYTES, ChangedGroups, KnownStore, StoreMark, StoreReport
from adapter.sidecar.ledger.disk import Batch
from adapter.sidecar.ledger.write_batch import STORE_ID, UNASKED
from tests.model import choices as st
from tests.model.broker import Broker, Running, Setup, State
from tests.model.choices import rule
from tests.model.disk import SimBatch, SimDisk
from tests.model.engine import MemoryEngine, Records
from tests.model.invariants import BrokenError, Watch
from tests.model.network import CLUSTER, Service, SimMeta
from tests.model.runs import BROKERS, WAITS, Everything
from tests.model.world import World

UNKNOWN_BEFORE = {STORE_ID, UNASKED}


class OlderDisk(SimDisk):
    """The disk as the release before uses it: rows that it does not know stay as they are."""

    def get(self, key: bytes) -> bytes | None:
        return None if key in UNKNOWN_BEFORE else super().get(key)

    def write(self, batch: Batch) -> None:
        assert isinstance(batch, SimBatch)
        batch.changes = [change for change in batch.changes if change[0] not in UNKNOWN_BEFORE]
        super().write(batch)


class Engine(MemoryEngine):
    """The engine of one release or the other."""

    older = False

    def marks(self) -> list[StoreMark]:
        return [] if self.older else super().marks()

    def _write(self, changes: Records, *, tell: bool = False) -> None:
        super()._write(changes, tell=tell)
        if self.older:
            self._unnoted = self._writes


class ExchangedService(Service):
    """The Meta Service of one release or the other."""

    engine_type = Engine
    engine: Engine

    async def changes_or_refuse(self, after: Sequence[StoreMark]) -> ChangedGroups | None:
        """None where the call is unknown."""
        return None if self.engine.older else await self.engine.changed_groups(CLUSTER, after)

    async def report_or_refuse(self, store: StoreReport, replaces: bytes) -> tuple[bool, KnownStore | None]:
        """Whether the call is known, and what was known of the store."""
        return (False, None) if self.engine.older else (True, await self.report_store(store, replaces))


class ExchangedMeta(SimMeta):
    """The client of one release or the other."""

    _service: ExchangedService
    older = False

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:
        if self.older:
            raise UnknownCallError("not known in the release before")
        is_known, found = await self._reported(lambda: self._service.report_or_refuse(store, replaces))
        if not is_known:
            raise UnknownCallError("not known to the service of the release before")
        return found

    async def changed_groups(self, after: Sequence[StoreMark]) -> ChangedGroups:
        if self.older:
            raise UnknownCallError("not known in the release before")
        found = await self._call(lambda: self._service.changes_or_refuse(after), faults=False)
        if found is None:
            raise UnknownCallError("not known to the service of the release before")
        return found


class ExchangedBroker(Broker):
    """A broker whose adapter is of one release or the other."""

    meta_type = ExchangedMeta
    older = False
    lost = False  # a power cut, or a failed sync: of which alarms speak rightly

    def start(self) -> None:
        """Start the program that is installed."""
        super().start()
        assert self.running
        self.running.meta.older = self.older  # type: ignore[attr-defined]

    def disk_for(self, running: Running) -> SimDisk:
        """The disk as that program uses it."""
        return (OlderDisk if self.older else SimDisk)(self.platter, running.die)


class ExchangedWorld(World):
    """The world. The first programs are those of the release before."""

    service_type = ExchangedService
    broker_type = ExchangedBroker
    service: ExchangedService
    brokers: "list[ExchangedBroker]"  # type: ignore[assignment]

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        super().__init__(seed, setups)
        self.machine.on_loss = self._lost_more

    def set_up(self, at: int) -> None:
        """Its store is made by the release before."""
        self.brokers[at].older = True

    def exchange(self, at: int, *, older: bool, stopped: bool) -> None:
        """Another program is installed; the old one is stopped, or killed, and whoever supervises starts the new one."""
        broker = self.brokers[at]
        if stopped and broker.running:
            broker.running.stop()
            self.pass_time(2)
        broker.older = older
        self.kill(at, None, restart=True)

    def exchange_meta(self, *, older: bool) -> None:
        """The Meta Service is another program after this restart."""
        self.meta(up=False)
        self.pass_time(0)
        self.service.engine.older = older
        self.meta(up=True)

    def _lost_more(self, broker: Broker) -> None:
        assert isinstance(broker, ExchangedBroker)
        broker.lost = True
        self._lost(broker)


class ExchangedWatch(Watch):
    """All invariants, and that nobody is alarmed."""

    _world: ExchangedWorld

    def check(self) -> None:
        """Raise BrokenError for an alarm, too, or for a store of this release that has no identity."""
        super().check()
        for broker in self._world.brokers:
            running, core = broker.running, broker.core()
            if core is None or running is None or broker.lost:
                continue
            reports = running.meta.server_reports
            if core.ledger.store.loss or reports.losses:
                raise BrokenError(f"alarm: {broker.name} says {core.ledger.store.loss} and {reports.why!r}, and nothing was lost")
            if not broker.older and running.state == State.SERVING and len(core.ledger.store.store_id) != STORE_ID_BYTES:
                raise BrokenError(f"identity: the store of {broker.name} has none")


class Exchanged(Everything):
    """Programs of the release before, and of this one, in turn."""

    world_type = ExchangedWorld
    watch_type = ExchangedWatch
    world: ExchangedWorld

    @rule(at=BROKERS, older=st.booleans(), stopped=st.booleans(), wait=WAITS)
    def exchange(self, at: int, older: bool, stopped: bool, wait: float) -> None:
        """An adapter goes up or back, by a stop or a kill."""
        self.world.exchange(at, older=older, stopped=stopped)
        self._pass(wait)

    @rule(older=st.booleans(), wait=WAITS)
    def exchange_meta(self, older: bool, wait: float) -> None:
        """The Meta Service goes up or back."""
        self.world.exchange_meta(older=older)
        self._pass(wait)
