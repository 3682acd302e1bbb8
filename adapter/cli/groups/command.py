"""The commands `groups`: list, describe, clone, broadcast, handover. The work is in `show`, `offsets.change`.

Exit codes: 0 done, or a dry run that found no problem; 1 done, but not everything is as requested; 2 an error: nothing counts as
done that was not reported as done.
"""

from typing import Literal

import click

from adapter.cli import completing, options, watch
from adapter.cli.columns import Asked
from adapter.cli.connection import Target, run, run_or_exit
from adapter.cli.groups import show
from adapter.cli.groups.broadcast import broadcast
from adapter.cli.groups.handover import handover
from adapter.cli.groups.show import Selection, View
from adapter.cli.offsets import change as offsets_change
from adapter.cli.offsets.change import ChangeOptions, Shards
from adapter.cli.output import Form
from adapter.errors import InvalidInputError
from adapter.model.records import GroupKey


@click.group()
def groups() -> None:
    """Consumer groups: list, describe, clone, hand over."""


groups.add_command(broadcast)
groups.add_command(handover)


@groups.command("list", cls=watch.WatchCommand)
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=completing.group)
@options.only_namespace
@options.topics
@watch.option
@options.target
@options.columns
@options.form
def list_command(
    patterns: tuple[str, ...],
    namespace: str,
    topics: tuple[str, ...],
    target: Target,
    form: Form,
    columns: Asked,
    every_s: float | None,
) -> None:
    """List the groups that have offsets in this adapter: all, or those whose name matches a PATTERN ('orders-*').

    With --topic, those that have an offset of that topic.
    """
    wanted = Selection(namespace, patterns, topics)
    watch.look(lambda: run(show.list_groups, target, wanted, View(form, columns)), every_s)


@groups.command(cls=watch.WatchCommand)
@click.argument("names", metavar="GROUP...", nargs=-1, shell_complete=completing.group)
@click.option("--all-groups", is_flag=True, help="Every group of the namespace that has offsets in this adapter.")
@options.topics
@click.option("--shard", "shards", multiple=True, metavar="PATTERN", help="Only shards that this pattern matches. Repeatable.")
@click.option("--state", "part", flag_value="state", help="A line for each group: its status, sums and mode.")
@click.option("--members", "part", flag_value="members", help="A line for each group: who committed last.")
@options.namespace
@watch.option
@options.target
@options.columns
@options.form
def describe(
    names: tuple[str, ...],
    topics: tuple[str, ...],
    shards: tuple[str, ...],
    part: Literal["state", "members"] | None,
    namespace: str,
    target: Target,
    form: Form,
    columns: Asked,
    every_s: float | None,
    *,
    all_groups: bool,
) -> None:
    """Show every shard of a group: its offset here, the shard's end offset, the lag; with --wide also the Meta Service's.

    GROUP is a name, or a pattern: 'orders-*'.

    States: clean (the Meta Service has the local offset), dirty (not yet), behind (the Meta Service has a larger one, or
    none is stored here), ahead (the Meta Service has less than it acknowledged), deleted.

    Exit code 1 when a group has no offsets or too many, or the Meta Service did not answer.
    """
    if bool(names) is all_groups:
        raise InvalidInputError("name at least one GROUP, or give --all-groups")
    wanted = Selection(namespace, names, topics, shards)
    watch.look(lambda: run(show.describe, target, wanted, View(form, columns, part or "shards")), every_s)


@groups.command()
@click.argument("from_group", metavar="FROM", shell_complete=completing.group)
@click.argument("to_group", metavar="TO", shell_complete=completing.group)
@options.shards
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
