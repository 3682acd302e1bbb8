"""A world with observers: who reads and commits nothing, at any moment, also in the middle of a commit.

What an adapter shows of a shard (MEMORY reads, lists, watches, the console; the live lag, by its last evaluation) is promised in
docs/design/commit-path.md, Observers:

- it is on the adapter's disk when it is shown: a kill takes nothing back that anybody has seen;
- from one look to the next it does not decrease in (epoch, offset), across restarts, unless the shard was removed there (handed
  over, expired, forgotten) or a power cut or a failed sync took what was not synced. What was removed, and is committed again
  before its epoch is known, begins anew in epoch 0.

An answer that takes time shows nothing that never was on the disk, and no less than was there when it was asked for. A watch and
the list after its `resync` miss nothing: when nothing waits to be told, what was told is on the disk in the epoch that was told.

A STORE read shows no less than the Meta Service held when it began; World.read checks that, and DescribeGroup's is checked here.
`WatchGroupLag` and `ListGroupLag` are not asked: they show sums, of what `GetGroupLag` shows shard by shard.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

import grpc
from prometheus_client import CollectorRegistry

from adapter.model.codec import decode_stored
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, ReadMode
from adapter.rpc import lag_pb, offsets_pb
from adapter.sidecar.api.offset_admin import OffsetAdmin
from adapter.sidecar.config import LagSection
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.lag.live import LiveLag
from adapter.sidecar.lag.metrics import LagMetrics
from adapter.sidecar.lag.service import OffsetLag, Serving
from adapter.sidecar.ledger.operations import Forget
from adapter.sidecar.ledger.write_batch import FIRST_KEY
from adapter.sidecar.process import Sidecar
from tests.model import choices as st
from tests.model.broker import Broker, Running, Setup
from tests.model.choices import rule
from tests.model.consumers import Offer, Way
from tests.model.disk import Change, Platter
from tests.model.invariants import Watch
from tests.model.machines import GROUPS, KEYS, NOTHING, Held, held_by
from tests.model.model import Position
from tests.model.runs import BROKERS, CHANGE, KEY, OFFERS, SOON_S, WAITS, Everything
from tests.model.world import World
from tests.unit.calls import AbortedError, context

LAG = LagSection()
LAG_METRICS = LagMetrics(LAG, CollectorRegistry())
TURNS = 12  # of the event loop, at each of which is looked, between two pauses
PAUSE_S = 0.0007
WATCH_S = 0.1  # for each pause
PAGE = 2  # rows of a list
WANTED = [Wanted(group, []) for group in GROUPS]

Positions = Mapping[OffsetKey, Position]


class Asked(Enum):
    """What somebody asks for, beside the memory; the console asks for the last three."""

    LIST = "ListOffsets"
    GROUPS = "ListGroups"
    WATCH = "WatchOffsets"
    DESCRIBE = "DescribeGroup"
    CHANGES = "ListChanges"
    LAG = "GetGroupLag"


ASKED = st.lists(st.sampled_from(Asked), max_size=3)


class ObservedPlatter(Platter):
    """A disk that remembers what it has had."""

    def __init__(self, seed: str, on_failed_sync: Callable[[], None]) -> None:
        super().__init__(seed, on_failed_sync)
        self.had: defaultdict[OffsetKey, set[Position]] = defaultdict(set)

    def write(self, changes: list[Change]) -> None:
        super().write(changes)
        for key, value in changes:
            if key >= FIRST_KEY and value is not None:
                of, record, _ = decode_stored(key, value)
                self.had[of].add(record.position)


class ObservedBroker(Broker):
    """A broker with such a disk."""

    platter_type = ObservedPlatter
    platter: ObservedPlatter


class Before(NamedTuple):
    """What was on a disk when something was asked for, and how often anything had been removed there by then."""

    positions: Positions
    version: int
    removals: int


class Lag(NamedTuple):
    """The live lag of a core, which is evaluated by one at a time."""

    live: LiveLag
    turn: asyncio.Lock


@dataclass(eq=False)
class Watching:
    """A watch of a core, and the epochs of all that it was told of; None while it has to list anew."""

    running: Running
    core: Core | None
    told: dict[OffsetKey, int] | None = None

    def take(self, event: offsets_pb.WatchOffsetsReply) -> None:
        """What changed, and what went; a list may be newer."""
        assert self.told is not None
        for row in event.changed:
            self.told[_key(row)] = max(row.epoch, self.told.get(_key(row), 0))
        for key in _removed(event):
            self.told.pop(key, None)


class ObservedWorld(World):
    """The world, with what each observer has seen last at each broker."""

    broker_type = ObservedBroker
    brokers: "list[ObservedBroker]"  # type: ignore[assignment]

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        self.seen: dict[tuple[str, str, OffsetKey], Position] = {}
        self.answers: Counter[Asked] = Counter()
        self.looks = 0
        self._watching: list[Watching] = []
        self._lags: WeakKeyDictionary[Core, Lag] = WeakKeyDictionary()
        self._disks: dict[str, Held] = {}
        self._removals: Counter[str] = Counter()  # by broker
        super().__init__(seed, setups)
        self.machine.on_loss = self._lost_more
        self.machine.on_forget = self._forgot_more

    def observe(self, at: int, pauses: int, asked: Sequence[Asked]) -> None:
        """Somebody looks at a broker at each turn of its event loop, for a while, and asks it for something again and again."""
        running = self._running(at)
        if running is None:
            return
        running.call(lambda: self._observe(running, pauses))
        for what in dict.fromkeys(asked):
            running.call(lambda what=what: self._ask(running, what, pauses))  # type: ignore[misc]

    async def _observe(self, running: Running, pauses: int) -> None:
        for _ in range(pauses):
            for _ in range(TURNS):
                core = running.core
                if running.dead or core is None or core.ledger.store.failure:
                    return
                self._look(running, core)
                await asyncio.sleep(0)
            await asyncio.sleep(PAUSE_S)

    def _look(self, running: Running, core: Core) -> None:
        """As all reads of the memory do; in this moment nothing else runs."""
        shown = {key: record.position for rows in core.reader.slices(WANTED) for key, record in rows}
        self._expect_on_disk("memory", running.broker, shown)
        self._sees("memory", running.broker, shown)

    # What takes time to be answered

    async def _ask(self, running: Running, what: Asked, pauses: int) -> None:
        calls: dict[Asked, Callable[[Running], Awaitable[None]]] = {
            Asked.LIST: self._list,
            Asked.GROUPS: self._list_groups,
            Asked.DESCRIBE: self._describe,
            Asked.CHANGES: self._list_changes,
            Asked.LAG: self._look_at_the_lag,
        }
        for _ in range(1 if what is Asked.WATCH else pauses):
            try:
                if what is Asked.WATCH:
                    await self._watch(running, pauses * WATCH_S)
                else:
                    await calls[what](running)
            except AbortedError as error:
                if error.args[0] is not grpc.StatusCode.UNAVAILABLE:
                    self._violation(f"observer: {running.broker.name} answered {what.value} with {error}")
                return
            if running.dead:
                return
            self.answers[what] += what is not Asked.WATCH  # of that: its events
            await asyncio.sleep(PAUSE_S)

    async def _list(self, running: Running) -> None:
        before = self._before(running.broker)
        shown = await _listed(running)
        if not running.dead:
            self._expect_shown("ListOffsets", running.broker, before, shown)

    async def _list_groups(self, running: Running) -> None:
        admin, token = _admin(running), b""
        listed: list[GroupKey] = []
        before = self._before(running.broker)
        while True:
            reply = await admin.ListGroups(offsets_pb.ListGroupsRequest(page_size=1, page_token=token), context())
            if running.dead:
                return
            stored = self._contents(running.broker).stored
            for row in reply.groups:
                group = GroupKey(row.namespace, row.group)
                listed.append(group)
                times = [one.record.committed_at_ms for key, one in stored.items() if key.group_key == group and one.record.live]
                if (row.shards, row.last_commit_at_ms) != (len(times), max(times, default=0)):
                    self._violation(f"observer: ListGroups of {running.broker.name} has {row}; committed were {times}")
            token = reply.next_page_token
            if not token:
                break
        groups = {key.group_key for key, one in stored.items() if one.record.live}
        if before.version == running.broker.platter.version and (len(listed), set(listed)) != (len(groups), groups):
            self._violation(f"observer: ListGroups of {running.broker.name} has {listed}, not {groups}")

    async def _describe(self, running: Running) -> None:
        for group in GROUPS:
            before = self._before(running.broker)
            stood = {key: record for key in KEYS if key.group_key == group and (record := self.service.standing(key))}
            reply = await _admin(running).DescribeGroup(
                offsets_pb.DescribeGroupRequest(namespace=group.namespace, group=group.group), context()
            )
            if running.dead:
                return
            local = {OffsetKey(*group, row.shard): _position(row.local) for row in reply.shards if row.HasField("local")}
            self._expect_shown("DescribeGroup", running.broker, before, local, [group])
            remote = {OffsetKey(*group, row.shard): _position(row.remote) for row in reply.shards if row.HasField("remote")}
            if not reply.remote_error:
                self._expect_remote(running.broker, stood, remote)

    def _expect_remote(self, broker: Broker, stood: Mapping[OffsetKey, OffsetRecord], remote: Positions) -> None:
        for key in stood.keys() | remote.keys():
            stands, shown = self.service.standing(key), remote.get(key)
            low = stood[key].position if key in stood else (0, 0)
            if shown is None or stands is None or not low <= shown <= stands.position:
                self._violation(f"observer: {broker.name} describes {key} at {shown} there; it was at {low}, and {stands} stands")

    async def _list_changes(self, running: Running) -> None:
        reply = await _admin(running).ListChanges(offsets_pb.ListChangesRequest(), context())
        for change in reply.changes:
            for row in change.rows:
                key, after = OffsetKey(row.namespace, row.group, row.shard), _position(row.after)
                stands = self.service.standing(key)
                here = after in running.broker.platter.had[key]  # type: ignore[attr-defined]
                if not here and (stands is None or stands.position < after):
                    self._violation(f"observer: {running.broker.name} lists a {change.kind} of {key} to {after}; {stands} stands")

    async def _watch(self, running: Running, seconds: float) -> None:
        """Follow what changes, by a list where the watch says so. Events are made in the moment in which they are told."""
        assert running.sidecar
        watching = Watching(running, running.core)
        self._watching.append(watching)
        try:
            async with asyncio.timeout(seconds), aclosing(_events(running.sidecar)) as events:
                async for event in events:
                    if running.dead:
                        return
                    self.answers[Asked.WATCH] += 1
                    self._expect_event(running.broker, event)
                    if event.resync:
                        watching.told = None
                        watching.told = {key: epoch for key, (epoch, _) in (await _listed(running)).items()}
                    watching.take(event)
        except TimeoutError:
            pass
        finally:
            self._watching.remove(watching)

    def _expect_event(self, broker: Broker, event: offsets_pb.WatchOffsetsReply) -> None:
        self._expect_on_disk("WatchOffsets", broker, {_key(row): (row.epoch, row.offset) for row in event.changed})
        on_disk = self._on_disk(broker)
        for key in _removed(event):
            if key in on_disk:
                self._violation(f"observer: {broker.name} told that {key} was removed, which is there")

    def _expect_told(self) -> None:
        """Between two steps, when nothing waits to be told: watchers miss nothing."""
        for watching in self._watching:
            running, told = watching.running, watching.told
            if told is None or running.dead or running.paused or running.core is not watching.core:
                continue
            on_disk = self._on_disk(running.broker)
            for key, known in told.items():
                epoch = on_disk[key][0] if key in on_disk else None
                # That an epoch became known is not told: the commit moved its offset forward, whatever the epoch.
                if known and epoch != known:
                    self._violation(f"observer: watchers of {running.broker.name} know {key} in epoch {known}; it is in {epoch}")

    async def _look_at_the_lag(self, running: Running) -> None:
        core = running.core
        if core is None or not core.ledger.recovered.now:
            return
        lag = self._lags.get(core)
        if lag is None:
            parts = (LAG, core.ledger.store, core.bounds, core.broker_log, core.clocks, LAG_METRICS)
            lag = self._lags[core] = Lag(LiveLag(*parts, in_thread=core.ledger.store.apart), asyncio.Lock())
        async with lag.turn:
            await lag.live.evaluate()
            serving = Serving(core, lag.live)
            shown: dict[OffsetKey, Position] = {}
            for group in GROUPS:
                request = lag_pb.GetGroupLagRequest(namespace=group.namespace, group=group.group)
                with _unknown_is_nothing():
                    reply = await OffsetLag(lambda: serving).GetGroupLag(request, context())
                    shown |= {OffsetKey(*group, row.shard): (row.epoch, row.offset) for row in reply.shards}
            if running.dead or running.core is not core:
                return
            self._expect_had("the lag", running.broker, shown)
            self._sees("lag", running.broker, shown)

    # What is expected

    def _before(self, broker: Broker) -> Before:
        return Before(self._on_disk(broker), broker.platter.version, self._removals[broker.name])

    def _expect_on_disk(self, what: str, broker: Broker, shown: Positions) -> None:
        on_disk = self._on_disk(broker)
        for key, position in shown.items():
            if on_disk.get(key) != position:
                self._violation(f"observer: {what} of {broker.name} shows {position} of {key}, {on_disk.get(key)} is on the disk")

    def _expect_had(self, what: str, broker: Broker, shown: Positions) -> None:
        assert isinstance(broker.platter, ObservedPlatter)
        for key, position in shown.items():
            if position not in broker.platter.had[key]:
                self._violation(f"observer: {what} of {broker.name} shows {position} of {key}, which was never on the disk")

    def _expect_shown(
        self, what: str, broker: Broker, before: Before, shown: Positions, groups: Sequence[GroupKey] = GROUPS
    ) -> None:
        """What was on the disk at some time, and no less than when it was asked for, unless something was removed since."""
        self._expect_had(what, broker, shown)
        if self._removals[broker.name] != before.removals:
            return
        for key, position in before.positions.items():
            if key.group_key in groups and shown.get(key, (-1, 0)) < position:
                self._violation(f"observer: {what} of {broker.name} shows {shown.get(key)} of {key}, {position} was there before")

    def _sees(self, who: str, broker: Broker, shown: Positions) -> None:
        self.looks += 1
        for key, position in shown.items():
            before = self.seen.get((who, broker.name, key))
            if before and position < before and position[0]:
                self._violation(f"observer: {who} of {broker.name} showed {before} of {key}, and shows {position}")
            self.seen[who, broker.name, key] = position

    def _contents(self, broker: Broker) -> Held:
        held = self._disks[broker.name] = held_by(broker, self._disks.get(broker.name, NOTHING))
        return held

    def _on_disk(self, broker: Broker) -> Positions:
        return {key: found.record.position for key, found in self._contents(broker).stored.items()}

    def _begin_anew(self, broker: Broker) -> None:
        self._removals[broker.name] += 1
        self.seen = {at: seen for at, seen in self.seen.items() if at[1] != broker.name}

    def _lost_more(self, broker: Broker) -> None:
        self._begin_anew(broker)
        self._lost(broker)

    def _forgot_more(self, broker: Broker, change: Forget) -> None:
        self._begin_anew(broker)
        self._forgot(broker, change)


def _admin(running: Running) -> OffsetAdmin:
    """The production service of one process."""
    sidecar = running.sidecar
    assert sidecar
    return OffsetAdmin(sidecar._reloading, sidecar.status, sidecar.state.serving, sidecar._access, sidecar._history)


async def _listed(running: Running) -> dict[OffsetKey, Position]:
    """All offsets, deleted ones among them, page by page."""
    assert running.sidecar
    shown: dict[OffsetKey, Position] = {}
    token = b""
    while True:
        request = offsets_pb.ListOffsetsRequest(page_size=PAGE, page_token=token, deleted=True)
        reply = await running.sidecar.offsets.ListOffsets(request, context())
        shown |= {_key(row): (row.epoch, row.offset) for row in reply.offsets}
        token = reply.next_page_token
        if not token:
            return shown


def _events(sidecar: Sidecar) -> AsyncGenerator[offsets_pb.WatchOffsetsReply, None]:
    events = sidecar.offsets.WatchOffsets(offsets_pb.WatchOffsetsRequest(), context())
    return cast("AsyncGenerator[offsets_pb.WatchOffsetsReply, None]", events)


def _key(row: offsets_pb.ShardOffset) -> OffsetKey:
    return OffsetKey(row.namespace, row.group, row.shard)


def _removed(event: offsets_pb.WatchOffsetsReply) -> list[OffsetKey]:
    return [OffsetKey(group.namespace, group.group, shard) for group in event.removed for shard in group.shards]


def _position(shown: offsets_pb.Position) -> Position:
    return shown.epoch, shown.offset


@contextmanager
def _unknown_is_nothing() -> Iterator[None]:
    """A group of which no lag is kept shows nothing."""
    try:
        yield
    except AbortedError as error:
        if error.args[0] is not grpc.StatusCode.NOT_FOUND:
            raise


class ObservedWatch(Watch):
    """All invariants, and that watchers miss nothing."""

    _world: ObservedWorld

    def check(self) -> None:
        """Raise BrokenError for what they were not told, too."""
        self._world._expect_told()
        super().check()


class Observed(Everything):
    """Observers, while all else goes on."""

    world_type = ObservedWorld
    watch_type = ObservedWatch
    world: ObservedWorld

    @rule(at=BROKERS, pauses=st.integers(1, 6), asked=ASKED, wait=WAITS)
    def observe(self, at: int, pauses: int, asked: list[Asked], wait: float) -> None:
        """Somebody looks for a while, during what comes next."""
        self.world.observe(at, pauses, asked)
        self._pass(wait)

    @rule(
        at=BROKERS,
        pauses=st.integers(1, 6),
        asked=ASKED,
        offers=OFFERS,
        way=st.sampled_from(Way),
        apart=st.booleans(),
        full=st.booleans(),
    )
    def observed_commits(
        self, at: int, pauses: int, asked: list[Asked], offers: list[Offer], way: Way, apart: bool, full: bool
    ) -> None:
        """Somebody looks while commits come together, which a full disk may refuse."""
        self.world.observe(at, pauses, asked)
        if full:
            self.world.disk_full(at, full=True)
        self.world.commit_together(at, offers, way, apart=apart)
        self._pass(PAUSE_S * pauses)
        if full:
            self.world.disk_full(at, full=False)
        self._pass(0)

    @rule(
        at=BROKERS,
        asked=ASKED,
        key=KEY,
        change=CHANGE,
        offset=st.integers(0, 9),
        elsewhere=st.booleans(),
        then=st.sampled_from(["read", "commit", "move"]),
        wait=WAITS,
    )
    def observed_change(
        self, at: int, asked: list[Asked], key: OffsetKey, change: str, offset: int, elsewhere: bool, then: str, wait: float
    ) -> None:
        """Somebody watches, and asks, while an offset moves, here or elsewhere; this adapter hears of it, or hands over."""
        self.world.commit(at, {key: offset})
        self._pass(SOON_S)
        self.world.observe(at, 3, [Asked.WATCH, *asked])
        self._pass(0)
        self._change(self._next(at) if elsewhere else at, change, key, offset)
        if then == "read":
            self.world.read(at, key.group_key, ReadMode.STORE)
        elif then == "commit":
            self.world.commit(at, {key: offset + 1})
        else:
            self.world.move(at, self._next(at), key.group_key)
        self._pass(wait)
