"""`make demo`: an adapter with real offsets through a crash, an outage and a reset, in half a minute.

Exit code 0 if no offset is missing, 1 if one is or the demo failed, 130 if it was interrupted.
"""

import sys
from pathlib import Path

import anyio
import anyio.abc
from rich.console import Console

from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from demo.cluster import Cluster
from demo.comparison import Comparison
from demo.display import Display
from demo.monitor import Monitor
from demo.phases import Scenario
from demo.playing import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Stage, tell
from demo.state import State
from demo.table import QueueOffset, TableError, read_tables

TABLES = sorted((Path(__file__).parent / "data" / "rocketmq").glob("*.json"))


def exit_code(comparison: Comparison | None, *, interrupted: bool = False) -> int:
    """The exit code of the process."""
    if comparison is None:
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED
    return EXIT_OK if comparison.complete else EXIT_FAILED


async def run(table: list[QueueOffset]) -> int:
    """Run and show the demo; returns the exit code."""
    state = State()
    display = Display(state, Console(highlight=False))
    async with Stage.open() as stage, Cluster.open() as cluster:

        async def play(tasks: anyio.abc.TaskGroup) -> Comparison:
            tasks.start_soon(Monitor(cluster, state).run, name="monitor")
            tasks.start_soon(display.run, name="display")
            return await Scenario(cluster, table, state, tasks).play()

        comparison = await stage.play(
            play, lambda why: f"The demo failed in phase {state.phase_name}: {why}\n{cluster.last_words()}"
        )
    if comparison is not None:
        display.report(comparison)
    elif stage.interrupted:
        tell("Interrupted: both processes are stopped, their directory is removed.")
    return exit_code(comparison, interrupted=stage.interrupted)


def main() -> int:
    """Run from the command line."""
    logs.setup(LogSection(level="error"))
    try:
        table = read_tables(TABLES)
    except TableError as error:
        tell(str(error))
        return EXIT_FAILED
    return anyio.run(run, table)


if __name__ == "__main__":
    sys.exit(main())
