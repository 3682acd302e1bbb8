"""`make demo-cluster`: the Meta Service on etcd under load, while each part of it is killed in turn, in 90 seconds.

Exit code 0 if no offset is missing, 1 if one is or the demo failed, 130 if it was interrupted.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.abc
import click
from rich.console import Console

from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from adapter.testing.etcd import EtcdMissingError, etcd_binary
from demo.playing import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Stage, tell
from demo.raft_display import Display
from demo.raft_fleet import Fleet
from demo.raft_monitor import Monitor
from demo.raft_scenario import Scenario
from demo.raft_state import Outcome, RaftState


def exit_code(outcome: Outcome | None, *, interrupted: bool = False) -> int:
    """The exit code of the process. Without a comparison it is 1."""
    if outcome is None:
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED
    return EXIT_OK if outcome.complete else EXIT_FAILED


async def run(watch_s: float) -> int:
    """Run and show the demo; returns the exit code. All files are in a temporary directory that is removed at the end."""
    state = RaftState()
    async with Stage.open() as stage:
        with TemporaryDirectory(prefix="offset-demo-") as name:
            async with Fleet.open(Path(name)) as fleet:
                addresses = {meta.name: meta.process.address for meta in fleet.metas}
                display = Display(state, addresses, Console(highlight=False))

                async def play(tasks: anyio.abc.TaskGroup) -> Outcome:
                    scenario = Scenario(fleet, state, tasks, watch_s)
                    tasks.start_soon(Monitor(fleet, state).run, name="monitor")
                    tasks.start_soon(display.run, name="display")
                    return await scenario.play()

                outcome = await stage.play(
                    play,
                    lambda why: f"The demo failed in phase {state.phase_name}: {why}\n{display.line()}\n{fleet.last_words()}",
                )
    if outcome is not None:
        display.report(outcome)
    elif stage.interrupted:
        tell("Interrupted: all processes are stopped, their directory is removed.")
    return exit_code(outcome, interrupted=stage.interrupted)


@click.command()
@click.option("--watch", type=click.FloatRange(0.1), default=4.0, show_default=True, help="Seconds before and after each kill.")
def main(watch: float) -> None:
    """Run from the command line."""
    logs.setup(LogSection(level="error"))
    try:
        etcd_binary()
    except EtcdMissingError as error:
        tell(str(error))
        sys.exit(EXIT_FAILED)
    sys.exit(anyio.run(run, watch))


if __name__ == "__main__":
    main()
