"""Runs plain Python code on symbolic integers, once for each path through it, and finds values that break a law.

The code under test is the production code itself, not a copy of it. It gets `Number`s, which stand for any integer of a range.
Where it asks for a truth value (`if`, `and`, a comparison of tuples), the solver says which answers are possible, and the code is
run again for each. So a law that holds on every path holds for all values, not only for those that a random generator finds.

Text is a `Number` too: code that only compares texts and asks whether they are empty cannot tell a text from its rank among
the texts that occur, with the empty one as 0.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import z3

from adapter.model.records import EPOCH_MAX, U64_MAX, OffsetRecord


class UnmetError(Exception):
    """A path on which the law says nothing."""


class Range(NamedTuple):
    """The integers from `least` to `most`, both included."""

    least: int
    most: int


EPOCHS = Range(0, EPOCH_MAX)
KNOWN_EPOCHS = Range(1, EPOCH_MAX)
U64 = Range(0, U64_MAX)
NOTHING = Range(0, 0)


class Records(NamedTuple):
    """Any record whose fields are in these ranges, live or not."""

    epochs: Range = EPOCHS
    labels: bool = False


@dataclass
class Search:
    """What a search saw: paths through the law and the code, those on which the law says something, and a counterexample."""

    paths: int = 0
    checked: int = 0
    counterexample: tuple[Any, ...] | None = None


def search(law: Callable[..., bool], *inputs: Records | Range) -> Search:
    """Run `law` on each path. It gets a record or a number for each of `inputs`, and is to return True.

    Each path is run a second time with plain integers that take it, and has to give the same answer: a mistake of the symbols
    would be seen. Ends at the first counterexample, as plain values.
    """
    found = Search()
    lives = [(True, False) if isinstance(one, Records) else (True,) for one in inputs]
    for live in product(*lives):
        names: dict[str, z3.ArithRef] = {}
        paths = _Paths()
        values = [_input(f"{at}", one, live[at], names, paths) for at, one in enumerate(inputs)]
        for answer, model in paths.explore(lambda values=values: _answer(law, values)):  # type: ignore[misc]
            found.paths += 1
            found.checked += answer is not None
            plain = tuple(_plain(value, model) for value in values)
            if _answer(law, plain) is not answer:
                raise AssertionError(f"the symbols and the integers differ for {plain}: {answer}")
            if answer is False:
                found.counterexample = plain
                return found
    return found


def assume(condition: object) -> None:
    """End the path if the condition does not hold: the law says nothing about it."""
    if not condition:
        raise UnmetError


def _answer(law: Callable[..., bool], values: Sequence[Any]) -> bool | None:
    try:
        return bool(law(*values))
    except UnmetError:
        return None


@dataclass(eq=False)
class _Paths:
    """The paths through a function, depth first. `trail`: the answers of the current one, and whether the other is possible."""

    solver: z3.Solver = field(default_factory=z3.SimpleSolver)
    trail: list[tuple[z3.BoolRef, bool, bool]] = field(default_factory=list)
    at: int = 0

    def explore(self, run: Callable[[], bool | None]) -> Iterator[tuple[bool | None, z3.ModelRef]]:
        while True:
            self.at = 0
            answer = run()
            self.solver.check()
            yield answer, self.solver.model()
            while self.trail and not self.trail[-1][2]:
                self.solver.pop()
                self.trail.pop()
            if not self.trail:
                return
            condition, answered, _ = self.trail.pop()
            self.solver.pop()
            self._follow(condition, answer=not answered, other=False)

    def answer(self, condition: z3.BoolRef) -> bool:
        """Which way the code goes here: as in the trail, else the first possible one."""
        simple = z3.simplify(condition)
        if z3.is_true(simple) or z3.is_false(simple):
            return bool(z3.is_true(simple))
        if self.at == len(self.trail):
            possible = [answer for answer in (True, False) if self._is_possible(condition if answer else z3.Not(condition))]
            self._follow(condition, answer=possible[0], other=len(possible) > 1)
        self.at += 1
        return self.trail[self.at - 1][1]

    def _is_possible(self, condition: z3.BoolRef) -> bool:
        found = self.solver.check(condition)
        assert found != z3.unknown, f"the solver cannot tell whether the code comes here: {self.solver.reason_unknown()}"
        return bool(found == z3.sat)

    def _follow(self, condition: z3.BoolRef, *, answer: bool, other: bool) -> None:
        self.solver.push()
        self.solver.add(condition if answer else z3.Not(condition))
        self.trail.append((condition, answer, other))


@dataclass(frozen=True, eq=False)
class Truth:
    """A condition over symbols. Asked for its truth, the code takes both ways; as a number it is 0 or 1."""

    condition: z3.BoolRef
    paths: _Paths

    def __bool__(self) -> bool:
        return self.paths.answer(self.condition)

    def __add__(self, other: Any) -> Any:
        return bool(self) + other

    def __mul__(self, other: Any) -> Any:
        return bool(self) * other

    __radd__, __rmul__ = __add__, __mul__


@dataclass(frozen=True, eq=False)
class Number:
    """Any integer of a range, or what was calculated from such."""

    value: z3.ArithRef
    paths: _Paths

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __eq__(self, other: object) -> Any:
        return self._asked(self.value == _value(other))

    def __ne__(self, other: object) -> Any:
        return self._asked(self.value != _value(other))

    def __lt__(self, other: object) -> Any:
        return self._asked(self.value < _value(other))

    def __le__(self, other: object) -> Any:
        return self._asked(self.value <= _value(other))

    def __gt__(self, other: object) -> Any:
        return self._asked(self.value > _value(other))

    def __ge__(self, other: object) -> Any:
        return self._asked(self.value >= _value(other))

    def __add__(self, other: Any) -> "Number":
        return self._made(self.value + _value(other))

    def __sub__(self, other: Any) -> "Number":
        return self._made(self.value - _value(other))

    def __and__(self, mask: int) -> "Number":
        if mask & (mask + 1):
            raise TypeError(f"{mask:#x} is not all ones")
        return self._made(self.value % (mask + 1))

    def __rshift__(self, bits: int) -> "Number":
        return self._made(self.value / 2**bits)

    def __lshift__(self, bits: int) -> "Number":
        return self._made(self.value * 2**bits)

    __radd__, __rand__ = __add__, __and__

    def _asked(self, condition: z3.BoolRef) -> Truth:
        return Truth(condition, self.paths)

    def _made(self, value: z3.ArithRef) -> "Number":
        return Number(value, self.paths)


def _value(other: object) -> z3.ArithRef:
    match other:
        case Number():
            return other.value
        case Truth():
            return z3.IntVal(int(bool(other)))
        case "":
            return z3.IntVal(0)
        case int():
            return z3.IntVal(other)
    raise TypeError(f"{other!r} is no number")


def _input(name: str, kind: Records | Range, live: bool, names: dict[str, z3.ArithRef], paths: _Paths) -> Any:
    def number(part: str, within: Range) -> Any:
        if within.least == within.most:
            return within.least
        symbol = names.setdefault(f"{name}.{part}", z3.Int(f"{name}.{part}"))
        paths.solver.add(symbol >= within.least, symbol <= within.most)
        return Number(symbol, paths)

    if isinstance(kind, Range):
        return number("n", kind)
    labels = U64 if kind.labels else NOTHING
    metadata, topic = (number(part, labels) or "" if not kind.labels else number(part, labels) for part in ("metadata", "topic"))
    epoch, offset, time = number("epoch", kind.epochs), number("offset", U64), number("time", U64)
    return OffsetRecord(epoch, offset, live, time, metadata, topic, number("partition", labels))


def _plain(value: Any, model: z3.ModelRef) -> Any:
    """The value in a model, with plain integers."""
    if isinstance(value, OffsetRecord):
        epoch, offset, _, time, metadata, topic, partition = (_plain(one, model) for one in value)
        return OffsetRecord(epoch, offset, value.live, time, _text(metadata), _text(topic), partition)
    return model.eval(value.value, model_completion=True).as_long() if isinstance(value, Number) else value


def _text(rank: Any) -> str:
    """A text for a rank, of equally many digits, so that texts are ordered as ranks; empty for 0."""
    return f"{rank:020}" if rank else ""
