"""`make demo-pipeline`: the Spark jobs over the offsets of a small fleet, end to end, in under two minutes.

Steps: import RocketMQ's offsets, put load on three adapters with journals, compute lag tables, kill an adapter during an outage
of the Meta Service, take snapshots, reconcile, repair, write the report. Exit code 0 if every comparison holds, 1 if one does not
or the demo failed, 130 if it was interrupted.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from rich.console import Console

from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from demo.__main__ import TABLES
from demo.pipeline_checks import Check
from demo.pipeline_fleet import Driver, Fleet
from demo.pipeline_scenario import Scenario, write_config
from demo.pipeline_story import Story
from demo.playing import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Stage, tell
from demo.table import TableError, read_tables

REPORT = Path(__file__).parents[1] / "data" / "demo-pipeline"
BROKERS = 3


def exit_code(checks: list[Check] | None, *, interrupted: bool) -> int:
    """The exit code of the process. Without a comparison it is 1."""
    if checks is None:
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED
    return EXIT_OK if checks and all(check.holds for check in checks) else EXIT_FAILED


async def run(report: Path) -> int:
    """Run and show the demo; returns the exit code. All files except the report are temporary."""
    story = Story(Console(highlight=False))
    async with Stage.open() as stage:
        with TemporaryDirectory(prefix="offset-demo-") as name:
            async with Fleet.open(Path(name), BROKERS, story.command) as fleet:

                async def play(_: object) -> list[Check]:
                    write_config(fleet, report, TABLES)
                    async with Driver.open(fleet.directory, story.command) as spark:
                        return await Scenario(fleet, spark, read_tables(TABLES), report, story).play()

                checks = await stage.play(play, lambda why: f"The demo failed in phase {story.phase}: {why}")
    if checks is not None:
        story.verdict(checks, report / "index.html")
    elif stage.interrupted:
        tell("Interrupted: all processes are stopped, their directory is removed.")
    return exit_code(checks, interrupted=stage.interrupted)


def main() -> int:
    """Run from the command line; an argument is the directory for the report."""
    logs.setup(LogSection(level="error"))
    report = Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT
    try:
        return anyio.run(run, report.resolve())
    except TableError as error:
        tell(str(error))
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
