"""The checker of histories, compared with a search of all orders, and on random histories with known errors."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adapter.model.records import OffsetKey
from adapter.testing.history import ADAPTER, META, History, Kind, Value
from tests.unit.helpers import key

A, B, C = key("a"), key("b"), key("c")
EVENTS = 20_000


@dataclass(frozen=True)
class Op:
    """A write (of a value), a read (of a value or nothing), or a flush. Without an end it had no reply."""

    name: OffsetKey
    what: str
    value: Value | None
    began: float
    ended: float | None
    places: tuple[str, ...] = (ADAPTER,)


def _history(ops: Sequence[Op]) -> History:
    history = History()
    for op in ops:
        if op.what == "write":
            assert op.value is not None
            write = history.begin(op.name, op.value, places=op.places, at=op.began)
            if op.ended is not None:
                write.acknowledged(at=op.ended)
        elif op.ended is None:
            pass
        elif op.what == "flush":
            history.carrying(at=op.began).done(at=op.ended)
        else:
            reading = history.reading(*op.places, keys=[op.name], at=op.began)
            reading.found({op.name: op.value} if op.value else {}, at=op.ended)
    return history


def _linearizable(ops: Sequence[Op]) -> bool:
    """Whether some order of the operations explains their results, for a max-register: tries all orders."""
    done = [op for op in ops if op.ended is not None]
    pending = [op for op in ops if op.ended is None and op.what == "write"]
    for some in range(2 ** len(pending)):
        chosen = done + [op for at, op in enumerate(pending) if some >> at & 1]
        if any(_explains(order) for order in permutations(chosen)):
            return True
    return False


def _explains(order: Sequence[Op]) -> bool:
    stands: Value | None = None
    for at, op in enumerate(order):
        if any(later.ended is not None and later.ended < op.began for later in order[at + 1 :]):
            return False
        if op.what == "write":
            stands = max(filter(None, (stands, op.value)))
        elif op.value != (stands if stands and stands[2] else None):
            return False
    return True


_VALUES = st.sampled_from([(1, 1, True), (1, 2, True), (2, 0, False), (2, 1, True), (3, 0, False)])


_LIVE = _VALUES.filter(lambda value: value[2])


@st.composite
def _tiny(draw: st.DrawFn) -> list[Op]:
    """Up to six operations on one key, at times that touch and overlap."""
    ops = []
    for _ in range(draw(st.integers(1, 6))):
        write = draw(st.booleans())
        value = draw(_VALUES if write else st.none() | _LIVE)
        began = draw(st.integers(0, 6))
        ended = None if draw(st.integers(0, 4)) == 0 else began + draw(st.integers(0, 5))
        ops.append(Op(A, "write" if write else "read", value, began, ended))
    return ops


@given(_tiny())
def test_it_agrees_with_trying_every_order(ops: list[Op]) -> None:
    """For correct and incorrect histories, small enough to try all orders."""
    assert (not _history(ops).check()) == _linearizable(ops)


def test_trying_every_order_finds_both_answers() -> None:
    """So that agreeing with it is not trivial."""
    write = Op(A, "write", (1, 1, True), began=0, ended=1)
    read = Op(A, "read", (1, 1, True), began=2, ended=3)
    assert _linearizable([write, read])
    assert not _linearizable([write, replace(read, value=None)])
    assert _linearizable([replace(write, ended=None), read])


KEYS = [A, B, C]
SPREAD = 4  # how long before and after its effect an operation is sent and answered, at most


def _served(rng: random.Random, count: int, keys: Sequence[OffsetKey] = KEYS) -> list[Op]:
    """What the clients of a correct adapter and a correct Meta Service see. Operation n takes effect at time n.

    A read of both places and a flush have a second effect two operations later, in the place where they bring something.
    """
    ops = []
    stands: dict[str, dict[OffsetKey, Value]] = {ADAPTER: {}, META: {}}
    flushed: dict[int, dict[OffsetKey, Value]] = {}
    for number in range(count):
        merge(stands[META], flushed.pop(number, {}))
        name, what = rng.choice(keys), rng.choice(["write", "write through", "read", "read meta", "read both", "flush"])
        places = {"write through": (ADAPTER, META), "read meta": (META,), "read both": (ADAPTER, META)}.get(what, (ADAPTER,))
        began, ended = number - rng.uniform(0, SPREAD), number + rng.uniform(0, SPREAD)
        if what.startswith("write"):
            value = _any_value(rng)
            answered = rng.random() < 0.8
            if answered or rng.random() < 0.5:
                for place in places:
                    merge(stands[place], {name: value})
            ops.append(Op(name, "write", value, began, ended if answered else None, places))
        elif what.startswith("read"):
            if what == "read both":
                merge(stands[ADAPTER], stands[META])
            found = stands[places[0]].get(name)
            # The Meta Service tells of deletions, reads of an adapter do not.
            shown = found if found and (found[2] or places[0] == META) else None
            ops.append(Op(name, "read", shown, began, ended, places))
        else:
            flushed[number + 2] = dict(stands[ADAPTER])
            ops.append(Op(name, "flush", None, began, ended + 2))
    return ops


def merge(into: dict[OffsetKey, Value], values: dict[OffsetKey, Value]) -> None:
    """The larger value of each key."""
    into.update((name, max(value, into.get(name, value))) for name, value in values.items())


def _any_value(rng: random.Random) -> Value:
    epoch = rng.randrange(1, 5)
    return (epoch, 0, False) if rng.random() < 0.1 else (epoch, rng.randrange(1, 20), True)


@pytest.mark.no_cover
@given(st.integers(0, 2**32), st.integers(1, 300))
def test_what_correct_stores_show_is_accepted(seed: int, count: int) -> None:
    """Overlapping writes, reads and flushes of one or both places, many of them without a reply."""
    assert not _history(_served(random.Random(seed), count)).check()


@pytest.mark.no_cover
@given(st.integers(0, 2**32))
def test_a_single_read_that_is_too_low_is_found(seed: int) -> None:
    """Any read below a value that was acknowledged or read before it began."""
    rng = random.Random(seed)
    ops = _served(rng, 200)
    targets = [(at, below) for at, op in enumerate(ops) if op.what == "read" and (below := _before(ops, op))]
    at, below = rng.choice(targets)
    lower = max((value for value in _written(ops, ops[at]) if value < below and value[2]), default=None)
    # Absent is no contradiction where a deletion may explain it.
    assume(lower or not any(value >= below and not value[2] for value in _written(ops, ops[at])))
    broken = [*ops[:at], replace(ops[at], value=lower), *ops[at + 1 :]]
    assert (ops[at].name, ops[at].began) in {(found.key, found.began) for found in _history(broken).check()}


@pytest.mark.no_cover
@given(st.integers(0, 2**32))
def test_a_single_value_that_nobody_wrote_is_found(seed: int) -> None:
    """Even if it is so high that nothing else contradicts it."""
    rng = random.Random(seed)
    ops = _served(rng, 200)
    at = rng.choice([at for at, op in enumerate(ops) if op.what == "read"])
    broken = [*ops[:at], replace(ops[at], value=(9, rng.randrange(20), True)), *ops[at + 1 :]]
    assert [(found.key, found.kind) for found in _history(broken).check()] == [(ops[at].name, Kind.UNWRITTEN)]


def _before(ops: Sequence[Op], read: Op) -> Value | None:
    """The largest value acknowledged, or read at the same place, before a read began."""
    earlier = (op for op in ops if op.name == read.name and op.what != "flush" and op.ended is not None and op.ended < read.began)
    # Where a read is stored is its first place.
    told = ((op.value, op.places if op.what == "write" else op.places[:1]) for op in earlier)
    return max((value for value, places in told if value and read.places[0] in places), default=None)


def _written(ops: Sequence[Op], read: Op) -> set[Value]:
    return {op.value for op in ops if op.name == read.name and op.what == "write" and op.value}


@pytest.mark.no_cover  # it would take almost three times as long
def test_many_events_are_checked_in_one_pass(record_property: Callable[[str, object], None]) -> None:
    """The time is printed and recorded as a property of the test, not asserted."""
    rng = random.Random(1)
    keys = [key(str(number)) for number in range(1_000)]
    history = History()
    for at in range(EVENTS // 2):
        name = keys[at % len(keys)]
        history.begin(name, (1, at), at=at).acknowledged(at=at + rng.random())
        history.reading(keys=[name], at=at + 1).found({name: (1, at)}, at=at + 1 + rng.random())
    started = time.process_time()
    assert not history.check()
    seconds = time.process_time() - started
    record_property("seconds", seconds)
    sys.stdout.write(f"{EVENTS:,} events checked in {seconds:.1f} s of processor time\n")
