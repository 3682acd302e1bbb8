"""The machines, the Meta Service between them, and what befalls them: faults, crashes, time. Every method is one step.

A step starts what it starts and returns; `pass_time` lets it happen. Deterministic: the same steps end the same.
"""

import operator
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import ClassVar, NamedTuple, SupportsIndex

from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, is_old_tombstone
from adapter.runtime import backoff
from adapter.runtime.clocks import Clocks
from adapter.sidecar.engine.tombstones import TOMBSTONE_MS
from adapter.sidecar.ledger.operations import Forget
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.write_batch import Stored
from tests.model import order
from tests.model.broker import WRITE_THROUGH, Broker, Machine, Running, Setup
from tests.model.disk import SimDisk
from tests.model.lookups import looked_up
from tests.model.loop import VirtualLoop
from tests.model.model import Model, known, stands_in
from tests.model.network import Fault, Service

GROUPS = [GroupKey("default", name) for name in ("g", "h", WRITE_THROUGH)]
KEYS = [OffsetKey(*group, shard) for group in GROUPS for shard in "ab"]

START_MS = 1_800_000_000_000
DAY_MS = 24 * 3_600_000  # beyond the retention of an hour


class Ring(list[Broker]):
    """Brokers, of which the number behind the last one is the first one again."""

    def __getitem__(self, at: SupportsIndex) -> Broker:  # type: ignore[override]
        """The broker of this number."""
        return super().__getitem__(operator.index(at) % len(self))


