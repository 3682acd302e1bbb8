"""Histories broken on purpose: real ones of one key, changed in one place; and arbitrary small ones.

A change need not make a history impossible. What matters is that both checkers say the same of it.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from adapter.model.records import ERA_BITS, FIRST_EPOCH, OffsetKey
from adapter.testing.history import META, Value
from tests.linearizability.recorded import Operation

KEY = OffsetKey("default", "group", "shard")  # of arbitrary histories
PLACES = ("a", "b", META)
LONGEST = 8  # operations of an arbitrary history
PLAIN_VALUES = 3
WINDOW = 150  # operations of a real one that are kept at most, besides the writes that they show

Operations = list[Operation]
Change = Callable[[random.Random, Operations], Operations | None]


def of_key(recorded: Sequence[Operation], key: OffsetKey) -> Operations:
    """What a history says of one key. It is correct if and only if the history is, as far as this key goes."""
    return [
        replace(each, keys=(key,), found={key: each.found[key]} if key in each.found else {}) if each.what == "read" else each
        for each in recorded
        if each.concerns(key) or key in each.found
    ]


def window(rng: random.Random, recorded: Sequence[Operation]) -> Operations:
    """Some operations that follow each other, and the writes before them that they need. Of a correct history it is correct."""
    ordered = sorted(recorded, key=lambda each: each.began)
    first = rng.randrange(max(1, len(ordered) - WINDOW // 2))
    kept = ordered[first : first + rng.randint(WINDOW // 5, WINDOW)]
    shown = {value for each in kept for value in (*each.found.values(), each.standing) if value}
    return [each for each in ordered[:first] if each.what == "write" and _explains(each, shown)] + kept


def _explains(write: Operation, shown: set[Value]) -> bool:
    """A write of a value that is shown, or of one that explains others: of an unknown epoch, or a deletion."""
    return any(value in shown or not value[0] or not value[2] for value in write.values)


def broken(rng: random.Random, recorded: Sequence[Operation]) -> tuple[str, Operations]:
    """The name of a change, and a window of a real history of one key with it."""
    while True:
        name = rng.choice(list(CHANGES))
        changed = CHANGES[name](rng, window(rng, recorded))
        if changed:
            return name, changed


def arbitrary(rng: random.Random) -> Operations:
    """Up to eight operations on one key with few values and few instants, correct or not."""
    return [_drawn(rng) for _ in range(rng.randint(2, LONGEST))]


def is_plain(recorded: Sequence[Operation]) -> bool:
    """Whether it is one for the plain model: no unknown epoch, and few values that may come to each place at any time."""
    values = [value for each in recorded for value in each.values]
    return len(values) <= PLAIN_VALUES and all(epoch for epoch, _, _ in values)


def _drawn(rng: random.Random) -> Operation:
    began = float(rng.randrange(7))
    ended = None if rng.random() < 0.2 else began + rng.randrange(6)
    kind = rng.choice(["write", "write", "write", "read", "read", "read", "carry"])
    places = tuple(rng.sample(PLACES, rng.choice([1, 1, 2])))
    if kind == "carry":
        return Operation("carry", began, ended, tuple(rng.sample(PLACES, 2)))
    if kind == "read":
        return Operation("read", began, ended, places, (KEY,), found={KEY: _value(rng)} if rng.random() < 0.8 else {})
    values = tuple(_value(rng, unknown=True) for _ in range(rng.choice([1, 1, 1, 2])))
    answer = rng.random()
    told = rng.choice(values) if answer < 0.2 else None
    standing = _value(rng) if answer > 0.8 else None
    return Operation("write", began, ended, places, (KEY,), values, told if told and told[0] else None, standing)


def _value(rng: random.Random, *, unknown: bool = False) -> Value:
    if unknown and rng.random() < 0.1:
        return 0, rng.randrange(4), True
    epoch = rng.randrange(1, 4)
    return (epoch, 0, False) if rng.random() < 0.2 else (epoch, rng.randrange(4), True)


def _chosen(rng: random.Random, recorded: Operations, fits: Callable[[Operation], bool]) -> int | None:
    """The place of an operation; None if none fits."""
    return rng.choice([at for at, each in enumerate(recorded) if fits(each)] or [None])


def _shows(each: Operation) -> bool:
    return each.what == "read" and bool(each.found) and each.ended is not None


def _answered_write(each: Operation) -> bool:
    return each.what == "write" and each.ended is not None


def _with(recorded: Operations, at: int, changed: Operation) -> Operations:
    return [*recorded[:at], changed, *recorded[at + 1 :]]


def _instead(read: Operation, value: Value | None) -> Operation:
    (key,) = read.found
    return replace(read, found={key: value} if value else {})


def _goes_back(rng: random.Random, recorded: Operations) -> Operations | None:
    at = _chosen(rng, recorded, _shows)
    if at is None:
        return None
    (shown,) = recorded[at].found.values()
    lower = sorted({value for each in recorded for value in each.values if value < shown and value[2] and value[0]})
    # One of the last: further back is found more easily.
    return _with(recorded, at, _instead(recorded[at], rng.choice(lower[-3:]))) if lower else None


def _lost(rng: random.Random, recorded: Operations) -> Operations | None:
    """No read shows an acknowledged commit: what was there before it is shown instead, for ever."""
    at = _chosen(rng, recorded, _answered_write)
    if at is None:
        return None
    gone = min(recorded[at].values)
    before = max((value for each in recorded for value in each.values if value < gone and value[2] and value[0]), default=None)
    place = recorded[at].places[0]
    return [
        _instead(each, before) if _shows(each) and each.places[0] == place and each.began > recorded[at].began else each
        for each in recorded
    ]


def _unwritten(rng: random.Random, recorded: Operations) -> Operations | None:
    at = _chosen(rng, recorded, _shows)
    if at is None:
        return None
    (value,) = recorded[at].found.values()
    epoch, offset, live = value
    return _with(recorded, at, _instead(recorded[at], rng.choice([(epoch, offset + 10**6, live), (epoch + 1, offset, live)])))


def _absent(rng: random.Random, recorded: Operations) -> Operations | None:
    at = _chosen(rng, recorded, _shows)
    return None if at is None else _with(recorded, at, _instead(recorded[at], None))


def _stale(rng: random.Random, recorded: Operations) -> Operations | None:
    """A read comes later than it did, as after a crash that lost the last commits."""
    at = _chosen(rng, recorded, _shows)
    if at is None:
        return None
    read = recorded[at]
    assert read.ended is not None
    by = rng.uniform(0, 2) * (max(each.began for each in recorded) - read.began)
    return _with(recorded, at, replace(read, began=read.began + by, ended=read.ended + by))


def _early(rng: random.Random, recorded: Operations) -> Operations | None:
    """A read comes earlier than it did: it shows what was not written yet."""
    at = _chosen(rng, recorded, _shows)
    if at is None:
        return None
    read = recorded[at]
    assert read.ended is not None
    by = rng.uniform(0, 1) * (read.began - min(each.began for each in recorded))
    return _with(recorded, at, replace(read, began=read.began - by, ended=read.ended - by))


def _elsewhere(rng: random.Random, recorded: Operations) -> Operations | None:
    """A commit was acknowledged by more places, or a read asked another one."""
    at = _chosen(rng, recorded, lambda each: each.what != "carry" and each.ended is not None)
    if at is None:
        return None
    return _with(recorded, at, replace(recorded[at], places=tuple(rng.sample(PLACES, rng.choice([1, 2])))))


def _acknowledged(rng: random.Random, recorded: Operations) -> Operations | None:
    """A commit whose answer got lost had been acknowledged."""
    at = _chosen(rng, recorded, lambda each: each.what == "write" and each.ended is None)
    if at is None:
        return None
    return _with(recorded, at, replace(recorded[at], ended=recorded[at].began + rng.expovariate(10)))


def _forgotten(rng: random.Random, recorded: Operations) -> Operations | None:
    """Nobody wrote what was written."""
    at = _chosen(rng, recorded, lambda each: each.what == "write")
    return None if at is None else recorded[:at] + recorded[at + 1 :]


def _copied(rng: random.Random, recorded: Operations) -> Operations | None:
    """A flush that never was."""
    began = rng.choice(recorded).began
    source, target = rng.sample(PLACES, 2)
    return [*recorded, Operation("carry", began, began + rng.expovariate(10), (source, target))]


def _moved(rng: random.Random, recorded: Operations) -> Operations | None:
    """A reset that never was, into the next era."""
    at = _chosen(rng, recorded, lambda each: each.what == "write")
    if at is None:
        return None
    era = (max(FIRST_EPOCH, *(value[0] for value in recorded[at].values)) >> ERA_BITS) + 1
    began = recorded[at].began
    reset = replace(recorded[at], values=((era << ERA_BITS, 7, True),), told=None, standing=None)
    return [*recorded, replace(reset, ended=began + rng.expovariate(10))]


CHANGES: dict[str, Change] = {
    "a read goes back": _goes_back,
    "an acknowledged commit is lost": _lost,
    "a read of what nobody wrote": _unwritten,
    "a read of nothing": _absent,
    "a stale read": _stale,
    "a read of the future": _early,
    "another place": _elsewhere,
    "a lost answer was an acknowledgement": _acknowledged,
    "a write is forgotten": _forgotten,
    "a flush that never was": _copied,
    "a reset that never was": _moved,
}
