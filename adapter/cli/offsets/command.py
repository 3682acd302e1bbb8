"""The commands `offset-adapter offsets`: reset, delete, history. They check the options; `change` does the work.

Exit codes: those of `groups`.
"""

import time

import click

from adapter.cli import completing, options
from adapter.cli.connection import Target, run_or_exit
from adapter.cli.offsets import change as offsets_change
from adapter.cli.offsets import shift as offsets_shift
from adapter.cli.offsets.change import ChangeOptions, Shards
from adapter.cli.offsets.history import history
from adapter.errors import InvalidInputError
from adapter.model.records import GroupKey
from adapter.runtime.durable import files
from adapter.runtime.times import before_ms, datetime_ms

SHIFT_MAX = 2**63 - 1  # of a sint64
DESTINATIONS = "--to-offset, --to-earliest, --to-latest, --to-current, --shift-by, --to-datetime, --by-duration, --from-file"


_group_and_shards = click.argument("names", metavar="[GROUP] [SHARD]...", nargs=-1, shell_complete=completing.group_then_shards)


@click.group()
def offsets() -> None:
    """Offsets of groups: reset, delete, and what was moved."""


offsets.add_command(history)


@offsets.command()
@_group_and_shards
@click.option("--all-groups", is_flag=True, help="Every group of the namespace that has such offsets in this adapter.")
@options.topics
@click.option("--to-offset", metavar="N", help="To this offset.")
@click.option("--to-earliest", is_flag=True, default=None, help="To the first message of each shard.")
@click.option("--to-latest", is_flag=True, default=None, help="To the end of each shard (the offset of the next message).")
@click.option("--to-current", is_flag=True, default=None, help="To the current offset, moved only if it is outside the shard.")
@click.option("--shift-by", metavar="N", help="Forward by N messages, or back if N is negative.")
@click.option(
    "--to-datetime", metavar="TIME", help="To the first message since TIME: YYYY-MM-DDTHH:mm:SS.sss[+hh:mm], UTC without a zone."
)
@click.option("--by-duration", metavar="PnDTnHnMnS", help="To the first message since that long ago: P7D, PT12H, P1DT2H30M5S.")
@click.option("--from-file", metavar="FILE", help="CSV as kafka-consumer-groups writes it, or .json; - is standard input.")
@click.option("--export", default="", metavar="FILE", help="Save the plan for --from-file, also in a dry run: CSV, or .json.")
@click.option(
    "--create",
    is_flag=True,
    help="Also create offsets of named shards that have none. Without this they are refused, as typing errors.",
)
@options.accept_unterminated
@options.execute
@options.namespace
@options.target
@options.as_json
def reset(
    names: tuple[str, ...],
    topics: tuple[str, ...],
    namespace: str,
    target: Target,
    *,
    all_groups: bool,
    export: str,
    create: bool,
    accept_unterminated: bool,
    execute: bool,
    as_json: bool,
    **to: str | bool | None,
) -> None:
    """Move the offsets of GROUP: of all its shards, or of those named. A dry run unless --execute.

    With --all-groups, the names are those of shards, and a --from-file has the groups in its first column.

    A commit made before the reset cannot undo it. Stop the group's consumers first: a commit made after it counts.

    Exit code 1 when an offset could not be moved as requested.
    """
    given = {name: value for name, value in to.items() if value is not None}
    if len(given) != 1:
        raise InvalidInputError(f"name exactly one of {DESTINATIONS}")
    if export == files.STDIO:
        raise InvalidInputError("--export: name a file; --json prints the plan")
    group, *shards = ["", *names] if all_groups else names or [""]
    if not group and not all_groups:
        raise InvalidInputError("name the GROUP, or give --all-groups")
    if all_groups and create:
        raise InvalidInputError("--create: name the GROUP; --all-groups is for offsets that are there")
    ((where, value),) = given.items()
    if accept_unterminated and where != "from_file":
        raise InvalidInputError("--accept-unterminated: is for --from-file")
    key, change = GroupKey(namespace, group), ChangeOptions(execute, as_json, export, create=create, every_group=all_groups)
    if where == "from_file":
        if shards or topics:
            raise InvalidInputError("--from-file: the file names the shards; name none on the command line")
        from adapter.formats import reset_plan_file  # noqa: PLC0415 - the formats of files bring RocksDB

        plan = reset_plan_file.read(str(value), key)
        if plan.cut:
            options.check_unterminated(plan.cut, execute=execute, accepted=accept_unterminated)
        run_or_exit(offsets_change.reset_to_rows, target, plan.rows, change)
    else:
        destination = _destination(where, value)
        if where == "shift_by":
            run_or_exit(offsets_shift.shift, target, key, Shards(shards, topics), destination[where], change)
        else:
            run_or_exit(offsets_change.reset, target, key, Shards(shards, topics), destination, change)


@offsets.command()
@_group_and_shards
@click.option("--all-groups", is_flag=True, help="Delete the named shards of every group: for shards that were created anew.")
@options.topics
@options.execute
@options.namespace
@options.target
@options.as_json
def delete(
    names: tuple[str, ...],
    topics: tuple[str, ...],
    namespace: str,
    target: Target,
    *,
    all_groups: bool,
    execute: bool,
    as_json: bool,
) -> None:
    """Delete the offsets of a group: of all its shards, or of those named. A dry run unless --execute.

    A commit made before the deletion cannot bring them back. Exit code 1 when a named shard had no offset.
    """
    if not names:
        raise InvalidInputError("name the shards" if all_groups else "name the group, or give --all-groups and the shards")
    if all_groups and topics:
        raise InvalidInputError("--topic: --all-groups wants the shards by their names")
    group, *shards = ["", *names] if all_groups else names
    if not group and not all_groups:
        raise InvalidInputError("GROUP is empty; --all-groups is for every group")
    run_or_exit(
        offsets_change.delete, target, GroupKey(namespace, group), Shards(shards, topics), ChangeOptions(execute, as_json)
    )


def _destination(where: str, value: object) -> dict[str, int | bool]:
    """The destination as a field of `ResetOffsetsRequest`. Raises InvalidInputError."""
    if not isinstance(value, str):
        return {where: True}
    if where == "to_offset":
        return {where: options.parse_offset(value, "--to-offset")}
    if where == "shift_by":
        return {where: _shift(value)}
    if where == "to_datetime":
        return {"to_timestamp_ms": datetime_ms(value, "--to-datetime")}
    return {"to_timestamp_ms": before_ms(value, time.time_ns() // 1_000_000, "--by-duration")}


def _shift(text: str) -> int:
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > len(str(SHIFT_MAX)) or int(digits) > SHIFT_MAX:
        raise InvalidInputError(f"--shift-by: {text!r} is not a whole number from -{SHIFT_MAX} to {SHIFT_MAX}")
    return int(text)
