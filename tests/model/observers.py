"""A world with observers: who reads and commits nothing, at any moment, also in the middle of a commit.

What an adapter shows of a shard (MEMORY reads, lists, watches, the console; the live lag, by its last evaluation) is promised in
docs/design/commit-path.md, Observers:

- it is on the adapter's disk when it is shown: a kill takes nothing back that anybody has seen;
- from one look to the next it does not decrease in (epoch, offset), across restarts, unless the shard was removed there (handed
  over, expired, forgotten) or a power cut or a failed sync took what was not synced. What was removed, and is committed again
  before its epoch is known, begins anew in epoch 0.

A STORE read shows no less than the Meta Service held when it began; World.read checks that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry

from adapter.model.codec import unpack_names
from adapter.model.records import GroupKey, OffsetKey
from adapter.sidecar.config import LagSection
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.lag.live import LiveLag
from adapter.sidecar.lag.metrics import LagMetrics
from tests.model import choices as st
from tests.model.broker import Broker, Running, Setup
from tests.model.choices import rule
from tests.model.consumers import Offer, Way
from tests.model.machines import GROUPS, NOTHING, Held, held_by
from tests.model.model import Position
from tests.model.runs import BROKERS, OFFERS, WAITS, Everything
from tests.model.world import World

R = TypeVar("R")

LAG = LagSection()
LAG_METRICS = LagMetrics(LAG, CollectorRegistry())
TURNS = 12  # of the event loop, at each of which is looked, between two pauses
PAUSE_S = 0.0007
WANTED = [Wanted(group, []) for group in GROUPS]


async def at_once(work: Callable[[], R]) -> R:
    """Here, instead of in a thread, which has no virtual time."""
    return work()


class ObservedWorld(World):
    """The world, with what each observer has seen last at each broker."""

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        self.seen: dict[tuple[str, str, OffsetKey], Position] = {}
        self._lags: WeakKeyDictionary[Core, LiveLag] = WeakKeyDictionary()
        self._disks: dict[str, Held] = {}
        self.looks = 0
        super().__init__(seed, setups)
        self.machine.on_loss = self._lost_more
        self.machine.on_forget = self._forgot_more

    def observe(self, at: int, pauses: int, *, lag: bool) -> None:
        """Look at a broker at each turn of its event loop, for a while."""
        running = self._running(at)
        if running:
            running.call(lambda: self._observe(running, pauses, lag=lag))

    async def _observe(self, running: Running, pauses: int, *, lag: bool) -> None:
        for _ in range(pauses):
            for _ in range(TURNS):
                core = running.core
                if running.dead or core is None or core.store.failure:
                    return
                self._look(running, core)
                await asyncio.sleep(0)
            if lag and core and core.recovery.report.done:
                await self._look_at_the_lag(running, core)
            await asyncio.sleep(PAUSE_S)

    def _look(self, running: Running, core: Core) -> None:
        """As all reads of the memory do; in this moment nothing else runs."""
        shown = {key: record.position for rows in core.reader.slices(WANTED) for key, record in rows}
        on_disk = self._on_disk(running.broker)
        for key, position in shown.items():
            if on_disk.get(key) != position:
                self._violation(f"observer: {running.broker.name} shows {position} of {key}, {on_disk.get(key)} is on the disk")
        self._sees("memory", running.broker, shown)

    async def _look_at_the_lag(self, running: Running, core: Core) -> None:
        lag = self._lags.get(core)
        if lag is None:
            run: Callable[..., Awaitable[object]] = at_once
            lag = LiveLag(LAG, core.store, core.bounds, core.broker_log, core.clocks, LAG_METRICS, in_thread=run)  # type: ignore[arg-type]
            self._lags[core] = lag
        await lag.evaluate()
        if running.dead or running.core is not core:
            return
        rows, groups = lag.view.rows, lag.view.group_of
        shown = {
            OffsetKey(*unpack_names(packed)): (int(rows.epochs[at]), int(rows.offsets[at]))
            for at, packed in enumerate(lag.view.keys)
            if groups[at] >= 0
        }
        on_disk = self._on_disk(running.broker)
        for key, position in shown.items():
            there = on_disk.get(key)
            if there is not None and there[0] and there < position:
                self._violation(f"observer: the lag of {running.broker.name} has {position} of {key}, {there} is on the disk")
        self._sees("lag", running.broker, shown)

    def _sees(self, who: str, broker: Broker, shown: dict[OffsetKey, Position]) -> None:
        self.looks += 1
        for key, position in shown.items():
            before = self.seen.get((who, broker.name, key))
            if before and position < before and position[0]:
                self._violation(f"observer: {who} of {broker.name} showed {before} of {key}, and shows {position}")
            self.seen[who, broker.name, key] = position

    def _on_disk(self, broker: Broker) -> dict[OffsetKey, Position]:
        held = self._disks[broker.name] = held_by(broker, self._disks.get(broker.name, NOTHING))
        return {key: found.record.position for key, found in held.stored.items()}

    def _begin_anew(self, broker: Broker) -> None:
        self.seen = {at: seen for at, seen in self.seen.items() if at[1] != broker.name}

    def _lost_more(self, broker: Broker) -> None:
        self._begin_anew(broker)
        self._lost(broker)

    def _forgot_more(self, broker: Broker, groups: Sequence[GroupKey]) -> None:
        self._begin_anew(broker)
        self._forgot(broker, groups)


class Observed(Everything):
    """Observers, while all else goes on."""

    world_type = ObservedWorld
    world: ObservedWorld

    @rule(at=BROKERS, pauses=st.integers(1, 6), lag=st.booleans(), wait=WAITS)
    def observe(self, at: int, pauses: int, lag: bool, wait: float) -> None:
        """Somebody looks for a while, during what comes next."""
        self.world.observe(at, pauses, lag=lag)
        self._pass(wait)

    @rule(at=BROKERS, pauses=st.integers(1, 6), offers=OFFERS, way=st.sampled_from(Way), apart=st.booleans(), full=st.booleans())
    def observed_commits(self, at: int, pauses: int, offers: list[Offer], way: Way, apart: bool, full: bool) -> None:
        """Somebody looks while commits come together, which a full disk may refuse."""
        self.world.observe(at, pauses, lag=True)
        if full:
            self.world.disk_full(at, full=True)
        self.world.commit_together(at, offers, way, apart=apart)
        self._pass(PAUSE_S * pauses)
        if full:
            self.world.disk_full(at, full=False)
        self._pass(0)
