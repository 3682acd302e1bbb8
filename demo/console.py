"""`make console`: a fleet with load and the console over it, until Ctrl-C.

A shop's topics on three brokers, each with its adapter, and some dozens of consumer groups; a few of them stall, stop, fall
behind, go back, or are set back by an operator. Exit code 0 after Ctrl-C or `--for SECONDS`, 1 if something failed.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.abc

from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from demo.fleet.console import Console, console_of
from demo.fleet.processes import Fleet
from demo.fleet.scenario import Way
from demo.playing import EXIT_FAILED, EXIT_OK, Stage, tell

TELL_EVERY_S = 60.0


async def run(seconds: float | None, listen: str) -> int:
    """Run until interrupted, or for so many seconds; returns the exit code. All files are temporary."""
    async with Stage.open() as stage:
        with TemporaryDirectory(prefix="offset-console-") as name:
            async with Fleet.open(Path(name)) as fleet:
                with console_of(fleet, listen) as console:

                    async def play(tasks: anyio.abc.TaskGroup) -> bool:
                        await _play(fleet, console, tasks, seconds)
                        return True

                    played = await stage.play(
                        play, lambda why: f"The demo failed: {why}\n{fleet.last_words()}\n{console.last_words()}"
                    )
    if stage.interrupted:
        tell("Stopped: all processes have ended, their directory is removed.")
    return EXIT_OK if played or stage.interrupted else EXIT_FAILED


async def _play(fleet: Fleet, console: Console, tasks: anyio.abc.TaskGroup, seconds: float | None) -> None:
    print("Starting a Meta Service, three adapters and the console ...", flush=True)
    await fleet.start()
    await tasks.start(fleet.load.run, name="load")
    await console.start()
    print(opening(fleet, console), flush=True)
    with anyio.move_on_after(seconds):
        tasks.start_soon(_tell_load, fleet, name="load, told")
        await _operate(fleet)
        await anyio.sleep_forever()


def opening(fleet: Fleet, console: Console) -> str:
    """What is printed when all runs."""
    scenario = fleet.load.scenario
    size = f"{len(scenario.groups)} groups with {fleet.load.shards} shards on {len(fleet.adapters)} brokers"
    ill = "\n".join(
        f"  {group.namespace}/{group.name}: {way.value}" for way in Way if way is not Way.STEADY for group in scenario.of(way)
    )
    return f"""
The console: {console.address}/
  to look:   {console.view_token}
  to change: {console.admin_token}

{size}. From {scenario.ill_after_s:.0f} s on, watch:
{ill}

The same in a terminal (what the first adapter has of it):
  .venv/bin/offset-adapter top --address {fleet.adapters[0].process.address}
Ctrl-C ends all of it."""


async def _operate(fleet: Fleet) -> None:
    """Do what the operator does."""
    scenario = fleet.load.scenario
    await anyio.sleep(scenario.reset_after_s)
    for group in scenario.of(Way.RESET):
        moved = await fleet.reset(group)
        print(f"an operator has set {group.namespace}/{group.name} back by a minute: {moved} shards", flush=True)


async def _tell_load(fleet: Fleet) -> None:
    while True:
        before = fleet.load.commits
        await anyio.sleep(TELL_EVERY_S)
        print(f"{(fleet.load.commits - before) / TELL_EVERY_S:,.0f} offsets committed per second", flush=True)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make console", description="A fleet with load, and the console over it.")
    parser.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end by itself after so many seconds")
    parser.add_argument("--listen", default="", metavar="HOST:PORT", help="address of the console; else any free port")
    arguments = parser.parse_args()
    logs.setup(LogSection(level="error"))
    return anyio.run(run, arguments.seconds, arguments.listen)


if __name__ == "__main__":
    sys.exit(main())
