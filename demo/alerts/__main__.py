"""`make demo-alerts`: faults on a fleet with load, and how long the console and a real Prometheus take to tell them.

The alerts are those of deploy/monitoring, with all of their times multiplied by one factor, so that they fire within seconds.
Exit code 0 if the page showed each fault within two seconds, its alert fired within its time, and both were over after the
repair; otherwise 1; 130 after an interruption.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.abc
import anyio.to_thread
import httpx
from rich import box
from rich.console import Console as Terminal
from rich.table import Table

from adapter.runtime.settings.config import LogSection
from adapter.runtime.telemetry import logs
from demo.alerts import faults
from demo.alerts.disk import SmallDisk, small_disk
from demo.alerts.faults import Fault
from demo.alerts.measuring import PAGE_BAR_S, SLACK_S, Measured, measure
from demo.alerts.prometheus import FIRING, Alert, Prometheus, Target, running
from demo.cluster import DemoError
from demo.fleet.console import Console, console_of
from demo.fleet.processes import Fleet
from demo.fleet.scenario import SHOP, Scenario, Way
from demo.fleet.visitor import Visitor
from demo.playing import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Stage, tell

ROOT = Path(__file__).parents[2]
SCALE = 0.02
INTERVAL_S = 0.5  # of Prometheus
QUIET_S = 10.0  # without a fault, before the first one: no alert may fire
FULL_DISK = "broker-3"  # whose store is on the small disk
WIDTH = 120  # without a terminal
KINDS = ("kill", "pause", "fill", "stall", "reset")


@dataclass(frozen=True)
class Outcome:
    """What was measured, what was left out and why, and what fired without a fault."""

    measured: Sequence[Measured]
    left_out: Sequence[str]
    false_alarms: Sequence[str]

    @property
    def problems(self) -> list[str]:
        """All that is not as it has to be."""
        return [*self.false_alarms, *(f"{one.fault.name}: {problem}" for one in self.measured for problem in one.problems)]


def well(scenario: Scenario) -> Scenario:
    """The scenario with groups that all keep up."""
    return replace(scenario, groups=[replace(group, way=Way.STEADY) for group in scenario.groups])


def generated_rules(directory: Path, scale: float) -> list[Path]:
    """Write the rules of deploy/monitoring with scaled times. Raises DemoError."""
    names = ("rules.yaml", "objectives.yaml")
    command = [sys.executable, "-m", "deploy.monitoring.source", "--output", str(directory), "--scale", str(scale)]
    done = subprocess.run(
        [*command, *(f"--only={name}" for name in names)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DemoError(f"the rules could not be generated: {done.stderr}")
    return [directory / name for name in names]


async def run(kinds: Sequence[str], scale: float, quiet_s: float) -> int:
    """Run the demo; returns the exit code. All files are temporary."""
    outcome = None
    async with Stage.open() as stage:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="offset-alerts-")))
            disk, why = stack.enter_context(small_disk(directory)) if "fill" in kinds else (None, "")
            stores = {FULL_DISK: disk.path / "store"} if disk else {}
            async with Fleet.open(directory, well(SHOP), stores=stores) as fleet:
                console = stack.enter_context(console_of(fleet))

                async def play(tasks: anyio.abc.TaskGroup) -> Outcome:
                    return await _play(fleet, console, tasks, disk, why, kinds, scale, quiet_s)

                outcome = await stage.play(
                    play, lambda why: f"The demo failed: {why}\n{fleet.last_words()}\n{console.last_words()}"
                )
    if outcome is None:
        if stage.interrupted:
            tell("Interrupted: all processes have ended, their directory is removed.")
        return EXIT_INTERRUPTED if stage.interrupted else EXIT_FAILED
    report(outcome)
    return EXIT_FAILED if outcome.problems else EXIT_OK


async def _play(
    fleet: Fleet,
    console: Console,
    tasks: anyio.abc.TaskGroup,
    disk: SmallDisk | None,
    why: str,
    kinds: Sequence[str],
    scale: float,
    quiet_s: float,
) -> Outcome:
    print("Starting a Meta Service, three adapters, the console and Prometheus ...", flush=True)
    await fleet.start()
    await tasks.start(fleet.load.run, name="load")
    await console.start()
    rules = await anyio.to_thread.run_sync(generated_rules, fleet.directory / "rules", scale)
    targets = [
        Target("offset-adapter", {adapter.metrics: adapter.name for adapter in fleet.adapters}),
        Target("offset-meta", {fleet.meta_metrics: ""}),
    ]
    with running(fleet.directory / "prometheus", rules, targets, INTERVAL_S) as (address, log):
        async with (
            httpx.AsyncClient(base_url=f"http://{address}", timeout=10.0) as http,
            Visitor.login(console.address, console.view_token) as visitor,
        ):
            prometheus = Prometheus(address, log, http)
            await prometheus.wait_ready()
            print(f"All run. {quiet_s:.0f} s without a fault ...", flush=True)
            await anyio.sleep(quiet_s)
            false_alarms = [f"{alert.name} fires without a fault: {alert.labels}" for alert in await _fired(prometheus)]
            measured = []
            for fault in _faults(fleet, disk, kinds):
                print(f"{fault.name} ...", flush=True)
                nominal_s = await prometheus.pending_s(fault.alert)
                measured.append(await measure(fault, visitor, prometheus, nominal_s))
            left_out = [f"a full disk was not tried: {why}"] if why else []
            return Outcome(measured, left_out, false_alarms)


def _faults(fleet: Fleet, disk: SmallDisk | None, kinds: Sequence[str]) -> list[Fault]:
    groups = {group.name: group for group in fleet.load.scenario.groups if group.namespace == "default"}
    found = {
        "kill": faults.kill(fleet.adapters[0]),
        "pause": faults.pause(fleet),
        "stall": faults.stall(fleet, groups["payment-reconciliation"]),
        "reset": faults.reset(fleet, groups["catalog-search-index"]),
    }
    if disk:
        found["fill"] = faults.fill(fleet, fleet.adapters[-1], disk)
    return [found[kind] for kind in kinds if kind in found]


async def _fired(prometheus: Prometheus) -> list[Alert]:
    return [alert for alert in await prometheus.alerts() if alert.state == FIRING]


def report(outcome: Outcome) -> None:
    """Print the table, and what is wrong."""
    terminal = Terminal(highlight=False)
    if not terminal.is_terminal:
        terminal.width = max(terminal.width, WIDTH)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.title = f"Seconds; the page's bar: {PAGE_BAR_S:g}; an alert's: its own time and {SLACK_S:g} for scrapes and evaluations"
    table.title_justify = "left"
    table.add_column("fault", overflow="fold")
    table.add_column("alert", no_wrap=True)
    for name in ("page shows", "alert fires", "its time", "page clears", "alert clears"):
        table.add_column(name, justify="right")
    for one in outcome.measured:
        hidden = "stays" if one.fault.lasting else _seconds(one.hidden)
        figures = (_seconds(one.shown), _seconds(one.fired), f"{one.nominal:.1f}", hidden, _seconds(one.cleared))
        table.add_row(one.fault.name, one.fault.alert, *figures, style="red" if one.problems else "")
    terminal.print("", table, "", sep="\n")
    for line in outcome.left_out:
        terminal.print(line, style="yellow")
    for line in outcome.problems:
        terminal.print(line, style="bold red")
    if not outcome.problems:
        terminal.print(
            "The page showed each fault in time, each alert fired in time, and all is clear again.", style="bold green"
        )


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="make demo-alerts", description="Faults, the console and the alerts.")
    parser.add_argument("--fault", action="append", choices=KINDS, help="only this one; may be repeated")
    parser.add_argument("--scale", type=float, default=SCALE, help="factor of all times of the alerts (default: %(default)s)")
    parser.add_argument("--quiet", type=float, default=QUIET_S, help="seconds before the first fault (default: %(default)s)")
    arguments = parser.parse_args()
    logs.setup(LogSection(level="error"))
    return anyio.run(run, arguments.fault or KINDS, arguments.scale, arguments.quiet)


if __name__ == "__main__":
    sys.exit(main())
