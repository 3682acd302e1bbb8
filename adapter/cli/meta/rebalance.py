"""The command `meta rebalance`: prints the plan, asks, shows progress. The keys are moved by `metaservice.etcd.rebalancing`."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from adapter.cli import options
from adapter.cli.output import tell, warn
from adapter.cli.table import print_json
from adapter.errors import AdapterError, InvalidInputError, TransientError
from adapter.metaservice.config import EtcdSection, MetaConfig
from adapter.metaservice.etcd.rebalancing import Plan, opened
from adapter.runtime.process import on_signals
from adapter.runtime.settings.config import LogSection, load
from adapter.runtime.telemetry import logs
from adapter.runtime.wording import counted


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The TOML file of a Meta Service on etcd.",
)
@click.option("--without", multiple=True, metavar="NAME", help="Empty this Raft group, so that it can be removed. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Only print what would be moved.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.as_json
def rebalance(config: Path, without: tuple[str, ...], *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Move the offsets into the configured Raft groups while the Meta Services keep serving.

    Every Meta Service must have the new configuration already. Exit code 1 when it was stopped before the end: run it again.
    """
    logs.setup(LogSection(level="warning"))
    section = load(config, MetaConfig).etcd
    groups = _target(section, without)
    try:
        plan = anyio.run(_plan, section, groups)
        finished = not plan.needed
        if not as_json:
            tell(_sentence(plan))
        if plan.needed and not dry_run:
            if not yes:
                click.confirm("Go on?", abort=True, err=True)
            finished = anyio.run(_run, section, groups)
    except TransientError as error:
        warn(str(error))
        warn("not finished: the Meta Services keep serving; run the same command again to continue")
        sys.exit(1)
    if as_json:
        print_json(_as_dict(plan, finished=finished))
    elif plan.needed and not dry_run:
        tell(
            f"the offsets are in {_names(groups)}"
            if finished
            else "stopped: the Meta Services keep serving; run the same command again to continue"
        )
    sys.exit(0 if finished or dry_run else 1)


def _target(section: EtcdSection, without: Sequence[str]) -> list[str]:
    configured = [group.name for group in section.offsets]
    unknown = sorted({*without} - {*configured})
    if unknown:
        raise InvalidInputError(f"--without {unknown[0]}: there is no such [[etcd.offsets]]; there are {_names(configured)}")
    return [name for name in configured if name not in without]


async def _plan(section: EtcdSection, groups: Sequence[str]) -> Plan:
    async with opened(section) as rebalancer:
        return await rebalancer.plan(groups)


async def _run(section: EtcdSection, groups: Sequence[str]) -> bool:
    """Rebalance; False if a signal ended it early."""
    finished = False
    failure: AdapterError | None = None
    with _progress() as bar:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(on_signals, tasks.cancel_scope.cancel, name="signals")
            try:
                async with opened(section) as rebalancer:
                    await rebalancer.run(groups, bar)
                    finished = True
            except AdapterError as error:  # raised below, outside of the task group, which would wrap it
                failure = error
            tasks.cancel_scope.cancel()
    if failure:
        raise failure
    return finished


class _Bar:
    """A watcher of the rebalancer that shows one progress bar for each step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def step(self, what: str, keys: int) -> None:
        """Begin a step; `keys` is the expected number of keys."""
        self._task = self._progress.add_task(what, total=keys)

    def looked(self, keys: int) -> None:
        """Advance the bar by this many keys."""
        if self._task is not None:
            self._progress.advance(self._task, keys)


@contextmanager
def _progress() -> Iterator[_Bar]:
    """Progress bars on standard error, if it is a terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("keys"), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Bar(progress)


def _sentence(plan: Plan) -> str:
    before, after = plan.layout, plan.following
    if not plan.needed:
        return f"the offsets are in {_names(after.groups)}; nothing to do"
    if before.settled:
        return (
            f"{_names(before.groups)} -> {_names(after.groups)}: about {counted(plan.moving, 'key')} to move, of {plan.keys:,} "
            f"in {_names(after.losing)}"
        )
    if before.moving_from:
        return f"on the way to {_names(after.groups)}: about {counted(plan.moving, 'key')} still to be copied"
    return f"the offsets are at home in {_names(after.groups)}; about {counted(plan.moving, 'old key')} still to be deleted"


def _as_dict(plan: Plan, *, finished: bool) -> dict[str, Any]:
    before, after = plan.layout, plan.following
    return {
        "from": list(before.moving_from or before.groups),
        "to": list(after.groups),
        "state": "settled" if before.settled else "copying" if before.moving_from else "deleting",
        "keys": plan.keys,
        "moving": plan.moving,
        "finished": finished,
    }


def _names(names: Sequence[str]) -> str:
    return ", ".join(sorted(names))
