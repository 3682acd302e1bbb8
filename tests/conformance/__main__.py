"""Run the conformance suite for one client: `python -m tests.conformance --driver COMMAND [--kills 200] [--seed N] [CASE...]`.

Without --kills the cases, all or those that are named; with it, so many kills under load. The processes are started
as users start them.
"""

import argparse
import asyncio
import random
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.cases import CASES
from tests.conformance.kills import TARGETS, Run
from tests.conformance.world import World, world


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _cases(names: Sequence[str], shared: World) -> bool:
    passed = True
    for name in names or CASES:
        try:
            await CASES[name](World(shared.command, shared.directory, shared.meta, shared.adapter))
            _say(f"passed  {name}")
        except (AssertionError, KeyError, TimeoutError) as error:
            passed = False
            _say(f"FAILED  {name}: {type(error).__name__} {error}")
    return passed


def main() -> int:
    """Exit code 1 if the client does not conform."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--driver", required=True, help="the driver's command")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=TARGETS, help="what is killed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--no-watch", action="store_true", help="the driver cannot watch")
    parser.add_argument("cases", nargs="*", help="names of cases")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, world(shlex.split(given.driver), Path(directory)) as shared:
        if not given.kills:
            return int(not asyncio.run(_cases(given.cases, shared)))
        _say(f"seed {given.seed}")
        run = Run(shared, given.seed, given.targets, watches=not given.no_watch)
        report = asyncio.run(run.kills(given.kills, _say))
    for violation in report.violations:
        _say(f"VIOLATION  {violation}")
    _say(str(report))
    return int(bool(report.violations))


if __name__ == "__main__":
    sys.exit(main())
