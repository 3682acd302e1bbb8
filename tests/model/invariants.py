"""The invariants of DESIGN.md, checked after every step. Each function has the number of what it checks in its name or text."""

import re
from collections.abc import Iterator

from adapter.model.codec import encode_key
from adapter.model.records import OffsetKey, OffsetRecord, is_deleted, meet, taken_up
from adapter.sidecar.ledger.write_batch import Stored
from tests.model.broker import State
from tests.model.machines import KEYS, NOTHING, Held, held_by
from tests.model.model import HOUR_MS, Position, known
from tests.model.world import World


class BrokenError(AssertionError):
    """An invariant does not hold."""


class Watch:
    """Checks a world after each step; remembers what it saw before (2)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._here: dict[tuple[str, OffsetKey], Position] = {}
        self._there: dict[OffsetKey, OffsetRecord] = {}
        self._held: dict[str, Held] = {}

    def check(self) -> None:
        """Raise BrokenError for the first invariant that does not hold."""
        world = self._world
        there = {key: record for key in KEYS if (record := world.service.standing(key))}
        problems = [*world.machine.violations, *(f"loop: {error}" for error in world.loop.errors)]
        losses = world.take_losses()
        problems += self._nothing_goes_back_there(there)
        problems += self._what_was_written_through_or_moved_stands_there(there)
        for at, broker in enumerate(world.brokers):
            held = self._held[broker.name] = held_by(broker, self._held.get(broker.name, NOTHING))
            stored = held.stored
            problems += self._what_was_acknowledged_is_here(broker.name, stored, there)
            removed = broker.platter.take_removed()
            problems += self._nothing_goes_back_here(broker.name, stored, removed, lost=broker.name in losses)
            owed = self._owed(at, stored)
            problems += self._what_is_clean_is_there(at, owed, held.flushed_seq, there)
            problems += self._a_reset_is_not_undone(broker.name, {key: found.record for key, found in stored.items()})
            problems += self._a_generation_stays(broker.name, held)
            problems += self._a_stop_leaves_nothing(at, owed, there)
            problems += self._serving_means_asked(at)
        problems += self._a_reset_is_not_undone("the Meta Service", there)
        if problems:
            raise BrokenError(re.sub("m{20,}", "m..", "\n".join(problems)))

    def _owed(self, at: int, stored: dict[OffsetKey, Stored]) -> dict[OffsetKey, Stored]:  # noqa: ARG002 - worlds in which it is less
        """Of what an adapter has stored, what the Meta Service has to have once it is clean."""
        return stored

    def _what_was_acknowledged_is_here(
        self, name: str, stored: dict[OffsetKey, Stored], there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        """Invariant 1: here, also after a kill; or, where it was handed over or expired, in the Meta Service."""
        for (broker, key), (record, _) in self._world.model.here.items():
            if broker != name:
                continue
            here = stored[key].record if key in stored else None
            # Of unknown epoch it began anew here, after a hand-over or an expiry; what was here is there.
            found = there.get(key) if here is None or here.epoch == 0 else here
            if (found is None or known(found) < known(record)) and (here is None or known(here) < known(record)):
                yield f"1: {name} acknowledged {record} of {key}; {here} is here and {there.get(key)} there"

    def _nothing_goes_back_here(
        self, name: str, stored: dict[OffsetKey, Stored], removed: set[bytes], *, lost: bool
    ) -> Iterator[str]:
        """Invariant 2, locally. What was removed, or lost by a power cut (see 1), begins anew."""
        for key in KEYS:
            found = stored[key].record.position if key in stored else None
            before = self._here.pop((name, key), None)
            if encode_key(key) in removed:
                before = None
            if found is not None:
                self._here[name, key] = found
                if before is not None and found < before and found[0] and not lost:
                    yield f"2: {key} went back from {before} to {found} at {name}"

    def _nothing_goes_back_there(self, there: dict[OffsetKey, OffsetRecord]) -> Iterator[str]:
        """Invariant 2, in the Meta Service; and an expiry takes nothing that was younger than it allows."""
        for key, before in self._there.items():
            found = there.get(key)
            if found is None or found.position < before.position:
                yield f"2: {key} went back from {before} to {found} in the Meta Service"
            elif _expiry_of(before, found) and before.committed_at_ms > found.committed_at_ms - HOUR_MS:
                yield f"expiry: {key}: {before} was taken away at {found.committed_at_ms}"
        self._there = there

    def _what_is_clean_is_there(
        self, at: int, stored: dict[OffsetKey, Stored], flushed_seq: int, there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        """Invariants 3 and 4: in memory and, for the next process, on the disk. Dirty are at most the distinct keys."""
        broker = self._world.brokers[at]
        core = broker.core()
        for key, (_, record, seq) in stored.items():
            clean = core is not None and core.ledger.recovered.now and key not in core.ledger.dirty
            held = there.get(key)
            if (clean or seq <= flushed_seq) and (held is None or not _covers(held, record, expires=self._world.expires)):
                yield f"3: {key} is clean at {broker.name} as {record} (seq {seq}, flushed {flushed_seq}); {held} is there"
        if core is not None and len(core.ledger.dirty) > len(KEYS):
            yield f"4: {len(core.ledger.dirty)} dirty keys"

    def _what_was_written_through_or_moved_stands_there(self, there: dict[OffsetKey, OffsetRecord]) -> Iterator[str]:
        """Invariants 3 and 7: what the Meta Service acknowledged, a reset or delete among it, stands for ever."""
        for key, position in self._world.model.there.items():
            found = there.get(key)
            if found is None or found.position < position:
                yield f"7: {position} of {key} was acknowledged by the Meta Service; {found} is there"

    def _a_reset_is_not_undone(self, name: str, records: dict[OffsetKey, OffsetRecord]) -> Iterator[str]:
        """Invariant 7: what stands above a reset or delete was sent after it."""
        for key, record in records.items():
            self._world.model.decided(key, record, self._world.now_ms())
            why = self._world.model.undone(key, record, self._world.now_ms())
            if why:
                yield f"7: {key} at {name}: {why}"

    def _a_generation_stays(self, name: str, held: Held) -> Iterator[str]:
        """Fencing: the highest generation that was acknowledged is on the disk."""
        for (broker, group), generation in self._world.model.generations.items():
            if broker == name and held.generations.get(group, 0) < generation:
                yield f"fencing: {name} acknowledged generation {generation} of {group}; {held.generations} is here"

    def _a_stop_leaves_nothing(
        self, at: int, stored: dict[OffsetKey, Stored], there: dict[OffsetKey, OffsetRecord]
    ) -> Iterator[str]:
        """Invariant 8: a stop with the Meta Service there leaves nothing dirty; what it leaves is on the disk (1)."""
        running = self._world.brokers[at].running
        if running is None or running.left is None or running.stopping_since is None:
            return
        trouble = running.broker.troubled_at >= running.stopping_since or self._world.service.refusing
        if running.left and not (trouble or running.stopped_without_store):
            yield f"8: the stop of {running.broker.name} left {running.left} keys dirty"
        if running.left == 0:
            for key, (_, record, _) in stored.items():
                if key not in there or not _covers(there[key], record, expires=self._world.expires):
                    yield f"8: {running.broker.name} said that nothing is dirty, but {key} is {there.get(key)}, not {record}"

    def _serving_means_asked(self, at: int) -> Iterator[str]:
        """Invariant 9."""
        running = self._world.brokers[at].running
        if running and running.core and running.state == State.SERVING and not running.asked:
            yield f"9: {running.broker.name} serves and has not asked the Meta Service"


def _expiry_of(before: OffsetRecord, after: OffsetRecord | None) -> bool:
    same = after is not None and (taken_up(before.epoch), before.offset) == after.position
    return after is not None and same and before.live and not after.live and not is_deleted(after)


def _covers(there: OffsetRecord, here: OffsetRecord, *, expires: bool) -> bool:
    """The Meta Service holds at least this; or what an expiry left of it: a tombstone, or an older commit that came over that."""
    return meet(here, there) == there or (expires and there.position >= known(here))
