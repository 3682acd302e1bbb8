"""`make exploration`: explore all interleavings of small scopes. Exit code 1: something was violated, or a scope was cut off."""

import json
import logging
import sys
import time
from pathlib import Path
from random import Random

import click
import structlog
from rich.console import Console
from rich.table import Table

from tests.exploration.explore import Explored, explore
from tests.exploration.scope import Scope
from tests.exploration.scopes import FULL, SCOPES, SMALL, WALKS
from tests.exploration.story import choices, lines
from tests.exploration.walks import walk

# executions: different ways from the first state to a last one; longest: steps; etcd: different contents of the Raft groups.
_ROW = "{:<14}{:>11}{:>13}{:>12}{:>9}{:>8}{:>14}{:>9}"
_GROUPS = {"small": SMALL, "full": FULL, "walks": WALKS}


@click.command(help=__doc__)
@click.option("--scope", "names", multiple=True, type=click.Choice([*_GROUPS, *SCOPES]), help="Which; several are possible.")
@click.option("--max-states", default=0, help="Follow at most so many states of a scope; what is cut off is counted. 0: all.")
@click.option("--replay", help="Tell the steps of these numbers (1,0,2), of the one scope that is named.")
@click.option("--walks", default=0, help="So many random walks through each scope, instead of exploring it.")
@click.option("--seed", default=0, help="Of the walks.")
@click.option("--counts", type=click.Path(path_type=Path), help="Write what was covered to this file, as JSON.")
@click.option("--list", "listed", is_flag=True, help="Show the scopes, and explore nothing.")
def main(
    names: tuple[str, ...], max_states: int, replay: str | None, walks: int, seed: int, counts: Path | None, *, listed: bool
) -> None:
    """Explore, walk, replay, or list."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    console = Console(highlight=False, soft_wrap=True)
    scopes = _chosen(names or ("walks" if walks else "small",))
    if listed:
        _list(console)
    elif replay is not None:
        told = list(lines(scopes[0], [int(number) for number in replay.split(",") if number]))
        print(*told, sep="\n")
        sys.exit(any(line.startswith("VIOLATED") for line in told))
    elif walks:
        sys.exit(not _walk(scopes, walks, seed, counts))
    else:
        sys.exit(not _explore(scopes, max_states, counts, console))


def _chosen(names: tuple[str, ...]) -> list[Scope]:
    found: dict[str, Scope] = {}
    for name in names:
        found.update((scope.name, scope) for scope in _GROUPS.get(name) or (SCOPES[name],))
    return list(found.values())


def _explore(scopes: list[Scope], max_states: int, counts: Path | None, console: Console) -> bool:
    console.print(_ROW.format("scope", "states", "transitions", "executions", "longest", "etcd", "cut off", "CPU s"))
    total = {"states": 0, "transitions": 0, "scopes": 0, "states cut off": 0}
    fine = True
    for scope in scopes:
        began = time.process_time()
        found = explore(scope, max_states=max_states)
        _report(scope, found)
        executions = f"{found.executions:,}" if found.executions < 10**6 else f"{found.executions:.1e}"
        cut = f"{found.cut:,} at {found.cut_depth}" if found.cut else "0"
        seconds = f"{time.process_time() - began:.1f}"
        console.print(
            _ROW.format(
                scope.name, f"{found.states:,}", f"{found.transitions:,}", executions, found.depth, found.contents, cut, seconds
            )
        )
        fine &= not found.violation and not found.cut
        total = {
            "scopes": total["scopes"] + 1,
            "states": total["states"] + found.states,
            "transitions": total["transitions"] + found.transitions,
            "states cut off": total["states cut off"] + found.cut,
        }
        if counts:
            counts.write_text(json.dumps(total))
    return fine


def _report(scope: Scope, found: Explored) -> None:
    if not found.violation:
        return
    numbers = choices(scope, found.trace)
    _tell(scope, numbers, f"after {found.states:,} states")


def _walk(scopes: list[Scope], count: int, seed: int, counts: Path | None) -> bool:
    total = {"walks": 0, "steps": 0}
    fine = True
    for scope in scopes:
        done = walk(scope, count, Random(seed))
        total = {"walks": total["walks"] + done.walks, "steps": total["steps"] + done.steps}
        print(f"{scope.name}: {done.walks:,} walks, {done.steps:,} steps")
        if done.violation:
            fine = False
            _tell(scope, done.choices, f"in walk {done.walks:,}")
        if counts:
            counts.write_text(json.dumps(total))
    return fine


def _tell(scope: Scope, numbers: list[int] | tuple[int, ...], where: str) -> None:
    print(f"\n{scope.name}: {scope.text} Violated {where}:")
    print(*lines(scope, numbers), sep="\n")
    again = ",".join(map(str, numbers))
    print(f"Again: PYTHONHASHSEED=0 python -m tests.exploration --scope {scope.name} --replay {again}\n")


def _list(console: Console) -> None:
    table = Table("scope", "what happens", "small", "full")
    for scope in SCOPES.values():
        table.add_row(scope.name, scope.text, "x" if scope in SMALL else "", "x" if scope in FULL else "")
    console.print(table)


if __name__ == "__main__":
    main()
