"""`make linearizability`: judge histories of the soak, and thousands broken on purpose, by our checker and by Porcupine.

Without FILES (of `python -m tests.soak --history`) a soak is run first. Exit code 1: a history contradicts itself, or the two
say different things of one, which is kept as a file. Needs Go.
"""

import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import get_args

import anyio
import click

from adapter.sidecar.config import WalSync
from tests.linearizability.broken import Operations, arbitrary, broken, is_plain, of_key
from tests.linearizability.recorded import line, operations, recording
from tests.linearizability.verdicts import PorcupineError, build, ours, porcupine
from tests.soak.run import soak

PORTION = 500  # histories that are judged at once
ENOUGH = 20  # operations of a key that is worth breaking


@dataclass
class Outcome:
    """What was judged. `found`: of each kind of change, how many histories both checkers refused."""

    operations: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    problems: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """For the record."""
        return {
            "operations of real processes": self.operations,
            "histories judged twice": self.judged.total(),
            "impossible ones found": self.found.total(),
            "undecided": self.unknown,
        }


def judge(
    outcome: Outcome, program: Path, named: Sequence[tuple[str, Operations]], *, real: bool = False, plain: bool = False
) -> None:
    """Ask both. Real histories must be possible. `plain`: Porcupine by its plain model."""
    for (name, each), verdict in zip(named, porcupine(program, [each for _, each in named], plain=plain), strict=True):
        own = ours(each)
        outcome.judged[name] += 1
        outcome.unknown += bool(verdict.unknown)
        outcome.found[name] += bool(own)
        if real:
            outcome.operations += verdict.operations
        differ = (own ^ verdict.illegal) - verdict.unknown
        if differ or (real and own):
            outcome.problems.append(_told(name, each, sorted(differ or own), differ=bool(differ)))


def _portions(named: Iterable[tuple[str, Operations]]) -> Iterator[list[tuple[str, Operations]]]:
    rest = iter(named)
    while portion := list(islice(rest, PORTION)):
        yield portion


def _told(name: str, history: Operations, keys: Sequence[object], *, differ: bool) -> str:
    with tempfile.NamedTemporaryFile("w", prefix="history-", suffix=".jsonl", delete=False) as file:
        file.writelines(map(line, history))
    what = "our checker and Porcupine say different things of" if differ else "a contradiction in"
    return f"{name}: {what} {keys}; kept in {file.name}"


def _soak(cycles: int, rng: random.Random, path: Path) -> None:
    """Raises ClickException for what is no matter of histories."""
    wal_sync = rng.choice(get_args(WalSync))
    with tempfile.TemporaryDirectory(prefix="soak-") as directory, recording(path) as events:
        report = anyio.run(soak, cycles, rng.getrandbits(32), Path(directory), lambda *_: None, wal_sync, events)
    if report.failure:
        raise click.ClickException(f"the soak failed: {report.failure}")


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--cycles", default=14, show_default=True, help="Crash cycles of the soak.")
@click.option("--broken", "changed", default=2_000, show_default=True, help="Real histories of a key, each changed in one place.")
@click.option("--arbitrary", "drawn", default=5_000, show_default=True, help="Small histories that are drawn at random.")
@click.option("--seed", type=int, help="Draw and break the same again; without it they are random.")
@click.option("--counts", type=click.Path(path_type=Path), help="A file for what was done, as JSON.")
def main(files: tuple[Path, ...], cycles: int, changed: int, drawn: int, seed: int | None, counts: Path | None) -> None:
    """Judge, and tell."""
    seed = random.getrandbits(32) if seed is None else seed
    rng, outcome = random.Random(seed), Outcome()
    click.echo(f"seed {seed}")
    try:
        program = build()
        with tempfile.TemporaryDirectory(prefix="linearizability-") as directory:
            if not files:
                files = (Path(directory, "history.jsonl"),)
                _soak(cycles, rng, files[0])
            whole = [("as it was", list(operations(file))) for file in files]
        judge(outcome, program, whole, real=True)
        keys = [
            (each, of_key(history, each))
            for _, history in whole
            for each in sorted({key for operation in history if operation.what == "write" for key in operation.keys or ()})
        ]
        long = [history for _, history in keys if len(history) >= ENOUGH]
        for portion in _portions(broken(rng, rng.choice(long)) for _ in range(changed)):
            judge(outcome, program, portion)
        for portion in _portions(("arbitrary", arbitrary(rng)) for _ in range(drawn)):
            judge(outcome, program, portion)
            few = [("arbitrary, by the plain model", each) for _, each in portion if is_plain(each)]
            judge(outcome, program, few, plain=True)
    except PorcupineError as error:
        raise click.ClickException(str(error)) from None
    for name, count in outcome.judged.items():
        click.echo(f"{name}: {count:,} histories, {outcome.found[name]:,} of them impossible")
    click.echo(f"{outcome.operations:,} operations of real processes, {outcome.unknown} histories undecided")
    for problem in outcome.problems:
        click.echo(problem)
    if counts:
        counts.write_text(json.dumps(outcome.counts()))
    sys.exit(1 if outcome.problems else 0)


if __name__ == "__main__":
    main()
