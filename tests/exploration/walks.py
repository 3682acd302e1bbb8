"""Random walks through scopes that are too large to explore: each step is drawn, faults less often than others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tests.exploration.explore import Exploration, pages
from tests.exploration.process import DiedError
from tests.exploration.properties import ViolationError
from tests.exploration.scope import Scope
from tests.exploration.world import FAULTS, Kind, Step

_WEIGHTS = {**dict.fromkeys(FAULTS, 0.05), Kind.SILENCE: 0.003}  # of faults, beside a step that is none


@dataclass
class Walked:
    """How many walks and steps; the first violation, and the choices that lead to it."""

    walks: int = 0
    steps: int = 0
    violation: str = ""
    choices: tuple[int, ...] = ()


def walk(scope: Scope, count: int, rng: Random) -> Walked:
    """Walk from the first state to a last one, `count` times, or until something is violated."""
    done = Walked()
    with pages(scope.page):
        exploration = Exploration(scope)
        try:
            while done.walks < count and not done.violation:
                _walk_once(exploration, rng, done)
        finally:
            exploration.world.machines.close()
    return done


def _walk_once(exploration: Exploration, rng: Random, done: Walked) -> None:
    """Until nothing is left but to be where it was: who asks a Raft group that is silent asks for ever."""
    state, choices = exploration.first, []
    passed = {state}
    try:
        while True:
            steps = list(exploration.world.steps(state))
            exploration.check(state, steps)
            for at in _drawn(steps, rng):
                choices.append(at)
                after = exploration.next(state, steps[at])
                if after not in passed:
                    break
                choices.pop()
            else:
                break
            state = after
            passed.add(state)
            done.steps += 1
        exploration.properties.can_be_finished(state.contents)
    except (ViolationError, DiedError) as error:
        done.violation, done.choices = str(error), tuple(choices)
    done.walks += 1


def _drawn(steps: Sequence[Step], rng: Random) -> Iterator[int]:
    """The places of the steps, each once, in an order that is drawn."""
    left = list(range(len(steps)))
    while left:
        (at,) = rng.choices(left, [_WEIGHTS.get(steps[each].kind, 1.0) for each in left])
        left.remove(at)
        yield at
