"""`make example`: kills consumers of NATS JetStream repeatedly; their positions are in the adapter, and in a second run in NATS.

Exit code 0 if both runs processed every message, 1 if a message is missing or the example failed, 130 if it was interrupted.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.abc
import anyio.to_thread
import click
import nats.errors
from rich.console import Console
from rich.text import Text

from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from adapter.testing.processes import adapter_process, ended, meta_process
from demo.cluster import DemoError
from demo.playing import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Stage, tell
from demo.show import Show
from demo.timeline import Timeline
from examples.broker import Broker, NatsMissingError, nats_binary
from examples.flights import FLIGHTS, flight_of, read_messages
from examples.keepers import AcksKeeper, AdapterKeeper, Keeper, ends_of
from examples.ledger import Tally
from examples.outcome import Outcome, outcome_table, verdict
from examples.run import Run

TITLE = "Offset adapter example: real flights in NATS JetStream, consumers that are killed, a commit after every message"
BOUND = ("setpriv", "--pdeathsig=KILL", "--")  # the process gets SIGKILL when this one ends
PER_S = 1_500.0  # messages per second, an estimate for the progress bar


def exit_code(outcomes: Sequence[Outcome] | None, *, interrupted: bool = False) -> int:
    """The exit code. Without a run it is 1."""
    if outcomes is None:
        return EXIT_INTERRUPTED if interrupted else EXIT_FAILED
    return EXIT_OK if outcomes and all(outcome.complete for outcome in outcomes) else EXIT_FAILED


class Example:
    """Both runs over the same stream, one after the other."""

    def __init__(self, directory: Path, messages: int, kills: int, ack_wait_s: float) -> None:
        self._directory = directory
        self._messages = read_messages(messages)
        self._truth = [flight_of(data) for _, data in self._messages]
        self._shards = [queue.queue_id for queue, _ in self._messages]
        self._kills = kills
        self._ack_wait_s = ack_wait_s
        planned_s = messages / PER_S + kills
        self.timeline = Timeline()
        self.timeline.phases = [("start", 3.0), (AdapterKeeper.name, planned_s), (AcksKeeper.name, planned_s + ack_wait_s)]
        self.outcomes: list[Outcome] = []

    async def play(self) -> list[Outcome]:
        """Run both. Raises what starting a process raises."""
        directory, messages = self._directory, self._messages
        meta = meta_process(directory)
        adapter = adapter_process(directory, meta.address)
        meta.prefix = adapter.prefix = BOUND
        with ended(adapter, meta):
            async with Broker(directory) as broker:
                for service in (meta, adapter):
                    service.launch()
                await broker.publish(messages)
                for service in (meta, adapter):
                    await anyio.to_thread.run_sync(service.wait_ready)
                self.timeline.tell(f"{len(messages):,} flights are in the stream; the adapter and its Meta Service serve")
                await self._run(1, AdapterKeeper(adapter, ends_of(self._shards)), broker)
                await self._run(2, AcksKeeper(broker, self._ack_wait_s), broker)
        return self.outcomes

    async def _run(self, phase: int, keeper: Keeper, broker: Broker) -> None:
        self.timeline.enter(phase)
        directory = self._directory / f"run-{phase}"
        directory.mkdir()
        outcome = Outcome(keeper.name, self._truth, self._shards, Tally(directory))
        self.outcomes.append(outcome)
        await Run(keeper, outcome, self._kills, self.timeline).play(directory, broker.address)

    def line(self) -> str:
        """The state in one line."""
        done = "; ".join(
            f"{run.keeper}: {run.tally.handled:,} of {len(run.truth):,}, {run.tally.repeats:,} repeats" for run in self.outcomes
        )
        return f"{self.timeline.elapsed:5.1f} s  {done or 'starting'}"


async def run(messages: int, kills: int, ack_wait_s: float) -> int:
    """Run and show the example; returns the exit code. All files are in a temporary directory that is removed at the end."""
    console = Console(highlight=False)
    async with Stage.open() as stage:
        with TemporaryDirectory(prefix="offset-example-") as name:
            example = Example(Path(name), messages, kills, ack_wait_s)
            show = Show(TITLE, example.timeline, console, example.line, lambda: outcome_table(example.outcomes))

            async def play(tasks: anyio.abc.TaskGroup) -> list[Outcome]:
                tasks.start_soon(show.run, name="display")
                try:
                    return await example.play()
                except nats.errors.Error as error:
                    raise DemoError(f"NATS: {error}") from error

            outcomes = await stage.play(play, lambda why: f"The example failed: {why}\n{example.line()}")
    if outcomes is not None:
        show.recap()
        good = exit_code(outcomes) == EXIT_OK
        console.print(
            "", outcome_table(outcomes), "", Text(verdict(outcomes), style="bold green" if good else "bold red"), sep="\n"
        )
    elif stage.interrupted:
        tell("Interrupted: all processes are stopped, their directory is removed.")
    return exit_code(outcomes, interrupted=stage.interrupted)


@click.command()
@click.option("--messages", type=click.IntRange(8, FLIGHTS), default=FLIGHTS, show_default=True, help="How many flights.")
@click.option("--kills", type=click.IntRange(0, 100), default=5, show_default=True, help="How often a consumer is killed.")
@click.option("--ack-wait", type=click.FloatRange(0.5, 30.0), default=5.0, show_default=True, help="NATS's ack_wait in seconds.")
def main(messages: int, kills: int, ack_wait: float) -> None:
    """Run from the command line."""
    logs.setup(LogSection(level="error"))
    try:
        nats_binary()
    except NatsMissingError as error:
        tell(str(error))
        sys.exit(EXIT_FAILED)
    sys.exit(anyio.run(run, messages, kills, ack_wait))


if __name__ == "__main__":
    main()
