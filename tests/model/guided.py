"""Plans of the model that take decisions which no plan before took: `python -m tests.model.guided --seconds 300 --keep FILE`.

A plan that takes a new one is kept, and others are made of it: with a step more or less, in another order, with another argument,
or with the end of another plan. `make model-coverage` plays what was kept.
"""

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from coverage import Coverage

from tests.model.choices import Chance
from tests.model.decisions import PATHS, ROOT, files_of
from tests.model.plans import BEGIN, MOST_STEPS, BrokenRunError, Plan, Step, draw, plan_of, play, rules_of, shrink
from tests.model.runs import quiet
from tests.model.story import tell
from tests.model.worlds import WORLDS

FRESH = 0.3  # of all plans are drawn anew
MOST = 2 * MOST_STEPS

Taken = frozenset[tuple[str, int, int]]  # file, from line, to line


class Kept(NamedTuple):
    """A plan of a world."""

    world: str
    plan: Plan


class Seen:
    """Plays plans, and says what each of them takes."""

    def __init__(self) -> None:
        self._files = {str(ROOT / path): path for path in files_of(PATHS)}
        self._coverage = Coverage(data_file=None, branch=True, include=list(self._files), config_file=False, messages=False)

    def take(self, kept: Kept) -> tuple[Taken, BrokenRunError | None]:
        """The decisions of a run, and what broke in it.

        Nothing is collected meanwhile: coroutines of earlier runs would be ended, and what they do then counted as taken by this.
        """
        broken = None
        gc.disable()
        self._coverage.erase()
        self._coverage.start()
        try:
            play(WORLDS[kept.world], kept.plan)
        except BrokenRunError as error:
            broken = error
        finally:
            self._coverage.stop()
            gc.enable()
        data = self._coverage.get_data()
        arcs = ((path, *arc) for file, path in self._files.items() for arc in data.arcs(file) or ())
        return frozenset(arcs), broken


class Search:
    """The search of one process."""

    def __init__(self, seed: int, worlds: Sequence[str], kept: Sequence[Kept] = ()) -> None:
        self._chance = Chance(seed)
        self._random: random.Random = self._chance.random
        self._worlds = worlds
        self._seen = Seen()
        self.taken: set[tuple[str, int, int]] = set()
        self._broken: set[str] = set()
        self._next = list(kept)
        self.kept: list[Kept] = []
        self.told: list[str] = []
        self.runs = 0

    def run(self, seconds: float) -> None:
        """Search for so long."""
        ends = time.monotonic() + seconds
        with quiet():
            while time.monotonic() < ends:
                self.step()

    def step(self) -> None:
        """Play one plan, and keep it if it takes something new."""
        kept = self._next.pop() if self._next else self._made()
        taken, broken = self._seen.take(kept)
        self.runs += 1
        if broken and broken.kind not in self._broken:
            self._broken.add(broken.kind)
            made = shrink(WORLDS[kept.world], broken, tries=300)
            self.told.append(f"{tell(WORLDS[kept.world], made)}\n--world {kept.world} --replay '{made.plan}'")
        if not broken and not taken <= self.taken:
            self.taken |= taken
            self.kept.append(kept)

    def _made(self) -> Kept:
        if not self.kept or self._random.random() < FRESH:
            world = self._random.choice(self._worlds)
            return Kept(world, draw(WORLDS[world], self._random.getrandbits(32)))
        # The newer half has what is rare.
        kept = self.kept[int(self._random.triangular(0, len(self.kept), len(self.kept)))]
        return Kept(kept.world, Plan(self._changed(kept)[:MOST]))

    def _changed(self, kept: Kept) -> list[Step]:
        rules, steps = rules_of(WORLDS[kept.world]), list(kept.plan.steps)
        for _ in range(self._random.choice([1, 1, 2, 4])):
            at = self._random.randrange(1, len(steps) + 1)
            change = self._random.randrange(5)
            if change == 0:
                name = self._random.choice([one for one in rules if one != BEGIN])
                steps.insert(at, Step(name, [choice.draw(self._chance) for choice in rules[name].values()]))
            elif change == 1 and len(steps) > 2:
                steps.pop(min(at, len(steps) - 1))
            elif change == 2:
                one, other = at % len(steps), self._random.randrange(len(steps))
                if one and other:
                    steps[one], steps[other] = steps[other], steps[one]
            elif change == 3:
                at %= len(steps)
                choices = list(rules[steps[at].rule].values())
                if choices:
                    which = self._random.randrange(len(choices))
                    forms = list(steps[at].forms)
                    forms[which] = choices[which].draw(self._chance)
                    steps[at] = Step(steps[at].rule, forms)
            else:
                others = [one.plan.steps for one in self.kept if one.world == kept.world]
                end = self._random.choice(others)
                steps = [*steps[:at], *end[self._random.randrange(1, len(end) + 1) :]]
        return steps


def read(file: Path) -> Iterator[Kept]:
    """What a file keeps."""
    for line in file.read_text().splitlines():
        world, _, plan = line.partition(" ")
        yield Kept(world, plan_of(plan))


def needed(kept: Sequence[Kept]) -> list[Kept]:
    """As few of them as take all that they take together, about."""
    seen, taken = Seen(), {}
    with quiet():
        for one in kept:
            found, broken = seen.take(one)
            if not broken:
                taken[str(one.plan)] = one, found
    left: list[Kept] = []
    missing = set().union(*(found for _, found in taken.values()))
    while missing:
        best, found = max(taken.values(), key=lambda one: len(one[1] & missing))
        left.append(best)
        missing -= found
    return left


def main() -> int:
    """Search, and write what is kept; 1 when something broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.guided", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--worlds", default=",".join(WORLDS), help="comma between them (default: all)")
    parser.add_argument("--keep", type=Path, required=True, help="the file of plans: it begins with these, and is written anew")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "tests.model.guided", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - itself
    before = list(read(options.keep)) if options.keep.exists() else []
    worlds = options.worlds.split(",")
    with ProcessPoolExecutor(options.processes, get_context("fork")) as pool:
        jobs = [pool.submit(_searched, options.seed + at, worlds, before, options.seconds) for at in range(options.processes)]
        found = [job.result() for job in jobs]
    kept = needed([*before, *(one for search in found for one in search[0])])
    options.keep.write_text("".join(f"{one.world} {one.plan}\n" for one in kept))
    told = [text for search in found for text in search[1]]
    sys.stdout.write(f"{sum(search[2] for search in found):,} runs; {len(kept)} plans are kept\n" + "\n\n".join(told) + "\n")
    return int(bool(told))


def _searched(seed: int, worlds: Sequence[str], before: Sequence[Kept], seconds: float) -> tuple[list[Kept], list[str], int]:
    search = Search(seed, worlds, before)
    search.run(seconds)
    return search.kept, search.told, search.runs


if __name__ == "__main__":
    sys.exit(main())
