"""`make model RUNS=...`: the model test on all cores, each process with a seed of its own. Ends with the first failure."""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

DEFAULT = "two"  # adapters
PORTION = 250  # runs between two lines of progress
SAME_ORDER = {**os.environ, "PYTHONHASHSEED": "0"}  # the order of a set of names must not depend on the process


def main() -> int:
    """Run it; 1 when an invariant broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--runs", type=int, default=5_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="where to begin (default: by the clock)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: %(default)s")
    parser.add_argument("--portion", type=int, help="so many runs in this process, and nothing else")
    parser.add_argument("--world", help="one of tests/model/worlds.py (default: with --portion two, else each in turn)")
    parser.add_argument("--counts", type=Path, help="with --portion: a file for what was done, as JSON")
    options = parser.parse_args()
    if options.portion:
        return _run_portion(options.portion, options.seed, options.world or DEFAULT, options.counts)
    return _run_all(options.runs, options.seed, options.processes, options.world)


def _run_portion(runs: int, seed: int, world: str, counts: Path | None) -> int:
    from tests.model.runs import run  # noqa: PLC0415 - not in the parent, which only waits
    from tests.model.worlds import WORLDS  # noqa: PLC0415

    played = run(runs, seed=seed, world=WORLDS[world])
    if counts:
        told = {"runs": played.runs, "simulated seconds": round(played.seconds, 1)}
        counts.write_text(json.dumps(told | ({f"runs of the world {world}": played.runs} if world != DEFAULT else {})))
    return 0


def _run_all(runs: int, seed: int, processes: int, world: str | None) -> int:
    """Portions of runs, each in a process: their memory goes with them. Without a world each in turn, every other time two."""
    from tests.model.worlds import WORLDS  # noqa: PLC0415

    others = [name for name in WORLDS if name != DEFAULT]
    turns = cycle([world] if world else [name for other in others for name in (DEFAULT, other)])
    portion = min(PORTION, -(-runs // processes))
    portions = [(min(portion, runs - at), seed + at, next(turns)) for at in range(0, runs, portion)]
    running: list[tuple[subprocess.Popen[str], int, list[str]]] = []
    done = 0
    started = time.monotonic()
    _say(f"{runs:,} runs from seed {seed}, {processes} at once")
    try:
        while portions or running:
            while portions and len(running) < processes:
                size, first, name = portions.pop(0)
                command = ["-m", "tests.model", "--portion", str(size), "--seed", str(first), "--world", name]
                process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True, env=SAME_ORDER)
                running.append((process, size, command))
            process, size, command = running.pop(0)
            _, errors = process.communicate()
            if process.returncode:
                _say(f"{errors}\nA run broke. Again: python {shlex.join(command)}")
                return 1
            done += size
            rate = done / (time.monotonic() - started) * 60
            _say(f"{done:,} of {runs:,} runs, {rate:,.0f} a minute")
    finally:
        for process, _, _ in running:
            process.kill()
            process.wait()
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
