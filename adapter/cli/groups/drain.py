"""The command `drain`: every group leaves this adapter, before its broker goes for good."""

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from adapter.cli import options
from adapter.cli.connection import Target, connected, run
from adapter.cli.groups.handover import hand_over
from adapter.cli.offsets.reading import TIMEOUT_S, groups_of
from adapter.cli.output import TABLE, Form, listing, note, progress
from adapter.cli.table import LEFT, RIGHT, Side
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

PAUSE_S = 1.0  # between two looks; a group that came back in between is handed over again
_MOST_NAMED = 5
_COLUMNS: dict[str, Side] = {"namespace": LEFT, "group": LEFT, "offsets": RIGHT}
FIELDS = tuple(_COLUMNS)


@click.command()
@options.target
@options.form
def drain(target: Target, form: Form) -> None:
    """Hand over every group of the adapter, and go on until none is left: before its broker goes for good.

    As `groups handover`, of all namespaces, and of groups that come meanwhile as well. A group that is being committed is named,
    and stays until its consumers stop, or commit elsewhere. No commit is refused, which alone would send no consumer elsewhere:
    take the broker out of its cluster first.

    Exit code 0 when nothing is left here, and the Meta Service has all of it. After Ctrl-C or an error, what was not handed over
    is still here, and the command can be repeated.
    """
    run(_drain, target, form)


async def _drain(target: Target, form: Form) -> None:
    count, told = 0, ""
    async with connected(target) as client:
        with listing(form, _COLUMNS, _cells, FIELDS, dict) as rows:
            while groups := [GroupKey(row.namespace, row.group) async for row in groups_of(client, "")]:
                stay: list[GroupKey] = []
                with progress("handing over", len(groups)) as advance:
                    for group in groups:
                        row = await hand_over(client, group)
                        if "error" in row:
                            stay.append(group)
                        else:
                            rows.add(row)
                            count += 1
                        advance(1)
                if stay and (text := _named(stay)) != told:
                    note(text)
                    told = text
                await asyncio.sleep(PAUSE_S)
        await client.admin.Flush(offsets_pb.FlushRequest(), timeout=TIMEOUT_S)
    if form == TABLE:
        note(f"{counted(count, 'group')} handed over; nothing is left here, and the Meta Service has all of it")


def _cells(row: dict[str, Any]) -> Sequence[str]:
    return [str(row[name]) for name in _COLUMNS]


def _named(stay: Sequence[GroupKey]) -> str:
    names = ", ".join(f"{group.namespace}/{group.group}" for group in stay[:_MOST_NAMED])
    more = f" and {len(stay) - _MOST_NAMED:,} more" if len(stay) > _MOST_NAMED else ""
    return f"{counted(len(stay), 'group')} being committed: {names}{more}; waiting for the consumers to stop"
