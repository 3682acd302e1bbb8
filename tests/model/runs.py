"""Runs of the model: the rules, of which a plan is drawn for each seed, and `run`, which plays so many plans."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, NoReturn, cast

import structlog

from adapter.model.records import GroupKey, OffsetKey, ReadMode
from adapter.sidecar.config import WalSync
from tests.model import choices as st
from tests.model.broker import Setup
from tests.model.choices import rule
from tests.model.consumers import Offer, Way
from tests.model.invariants import Watch
from tests.model.loop import STARTS_AT_S
from tests.model.machines import GROUPS, KEYS
from tests.model.network import Fault
from tests.model.plans import BrokenRunError, draw, play, shrink
from tests.model.settle import settle
from tests.model.world import BAD, World

BROKERS = st.integers(0, 2)  # of two, the third is the first
WAITS = st.sampled_from([0.0, 0.0015, 0.003, 0.05, 0.12, 0.35, 0.8])  # seconds
WAL_SYNCS: list[WalSync] = ["interval", "always", "never"]
# Most are such that plain commits take the fast path.
SETUPS = st.builds(Setup, st.sampled_from(["interval", *WAL_SYNCS]), st.sampled_from([False, False, True]))
SELDOM = st.sampled_from([False, False, False, True])
FAULTS = st.lists(st.sampled_from(list(Fault)), min_size=1, max_size=4)
OFFSETS = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 9), min_size=1, max_size=2)
GROUP = st.sampled_from(GROUPS)
KEY = st.sampled_from(KEYS)
COMMITS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=3)
CHANGE = st.sampled_from(["reset", "delete", "clone", "commit", "rewind"])
THEN = st.sampled_from(["nothing", "read", "kill"])
FURTHER = st.sampled_from([1, 2, 0, -1, 1])
OFFERS = st.lists(st.builds(Offer, KEY, FURTHER, st.booleans(), SELDOM), min_size=1, max_size=6)
ROUNDS = st.lists(OFFERS, min_size=1, max_size=4)
MEETS = st.sampled_from(["nothing", "nothing", "nothing", "a full disk", "a stop", "a kill"])
SOON_S = 0.02  # enough for what meets no fault
EARLY_S = 0.003  # a recovery has begun, and not ended
COLLECTED = 20  # runs whose garbage is collected at once
UNHEARD_S = 0.22  # enough for a group load to be given up


@dataclass
class Played:
    """So many runs, and their virtual time."""

    runs: int = 0
    seconds: float = 0.0


class Everything:
    """Two adapters and one Meta Service. Each rule is a step of the world, after which some time passes."""

    # What a world beside this one has instead; see worlds.py.
    world_type: ClassVar[type[World]] = World
    watch_type: ClassVar[type[Watch]] = Watch
    world: World
    watch: Watch

    @rule(seed=st.integers(0, 99), setups=st.tuples(*[SETUPS] * 2))
    def begin(self, seed: int, setups: tuple[Setup, ...]) -> None:
        """Two adapters start over empty disks."""
        self.build(seed, setups)

    def build(self, seed: int, setups: Sequence[Setup]) -> None:
        """Start an adapter for each setup."""
        self.world = self.world_type(seed, setups)
        self.watch = self.watch_type(self.world)

    def _next(self, at: int) -> int:
        """Another broker than `at`."""
        return (at + 1) % len(self.world.brokers)

    def _pass(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self.watch.check()

    @rule(at=BROKERS, offsets=OFFSETS, overwrite=SELDOM, generation=st.none() | st.integers(0, 3), wait=WAITS)
    def commit(self, at: int, offsets: dict[OffsetKey, int], overwrite: bool, generation: int | None, wait: float) -> None:
        """A consumer that knows no epochs commits."""
        self.world.commit(at, offsets, overwrite=overwrite, generation=generation)
        self._pass(wait)

    @rule(at=BROKERS, offsets=OFFSETS, overwrite=SELDOM, wait=WAITS)
    def commit_knowing_the_epoch(self, at: int, offsets: dict[OffsetKey, int], overwrite: bool, wait: float) -> None:
        """A consumer commits with the epochs that it read."""
        self.world.commit(at, offsets, overwrite=overwrite, knowing=True)
        self._pass(wait)

    @rule(at=BROKERS, offsets=OFFSETS, overwrite=SELDOM, knowing=st.booleans(), wait=WAITS)
    def commit_in_columns(self, at: int, offsets: dict[OffsetKey, int], overwrite: bool, knowing: bool, wait: float) -> None:
        """A consumer commits many shards as columns."""
        self.world.commit(at, offsets, overwrite=overwrite, knowing=knowing, columns=True)
        self._pass(wait)

    @rule(at=BROKERS, offsets=OFFSETS, age_ms=st.sampled_from([1, 300]), wait=WAITS)
    def commit_late(self, at: int, offsets: dict[OffsetKey, int], age_ms: int, wait: float) -> None:
        """A consumer commits what it did a while ago."""
        self.world.commit(at, offsets, age_ms=age_ms)
        self._pass(wait)

    @rule(at=BROKERS, offset=st.integers(0, 9), wait=WAITS)
    def commit_much(self, at: int, offset: int, wait: float) -> None:
        """So much metadata that a flush takes several saves."""
        self.world.commit(at, dict.fromkeys(KEYS, offset), big=True)
        self._pass(wait)

    @rule(
        at=BROKERS, key=KEY, fresh=st.booleans(), commits=COMMITS, change=CHANGE, offset=st.integers(0, 9), then=THEN, wait=WAITS
    )
    def apart(
        self,
        at: int,
        key: OffsetKey,
        fresh: bool,
        commits: list[tuple[int, bool]],
        change: str,
        offset: int,
        then: str,
        wait: float,
    ) -> None:
        """A broker that is cut off takes commits, of a key that it has or has not, while the offset moves elsewhere."""
        world = self.world
        if fresh:
            world.move(at, at, key.group_key)
            self._pass(SOON_S)
        world.cut(at, cut=True)
        for offered, overwrite in commits:
            world.commit(at, {key: offered}, overwrite=overwrite)
            self._pass(UNHEARD_S if fresh else SOON_S)
        self._change(self._next(at), change, key, offset)
        world.cut(at, cut=False)
        if then == "read":
            world.read(at, key.group_key, ReadMode.STORE)
        elif then == "kill":
            world.kill(at, None, restart=True)
        self._pass(wait)

    @rule(at=BROKERS, key=KEY, commits=COMMITS, change=CHANGE, offset=st.integers(0, 9), again=SELDOM, wait=WAITS)
    def early(
        self, at: int, key: OffsetKey, commits: list[tuple[int, bool]], change: str, offset: int, again: bool, wait: float
    ) -> None:
        """A broker that was killed takes commits while it recovers, after the offset moved elsewhere; it may be killed again."""
        world = self.world
        self._change(self._next(at), change, key, offset)
        self._pass(SOON_S)
        for _ in range(1 + again):
            world.trouble(at, [Fault.SLOW])
            world.kill(at, None, restart=True)
            for offered, overwrite in commits:
                self._pass(EARLY_S)
                world.commit(at, {key: offered}, overwrite=overwrite)
                world.read(at, key.group_key, list(ReadMode)[offered % len(ReadMode)])
        self._pass(wait)

    @rule(
        at=BROKERS,
        key=KEY,
        change=CHANGE,
        offset=st.integers(0, 9),
        mode=st.sampled_from(ReadMode),
        then=st.sampled_from(["read", "persist", "flush", "move", "reset", "kill"]),
        wait=WAITS,
    )
    def reads_at_once(self, at: int, key: OffsetKey, change: str, offset: int, mode: ReadMode, then: str, wait: float) -> None:
        """A broker that was killed is asked for an offset that moved elsewhere, before and after its recovery has come to it."""
        world, group = self.world, key.group_key
        self._change(self._next(at), change, key, offset)
        self._pass(SOON_S)
        world.kill(at, None, restart=True)
        for _ in range(5):
            self._pass(EARLY_S)
            world.read(at, group, mode)
            if then == "persist":
                world.persist(at, group)
            elif then == "flush":
                world.flush(at)
        if then == "move":
            world.move(at, self._next(at), group)
        elif then == "reset":
            self._change(at, "reset", key, offset)
        elif then == "kill":
            world.kill(at, None, restart=True)
            self._pass(EARLY_S)
            world.commit(at, {key: offset})
        self._pass(wait)

    @rule(
        at=BROKERS, key=KEY, change=CHANGE, offset=st.integers(0, 9), elsewhere=st.booleans(), late=st.integers(0, 9), wait=WAITS
    )
    def in_flight(self, at: int, key: OffsetKey, change: str, offset: int, elsewhere: bool, late: int, wait: float) -> None:
        """A consumer reads, the offset moves, and then comes its commit with the epoch that it read."""
        self.world.read(at, key.group_key, ReadMode.MEMORY_FIRST_THEN_STORE)
        self._pass(SOON_S)
        self._change(self._next(at) if elsewhere else at, change, key, offset)
        self.world.commit(at, {key: late}, knowing=True)
        self._pass(wait)

    @rule(
        at=BROKERS,
        key=KEY,
        change=st.sampled_from(["reset", "delete", "clone"]),
        offset=st.integers(0, 9),
        elsewhere=SELDOM,
        offers=st.lists(st.builds(Offer, KEY, FURTHER, st.just(value=False), SELDOM), max_size=2),
        way=st.sampled_from(Way),
        wait=WAITS,
    )
    def goes_on(
        self, at: int, key: OffsetKey, change: str, offset: int, elsewhere: bool, offers: list[Offer], way: Way, wait: float
    ) -> None:
        """An operator moves an offset, and a consumer that knows no epochs goes on committing as if nothing had been."""
        self.world.commit(at, {key: offset})
        self._pass(SOON_S)
        self._change(self._next(at) if elsewhere else at, change, key, offset)
        self.world.commit_together(at, [*offers, Offer(key, 1, knowing=False, overwrite=False)], way, apart=False)
        self._pass(wait)

    def _change(self, at: int, change: str, key: OffsetKey, offset: int) -> None:
        if change == "reset":
            self.world.reset(at, [key], offset)
        elif change == "delete":
            self.world.delete(at, key.group_key, [key.shard])
        elif change == "clone":
            self.world.clone(at, next(group for group in GROUPS if group != key.group_key), key.group_key)
        else:
            self.world.commit(at, {key: offset}, overwrite=change == "rewind")
        self._pass(SOON_S)

    @rule(
        at=BROKERS, rounds=ROUNDS, way=st.sampled_from(Way), apart=st.booleans(), meets=MEETS, after=st.integers(0, 3), wait=WAITS
    )
    def commit_together(
        self, at: int, rounds: list[list[Offer]], way: Way, apart: bool, meets: str, after: int, wait: float
    ) -> None:
        """Commits come at once, some times in a row; the last ones meet something that disturbs them."""
        for offers in rounds[:-1]:
            self.world.commit_together(at, offers, way, apart=apart)
            self._pass(SOON_S)
        if meets == "a kill":
            self.world.kill(at, after, restart=False)
        elif meets == "a full disk":
            self.world.disk_full(at, full=True)
        self.world.commit_together(at, rounds[-1], way, apart=apart)
        if meets == "a full disk":
            self._pass(0)
            self.world.commit_together(at, rounds[-1], way, apart=apart)  # who was refused tries again
        if meets == "a stop":
            self.world.stop(at)
        self._pass(wait)
        if meets == "a full disk":
            self.world.disk_full(at, full=False)

    @rule(at=BROKERS, which=st.integers(0, len(BAD) - 1))
    def bad_commit(self, at: int, which: int) -> None:
        """Bad input (10)."""
        self.world.bad_commit(at, which)
        self._pass(0)

    @rule(at=BROKERS, group=GROUP, mode=st.sampled_from(ReadMode), wait=WAITS)
    def read(self, at: int, group: GroupKey, mode: ReadMode, wait: float) -> None:
        """A consumer reads."""
        self.world.read(at, group, mode)
        self._pass(wait)

    @rule(at=BROKERS, group=GROUP, wait=WAITS)
    def persist(self, at: int, group: GroupKey, wait: float) -> None:
        """A broker persists a group."""
        self.world.persist(at, group)
        self._pass(wait)

    @rule(at=BROKERS, group=GROUP, wait=WAITS)
    def move(self, at: int, group: GroupKey, wait: float) -> None:
        """Shards move to the other broker."""
        self.world.move(at, self._next(at), group)
        self._pass(wait)

    @rule(at=BROKERS, key=KEY, offset=st.integers(0, 9), wait=WAITS)
    def reset(self, at: int, key: OffsetKey, offset: int, wait: float) -> None:
        """An admin resets a shard."""
        self.world.reset(at, [key], offset)
        self._pass(wait)

    @rule(at=BROKERS, key=KEY, whole=st.booleans(), wait=WAITS)
    def delete(self, at: int, key: OffsetKey, whole: bool, wait: float) -> None:
        """An admin deletes a shard, or its group."""
        self.world.delete(at, key.group_key, [] if whole else [key.shard])
        self._pass(wait)

    @rule(at=BROKERS, groups=st.permutations(GROUPS), wait=WAITS)
    def clone(self, at: int, groups: list[GroupKey], wait: float) -> None:
        """An admin clones a group."""
        self.world.clone(at, groups[0], groups[1])
        self._pass(wait)

    @rule(at=BROKERS, wait=WAITS)
    def flush(self, at: int, wait: float) -> None:
        """An admin flushes."""
        self.world.flush(at)
        self._pass(wait)

    @rule(at=BROKERS, faults=FAULTS, wait=WAITS)
    def trouble(self, at: int, faults: list[Fault], wait: float) -> None:
        """The network loses, delays and repeats."""
        self.world.trouble(at, faults)
        self._pass(wait)

    @rule(at=BROKERS, cut=st.booleans(), wait=WAITS)
    def cut(self, at: int, cut: bool, wait: float) -> None:
        """A broker is cut off, or no longer."""
        self.world.cut(at, cut=cut)
        self._pass(wait)

    @rule(up=st.booleans(), wait=WAITS)
    def meta(self, up: bool, wait: float) -> None:
        """The Meta Service crashes, or comes back."""
        self.world.meta(up=up)
        self._pass(wait)

    @rule(refused=st.lists(st.sampled_from(KEYS), max_size=2), wait=WAITS)
    def refuse(self, refused: list[OffsetKey], wait: float) -> None:
        """The Meta Service refuses some keys, or none any more."""
        self.world.refuse(refused)
        self._pass(wait)

    @rule(at=BROKERS, after=st.none() | st.integers(0, 8), restart=st.booleans(), wait=WAITS)
    def kill(self, at: int, after: int | None, restart: bool, wait: float) -> None:
        """Kill -9, at any instant."""
        self.world.kill(at, after, restart=restart)
        self._pass(wait)

    @rule(at=BROKERS, keep=st.integers(0, 4), keep_watermark=st.booleans(), wait=WAITS)
    def power_cut(self, at: int, keep: int, keep_watermark: bool, wait: float) -> None:
        """A machine goes down and comes back."""
        self.world.power_cut(at, keep, keep_watermark=keep_watermark)
        self._pass(wait)

    @rule(at=BROKERS, wait=WAITS)
    def start(self, at: int, wait: float) -> None:
        """A supervisor starts what does not run."""
        self.world.start(at)
        self._pass(wait)

    @rule(at=BROKERS, wait=WAITS)
    def stop(self, at: int, wait: float) -> None:
        """SIGTERM (8)."""
        self.world.stop(at)
        self._pass(wait)

    @rule(at=BROKERS, full=st.booleans(), wait=WAITS)
    def disk_full(self, at: int, full: bool, wait: float) -> None:
        """A disk is full, or no longer."""
        self.world.disk_full(at, full=full)
        self._pass(wait)

    @rule(at=BROKERS, wait=WAITS)
    def fail_sync(self, at: int, wait: float) -> None:
        """The next sync fails."""
        self.world.fail_sync(at)
        self._pass(wait)

    @rule(at=BROKERS, wait=WAITS)
    def pause(self, at: int, wait: float) -> None:
        """SIGSTOP, for a while."""
        self.world.pause(at)
        self._pass(wait)
        self.world.resume(at)
        self._pass(0)

    @rule(wait=WAITS)
    def a_day_passes(self, wait: float) -> None:
        """Longer than the retention."""
        self.world.a_day_passes()
        self._pass(wait)

    @rule(wait=WAITS)
    def wait(self, wait: float) -> None:
        """Nothing happens."""
        self._pass(wait)

    def expect_at_the_end(self) -> None:
        """Raise BrokenError for what a world beside this one finds when all has settled."""

    def end(self) -> None:
        """All troubles end, and what was acknowledged is everywhere."""
        settle(self.world, self.watch)
        self.expect_at_the_end()

    def close(self) -> None:
        """End everything."""
        if hasattr(self, "world"):
            self.world.close()


def run(runs: int, *, seed: int = 0, smaller: bool = True, world: type[Everything] = Everything) -> Played:
    """Play the plans of so many seeds, from this one on. Raises BrokenRunError for the first that breaks, made `smaller`."""
    played = Played()
    with quiet(), _collecting() as collect:
        for each in range(seed, seed + runs):
            try:
                done = cast("Everything", play(world, draw(world, each)))
            except BrokenRunError as broken:
                broken.seed = each
                raise (shrink(world, broken) if smaller else broken) from None
            played.runs += 1
            played.seconds += done.world.loop.now - STARTS_AT_S
            del done
            collect()
    return played


@contextmanager
def _collecting() -> Iterator[Callable[[], None]]:
    """The garbage collector runs between two runs, and seldom: it took a fifth of a run's time."""
    gc.collect()
    gc.freeze()
    gc.disable()
    runs = count(1)

    def collect() -> None:
        if next(runs) % COLLECTED == 0:
            gc.collect()

    try:
        yield collect
    finally:
        gc.enable()


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is logged."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop], wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(*_: object) -> NoReturn:
    raise structlog.DropEvent
