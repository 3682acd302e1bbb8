"""`make mutants`: applies each bug to a private copy of the project and runs the model there, then the tests that it names.

Exits with 1 when a bug survives. Never touches the project itself; the virtual environment is shared.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS
from tests.mutants.run_model import CAUGHT

ROOT = Path(__file__).parents[2]
COPIED = ("adapter", "tests", "config", "proto", "deploy", "pyproject.toml", "DESIGN.md")
RUNS = 100  # of the model, for each mutant
JOBS = 2
LOG_WIDTH = 180  # characters of the table where there is no terminal
LIMIT_S = 900.0  # for one run of the model or pytest, which without a bug takes a minute at most
BY_MODEL = "model:"
FAILED, PASSED = 1, 0  # pytest's exit codes; all others mean that nothing was tested

_FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) tests/(\S+?)(?:\[.*)?(?: - .*)?$", re.MULTILINE)


class Verdict(NamedTuple):
    """What caught a bug ("": nothing did), and after how many seconds. `broken`: the check itself did not work."""

    name: str
    caught_by: str
    seconds: float
    broken: str = ""


@contextmanager
def private_copy(of: Path) -> Iterator[Path]:
    """A copy of what the checks run on. All mutants come from one copy: what somebody edits meanwhile is in none of them.

    With the compiled modules, which hold for files of the same size and time: only the mutated one is compiled again.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        root = Path(name)
        for part in COPIED:
            source = of / part
            if source.is_dir():
                shutil.copytree(source, root / part)
            else:
                shutil.copy(source, root / part)
        yield root


def apply(mutant: Mutant, root: Path) -> None:
    """Put the bug in. Raises ValueError when its place is not there, or more than once."""
    path = root / "adapter" / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its text occurs {source.count(mutant.old)} times in {mutant.file}")
    path.write_text(source.replace(mutant.old, mutant.new))


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A Python of the shared environment that imports the copy, also in the processes that tests start."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def check_import(root: Path) -> None:
    """Raise RuntimeError when it is not the copy that is imported: nothing would be tested."""
    shown = run(root, "-c", "import adapter, tests; print(adapter.__file__, tests.__file__)")
    if shown.stdout.split() != [str(root / "adapter" / "__init__.py"), str(root / "tests" / "__init__.py")]:
        raise RuntimeError(f"imported is {shown.stdout or shown.stderr}")


def broken_in_the_model(root: Path, runs: int) -> str:
    """What the model saw, "" when nothing. Raises RuntimeError when it does not run."""
    done = run(root, "-m", "tests.mutants.run_model", str(runs))
    if done.returncode not in {PASSED, CAUGHT}:
        raise RuntimeError(f"the model ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}")
    return f"{BY_MODEL} {done.stdout.strip()[:60]}" if done.returncode else ""


def first_failure(root: Path, tests: Iterable[str]) -> str:
    """The first test that fails there, "" when all pass. Raises RuntimeError with pytest's last words when they do not run."""
    paths = [f"tests/{test}" for test in tests]
    options = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--hypothesis-profile=many")
    done = run(root, "-m", "pytest", *options, *paths)
    if done.returncode == PASSED:
        return ""
    found = _FIRST_FAILURE.search(done.stdout)
    if done.returncode != FAILED or not found:
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}")
    return found[1]


def judge(base: Path, mutant: Mutant | None, tests: Iterable[str], runs: int) -> Verdict:
    """Run the model and these tests on a mutant; None: on the code as it is."""
    name = mutant.name if mutant else "(no bug)"
    started = time.monotonic()
    caught_by, broken = "", ""
    with private_copy(base) as root:
        try:
            if mutant:
                apply(mutant, root)
            check_import(root)
            caught_by = (broken_in_the_model(root, runs) if runs else "") or first_failure(root, tests)
        except subprocess.TimeoutExpired:
            caught_by = f"no end within {LIMIT_S:g} s"
        except (RuntimeError, ValueError) as error:
            broken = str(error)
    return Verdict(name, caught_by, time.monotonic() - started, broken)


def judge_all(base: Path, mutants: Sequence[Mutant], runs: int, console: Console) -> list[Verdict]:
    """Two at a time, with a progress bar; in the order of the list."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    verdicts: dict[str, Verdict] = {}
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(JOBS) as pool:
        bar = progress.add_task("mutants", total=len(mutants))
        for future in as_completed([pool.submit(judge, base, mutant, mutant.tests, runs) for mutant in mutants]):
            verdict = future.result()
            verdicts[verdict.name] = verdict
            progress.console.print(f"{verdict.name}: {_said(verdict)} ({verdict.seconds:.0f} s)")
            progress.advance(bar)
    return [verdicts[mutant.name] for mutant in mutants]


def show(verdicts: Sequence[Verdict], console: Console) -> None:
    """The table."""
    why = {mutant.name: mutant.why for mutant in MUTANTS}
    table = Table("mutant", "what a user would meet", "caught by")
    table.add_column("s", justify="right")
    for verdict in verdicts:
        table.add_row(verdict.name, why[verdict.name], _said(verdict), f"{verdict.seconds:.0f}")
    console.print(table)


def _said(verdict: Verdict) -> str:
    if verdict.broken:
        return f"[red]BROKEN: {escape(verdict.broken)}[/red]"
    if not verdict.caught_by:
        return "[red]SURVIVED[/red]"
    return escape(verdict.caught_by)


@click.command(help=__doc__.splitlines()[0] if __doc__ else None)
@click.argument("names", nargs=-1)
@click.option("--runs", default=RUNS, show_default=True, help="Runs of the model for each mutant; 0: only the named tests.")
def main(names: tuple[str, ...], runs: int) -> None:
    """Judge the named mutants, or all."""
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise click.BadParameter(f"unknown: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    with private_copy(ROOT) as base:
        console.print("First without a bug: all checks have to pass.")
        sound = judge(base, None, dict.fromkeys(test for mutant in mutants for test in mutant.tests), runs)
        if sound.caught_by or sound.broken:
            raise click.ClickException(f"without any bug: {sound.caught_by or sound.broken}")
        verdicts = judge_all(base, mutants, runs, console)
    show(verdicts, console)
    survived = [verdict.name for verdict in verdicts if verdict.broken or not verdict.caught_by]
    by_model = sum(verdict.caught_by.startswith(BY_MODEL) for verdict in verdicts)
    console.print(f"{len(verdicts) - len(survived)} of {len(verdicts)} caught, {by_model} of them by the model.")
    sys.exit(1 if survived else 0)


if __name__ == "__main__":
    main()
