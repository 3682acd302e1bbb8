"""A world in which the Meta Service forgets tombstones, as `tombstones.retention_hours` says, while adapters may be away.

What is promised then (docs/design/epochs.md, Tombstones):

- nothing comes back that no adapter held when its tombstone was forgotten: not from a flush, a load, a repeated call;
- an adapter that held a live offset of it may bring that one back, exactly as it held it, and nothing else; if that was a
  reset that nobody had taken up, the key expires again, and a reset that meets its own expiry is taken up (`records.meet`);
- a tombstone that the Meta Service has forgotten does not come back: it would hide what was committed since; but one that an
  adapter took up, and had not sent by then;
- a commit that comes to an adapter which still has such a tombstone, before it could ask, stands in the tombstone's era: so a
  reset of the key, which began anew elsewhere in an older one, does not hold it off.
"""

from collections.abc import Iterator, Sequence
from contextvars import Context

from adapter.model.records import ERA_BITS, OffsetKey, OffsetRecord, taken_up
from adapter.sidecar.ledger.write_batch import Stored
from tests.model import choices as st
from tests.model.broker import Setup
from tests.model.choices import rule
from tests.model.invariants import Watch
from tests.model.machines import DAY_MS, KEYS, held_by
from tests.model.model import Position
from tests.model.runs import WAITS, Everything
from tests.model.world import World

RETENTION_MS = 7 * DAY_MS  # of tombstones; the default
SETTLED_S = 2.5  # no message is on its way for longer


class ForgetfulWorld(World):
    """The world; `gone` and `held` say what a forgotten tombstone leaves."""

    def __init__(self, seed: int, setups: Sequence[Setup]) -> None:
        super().__init__(seed, setups)
        self.forgot_ms: dict[OffsetKey, int] = {}  # when the tombstone of a key was forgotten last
        self.was_at: dict[OffsetKey, Position] = {}  # where that tombstone was
        self.held: dict[OffsetKey, set[tuple[tuple[int, int], int]]] = {}  # live positions and times that adapters had then
        self.unknown: dict[OffsetKey, set[tuple[int, int]]] = {}  # offsets and times of those of them that had no epoch yet
        self.unsent: dict[OffsetKey, set[tuple[tuple[int, int], int]]] = {}  # the same of tombstones that one had not sent then
        self.excused: dict[tuple[str, OffsetKey], int] = {}  # the write that an adapter had of it then, clean or not
        self.eras: dict[OffsetKey, set[int]] = {}  # of the tombstones that adapters had of it then

    def time_passes(self) -> None:
        """Longer than tombstones are kept, and than any kernel keeps what was written."""
        self._sync()
        self._shift_ms += RETENTION_MS + DAY_MS
        self.expires = True

    def tombstones_are_forgotten(self) -> list[OffsetKey]:
        """The Meta Service removes old tombstones, as it does from time to time. Returns their keys."""
        before = {key: record for key in KEYS if (record := self.service.standing(key))}
        if not self.service.up or any(broker.platter.fails or broker.platter.failing_syncs for broker in self.brokers):
            return []  # a disk whose sync fails may come back with anything
        self.loop.create_task(self._forget(), context=Context())
        self.pass_time(0.02)
        self._sync()
        # What an adapter saved right behind the removal may stand there already.
        now = {key: self.service.standing(key) for key in before}
        gone = [key for key, record in before.items() if not (after := now[key]) or after.position < record.position]
        for key in gone:
            self._note(key, before[key])
        return gone

    def _sync(self) -> None:
        for broker in self.brokers:
            broker.platter.synced(broker.platter.unsynced)
            broker.platter.sync_watermark()

    async def _forget(self) -> None:
        await self.service.engine.drop_tombstones(self.now_ms() - RETENTION_MS)

    def _note(self, key: OffsetKey, tombstone: OffsetRecord) -> None:
        self.forgot_ms[key], self.was_at[key] = self.now_ms(), tombstone.position
        self.held[key], self.unknown[key], self.unsent[key] = set(), set(), set()
        self.model.there.pop(key, None)
        self.model.moved.pop(key, None)
        for broker in self.brokers:
            stored = held_by(broker).stored.get(key)
            if stored:
                self.excused[broker.name, key] = stored.seq
                core = broker.core()
                # Of unknown epoch it comes back in the first one.
                epoch = max(stored.record.epoch, 1)
                found = ((epoch, stored.record.offset), stored.record.committed_at_ms)
                self.held[key] |= {found, ((taken_up(epoch), stored.record.offset), stored.record.committed_at_ms)}
                if not stored.record.epoch:
                    self.unknown[key].add((stored.record.offset, stored.record.committed_at_ms))
                if not stored.record.live:
                    self.eras.setdefault(key, set()).add(stored.record.epoch >> ERA_BITS)
                if core and key in core.ledger.dirty:
                    self.unsent[key].add(found)
            owed = self.model.here.get((broker.name, key))
            if owed and not self.owes(key, owed.record):
                del self.model.here[broker.name, key]
            if broker.running:
                broker.running.expect_less(key)

    def owes(self, key: OffsetKey, record: OffsetRecord) -> bool:
        """Not what was forgotten: an adapter that still has it may answer a lower commit with it."""
        from_before = record.committed_at_ms < self.forgot_ms.get(key, 0) - DAY_MS
        return not (from_before and record.position <= self.was_at[key])

    def is_past(self, key: OffsetKey, found: OffsetRecord | None) -> bool:
        """Of a tombstone: the Meta Service forgot it."""
        return found is not None and not found.live and not self.owes(key, found)


