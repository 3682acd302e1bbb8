"""`make soak`: exit code 0 when nothing acknowledged was lost and nothing went back, else 1 with what contradicts what."""

import json
import random
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import anyio
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from adapter.sidecar.config import WalSync
from adapter.testing.history import History
from tests.linearizability.recorded import recording
from tests.soak.run import Report, soak

SHOWN = 20  # violations; the first one matters, the others mostly follow from it


def table(report: Report) -> Table:
    """What was done, and what came of it."""
    rows = Table("", title=f"Soak, seed {report.seed}", title_justify="left")
    rows.add_column("", justify="right")
    for name, count in sorted(report.faults.items(), key=lambda item: "kill" not in item[0]):
        rows.add_row(name, f"{count:,}")
    rows.add_section()
    rows.add_row("crash cycles", f"{report.crashes:,}")
    rows.add_row("commits acknowledged", f"{report.acknowledged:,}")
    rows.add_row("reads of an offset", f"{report.reads:,}")
    for name, count in sorted(report.changes.items()):
        rows.add_row(f"{name} by the administrator", f"{count:,}")
    rows.add_row("violations", f"{len(report.violations):,}", style="red" if report.violations else "green")
    rows.add_row("duration", f"{report.seconds:,.0f} s")
    return rows


def counted(report: Report) -> dict[str, int]:
    """How much of what was done, for the record."""
    kills = sum(count for name, count in report.faults.items() if "kill" in name)
    return {
        "crash cycles": report.crashes,
        "kills": kills,
        "commits acknowledged": report.acknowledged,
        "reads": report.reads,
        "changes": sum(report.changes.values()),
    }


def tell(report: Report, directory: Path, console: Console) -> None:
    """The table, and when something is wrong, what."""
    console.print(table(report))
    if report.passed:
        console.print("Nothing that was acknowledged was lost, and nothing went back.")
        return
    for violation in report.violations[:SHOWN]:
        console.print(str(violation), markup=False, style="red")
    if report.failure:
        console.print(report.failure, markup=False, style="red")
    console.print(f"Logs and stores are kept in {directory}; --seed {report.seed} repeats the instants.", soft_wrap=True)


@click.command(help=__doc__)
@click.option("--cycles", default=200, show_default=True, type=click.IntRange(min=1), help="Crash cycles.")
@click.option("--seed", type=int, help="Repeat the faults and instants of another run; without it they are random.")
@click.option("--wal-sync", type=click.Choice(get_args(WalSync)), help="Of both adapters; without it interval and always.")
@click.option("--history", type=click.Path(path_type=Path), help="A file for the history, for python -m tests.linearizability.")
@click.option("--counts", type=click.Path(path_type=Path), help="A file for what was done, as JSON.")
def main(
    cycles: int,
    seed: int | None,
    wal_sync: WalSync | None,
    history: Path | None,
    counts: Path | None,
) -> None:
    """Run it and show it."""
    console = Console(highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("start", total=cycles)

        def told(report: Report, step: str) -> None:
            progress.update(bar, completed=report.crashes, description=step)
            if not console.is_terminal and step == "everything arrives":
                console.print(f"{report.crashes} of {cycles} crash cycles")

        try:
            chosen = random.getrandbits(32) if seed is None else seed
            with recording(history) if history else nullcontext(History()) as events:
                report = anyio.run(soak, cycles, chosen, directory, told, wal_sync, events)
        except KeyboardInterrupt:
            shutil.rmtree(directory)
            raise
        progress.update(bar, completed=report.crashes)
    tell(report, directory, console)
    if counts:
        counts.write_text(json.dumps(counted(report)))
    if report.passed:
        shutil.rmtree(directory)
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
