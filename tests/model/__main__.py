"""`make model RUNS=...`: the model test on all cores, a seed for each run. A run that breaks is made small and told.

With `--seconds` it ends when the time is over, with the runs that have begun. Exit code 1: a run broke, or none was played.

`--replay` plays the steps that it prints once more.
"""

import argparse
import json
import math
import multiprocessing
import os
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice, takewhile
from pathlib import Path
from typing import NamedTuple

from tests.model.plans import BrokenRunError, plan_of, play
from tests.model.runs import Played, quiet, run
from tests.model.story import tell
from tests.model.worlds import WORLDS

DEFAULT = "two"  # adapters
RUNS = 5_000
MOST = 1_000_000  # runs, whatever the time
PORTION = 25  # runs of one world, before another has its turn
AGAIN = "Again: "
TOLD_S = 10.0  # between two lines of progress
HASH_SEED = "PYTHONHASHSEED"  # the order of a set of names must not depend on the process


class Portion(NamedTuple):
    """So many runs of a world, from a seed on."""

    world: str
    seed: int
    runs: int


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--runs", type=int, help=f"how many (default: {RUNS}; with --seconds what there is time for)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no run after that (default: without a limit)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="of the first one (default: by the clock)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="0: in this one (default: %(default)s)")
    parser.add_argument("--world", choices=WORLDS, help=f"default: each in turn, every other time {DEFAULT}")
    parser.add_argument("--replay", metavar="STEPS", help="play these steps, and nothing else")
    parser.add_argument(
        "--plans", type=Path, help="play the plans of this file, which tests.model.guided has kept, and nothing else"
    )
    parser.add_argument("--counts", type=Path, help="a file for what was done, as JSON")
    options = parser.parse_args()
    if os.environ.get(HASH_SEED) != "0":
        os.execve(sys.executable, [sys.executable, "-m", "tests.model", *sys.argv[1:]], {**os.environ, HASH_SEED: "0"})  # noqa: S606 - itself
    if options.plans:
        return max((_replay(*line.split(" ", 1)) for line in options.plans.read_text().splitlines()), default=0)
    if options.replay:
        return _replay(options.world or DEFAULT, options.replay)
    runs = options.runs if options.runs is not None else RUNS if options.seconds == math.inf else MOST
    return _run_all(runs, options.seconds, options.seed, options.processes, options.world, options.counts)


def _replay(world: str, steps: str) -> int:
    try:
        with quiet():
            play(WORLDS[world], plan_of(steps))
    except BrokenRunError as broken:
        _say(_told(world, broken))
        return 1
    _say("Nothing broke.")
    return 0


def _run_all(runs: int, limit: float, seed: int, processes: int, world: str | None, counts: Path | None) -> int:
    done: Counter[str] = Counter()
    seconds = 0.0
    broken: list[str] = []
    started = told = time.monotonic()
    _say(f"{f'{runs:,} runs' if limit == math.inf else f'{limit:g} s'} from seed {seed}, {processes} at once")
    with ExitStack() as stack:
        if counts:  # also if this is interrupted
            stack.callback(lambda: counts.write_text(_counted(done, seconds)))
        portions = _portions(runs, seed, -(-runs // max(processes, 1)), world)
        for portion, result in _results(portions, processes, started + limit):
            if isinstance(result, str):  # the runs of its portion do not count; all other portions are played
                _say(result)
                broken.append(result)
                continue
            done[portion.world] += result.runs
            seconds += result.seconds
            now = time.monotonic()
            if now >= told + TOLD_S or done.total() == runs:
                told = now
                _say(f"{done.total():,} runs, {done.total() / (now - started) * 60:,.0f} a minute")
    worlds = ", ".join(f"{count:,} {name}" for name, count in done.items())
    _say(f"{done.total():,} runs from seed {seed} broke nothing ({worlds}), {len(broken)} portions broke an invariant")
    for each in broken:  # once more, where a person looks first
        _say(each[each.rindex(AGAIN) :])
    return 0 if done and not broken else 1


def _results(portions: Iterator[Portion], processes: int, end: float) -> Iterator[tuple[Portion, Played | str]]:
    """Of each portion that began before `end`, whenever it ended: none that broke is lost."""
    in_time = takewhile(lambda _: time.monotonic() < end, portions)
    if not processes:
        yield from map(_run_portion, in_time)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        begun: deque[Future[tuple[Portion, Played | str]]] = deque()
        for portion in in_time:
            begun.append(pool.submit(_run_portion, portion))
            if len(begun) > 2 * processes:
                yield begun.popleft().result()
        for future in begun:
            yield future.result()


def _counted(done: Counter[str], seconds: float) -> str:
    others = {f"runs of the world {name}": count for name, count in done.items() if name != DEFAULT}
    return json.dumps({"runs": done.total(), "simulated seconds": round(seconds, 1), **others})


def _portions(runs: int, seed: int, most: int, world: str | None) -> Iterator[Portion]:
    """Of one world, or of each in turn, every other time the default."""
    size = min(PORTION, most)
    firsts = range(0, runs, size)
    turns = [world] if world else [each for name in WORLDS if name != DEFAULT for each in (DEFAULT, name)]
    for first, name in zip(firsts, islice(cycle(turns), len(firsts)), strict=True):
        yield Portion(name, seed + first, min(size, runs - first))


def _run_portion(portion: Portion) -> tuple[Portion, Played | str]:
    """In a child: what was played, or what is to be told of the run that broke."""
    try:
        return portion, run(portion.runs, seed=portion.seed, world=WORLDS[portion.world])
    except BrokenRunError as broken:
        return portion, _told(portion.world, broken)


def _told(world: str, broken: BrokenRunError) -> str:
    again = ["python", "-m", "tests.model", "--world", world, "--replay", str(broken.plan)]
    lines = [tell(WORLDS[world], broken), "", f"{AGAIN}{shlex.join(again)}"]
    if broken.seed is not None:
        lines.append(f"Before it was made small: python -m tests.model --world {world} --runs 1 --seed {broken.seed}")
    return "\n".join(lines)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
