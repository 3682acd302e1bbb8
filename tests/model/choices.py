"""What the arguments of a step can be: drawn by a seeded generator, written as JSON, and made simpler when a run broke.

The names are those of Hypothesis' strategies. A choice keeps apart the form that is drawn, stored and shrunk (numbers, lists and
None), and the value that is made of it. Most options of a choice are as likely as the others; but a run dwells on a few of them.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
Form = Any  # a number, None, or a list of forms
F = TypeVar("F", bound=Callable[..., None])

DWELLS = 0.4  # how often a run has only some of a choice's options


class Chance:
    """The draws of one run. Some choices have fewer options in it than there are, so that its steps meet (swarm testing)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._left: dict[object, Sequence[int]] = {}

    def option(self, of: object, count: int) -> int:
        """One of so many options of a choice."""
        left = self._left.get(of)
        if left is None:
            left = self._left[of] = self.some(count) if self.random.random() < DWELLS else range(count)
        return left[int(self.random.random() * len(left))]

    def some(self, count: int) -> list[int]:
        """At least one of so many."""
        return sorted(self.random.sample(range(count), self.random.randint(1, count)))


class Choice(ABC, Generic[T]):
    """What an argument can be."""

    @abstractmethod
    def draw(self, chance: Chance) -> Form:
        """One of the forms."""

    @abstractmethod
    def value(self, form: Form) -> T:
        """The argument."""

    @abstractmethod
    def simpler(self, form: Form) -> Iterator[Form]:
        """Forms to try in the place of this one, the simplest first. None of them can be made simpler for ever."""

    def __or__(self, other: "Choice[K]") -> "Choice[T | K]":
        """One of both; the first is the simpler one."""
        return _Either(self, other)


@dataclass(frozen=True, eq=False)
class _Integers(Choice[int]):
    first: int
    last: int

    def draw(self, chance: Chance) -> Form:
        return self.first + int(chance.random.random() * (self.last - self.first + 1))

    def value(self, form: Form) -> int:
        return int(form)

    def simpler(self, form: Form) -> Iterator[Form]:
        return iter(range(self.first, form))


@dataclass(frozen=True, eq=False)
class _Sampled(Choice[T]):
    options: Sequence[T]

    def draw(self, chance: Chance) -> Form:
        return chance.option(self, len(self.options))

    def value(self, form: Form) -> T:
        return self.options[form]

    def simpler(self, form: Form) -> Iterator[Form]:
        return iter(range(form))


@dataclass(frozen=True, eq=False)
class _Either(Choice[T | K], Generic[T, K]):
    one: Choice[T]
    other: Choice[K]

    def draw(self, chance: Chance) -> Form:
        which = chance.option(self, 2)
        return [which, self._at(which).draw(chance)]

    def value(self, form: Form) -> T | K:
        found: T | K = self._at(form[0]).value(form[1])
        return found

    def simpler(self, form: Form) -> Iterator[Form]:
        if form[0]:
            yield [0, self.one.draw(Chance(0))]
        yield from ([form[0], simpler] for simpler in self._at(form[0]).simpler(form[1]))

    def _at(self, which: int) -> Choice[Any]:
        return self.other if which else self.one


@dataclass(frozen=True, eq=False)
class _Lists(Choice[list[T]]):
    of: Choice[T]
    least: int
    most: int

    def draw(self, chance: Chance) -> Form:
        return [self.of.draw(chance) for _ in range(chance.random.randint(self.least, self.most))]

    def value(self, form: Form) -> list[T]:
        return [self.of.value(each) for each in form]

    def simpler(self, form: Form) -> Iterator[Form]:
        if len(form) > self.least:
            yield from (form[:at] + form[at + 1 :] for at in range(len(form)))
        yield from _one_simpler([self.of] * len(form), form)


@dataclass(frozen=True, eq=False)
class _Made(Choice[T]):
    make: Callable[..., T]
    of: Sequence[Choice[Any]]

    def draw(self, chance: Chance) -> Form:
        return [choice.draw(chance) for choice in self.of]

    def value(self, form: Form) -> T:
        return self.make(*[choice.value(each) for choice, each in zip(self.of, form, strict=True)])

    def simpler(self, form: Form) -> Iterator[Form]:
        return _one_simpler(self.of, form)


@dataclass(frozen=True, eq=False)
class _Permutations(Choice[list[T]]):
    of: Sequence[T]

    def draw(self, chance: Chance) -> Form:
        return chance.random.sample(range(len(self.of)), len(self.of))

    def value(self, form: Form) -> list[T]:
        return [self.of[at] for at in form]

    def simpler(self, form: Form) -> Iterator[Form]:
        return iter([sorted(form)] if form != sorted(form) else [])


@dataclass(frozen=True, eq=False)
class _Mapped(Choice[T], Generic[K, T]):
    """Another choice's forms, and something else made of its values."""

    of: Choice[K]
    make: Callable[[K], T]

    def draw(self, chance: Chance) -> Form:
        return self.of.draw(chance)

    def value(self, form: Form) -> T:
        return self.make(self.of.value(form))

    def simpler(self, form: Form) -> Iterator[Form]:
        return self.of.simpler(form)


def integers(first: int, last: int) -> Choice[int]:
    """From the first to the last."""
    return _Integers(first, last)


def sampled_from(options: Sequence[T] | type[T]) -> Choice[T]:
    """One of the options, or of the members of an enumeration. The first is the simplest."""
    return _Sampled(list(options))  # type: ignore[arg-type]


def just(value: T) -> Choice[T]:
    """Nothing but this."""
    return _Sampled([value])


def none() -> Choice[None]:
    """None."""
    return just(None)


def booleans() -> Choice[bool]:
    """False or True."""
    return _Sampled([False, True])


def lists(of: Choice[T], *, min_size: int = 0, max_size: int) -> Choice[list[T]]:
    """So many of them."""
    return _Lists(of, min_size, max_size)


def tuples(*of: Choice[Any]) -> Choice[tuple[Any, ...]]:
    """One of each."""
    return _Made(lambda *values: values, of)


def builds(make: Callable[..., T], *of: Choice[Any]) -> Choice[T]:
    """What it makes of these arguments."""
    return _Made(make, of)


def dictionaries(keys: Choice[K], values: Choice[T], *, min_size: int, max_size: int) -> Choice[dict[K, T]]:
    """At most so many entries; fewer where keys are drawn twice."""
    return _Mapped(lists(tuples(keys, values), min_size=min_size, max_size=max_size), dict)


def permutations(of: Sequence[T]) -> Choice[list[T]]:
    """All of them in some order."""
    return _Permutations(of)


def rule(**arguments: Choice[Any]) -> Callable[[F], F]:
    """A method that is a step, and what its arguments can be."""

    def marked(step: F) -> F:
        step.arguments = arguments  # type: ignore[attr-defined]
        return step

    return marked


def arguments_of(step: Callable[..., None]) -> Mapping[str, Choice[Any]] | None:
    """What the arguments of a step can be; None for what is none."""
    found: Mapping[str, Choice[Any]] | None = getattr(step, "arguments", None)
    return found


def _one_simpler(of: Sequence[Choice[Any]], form: Sequence[Form]) -> Iterator[Form]:
    """All the forms in which one part is simpler."""
    for at, choice in enumerate(of):
        yield from ([*form[:at], simpler, *form[at + 1 :]] for simpler in choice.simpler(form[at]))
