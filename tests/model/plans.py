"""A run as data: how its world begins, and its steps with their arguments. The same plan ends the same, whenever it is played."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tests.model.choices import Chance, Choice, Form, arguments_of

LEAST_STEPS, MOST_STEPS = 12, 30
BEGIN = "begin"


class Rules(Protocol):
    """An object whose methods are the rules: `begin` makes its world, `end` heals and checks it, `close` is always called."""

    def begin(self, *args: Any, **kwargs: Any) -> None:
        """Make the world."""

    def end(self) -> None:
        """Raise what is broken in the end."""

    def close(self) -> None:
        """Leave nothing behind."""


class Step(NamedTuple):
    """A rule, and the forms of its arguments."""

    rule: str
    forms: Sequence[Form]


class Plan(NamedTuple):
    """The steps of a run. The first one is `begin`."""

    steps: Sequence[Step]

    def __str__(self) -> str:
        """One line of JSON, which `plan_of` reads."""
        return json.dumps([[step.rule, *step.forms] for step in self.steps], separators=(",", ":"))


class BrokenRunError(AssertionError):
    """What a run met: the error, and the number of the step at which it came (as many as there are: in the end)."""

    def __init__(self, plan: Plan, at: int, error: Exception) -> None:
        super().__init__(str(error))
        self.plan = plan
        self.at = at
        self.error = error
        self.seed: int | None = None  # of the plan before it was shrunk

    @property
    def kind(self) -> str:
        """What stays the same when a broken run is made simpler: which invariant, or which exception, and not of which key."""
        return f"{type(self.error).__name__} {str(self.error).partition(':')[0]}"


def plan_of(text: str) -> Plan:
    """Read a plan. Raises ValueError."""
    return Plan([Step(rule, forms) for rule, *forms in json.loads(text)])


def rules_of(world: type[Rules]) -> dict[str, Mapping[str, Choice[Any]]]:
    """The rules by name, `begin` among them, and what their arguments can be; in the order in which they are written."""
    names = dict.fromkeys(name for part in reversed(world.__mro__) for name in vars(part))
    found = {name: arguments_of(getattr(world, name)) for name in names}
    return {name: arguments for name, arguments in found.items() if arguments is not None}


def draw(world: type[Rules], seed: int) -> Plan:
    """The plan of a seed. A run has some of the rules only, so that each of them meets itself and a few others often."""
    rules = rules_of(world)
    chance = Chance(seed)
    others = [name for name in rules if name != BEGIN]
    left = [others[at] for at in chance.some(len(others))]
    steps = chance.random.randint(LEAST_STEPS, MOST_STEPS)
    names = [BEGIN, *(chance.random.choice(left) for _ in range(steps))]
    return Plan([Step(name, [choice.draw(chance) for choice in rules[name].values()]) for name in names])


def arguments(world: type[Rules], step: Step) -> dict[str, Any]:
    """The values of a step's arguments by name."""
    choices = rules_of(world)[step.rule]
    return {name: choice.value(form) for (name, choice), form in zip(choices.items(), step.forms, strict=True)}


def play(world: type[Rules], plan: Plan, before: Callable[[Rules, int], None] = lambda _, __: None) -> Rules:
    """Play a plan, calling `before` before each step and before the end. Raises BrokenRunError."""
    rules = rules_of(world)
    played = world()
    at = 0
    try:
        for at, step in enumerate(plan.steps):
            before(played, at)
            choices = rules[step.rule]
            values = {name: choice.value(form) for (name, choice), form in zip(choices.items(), step.forms, strict=True)}
            getattr(played, step.rule)(**values)
        at = len(plan.steps)
        before(played, at)
        played.end()
    except Exception as error:
        raise BrokenRunError(plan, at, error) from error
    finally:
        played.close()
    return played


def shrink(world: type[Rules], broken: BrokenRunError, tries: int = 3_000) -> BrokenRunError:
    """A plan with as few and as simple steps as can be found that breaks the same; so many plans are played for it at most."""
    left = tries
    best = BrokenRunError(Plan(broken.plan.steps[: broken.at + 1]), broken.at, broken.error)

    def breaks(steps: Sequence[Step]) -> bool:
        nonlocal left, best
        if left <= 0:
            return False
        left -= 1
        try:
            play(world, Plan(steps))
        except BrokenRunError as found:
            if found.kind != broken.kind:
                return False
            best = BrokenRunError(Plan(found.plan.steps[: found.at + 1]), found.at, found.error)
            return True
        return False

    before = None
    while before != best.plan and left > 0:
        before = best.plan
        _fewer(lambda: best.plan.steps, breaks)
        _simpler(world, lambda: best.plan.steps, breaks)
    best.seed = broken.seed
    return best


def _fewer(now: Callable[[], Sequence[Step]], breaks: Callable[[Sequence[Step]], bool]) -> None:
    """Leave out steps: halves first, at last one by one, from the end. Never `begin`."""
    size = len(now())
    while size:
        at = len(now()) - size
        while at >= 1:
            steps = now()
            breaks([*steps[:at], *steps[at + size :]])
            at = min(at, len(now())) - size
        size //= 2


def _simpler(world: type[Rules], now: Callable[[], Sequence[Step]], breaks: Callable[[Sequence[Step]], bool]) -> None:
    """Make arguments simpler, one at a time, for as long as there is one that can be."""
    rules = rules_of(world)
    at = 0
    while at < len(now()):
        step = now()[at]
        choices = list(rules[step.rule].values())
        if not any(breaks([*now()[:at], simpler, *now()[at + 1 :]]) for simpler in _simpler_steps(choices, step)):
            at += 1


def _simpler_steps(choices: Sequence[Choice[Any]], step: Step) -> Iterator[Step]:
    for at, (choice, form) in enumerate(zip(choices, step.forms, strict=True)):
        for simpler in choice.simpler(form):
            yield Step(step.rule, [*step.forms[:at], simpler, *step.forms[at + 1 :]])
