"""A world whose Meta Service is two processes of the production engine over several Raft groups of etcd.

A Raft group falls silent and answers again, with all that it had; Raft groups are added and taken away by rebalances, which are
killed half way and taken up again; processes are killed, and paused for longer than a change of the layout takes. Some of this
happens at times that were drawn at the start, beneath whatever else happens then.

What is promised: all invariants, for what a reader of the Meta Service is told. Besides:

- what belongs into Raft groups that answer is flushed, though another one is silent;
- nobody takes any of this for a loss of data, and what an adapter reported of its store is remembered;
- whatever is left of a rebalance, a new one can finish it; then every offset, and every report, is in its Raft group,
  and nowhere else.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import Context
from enum import Enum
from functools import partial
from itertools import accumulate
from typing import NamedTuple
from unittest import mock

from adapter.metaservice.etcd import client, elections, rebalancing
from adapter.model.codec import pack_names
from adapter.model.records import OffsetKey, ReadMode
from tests.model import choices as st
from tests.model.broker import Broker, Running, Setup
from tests.model.choices import rule
from tests.model.etcd_service import METADATA, METAS, OFFSETS, EtcdService, Rebalance
from tests.model.invariants import BrokenError, Watch
from tests.model.machines import KEYS
from tests.model.network import CLUSTER
from tests.model.raft_groups import Fate
from tests.model.runs import BROKERS, CHANGE, KEY, SETUPS, WAITS, Everything
from tests.model.settle import PATIENCE_S, STEP_S
from tests.model.world import World

# Times are a tenth of those of production, as others of the model: the client of etcd gives up before the adapter does.
SHORT = [
    (client, "LIMIT_S", 0.2),
    (client, "SILENCE_S", 0.01),
    (client, "STATUS_S", 0.02),
    (client, "PAUSE_S", 0.005),
    (elections, "POLL_INTERVAL_S", 0.01),
    (rebalancing, "PAGE", 2),  # keys, so that a rebalance of these few has several pages
]
FLUSHED_S = 0.2
BESIDE_S = 2.0  # some attempts, each of which waits for the silent Raft group as well


class What(Enum):
    """What happens to the Meta Service."""

    REBALANCE = "a rebalance begins"
    KILLED = "a rebalance begins, and is killed after some time"
    SILENCE = "a Raft group is silent for some time"
    RESTART = "a process of the Meta Service is killed, and started after some time"
    PAUSE = "a process of the Meta Service is paused for some time"


class Event(NamedTuple):
    """Something that happens so long after the one before.

    A rebalance adds `offsets` or takes it away; the Raft group `silent` gives calls these fates; or it is the process `meta`.
    """

    after_s: float
    what: What
    offsets: str
    silent: str
    meta: int
    fates: Sequence[Fate]
    for_s: float


# The Raft groups that are used for offsets at first.
FIRST = st.sampled_from([OFFSETS, OFFSETS[:2], OFFSETS[:1]])
ANY_GROUP = st.sampled_from([*OFFSETS, METADATA])
OFFSET_GROUP = st.sampled_from(OFFSETS)
FATES = st.lists(st.sampled_from(Fate), min_size=1, max_size=3)
META = st.integers(0, METAS - 1)
FOR_S = st.sampled_from([0.004, 0.012, 0.03, 0.12, 0.5, 2.0])
EVENT = st.builds(
    Event, st.sampled_from([0.004, 0.03, 0.1, 0.3]), st.sampled_from(What), OFFSET_GROUP, ANY_GROUP, META, FATES, FOR_S
)
SINCE_S = st.sampled_from([0.004, 0.006, 0.008, 0.01, 0.014, 0.02, 0.03])  # a rebalance of these few keys takes some 50 ms
EVENTS = st.lists(EVENT, max_size=10)


class EtcdBroker(Broker):
    """An adapter of that Meta Service."""

    @property
    def troubled_at(self) -> float:
        """Also while a Raft group is silent."""
        service = self.machine.service
        assert isinstance(service, EtcdService)
        return max(super().troubled_at, service.troubled_at)

    @property
    def in_touch(self) -> bool:
        """Whether it serves, and nothing here or on the way to the Meta Service keeps it from flushing."""
        running = self.running
        serves = running is not None and not running.paused and running.core is not None and running.core.ledger.recovered.now
        return serves and not (self.platter.full or self.platter.failing_syncs or self.link.cut or self.link.faults)


class EtcdWorld(World):
    """The world with Raft groups."""

    service_type = EtcdService
    broker_type = EtcdBroker
    service: EtcdService
    brokers: Sequence[EtcdBroker]  # type: ignore[assignment]

    def __init__(self, seed: int, setups: Sequence[Setup], first: Sequence[str] = OFFSETS, events: Sequence[Event] = ()) -> None:
        self._started_with = seed, first
        self.refuses = False  # the Meta Service has refused something
        self._timers: list[asyncio.TimerHandle] = []
        super().__init__(seed, setups)
        for at_s, event in zip(accumulate(event.after_s for event in events), events, strict=True):
            self._after(at_s, partial(self._happen, event))

    def set_up(self, at: int) -> None:
        """The Meta Service is there before the first broker."""
        if at == 0:
            self.service.begin(self.loop, *self._started_with)

    def _happen(self, event: Event) -> None:
        if event.what is What.REBALANCE:
            self.rebalance(event.offsets)
        elif event.what is What.KILLED:
            self.rebalance(event.offsets)
            self._after(event.for_s, self.kill_rebalances)
        elif event.what is What.SILENCE:
            self.fall_silent(event.silent, event.fates)
            self._after(event.for_s, lambda: self.speak(event.silent))
        elif event.what is What.RESTART:
            self.kill_meta(event.meta)
            self._after(event.for_s, lambda: self.start_meta(event.meta))
        else:
            self.pause_meta(event.meta)
            self._after(event.for_s, lambda: self.resume_meta(event.meta))

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        self._timers.append(self.loop.call_later(seconds, work, context=Context()))

    def meta(self, *, up: bool) -> None:
        """All processes of the Meta Service are killed, or those that do not run are started."""
        for number in range(METAS):
            (self.service.start if up else self.service.kill)(number)

    def refuse(self, keys: Sequence[OffsetKey]) -> None:
        """The Meta Service refuses these from now on, and takes all others."""
        super().refuse(keys)
        self.refuses = self.refuses or bool(keys)

    def kill_meta(self, number: int) -> None:
        """FAULT: a process of the Meta Service is killed."""
        self.service.kill(number)

    def start_meta(self, number: int) -> None:
        """A process of the Meta Service is started if it does not run."""
        self.service.start(number)

    def pause_meta(self, number: int) -> None:
        """FAULT: a process of the Meta Service is paused."""
        self.service.pause(number)

    def resume_meta(self, number: int) -> None:
        """A process of the Meta Service goes on."""
        self.service.resume(number)

    def fall_silent(self, raft_group: str, fates: Sequence[Fate]) -> None:
        """FAULT: a Raft group falls silent; this is what calls to it meet, in turn."""
        self.service.fall_silent(raft_group, fates)

    def speak(self, raft_group: str) -> None:
        """A Raft group answers again."""
        self.service.speak(raft_group)

    def rebalance(self, raft_group: str) -> Rebalance | None:
        """A rebalance begins that adds this Raft group or takes it away, or finishes what another one left."""
        layout = self.service.layout
        groups = {*layout.groups} ^ {raft_group} if layout.settled else {*layout.groups}
        return self.service.rebalance(sorted(groups)) if groups else None

    def kill_rebalances(self) -> None:
        """FAULT: the rebalances that run are killed."""
        self.service.kill_rebalances()

    def heal(self) -> None:
        """All Raft groups and processes answer, and nothing happens to them any more."""
        for timer in self._timers:
            timer.cancel()
        for group in self.service.groups:
            self.speak(group.name)
        for number in range(METAS):
            self.resume_meta(number)

    def settles(self) -> None:
        """Whatever is left of rebalances is finished by a new one."""
        while rebalances := [one for one in self.service.rebalances if not one.ended]:
            self._wait_for(rebalances[0])
        last = self.service.rebalance(self.service.layout.groups)
        self._wait_for(last)
        if not (last.done and self.service.layout.settled):
            raise BrokenError(f"rebalance: the last one ends with {self.service.layout}")

    def _wait_for(self, rebalance: Rebalance) -> None:
        ends_at = self.loop.now + PATIENCE_S
        while not rebalance.ended:
            if self.loop.now > ends_at:
                raise BrokenError(f"rebalance: one does not end; the layout is {self.service.layout}")
            self.pass_time(STEP_S)


class EtcdWatch(Watch):
    """All invariants, and those of a Meta Service on Raft groups that lose nothing."""

    _world: EtcdWorld

    def check(self) -> None:
        """Nobody found a loss or a refusal; once all is moved and cleaned, nothing is left elsewhere."""
        super().check()
        service = self._world.service
        for broker in self._world.brokers:
            if broker.name in service.forgotten:
                raise BrokenError(f"loss: the Meta Service has forgotten what {broker.name} reported of its store")
            if broker.running and broker.running.meta.server_reports.losses:
                raise BrokenError(f"loss: {broker.name} found one: {broker.running.meta.server_reports.why}")
            core = broker.core()
            if core and core.ledger.dirty.refused and not self._world.refuses:
                raise BrokenError(f"silent: {broker.name} takes what got no answer for refused")
        for process in (*service.metas, *service.rebalances):
            if any(each.losses for each in process.clients):
                raise BrokenError("loss: a process of the Meta Service found one")
        stray = next(service.strays(), None) if service.layout.settled else None
        if stray:
            raise BrokenError(f"moved: all is moved and cleaned, and there is still {stray}")


class Etcd(Everything):
    """Raft groups that are silent for a while, and rebalances."""

    world_type = EtcdWorld
    watch_type = EtcdWatch
    world: EtcdWorld

    def __init__(self) -> None:
        self._patched = ExitStack()

    @rule(seed=st.integers(0, 99), setups=st.tuples(*[SETUPS] * 2), first=FIRST, events=EVENTS)
    def begin(  # type: ignore[override]
        self, seed: int, setups: tuple[Setup, ...], first: Sequence[str], events: Sequence[Event]
    ) -> None:
        """Two adapters start over empty disks."""
        self._patched.enter_context(quickly())
        self.world = EtcdWorld(seed, setups, first, events)
        self.watch = EtcdWatch(self.world)

    @rule(at=BROKERS, raft_group=ANY_GROUP, fates=FATES, offset=st.integers(0, 9), wait=WAITS)
    def flush_beside_a_silent_group(self, at: int, raft_group: str, fates: list[Fate], offset: int, wait: float) -> None:
        """A broker has commits for all Raft groups, of which one is silent: the others get theirs; then it answers again."""
        world = self.world
        service, broker = world.service, world.brokers[at]
        running, layout = broker.running, service.layout
        calm = service.calm
        world.fall_silent(raft_group, fates)
        troubles = service.troubles
        world.commit(at, dict.fromkeys(KEYS, offset))
        self._pass(BESIDE_S)
        calm = calm and service.troubles == troubles and service.layout == layout and not service.refusing
        if calm and running and running is broker.running and broker.in_touch:
            self._expect_others_flushed(running, raft_group)
        world.speak(raft_group)
        self._pass(wait)

    def _expect_others_flushed(self, running: Running, silent: str) -> None:
        assert running.core
        home = self.world.service.layout.home
        dirty = sorted(running.core.ledger.dirty.keys())
        late = [key for key in dirty if home(pack_names(CLUSTER, key.namespace, key.group)) != silent]
        if late:
            raise BrokenError(f"silent: {running.broker.name} has not flushed {late}, though only {silent} is silent")

    @rule(raft_group=ANY_GROUP, fates=FATES, wait=WAITS)
    def fall_silent(self, raft_group: str, fates: list[Fate], wait: float) -> None:
        """A Raft group falls silent."""
        self.world.fall_silent(raft_group, fates)
        self._pass(wait)

    @rule(raft_group=ANY_GROUP, wait=WAITS)
    def speak(self, raft_group: str, wait: float) -> None:
        """A Raft group answers again."""
        self.world.speak(raft_group)
        self._pass(wait)

    @rule(raft_group=OFFSET_GROUP, wait=WAITS)
    def rebalance(self, raft_group: str, wait: float) -> None:
        """A Raft group is added or taken away, or a move that was left half way is taken up."""
        self.world.rebalance(raft_group)
        self._pass(wait)

    @rule(at=BROKERS, key=KEY, offset=st.integers(0, 9), since_s=SINCE_S, killed=st.booleans(), change=CHANGE, wait=WAITS)
    def change_while_it_moves(
        self, at: int, key: OffsetKey, offset: int, since_s: float, killed: bool, change: str, wait: float
    ) -> None:
        """A rebalance moves what was flushed, and may be killed; a broker that had not flushed it reads and changes it."""
        world = self.world
        world.commit(self._next(at), {key: offset})
        self._pass(FLUSHED_S)
        world.rebalance(world.service.mover_of(key))
        self._pass(since_s)
        if killed:
            world.kill_rebalances()
        world.read(at, key.group_key, ReadMode.STORE)
        self._change(at, change, key, offset)
        self._pass(wait)

    @rule(wait=WAITS)
    def kill_rebalances(self, wait: float) -> None:
        """Kill -9 of the rebalances that run."""
        self.world.kill_rebalances()
        self._pass(wait)

    @rule(number=META, wait=WAITS)
    def restart_meta(self, number: int, wait: float) -> None:
        """A process of the Meta Service is killed and started at once."""
        self.world.kill_meta(number)
        self.world.start_meta(number)
        self._pass(wait)

    def close(self) -> None:
        """End everything."""
        super().close()
        self._patched.close()


def quickly() -> ExitStack:
    """The times and sizes of the model instead of those of production."""
    stack = ExitStack()
    for module, name, value in SHORT:
        stack.enter_context(mock.patch.object(module, name, value))
    return stack
