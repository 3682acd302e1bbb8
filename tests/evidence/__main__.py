"""`make evidence MINUTES=n`: spend time on random seeds of all machines of proof. Exit code 1: something was violated.

Each slice is appended to evidence/runs.jsonl as it ends; a run may be interrupted at any time. docs/evidence.md shows the totals.
"""

import os
import random
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.evidence.machines import MACHINES, Machine
from tests.evidence.page import counted, open_violations, write
from tests.evidence.records import FILE, Closing, Slice, append, read
from tests.evidence.spend import spend

SECONDS = 60


@click.command(help=__doc__)
@click.option("--minutes", type=click.FloatRange(min=0), default=10, show_default=True, help="How long.")
@click.option("--only", multiple=True, type=click.Choice(sorted(MACHINES)), help="These machines alone.")
@click.option("--seed", type=int, help="Draw the same seeds again; without it they are random.")
@click.option("--page", is_flag=True, help="Draw docs/evidence.md from the file, and run nothing.")
@click.option("--status", is_flag=True, help="Tell what was run of the code as it is here; exit code 1 if that is too little.")
@click.option("--close", help="Close the violations of the slice of this name (the page has it), and run nothing.")
@click.option("--because", help="With --close: the commit that fixed it, or what was wrong with the check.")
@click.option("--file", "path", default=FILE, show_default=True, type=click.Path(path_type=Path), help="Where slices go.")
def main(
    minutes: float,
    only: tuple[str, ...],
    seed: int | None,
    page: bool,
    status: bool,
    close: str | None,
    because: str | None,
    path: Path,
) -> None:
    """Run, or do what an option asks for."""
    console = Console(highlight=False)
    if close is not None:
        _close(path, close, because)
    if page or close is not None:
        _draw(path, console)
        return
    if status:
        sys.exit(0 if _status(path, console, list(MACHINES.values())) else 1)
    chosen = [MACHINES[name] for name in only] or list(MACHINES.values())
    for machine in chosen:
        if why := machine.missing():
            console.print(f"{machine.name} is left out: {why}", style="yellow")
    done = _run([machine for machine in chosen if not machine.missing()], minutes * SECONDS, random.Random(seed), path, console)
    _status(path, console, chosen)
    sys.exit(1 if any(each.violations for each in done) else 0)


def _run(machines: list[Machine], seconds: float, rng: random.Random, path: Path, console: Console) -> list[Slice]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("start", total=seconds)

        def told(machine: Machine, record: Slice | None) -> None:
            progress.update(bar, description=machine.name)
            if record:
                progress.advance(bar, record.seconds)
                tell(record, console)
                if path == FILE:
                    write(read(path))

        return spend(machines, seconds, rng, path, told)


def tell(record: Slice, console: Console) -> None:
    """A line for a slice; of a violation the command that finds it again."""
    counts = ", ".join(f"{count:,g} {name}" for name, count in record.counts.items())
    console.print(f"{record.machine}: {counts or 'nothing counted'}, {record.seconds:,.0f} s", markup=False, soft_wrap=True)
    for violation in record.violations:
        console.print(violation.output, markup=False, style="red", soft_wrap=True)
        console.print(f"Again: {violation.command}", markup=False, style="red", soft_wrap=True)


def _draw(path: Path, console: Console) -> None:
    """The page, of the file in the repository alone."""
    runs = read(path)
    if path == FILE:
        write(runs)
    for number in runs.torn:
        console.print(f"{path}:{number}: is no record (torn by a crash?) and is not counted", style="yellow")


def _status(path: Path, console: Console, machines: list[Machine]) -> bool:
    """What these did with the code as it is here, and whether there are 0 open violations."""
    runs = read(path)
    console.print("Of the code as it is here:")
    for machine in machines:
        ran = counted(runs.of_code(machine.name, machine.code))
        console.print(f"{machine.name} {machine.code}: {ran or 'nothing'}", markup=False, soft_wrap=True)
    left = open_violations(runs, runs.of_code("model", MACHINES["model"].code))
    console.print(f"open violations: {left}", markup=False, soft_wrap=True)
    return left == "0"


def _close(path: Path, name: str, because: str | None) -> None:
    if not because:
        raise click.UsageError("--close needs --because: the commit that fixed it, or what was wrong with the check")
    names = [each.name for each in read(path).open]
    if name not in names:
        raise click.UsageError(f"--close: {name!r} is no slice with open violations; these are: {', '.join(names) or 'none'}")
    append(path, Closing(name, because))


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    main()