class Machines:
    """The simulated machines, and the model of what they owe."""

    # What a world beside this one has instead.
    model_type: ClassVar[type[Model]] = Model
    service_type: ClassVar[type[Service]] = Service
    broker_type: ClassVar[type[Broker]] = Broker
    keeps_times: ClassVar[bool] = True  # the Meta Service

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        backoff.jitter.seed(seed)
        order.places.seed(seed)
        self.loop = VirtualLoop()
        self._lookups = ExitStack()
        self._lookups.enter_context(looked_up(self.loop))
        self.model = self.model_type()
        self._shift_ms = 0
        self.service = self.service_type(self.now_ms)
        self.machine = Machine(seed, self.loop, Clocks(self.loop.time, self.now_ms), self.service, KEYS)
        self.machine.on_loss = self._lost
        self.machine.on_forget = self._forgot
        self.brokers = Ring(self.broker_type(self.machine, f"b{at}", setup) for at, setup in enumerate(setups))
        self.expires = False
        self.unsure: set[OffsetKey] = set()  # keys of which nothing is promised about what the Meta Service holds
        self._losses: set[str] = set()
        for at, broker in enumerate(self.brokers):
            self.set_up(at)
            broker.start()
        self.pass_time(0.02)

    def set_up(self, at: int) -> None:
        """A broker is about to start for the first time."""

    def now_ms(self) -> int:
        """Unix time."""
        return START_MS + self._shift_ms + int(self.loop.now * 1000)

    def pass_time(self, seconds: float) -> None:
        """Let things happen; with 0 only what takes no time."""
        self.loop.run_for(seconds)

    def trouble(self, at: int, faults: Sequence[Fault]) -> None:
        """The next calls of a broker to the Meta Service meet these faults."""
        self.brokers[at].link.faults.extend(faults)

    def cut(self, at: int, *, cut: bool) -> None:
        """A broker's network goes, or comes back."""
        self.brokers[at].link.cut = cut

    def meta(self, *, up: bool) -> None:
        """The Meta Service crashes, or comes back."""
        if up:
            self.service.up = True
        elif self.service.up:
            self.service.crash()

    def refuse(self, keys: Sequence[OffsetKey]) -> None:
        """The Meta Service refuses these from now on, and takes all others."""
        self.service.refusing = set(keys)
        for broker in self.brokers:
            broker.disturb()

    def kill(self, at: int, after: int | None, *, restart: bool) -> None:
        """Kill -9: now, or before a disk operation to come. `restart` is a supervisor that is there at once."""
        broker = self.brokers[at]
        broker.kill(after)
        if restart and not broker.running:
            self.pass_time(0)
            broker.start()

    def power_cut(self, at: int, keep: int, *, keep_watermark: bool) -> None:
        """The machine goes down, and comes back up."""
        self.brokers[at].power_cut(keep, keep_watermark=keep_watermark)
        self.pass_time(0)
        self.brokers[at].start()

    def start(self, at: int) -> None:
        """Start what does not run."""
        running = self.brokers[at].running
        if running is None or running.task.done():
            self.brokers[at].start()

    def stop(self, at: int) -> None:
        """SIGTERM."""
        running = self._running(at)
        if running:
            running.stop()

    def disk_full(self, at: int, *, full: bool) -> None:
        """The disk is full, or has space again."""
        self.brokers[at].platter.full = full
        self.brokers[at].disturb()

    def fail_sync(self, at: int) -> None:
        """The next sync fails, and the kernel forgets what it was about."""
        self.brokers[at].platter.failing_syncs = 1
        self.brokers[at].disturb()

    def pause(self, at: int) -> None:
        """SIGSTOP, or a long pause of whatever kind."""
        running = self._running(at)
        if running:
            self.loop.pause(running)
            running.broker.disturb()

    def resume(self, at: int) -> None:
        """It goes on as if nothing had been."""
        running = self._running(at)
        if running and running.paused:
            running.broker.disturb()
            self.loop.resume(running)

    def a_day_passes(self) -> None:
        """Nobody commits for longer than the retention; the wall clocks alone show it."""
        self._shift_ms += DAY_MS
        self.expires = True

    def heal(self) -> None:
        """All troubles end. For worlds that have others than these."""

    def settles(self) -> None:
        """All is well for a while now: what is owed in the end, is. For worlds in which something is not."""

    def is_past(self, key: OffsetKey, found: OffsetRecord | None) -> bool:  # noqa: ARG002 - for a world that forgets
        """Whether this was forgotten, and the key began anew behind it; a power cut may bring it back."""
        return False

    def take_losses(self) -> set[str]:
        """The brokers that lost something, within what they may, since this was asked last."""
        losses, self._losses = self._losses, set()
        return losses

    def close(self) -> None:
        """End everything."""
        for broker in self.brokers:
            broker.kill()
        self.service.crash()
        self.pass_time(0)
        with suppress(RuntimeError):
            self.loop.close()
        self._lookups.close()

    def _running(self, at: int) -> Running | None:
        running = self.brokers[at].running
        return running if running and not running.task.done() else None

    def _violation(self, text: str) -> None:
        self.machine.violations.append(text)

    def _forgot(self, broker: Broker, change: Forget) -> None:
        """A broker forgets the generations of groups that were deleted or expired, whether the answer comes or not.

        Of a commit that a delete had superseded nothing is owed once its tombstone is past, and forgotten. Of one that expired,
        its position: an adapter that lost its own removal in a power cut may bring back an older copy of it.
        """
        for group in change.members:
            self.model.generations.pop((broker.name, group), None)
            self.model.forgotten[broker.name, group] += 1
        for key in change.keys:
            owed, there = self.model.here.get((broker.name, key)), self.service.standing(key)
            if owed and is_old_tombstone(owed.record, self.now_ms() - TOMBSTONE_MS):
                del self.model.here[broker.name, key]
            elif owed and owed.record.live and there and not there.live:
                self.model.here[broker.name, key] = owed._replace(record=owed.record._replace(committed_at_ms=0))

    def _lost(self, broker: Broker) -> None:
        """A power cut or a failed sync took what was not synced: that is no longer owed, unless it was synced (always)."""
        self._losses.add(broker.name)
        held = held_by(broker)
        for (name, key), (record, at) in list(self.model.here.items()):
            found = held.stored[key].record if key in held.stored else None
            # At the same position the time counts: what an expiry may take away hangs on it. What a hand-over left to a server
            # that keeps no times, and was read again since, has none.
            owed_ms = record.committed_at_ms if self.keeps_times else 0
            covers = found and (known(found), found.committed_at_ms) >= (known(record), owed_ms)
            if name != broker.name or (covers and not self.is_past(key, found)):
                continue
            there = self.service.standing(key)
            # Of unknown epoch it began anew here, after a hand-over or an expiry; what was here is there, with its time.
            began_anew = found is None or found.epoch == 0
            as_late = there and (there.position, there.committed_at_ms) >= (known(record), owed_ms)
            if began_anew and there and as_late and stands_in(there, record):
                continue
            if broker.wal_sync == "always":
                self._violation(f"1: {name} lost {record} of {key}, acknowledged at {at}, with wal_sync = always")
            if found is None:
                del self.model.here[name, key]
            else:
                self.model.here[name, key] = self.model.here[name, key]._replace(record=found)
        for name, group in list(self.model.generations):
            if name == broker.name and broker.wal_sync != "always":
                self.model.generations[name, group] = min(self.model.generations[name, group], held.generations.get(group, 0))


class Held(NamedTuple):
    """What lies on a broker's disk, whoever has it open."""

    version: int
    stored: dict[OffsetKey, Stored]
    flushed_seq: int
    generations: dict[GroupKey, int]


NOTHING = Held(-1, {}, 0, {})


def held_by(broker: Broker, before: Held = NOTHING) -> Held:
    """Read a broker's disk, if it is not as it was `before`."""
    if broker.platter.version == before.version:
        return before
    store = LocalStore(SimDisk(broker.platter, lambda: None), broker.wal_sync)
    generations = {group: member.generation for group in GROUPS if (member := store.member(group))}
    return Held(broker.platter.version, {found.key: found for found in store.scan()}, store.flushed_seq, generations)