class ForgetfulWatch(Watch):
    """All invariants, but that what was forgotten on purpose need not be there; and that it does not come back."""

    _world: ForgetfulWorld

    def forgot(self, keys: Sequence[OffsetKey]) -> None:
        """The Meta Service forgot the tombstones of these keys."""
        for key in keys:
            self._there.pop(key, None)

    def _nothing_goes_back_there(self, there: dict[OffsetKey, OffsetRecord]) -> Iterator[str]:
        for key, record in there.items():
            if why := self._came_back(key, record):
                yield f"tombstones: {key} in the Meta Service: {why}"
        yield from super()._nothing_goes_back_there(there)

    def _came_back(self, key: OffsetKey, record: OffsetRecord) -> str:
        """Why this record must not stand, since it is from before the tombstone of its key was forgotten; empty if it may."""
        if record.committed_at_ms >= self._world.forgot_ms.get(key, 0) - DAY_MS:
            return ""
        found = ((max(record.epoch, 1), record.offset), record.committed_at_ms)
        if not record.live and found not in self._world.unsent[key]:
            return f"the tombstone {record} was forgotten"
        held = self._world.held[key]
        unknown = (record.offset, record.committed_at_ms) in self._world.unknown[key]
        # One of unknown epoch comes back in that of another, if it was committed later.
        if record.live and found not in held and not (unknown and record.epoch in {position[0] for position, _ in held}):
            return f"{record} is from before a tombstone that was forgotten, and nobody had it then: {held}"
        return ""

    def _a_reset_is_not_undone(self, name: str, records: dict[OffsetKey, OffsetRecord]) -> Iterator[str]:
        for key, record in records.items():
            problems = list(super()._a_reset_is_not_undone(name, {key: record}))
            if record.epoch >> ERA_BITS not in self._world.eras.get(key, ()):
                yield from problems

    def _owed(self, at: int, stored: dict[OffsetKey, Stored]) -> dict[OffsetKey, Stored]:
        """Without what an adapter still has of what was forgotten."""
        name, excused = self._world.brokers[at].name, self._world.excused
        return {key: found for key, found in stored.items() if excused.get((name, key)) != found.seq}


class Forgetful(Everything):
    """Deletes, expiries, and tombstones that are forgotten while adapters are away or have not looked."""

    world_type = ForgetfulWorld
    watch_type = ForgetfulWatch
    world: ForgetfulWorld
    watch: ForgetfulWatch

    @rule(swept=st.booleans(), wait=WAITS)
    def tombstones_are_forgotten(self, swept: bool, wait: float) -> None:
        """Days pass, with or without the adapters noticing it before the Meta Service does."""
        self._pass(SETTLED_S)
        self.world.time_passes()
        if swept:
            self._pass(SETTLED_S)
        self.watch.forgot(self.world.tombstones_are_forgotten())
        self._pass(wait)
