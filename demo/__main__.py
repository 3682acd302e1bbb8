"""`make demo`: the adapter's main job on real offsets, end to end, in half a minute.

Exit code 0 when nothing is missing, 1 when something is or the demo failed, 130 when it was interrupted.
"""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import grpc
import grpc.aio
from rich.console import Console

from adapter import logs
from adapter.config import LogSection
from adapter.errors import AdapterError
from demo.cluster import Cluster, DemoError
from demo.comparison import Comparison
from demo.display import Display
from demo.monitor import Monitor
from demo.phases import Scenario
from demo.state import State
from demo.table import QueueOffset, TableError, read_tables

EXIT_OK, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130
TABLES = sorted((Path(__file__).parent / "data" / "rocketmq").glob("*.json"))

# What may go wrong without being a mistake of the demo: a process that does not start, an answer that does not come.
FAILURES = (DemoError, AdapterError, RuntimeError, TimeoutError, subprocess.TimeoutExpired, grpc.RpcError)


def exit_code(comparison: Comparison | None, *, interrupted: bool = False) -> int:
    """What the shell gets."""
    if comparison is None:
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED
    return EXIT_OK if comparison.complete else EXIT_FAILED


async def run(table: list[QueueOffset]) -> int:
    """Play the demo and show it; returns the exit code."""
    state = State()
    display = Display(state, Console(highlight=False))
    # Outermost: a second Ctrl-C must not disturb the cleaning up after the first.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        comparison = await _play(table, state, display, signals)
    if comparison is not None:
        display.report(comparison)
    elif state.interrupted:
        tell("Interrupted: both processes are stopped, their directory is removed.")
    return exit_code(comparison, interrupted=state.interrupted)


async def _play(
    table: list[QueueOffset], state: State, display: Display, signals: AsyncIterator[signal.Signals]
) -> Comparison | None:
    comparison: Comparison | None = None
    async with Cluster.open() as cluster:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_on_signal, signals, tasks.cancel_scope, state, name="signals")
                tasks.start_soon(Monitor(cluster, state).run, name="monitor")
                tasks.start_soon(display.run, name="display")
                comparison = await Scenario(cluster, table, state, tasks).play()
                tasks.cancel_scope.cancel()
        except* FAILURES as group:
            if not state.interrupted:
                tell(f"The demo failed in phase {state.phase_name}: {_words(group)}\n{cluster.last_words()}")
    return comparison


async def _cancel_on_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope, state: State) -> None:
    async for _ in signals:
        state.interrupted = True
        scope.cancel()


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _words(error.exceptions[0])
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def tell(text: str) -> None:
    """A message on standard error."""
    print(text, file=sys.stderr, flush=True)


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
