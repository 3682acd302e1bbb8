"""Decides from the requests, replies and reads of clients whether stores of offsets kept their promises (invariants 1, 2, 3).

An offset is a max-register, so one pass over the events in the order of their times is enough: a read shows at least what was
acknowledged, or read, before it began, and nothing that was sent later, or too late. It calls no server.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from adapter.model.records import FIRST_EPOCH, OffsetKey

ADAPTER, META = "adapter", "meta"  # places: copies of the registers. More adapters take names of their own.

Value: TypeAlias = tuple[int, int, bool]  # (epoch, offset, live): the order of the register
Position: TypeAlias = tuple[int, int] | Value


class Kind(Enum):
    """The kind of a violation."""

    LOST = "less than what was acknowledged"
    WENT_BACK = "less than what was read before"
    UNWRITTEN = "a value that nobody had begun to write"


class Bound(NamedTuple):
    """The least value that a read must show, the event that proves it, and how the value came to the place of the read."""

    value: Value
    because: "Write | Reading"
    carried: "Carrying | None" = None


@dataclass(frozen=True, repr=False)
class Violation:
    """A read that contradicts earlier events. Times are seconds since the history began."""

    key: OffsetKey
    kind: Kind
    place: str
    value: Value | None
    began: float
    ended: float
    bound: Bound | None

    def __str__(self) -> str:
        """The value that was read, the time, and the acknowledged write or read that it contradicts."""
        when = _during(self.began, self.ended)
        seen = f"{'/'.join(self.key)}: {self.place} showed {_shown(self.value)} {when}: {self.kind.value}"
        if self.bound is None:
            return seen
        value, because, carried = self.bound
        way = f", and was carried to {carried.target} {_during(carried.began, carried.ended)}" if carried else ""
        return f"{seen}: {_shown(value)} {because}{way}"

    __repr__ = __str__


@dataclass(slots=True, eq=False)
class Write:
    """A write in progress. Without a reply it may take effect at any time, or never."""

    history: "History"
    key: OffsetKey
    values: Sequence[Value]
    places: Sequence[str]
    began: float
    ended: float = 0.0
    bounds: list[Bound | None] = field(default_factory=list)  # of each place, when it began
    told: Value | None = None  # by its answer: which of the values it was
    standing: Value | None = None  # by its answer: a larger one

    def acknowledged(self, value: Position | None = None, *, at: float | None = None) -> None:
        """Note a success: its places have at least the least of its values, or `value` if the reply says which one."""
        self.told = _value(value) if value else None
        self._end(at)

    def superseded(self, standing: Position, *, at: float | None = None) -> None:
        """Note a reply with a larger value: it counts as a read of that value, which must not be below this write."""
        self.standing = _value(standing)
        self._end(at)

    def _end(self, at: float | None) -> None:
        self.ended = self.history.now() if at is None else at
        self.history.record(self.ended, self, ended=True)

    def __str__(self) -> str:
        """The end of a sentence whose subject is the value."""
        told = "was told as what stands" if self.standing else "was acknowledged"
        return f"{told} by {' and '.join(self.places)} {_during(self.began, self.ended)}"


@dataclass(slots=True, eq=False)
class Reading:
    """A read in progress: of some keys, or of all. Without a reply it proves nothing."""

    history: "History"
    places: Sequence[str]
    keys: Collection[OffsetKey] | None
    began: float
    ended: float = 0.0
    bounds: dict[OffsetKey, Bound] = field(default_factory=dict)
    seen: Mapping[OffsetKey, Position] = field(default_factory=dict)

    def found(self, seen: Mapping[OffsetKey, Position], *, at: float | None = None) -> None:
        """Note the reply: these keys have these positions; every other requested key is absent."""
        self.seen = seen
        self.ended = self.history.now() if at is None else at
        self.history.record(self.ended, self, ended=True)

    def __str__(self) -> str:
        """The end of a sentence whose subject is the value."""
        return f"was read at {self.places[0]} {_during(self.began, self.ended)}"


@dataclass(slots=True, eq=False)
class Carrying:
    """A transfer in progress, of everything from one place to another: a flush, a stop, a recovery."""

    history: "History"
    source: str
    target: str
    began: float
    ended: float = 0.0
    bounds: dict[OffsetKey, Bound] = field(default_factory=dict)

    def done(self, *, at: float | None = None) -> None:
        """Note that it succeeded."""
        self.ended = self.history.now() if at is None else at
        self.history.record(self.ended, self, ended=True)


@dataclass(slots=True, eq=False)
class _Register:
    """One key: the values that may be shown, and the least one that must be, for each place."""

    begun: set[Value] = field(default_factory=set)
    # Of what was begun when a place already had to show more: it can never be seen there.
    too_late: dict[tuple[str, Value], Bound] = field(default_factory=dict)
    # Offsets of writers that know no epoch, with what each place had to show when the first of them was begun.
    unplaced: dict[int, dict[str, Bound]] = field(default_factory=dict)
    tombstones: list[Value] = field(default_factory=list)
    highest_epoch: int = FIRST_EPOCH
    bounds: dict[str, Bound] = field(default_factory=dict)

    def begin(self, value: Value) -> None:
        epoch, offset, live = value
        if not epoch:
            self.unplaced.setdefault(offset, dict(self.bounds))
        elif value not in self.begun:
            self.begun.add(value)
            self.highest_epoch = max(self.highest_epoch, epoch)
            self.too_late.update(((place, value), bound) for place, bound in self.bounds.items() if bound.value > value)
            if not live:
                insort(self.tombstones, value)

    def may_show(self, value: Value) -> bool:
        return value in self.begun or self._placeable(value)

    def _placeable(self, value: Value) -> bool:
        epoch, offset, live = value
        return live and offset in self.unplaced and epoch <= self.highest_epoch

    def never_seen(self, place: str, value: Value) -> Bound | None:
        """What the place already had to show when the first write of this value was begun, if that was more."""
        late = self.too_late.get((place, value))
        if not self._placeable(value) or (value in self.begun and not late):
            return late
        bound = self.unplaced[value[1]].get(place)
        return bound if bound and bound.value > value else None

    def tombstone_from(self, value: Value, place: str) -> Value | None:
        """The least tombstone at or above `value` that the place may hold; an absent key holds at least that."""
        possible = self.tombstones[bisect_left(self.tombstones, value) :]
        return next((tombstone for tombstone in possible if (place, tombstone) not in self.too_late), None)

    def must_show(self, place: str, bound: Bound) -> None:
        known = self.bounds.get(place)
        if known is None or known.value < bound.value:
            self.bounds[place] = bound

    def bound_of(self, places: Sequence[str]) -> Bound | None:
        if len(places) == 1:
            return self.bounds.get(places[0])
        return max((self.bounds[place] for place in places if place in self.bounds), key=itemgetter(0), default=None)


class History:
    """Events of keys, and what follows from them. Times are seconds of `clock`, which must not jump; `at` sets one explicitly.

    A value is (epoch, offset), or (epoch, offset, live) with `live` False for a tombstone, which reads show as absent. Epoch 0 is
    unknown: in a read it counts as the first epoch; a write may then stand in any epoch that somebody began to write, and its
    acknowledgement says: at least in the one that its place had to show when it began. An expiry is no write of a max-register.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.acknowledged = 0  # writes, of those that were checked
        self.reads = 0  # of single keys, of those that were checked
        self._clock = clock
        self._origin = clock()
        # Of the same time, what begins is before what ends: they are concurrent. The number keeps the order of the rest.
        self._points: list[tuple[float, bool, int, Write | Reading | Carrying]] = []
        self._recorded = 0
        self._checked_to = float("-inf")
        self._registers: dict[OffsetKey, _Register] = {}
        self._violations: list[Violation] = []

    def now(self) -> float:
        """The seconds since the history began."""
        return self._clock() - self._origin

    def begin(self, key: OffsetKey, *values: Position, places: Sequence[str] = (ADAPTER,), at: float | None = None) -> Write:
        """Note that a write is sent. Of several values any one may be stored. When acknowledged, it is in all of `places`."""
        write = Write(self, key, [_value(value) for value in values], places, self.now() if at is None else at)
        self.record(write.began, write, ended=False)
        return write

    def reading(self, *places: str, keys: Collection[OffsetKey] | None = None, at: float | None = None) -> Reading:
        """Note that a read of these keys, or of all, is sent to the first place. It shows at least what each place must show.

        A read of an adapter names that adapter alone; one that asks the Meta Service too names both.
        """
        reading = Reading(self, places or (ADAPTER,), keys, self.now() if at is None else at)
        self.record(reading.began, reading, ended=False)
        return reading

    def carrying(self, source: str = ADAPTER, target: str = META, *, at: float | None = None) -> Carrying:
        """Note the begin of a transfer of what `source` must show now to `target`."""
        carrying = Carrying(self, source, target, self.now() if at is None else at)
        self.record(carrying.began, carrying, ended=False)
        return carrying

    def check(self) -> list[Violation]:
        """Return every violation up to now. Events that were checked are not checked again.

        Raises ValueError if an event was recorded, by hand, before the time up to which was checked.
        """
        self._points.sort()
        if self._points and self._points[0][0] < self._checked_to:
            raise ValueError(f"recorded at {self._points[0][0]:g} s, after a check up to {self._checked_to:g} s")
        for _, ended, _, event in self._points:
            match event:
                case Write():
                    (self._write_ended if ended else self._write_began)(event)
                case Reading():
                    (self._reading_ended if ended else self._reading_began)(event)
                case Carrying():
                    (self._carrying_ended if ended else self._carrying_began)(event)
        if self._points:
            self._checked_to = self._points[-1][0]
        self._points.clear()
        return list(self._violations)

    def least(self, place: str = ADAPTER) -> dict[OffsetKey, tuple[int, int]]:
        """The least value that a read of a place that begins now must show, as (epoch, offset)."""
        self.check()
        found = ((key, register.bounds.get(place)) for key, register in self._registers.items())
        return {key: bound.value[:2] for key, bound in found if bound}

    def record(self, at: float, event: Write | Reading | Carrying, *, ended: bool) -> None:
        """Note that an event began or got its reply; for the events' own use."""
        self._recorded += 1
        self._points.append((at, ended, self._recorded, event))

    def _register(self, key: OffsetKey) -> _Register:
        register = self._registers.get(key)
        if register is None:
            register = self._registers[key] = _Register()
        return register

    def _write_began(self, write: Write) -> None:
        register = self._register(write.key)
        for value in write.values:
            register.begin(value)
        write.bounds = [register.bounds.get(place) for place in write.places]

    def _write_ended(self, write: Write) -> None:
        self.acknowledged += 1
        register = self._registers[write.key]
        least = write.told or min(write.values)
        if write.standing is not None:
            bound = max((bound for bound in write.bounds if bound), key=itemgetter(0), default=None)
            own = Bound(_placed(least, None), write)
            if not self._conforms(write.key, write, write.standing, bound if bound and bound.value > own.value else own):
                return
        for place, bound in zip(write.places, write.bounds, strict=True):
            register.must_show(place, Bound(write.standing or _placed(least, bound), write))
        write.bounds = []  # what has ended keeps nothing of what was before it: else everything would be kept for ever

    def _reading_began(self, reading: Reading) -> None:
        keys = self._registers if reading.keys is None else reading.keys
        for key in keys:
            register = self._registers.get(key)
            bound = register.bound_of(reading.places) if register else None
            if bound:
                reading.bounds[key] = bound

    def _reading_ended(self, reading: Reading) -> None:
        keys = reading.bounds.keys() | reading.seen.keys()
        self.reads += len(keys)
        for key in keys:
            bound = reading.bounds.get(key)
            seen = reading.seen.get(key)
            value = self._absent(key, bound, reading.places[0]) if seen is None else _placed(_value(seen), None)
            if self._conforms(key, reading, value, bound) and value:
                self._registers[key].must_show(reading.places[0], Bound(value, reading))
        reading.bounds, reading.seen = {}, {}

    def _absent(self, key: OffsetKey, bound: Bound | None, place: str) -> Value | None:
        """What an absent key holds at least: a tombstone that explains it; None if there is none."""
        return self._registers[key].tombstone_from(bound.value, place) if bound else None

    def _conforms(self, key: OffsetKey, event: Write | Reading, value: Value | None, bound: Bound | None) -> bool:
        """Whether a shown value is possible; notes a violation if it is not."""
        register = self._registers.get(key)
        kind = None
        if register and value:
            bound = register.never_seen(event.places[0], value) or bound
        if bound and (value is None or value < bound.value):
            kind = Kind.LOST if isinstance(bound.because, Write) else Kind.WENT_BACK
        elif value and (register is None or not register.may_show(value)):
            kind, bound = Kind.UNWRITTEN, None
        if kind:
            self._violations.append(Violation(key, kind, event.places[0], value, event.began, event.ended, bound))
        return kind is None

    def _carrying_began(self, carrying: Carrying) -> None:
        for key, register in self._registers.items():
            bound = register.bounds.get(carrying.source)
            if bound:
                carrying.bounds[key] = bound

    def _carrying_ended(self, carrying: Carrying) -> None:
        for key, (value, because, _) in carrying.bounds.items():
            self._registers[key].must_show(carrying.target, Bound(value, because, carrying))
        carrying.bounds = {}


def _value(position: Position) -> Value:
    return position if len(position) == 3 else (*position, True)  # noqa: PLR2004 - with `live`


def _placed(value: Value, bound: Bound | None) -> Value:
    """A value of unknown epoch, with the epoch that had to be shown."""
    epoch, offset, live = value
    return value if epoch else (bound.value[0] if bound else FIRST_EPOCH, offset, live)


def _shown(value: Value | None) -> str:
    if value is None:
        return "nothing"
    epoch, offset, live = value
    return f"offset {offset} of epoch {epoch}" if live else f"a deletion in epoch {epoch}"


def _during(began: float, ended: float) -> str:
    return f"({began:.6f} to {ended:.6f} s)"
