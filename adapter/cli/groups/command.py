"""The commands `groups`: list, describe, clone, broadcast. The work is in `show`, `offsets.change`.

Exit codes: 0 done, or a dry run that found no problem; 1 done, but not everything is as requested; 2 an error: nothing counts as
done that was not reported as done.
"""

import re

import click

from adapter.cli import options, watch
from adapter.cli.connection import Target, run, run_or_exit
from adapter.cli.groups import show
from adapter.cli.groups.broadcast import broadcast
from adapter.cli.groups.show import Selection
from adapter.cli.offsets import change as offsets_change
from adapter.cli.offsets.change import ChangeOptions, Shards
from adapter.cli.output import Form
from adapter.errors import InvalidInputError
from adapter.model.records import GroupKey


@click.group()
def groups() -> None:
    """Consumer groups: list, describe, clone."""


groups.add_command(broadcast)


_regex = click.option(
    "--regex", metavar="PATTERN", help="Only groups whose whole name matches this regular expression of Python."
)


@groups.command("list", cls=watch.WatchCommand)
@click.option("--namespace", "-n", default="", help="Only this namespace.")
@_regex
@watch.option
@options.target
@options.form
def list_command(namespace: str, regex: str | None, target: Target, form: Form, every_s: float | None) -> None:
    """List the groups that have offsets in this adapter."""
    wanted = Selection(namespace, pattern=_compiled(regex))
    watch.look(lambda: run(show.list_groups, target, wanted, form), every_s)


@groups.command(cls=watch.WatchCommand)
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="Every group of the namespace that has offsets in this adapter.")
@_regex
@options.namespace
@watch.option
@options.target
@options.form
def describe(
    names: tuple[str, ...],
    regex: str | None,
    namespace: str,
    target: Target,
    form: Form,
    every_s: float | None,
    *,
    all_groups: bool,
) -> None:
    """Show every shard of a group: its offset here and in the Meta Service, the shard's first and end offset, the lag.

    States: clean (the Meta Service has the local offset), dirty (not yet), behind (the Meta Service has a larger one, or
    none is stored here), ahead (the Meta Service has less than it acknowledged), deleted.

    Exit code 1 when a group has no offsets or too many, or the Meta Service did not answer.
    """
    if sum((bool(names), all_groups, regex is not None)) != 1:
        raise InvalidInputError("name at least one GROUP, or give --all-groups or --regex")
    wanted = Selection(namespace, names, _compiled(regex))
    watch.look(lambda: run(show.describe, target, wanted, form), every_s)


@groups.command()
@click.argument("from_group", metavar="FROM")
@click.argument("to_group", metavar="TO")
@click.argument("shards", nargs=-1)
@options.topics
@options.execute
@options.namespace
@options.target
@options.as_json
def clone(
    from_group: str,
    to_group: str,
    shards: tuple[str, ...],
    topics: tuple[str, ...],
    namespace: str,
    target: Target,
    *,
    execute: bool,
    as_json: bool,
) -> None:
    """Give group TO the offsets of group FROM: of all its shards, or of those named. A dry run unless --execute.

    Exit code 1 when an offset could not be changed as requested.
    """
    run_or_exit(
        offsets_change.clone,
        target,
        GroupKey(namespace, from_group),
        to_group,
        Shards(shards, topics),
        ChangeOptions(execute, as_json),
    )


def _compiled(regex: str | None) -> re.Pattern[str] | None:
    try:
        return None if regex is None else re.compile(regex)
    except re.error as error:
        raise InvalidInputError(f"--regex: {regex!r} is not a regular expression: {error}") from error
