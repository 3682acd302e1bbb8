"""`python -m tests.model.speed`: how many times as many runs as another commit plays in a minute, and whether they are the same.

Processes of both builds play the same seeds in turn, so that both meet the same load; their CPU time is compared. With `--states`
each run's digest is compared, too: what is on the disks, in the Meta Service and acknowledged after each step.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.model.worlds import WORLDS

ROOT = Path(__file__).parents[2]
BEFORE = "0de4930a"

# Of what both builds have.
PLAYS = """
import hashlib, json, os, sys
from unittest import mock
sys.path.insert(0, os.getcwd())
from tests.model.invariants import Watch
from tests.model.machines import KEYS, held_by
from tests.model.plans import BrokenRunError, draw, play
from tests.model.runs import quiet, run
from tests.model.worlds import WORLDS

world, seed, runs = WORLDS[sys.argv[1]], int(sys.argv[2]), int(sys.argv[3])
check = Watch.check

def seen(digest):
    def checked(self):
        world = self._world
        held = [(sorted(held_by(one).stored.items()), one.running and one.running.state) for one in world.brokers]
        there = [world.service.standing(key) for key in KEYS]
        here = sorted((at, known.record) for at, known in world.model.here.items())
        digest.update(repr((round(world.loop.now, 9), held, there, here)).encode())
        check(self)
    return checked

digests = []
for each in range(seed, seed + runs) if sys.argv[4] == "states" else ():
    digest = hashlib.sha256()
    with quiet(), mock.patch.object(Watch, "check", seen(digest)):
        try:
            play(world, draw(world, each))
        except BrokenRunError as broken:
            digest.update(f"{broken.at} {broken.kind}".encode())
    digests.append(digest.hexdigest())
broken, began = 0, os.times()
for each in range(seed, seed + runs, 25) if sys.argv[4] == "speed" else ():
    try:
        run(min(25, seed + runs - each), seed=each, world=world, smaller=False)
    except BrokenRunError:
        broken += 1
ended = os.times()
print(json.dumps([ended.user - began.user + ended.system - began.system, digests, broken]))
"""


def main() -> int:
    """Play and print; 1 when runs differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.speed", description=__doc__)
    parser.add_argument("--before", default=BEFORE, help="the other commit (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=100, help="of each world, in each round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=100, help="of the first run (default: %(default)s)")
    parser.add_argument("--worlds", default="", help="comma between them; default: all that the other commit has")
    parser.add_argument("--states", action="store_true", help="compare what each run does, not its time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="model-speed-") as name:
        before = Path(name)
        _check_out(options.before, before)
        worlds = options.worlds.split(",") if options.worlds else [one for one in WORLDS if one != "wide"]
        totals = [0.0, 0.0]
        differing = 0
        for world in worlds:
            seconds = [0.0, 0.0]
            for at in range(options.rounds):
                played = [_played(place, world, options.seed + at * options.runs, options) for place in (before, ROOT)]
                seconds = [one + of[0] for one, of in zip(seconds, played, strict=True)]
                differing += sum(one != other for one, other in zip(played[0][1], played[1][1], strict=True))
            totals = [one + of for one, of in zip(totals, seconds, strict=True)]
            if not options.states:
                _say(world, seconds, options.rounds * options.runs)
        runs = len(worlds) * options.rounds * options.runs
        if options.states:
            sys.stdout.write(f"{differing} of {runs} runs differ\n")
        else:
            _say("all", totals, runs)
    return int(differing > 0)


def _check_out(commit: str, to: Path) -> None:
    packed = subprocess.run(["git", "archive", commit, "adapter", "tests"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(to, filter="data")


def _played(place: Path, world: str, seed: int, options: argparse.Namespace) -> Any:
    what = "states" if options.states else "speed"
    command = [sys.executable, "-c", PLAYS, world, str(seed), str(options.runs), what]
    done = subprocess.run(
        command, cwd=place, env={**os.environ, "PYTHONHASHSEED": "0"}, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def _say(world: str, seconds: list[float], runs: int) -> None:
    before, now = (runs / one * 60 for one in seconds)
    sys.stdout.write(f"{world:10} {before:7,.0f} → {now:7,.0f} runs a minute of CPU, {now / before:.2f} times as many\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
