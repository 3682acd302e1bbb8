"""`make demo-pipeline`: the offsets of a small fleet in Spark, end to end, in under two minutes.

RocketMQ's offsets imported, load on three adapters with journals, lag tables, an adapter killed while the Meta Service is away,
snapshots, reconcile, repair, the report. Exit code 0 when every comparison holds, 1 when one does not or the demo failed, 130 if
interrupted.
"""

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import grpc
from rich.console import Console

from adapter import logs
from adapter.config import LogSection
from adapter.errors import AdapterError
from demo.__main__ import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, TABLES, tell
from demo.cluster import DemoError
from demo.pipeline_checks import Check
from demo.pipeline_fleet import Driver, Fleet
from demo.pipeline_scenario import Scenario, write_config
from demo.pipeline_story import Story
from demo.table import TableError, read_tables

REPORT = Path(__file__).parents[1] / "data" / "demo-pipeline"
BROKERS = 3

# What may go wrong without being a mistake of the demo: a process that does not start, an answer that does not come.
FAILURES = (DemoError, AdapterError, RuntimeError, TimeoutError, grpc.RpcError, OSError)


def exit_code(checks: list[Check] | None, *, interrupted: bool) -> int:
    """What the shell gets. Nothing compared is no success."""
    if checks is None:
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED
    return EXIT_OK if checks and all(check.holds for check in checks) else EXIT_FAILED


class Demo:
    """One run. Everything but the report is in a temporary directory, and gone at the end."""

    def __init__(self, report: Path) -> None:
        self._report = report.resolve()
        self._story = Story(Console(highlight=False))
        self._interrupted = False

    async def run(self) -> int:
        """Play and show it; returns the exit code."""
        # Outermost: a second Ctrl-C must not disturb the cleaning up after the first.
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            checks = await self._play(signals)
        if checks is not None:
            self._story.verdict(checks, self._report / "index.html")
        elif self._interrupted:
            tell("Interrupted: all processes are stopped, their directory is removed.")
        return exit_code(checks, interrupted=self._interrupted)

    async def _play(self, signals: AsyncIterator[signal.Signals]) -> list[Check] | None:
        checks: list[Check] | None = None
        with TemporaryDirectory(prefix="offset-demo-") as name, self._failures():
            async with Fleet.open(Path(name), BROKERS, self._story.command) as fleet, anyio.create_task_group() as tasks:
                tasks.start_soon(self._cancel_on_signal, signals, tasks.cancel_scope, name="signals")
                write_config(fleet, self._report, TABLES)
                async with Driver.open(fleet.directory, self._story.command) as spark:
                    checks = await Scenario(fleet, spark, read_tables(TABLES), self._report, self._story).play()
                tasks.cancel_scope.cancel()
        return checks

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except* FAILURES as group:
            if not self._interrupted:
                tell(f"The demo failed in phase {self._story.phase}: {_words(group)}")

    async def _cancel_on_signal(self, signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
        async for _ in signals:
            self._interrupted = True
            scope.cancel()


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _words(error.exceptions[0])
    return str(error) or type(error).__name__


def main() -> int:
    """Run from the command line; an argument is the directory for the report."""
    logs.setup(LogSection(level="error"))
    report = Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT
    try:
        return anyio.run(Demo(report).run)
    except TableError as error:
        tell(str(error))
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
