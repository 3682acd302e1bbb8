"""A world whose Meta Service is in parts, as Raft groups of etcd are, each of which may come back as an older copy of itself.

What is promised then (docs/etcd.md, Restore): whoever is in touch with it notices, says so, and pushes what it holds; so whatever
any adapter holds is there again, in the order of (epoch, offset). An adapter that was away does so when it is back. Until it has
noticed, what it says about clean keys is of the past: in that time nothing is handed over here.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum

from adapter.model.codec import unpack_names
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, ReadMode, StoreMark, meet
from adapter.sidecar.engine.meta_watch import REPORT_S
from adapter.sidecar.ledger.write_batch import Stored
from tests.model import choices as st
from tests.model.broker import Broker, Running, Setup
from tests.model.choices import rule
from tests.model.engine import MemoryEngine, Records
from tests.model.invariants import BrokenError, Watch
from tests.model.machines import GROUPS, KEYS, held_by
from tests.model.model import known, stands_in
from tests.model.network import Service
from tests.model.runs import BROKERS, GROUP, KEY, WAITS, Everything
from tests.model.world import World

SETTLED_S = 2.5  # no message is on its way for longer
NOTICED_S = REPORT_S + 2.0  # whoever is in touch has noticed, and compared


class How(Enum):
    """How a part comes back."""

    RESTORED = "with a new token: as another incarnation"
    SAME = "with the same token: known by its lower revision alone"
    EMPTY = "empty, as another incarnation"


class PartedEngine(MemoryEngine):
    """A part for each consumer group, with a mark of its own."""

    kind = "etcd"

    def __init__(self, now_ms: Callable[[], int], sync_s: float = 0.0) -> None:
        super().__init__(now_ms, sync_s)
        self._revisions: Counter[str] = Counter()
        self._synced_revisions: Counter[str] = Counter()
        self._incarnations: Counter[str] = Counter()
        self._copies: dict[str, tuple[Records, int]] = {}

    def marks(self) -> list[StoreMark]:
        return [
            StoreMark(group, self.store_id, 1 + self._incarnations[group], 1 + self._synced_revisions[group])
            for _, group in GROUPS
        ]

    def back_up(self, part: str) -> None:
        """Take a snapshot of a part."""
        rows = {key: record for key, record in self._synced.items() if _part_of(key) == part}
        self._copies[part] = (rows, self._synced_revisions[part])

    def restore(self, part: str, how: How) -> None:
        """The part is an older copy of itself now. Not while anything is under way."""
        rows, revision = self._copies.get(part, ({}, 0)) if how is not How.EMPTY else ({}, 0)
        left = {key: record for key, record in self._synced.items() if _part_of(key) != part}
        self._written, self._synced = left | rows, left | rows
        self._revisions[part] = self._synced_revisions[part] = revision
        self._incarnations[part] += how is not How.SAME

    def _write(self, changes: Records, *, tell: bool = False) -> None:
        super()._write(changes, tell=tell)
        self._revisions.update(_part_of(key) for key in changes)

    async def _sync(self) -> None:
        revisions = Counter(self._revisions)
        await super()._sync()
        self._synced_revisions |= revisions  # the larger of both


def _part_of(key: bytes) -> str:
    return unpack_names(key)[2]


class PartedService(Service):
    """The service over that engine."""

    engine_type = PartedEngine
    engine: PartedEngine


class LossyWorld(World):
    """The world; `held` is what an adapter had of a key that was lost, and has to be there again in the end."""

    service_type = PartedService
    service: PartedService

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        super().__init__(seed, setups)
        self.held: dict[tuple[str, OffsetKey], Stored] = {}
        self._hidden = False  # a part came back with the same token: only a start is sure to notice
        self.machine.on_loss = self._lost_more

    def back_up(self, group: GroupKey) -> None:
        """Somebody takes a snapshot of a part."""
        self.service.engine.back_up(group.group)

    def restore(self, group: GroupKey, how: How) -> None:
        """The Meta Service stops, and comes back with an older copy of a part."""
        before = {key: self.service.standing(key) for key in KEYS}
        self._hidden = self._hidden or how is How.SAME
        self.meta(up=False)
        self.pass_time(0)
        self.service.engine.restore(group.group, how)
        self.meta(up=True)
        for key in KEYS:
            if before[key] != self.service.standing(key):
                self._note(key)

    def _note(self, key: OffsetKey) -> None:
        there = self.service.standing(key)
        self.model.there.pop(key, None)
        for broker in self.brokers:
            stored = held_by(broker).stored.get(key)
            if stored and not _has(there, stored.record):
                self.held[broker.name, key] = stored
            owed = self.model.here.get((broker.name, key))
            here = stored.record if stored and stored.record.epoch else None
            if owed and not any(found and stands_in(found, owed.record) for found in (there, here, stored and stored.record)):
                del self.model.here[broker.name, key]
            if broker.running:
                broker.running.expect_less(key)

    def _lost_more(self, broker: Broker) -> None:
        """A power cut takes what an adapter had and had not synced; what it had before that counts then."""
        stored = held_by(broker).stored
        for at in [at for at in self.held if at[0] == broker.name]:
            left = stored.get(at[1])
            if left and not _has(self.service.standing(at[1]), left.record):
                self.held[at] = left
            else:
                del self.held[at]
        self._lost(broker)

    def settles(self) -> None:
        """Who comes back has noticed, and pushed what it holds; where the revision had passed what it knew, at its next start."""
        self.pass_time(NOTICED_S)
        for at in range(len(self.brokers) if self._hidden else 0):
            self.kill(at, None, restart=True)
        self.pass_time(NOTICED_S)

    def persist(self, at: int, group: GroupKey) -> None:
        """Unless that says nothing yet."""
        if not self._is_unsure(at, group):
            super().persist(at, group)

    def move(self, at: int, to: int, group: GroupKey) -> None:
        """Unless the first has to push them again."""
        if not self._is_unsure(at, group):
            super().move(at, to, group)

    def _is_unsure(self, at: int, group: GroupKey) -> bool:
        """True while an adapter has something of a group that the Meta Service lost, and may not know it yet."""
        name = self.brokers[at].name
        return any(broker == name and key.group_key == group for broker, key in self.held)


class LossyWatch(Watch):
    """All invariants, but that what was lost need not be there before the adapters that hold it have noticed."""

    _world: LossyWorld

    def lost(self) -> None:
        """A part came back as an older copy."""
        self._there = {}

    def check(self) -> None:
        """What is there again is owed as ever."""
        world = self._world
        world.held = {at: held for at, held in world.held.items() if not _has(world.service.standing(at[1]), held.record)}
        super().check()

    def expect_everything(self) -> None:
        """Whatever an adapter held is there again."""
        for (name, key), held in self._world.held.items():
            raise BrokenError(f"lost: {name} has {held.record} of {key}; {self._world.service.standing(key)} is there")

    def _owed(self, at: int, stored: dict[OffsetKey, Stored]) -> dict[OffsetKey, Stored]:
        name, held = self._world.brokers[at].name, self._world.held
        return {key: found for key, found in stored.items() if held.get((name, key)) != found}


def _has(there: OffsetRecord | None, record: OffsetRecord) -> bool:
    """At least this is there. What is of unknown epoch counts as of the first: a part that had lost the key took it as that."""
    return there is not None and (meet(record, there) == there or (not record.epoch and there.position > known(record)))


class Meanwhile(Enum):
    """What happens before the adapters have noticed."""

    COMMIT = "commit"
    KILL = "kill"
    CUT = "cut"
    HEAL = "heal"
    READ = "read"
    FLUSH = "flush"


class Lossy(Everything):
    """Parts of the Meta Service come back as older copies of themselves, or empty."""

    world_type = LossyWorld
    watch_type = LossyWatch
    world: LossyWorld
    watch: LossyWatch

    @rule(group=GROUP)
    def back_up(self, group: GroupKey) -> None:
        """Somebody takes a snapshot of a part."""
        self.world.back_up(group)
        self._pass(0)

    @rule(
        group=GROUP,
        how=st.sampled_from(How),
        meanwhile=st.lists(st.tuples(st.sampled_from(Meanwhile), BROKERS, KEY, st.integers(0, 9), WAITS), max_size=4),
    )
    def restore(self, group: GroupKey, how: How, meanwhile: list[tuple[Meanwhile, int, OffsetKey, int, float]]) -> None:
        """A part is an older copy of itself; something happens; whoever was in touch all the time has noticed."""
        world = self.world
        self._pass(SETTLED_S)
        world.restore(group, how)
        self.watch.lost()
        reached = [broker.running for broker in world.brokers if self._is_in_touch(broker)]
        self._pass(0)
        for what, at, key, offset, wait in meanwhile:
            self._happens(what, at, key, offset)
            self._pass(wait)
        self._pass(NOTICED_S)
        for running in reached:
            if running and running is running.broker.running and self._is_in_touch(running.broker):
                self._expect_noticed(running, group, how)

    def _is_in_touch(self, broker: Broker) -> bool:
        running = broker.running
        serves = running is not None and running.core is not None and running.core.ledger.recovered.now
        return serves and not (broker.link.cut or broker.link.faults or broker.platter.full) and self.world.service.up

    def _expect_noticed(self, running: Running, group: GroupKey, how: How) -> None:
        held = [at for at in self.world.held if at[0] == running.broker.name and at[1].group_key == group]
        if how is not How.SAME and not running.meta.server_reports.losses:
            raise BrokenError(f"lost: {running.broker.name} has not noticed that {group} is another one")
        if how is not How.SAME and held and not self.world.service.refusing:
            raise BrokenError(f"lost: {running.broker.name} has not pushed {held}")

    def _happens(self, what: Meanwhile, at: int, key: OffsetKey, offset: int) -> None:
        world = self.world
        if what is Meanwhile.COMMIT:
            world.commit(at, {key: offset})
        elif what is Meanwhile.KILL:
            world.kill(at, None, restart=True)
        elif what is Meanwhile.READ:
            world.read(at, key.group_key, ReadMode.STORE)
        elif what is Meanwhile.FLUSH:
            world.flush(at)
        else:
            world.cut(at, cut=what is Meanwhile.CUT)

    @rule(wait=WAITS)
    def a_day_passes(self, wait: float) -> None:
        """Nothing expires here: before it has noticed, an adapter would take part in that by what is of the past."""
        self._pass(wait)

    def expect_at_the_end(self) -> None:
        """Whatever an adapter held is there again."""
        self.watch.expect_everything()
