"""The command `offsets history`: who moved which offsets, and where to."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click

from adapter.cli import completing, options
from adapter.cli.connection import Target, connected, run
from adapter.cli.offsets.reading import TIMEOUT_S, position_text
from adapter.cli.output import TABLE, Form, fields_of, listing, note, when
from adapter.cli.table import LEFT, RIGHT, Rows, Side
from adapter.model.records import DEFAULT_NAMESPACE
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

MAX_CHANGES = 1_000  # of ListChanges

_COLUMNS: dict[str, Side] = {
    "when": LEFT,
    "what": LEFT,
    "namespace": LEFT,
    "group": LEFT,
    "shard": LEFT,
    "before": RIGHT,
    "after": RIGHT,
    "who": LEFT,
}
FIELDS = fields_of(offsets_pb.ListChangesReply.Change)


class Moved(NamedTuple):
    """A change, and one of its shards; None: it told none."""

    change: offsets_pb.ListChangesReply.Change
    row: offsets_pb.ChangeReply.Row | None


@click.command()
@click.argument("group", default="", shell_complete=completing.group)
@options.only_namespace
@click.option(
    "--limit", type=click.IntRange(1, MAX_CHANGES), default=100, show_default=True, help="At most so many changes, the newest."
)
@options.target
@options.form
def history(group: str, namespace: str, limit: int, target: Target, form: Form) -> None:
    """Show who moved offsets on purpose, and where to: resets, deletes, clones, imports, rewinds, expiries. The newest first.

    Of GROUP, or of all groups. The adapter remembers its newest changes until it stops; a line below the table says since when
    they are complete. Earlier ones are in its log, as events admin.call, and every change is in the journal.
    """
    run(_history, target, (namespace or DEFAULT_NAMESPACE) if group else namespace, group, limit, form)


async def _history(target: Target, namespace: str, group: str, limit: int, form: Form) -> None:
    async with connected(target) as client:
        request = offsets_pb.ListChangesRequest(namespace=namespace, group=group, limit=limit)
        reply = await client.admin.ListChanges(request, timeout=TIMEOUT_S)
    if form == TABLE:
        with listing(form, _COLUMNS, _cells, []) as rows:
            for moved in _rows(reply.changes):
                rows.add(moved)
        since = when(reply.since_ms)
        note(f"{counted(len(reply.changes), 'change')}; all since {since} are remembered, earlier ones are in the adapter's log")
    else:
        changes: Rows[offsets_pb.ListChangesReply.Change] = listing(form, {}, lambda _: (), FIELDS)
        with changes:
            for change in reply.changes:
                changes.add(change)


def _rows(changes: Sequence[offsets_pb.ListChangesReply.Change]) -> Iterator[Moved]:
    for change in changes:
        for row in change.rows:
            yield Moved(change, row)
        if not change.rows:
            yield Moved(change, None)


def _cells(moved: Moved) -> Sequence[str]:
    change, row = moved
    shard, before, after = "", "", ""
    if row is not None:
        before = position_text(row.before if row.HasField("before") else None)
        after = position_text(row.after if row.HasField("after") else None)
        more = change.shards - len(change.rows)
        shard = row.shard + (f" (and {more:,} more)" if more > 0 and row is change.rows[-1] else "")
    who = change.who + (f" ({change.claimed})" if change.claimed else "")
    return when(change.at_ms), change.kind, change.namespace, change.group, shard, before, after, who
