"""The command `groups handover`: groups leave this adapter, for another one that reads them from the Meta Service."""

from collections.abc import Sequence
from typing import Any

import click
import grpc
import grpc.aio

from adapter.cli import completing, options
from adapter.cli.connection import Target, connected, run_or_exit
from adapter.cli.names import matcher
from adapter.cli.offsets.reading import TIMEOUT_S, groups_of
from adapter.cli.output import TABLE, Form, listing, note, progress, warn
from adapter.cli.table import LEFT, RIGHT, Side
from adapter.client.client import OffsetClient
from adapter.errors import InvalidInputError
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

_COLUMNS: dict[str, Side] = {"namespace": LEFT, "group": LEFT, "offsets": RIGHT, "error": LEFT}
FIELDS = tuple(_COLUMNS)


@click.command()
@click.argument("names", metavar="GROUP...", nargs=-1, shell_complete=completing.group)
@click.option("--all-groups", is_flag=True, help="Every group of the namespace that has offsets in this adapter.")
@options.namespace
@options.target
@options.form
def handover(names: tuple[str, ...], namespace: str, target: Target, form: Form, *, all_groups: bool) -> None:
    """Hand groups over: the Meta Service gets all their offsets, and this adapter forgets them.

    Another adapter then reads them from there. GROUP is a name, or a pattern: 'orders-*'. Let the consumers stop first, or go on
    elsewhere: a group that is being committed stays. Before a broker goes for good, `drain` does it with all of them.

    Exit code 1 when a name has no group here, or a group stays: nothing is lost by that, and the command can be repeated.
    """
    if bool(names) is all_groups:
        raise InvalidInputError("name at least one GROUP, or give --all-groups")
    run_or_exit(_handover, target, namespace, names, form)


async def _handover(target: Target, namespace: str, names: Sequence[str], form: Form) -> bool:
    """True if there is a group for each name, and all are handed over."""
    takes, count = matcher(names), 0
    async with connected(target) as client:
        groups = [GroupKey(row.namespace, row.group) async for row in groups_of(client, namespace) if takes(row.group)]
        with listing(form, _COLUMNS, _cells, FIELDS, dict) as rows, progress("handing over", len(groups)) as advance:
            for group in groups:
                row = await hand_over(client, group)
                count += "error" not in row
                rows.add(row)
                advance(1)
    if form == TABLE:
        stay = len(groups) - count
        note(f"{counted(count, 'group')} handed over" + (f"; {stay:,} stayed: stop its consumers, and repeat it" if stay else ""))
    absent = [name for name in names if not any(map(matcher([name]), (group.group for group in groups)))]
    for name in absent:
        warn(f"no group {name!r} is here; `groups list` shows those that are")
    if not names and not groups:
        warn("no group is here")
    return bool(groups) and not absent and count == len(groups)


async def hand_over(client: OffsetClient, group: GroupKey) -> dict[str, Any]:
    """Hand a group over; a row of FIELDS, with an `error` if it stays because it is being committed. Raises AioRpcError."""
    row: dict[str, Any] = group._asdict()
    request = offsets_pb.RemoveOffsetsRequest(groups=[offsets_pb.GroupShards(**row)])
    try:
        return {**row, "offsets": (await client.store.RemoveOffsets(request, timeout=TIMEOUT_S)).removed}
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ABORTED:  # as while the Meta Service is away: the others would be, too
            raise
        return {**row, "offsets": 0, "error": error.details()}


def _cells(row: dict[str, Any]) -> Sequence[str]:
    return row["namespace"], row["group"], str(row["offsets"]), row.get("error", "")
