"""The command `offsets history`: who moved which offsets, and where to."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

import click

from adapter.cli import completing, options
from adapter.cli.columns import Asked, Chosen, Columns
from adapter.cli.connection import CallError, Target, connected, run
from adapter.cli.offsets.older import MEMORY, Found, in_journal, in_log, merged
from adapter.cli.offsets.reading import TIMEOUT_S, position_text
from adapter.cli.output import TABLE, Form, as_dict, fields_of, listing, note, warn, when
from adapter.cli.table import LEFT, RIGHT, Rows, Side
from adapter.model.records import DEFAULT_NAMESPACE, U64_MAX
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

ListChangesRequest = offsets_pb.ListChangesRequest

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
    "known-from": LEFT,
}
FIELDS = [*fields_of(offsets_pb.ListChangesReply.Change), "source", "broker"]


class Moved(NamedTuple):
    """A change, and one of its shards; None: it told none."""

    found: Found
    row: offsets_pb.ChangeReply.Row | None


@click.command()
@click.argument("group", default="", shell_complete=completing.group)
@options.only_namespace
@click.option(
    "--limit", type=click.IntRange(1, MAX_CHANGES), default=100, show_default=True, help="At most so many changes, the newest."
)
@click.option(
    "--log",
    type=click.File(encoding="utf-8", errors="replace", lazy=False),
    metavar="FILE",
    help="Also what the adapter's log has; - is standard input.",
)
@click.option("--journal", metavar="DIR", help="Also what a journal has: [journal] path of the adapter, or a copy.")
@options.target
@options.columns
@options.form
def history(
    group: str,
    namespace: str,
    limit: int,
    log: TextIO | None,
    journal: str | None,
    target: Target,
    columns: Asked,
    form: Form,
) -> None:
    r"""Show who moved offsets on purpose, and where to: resets, deletes, clones, imports, rewinds, expiries. The newest first.

    Of GROUP, or of all groups. The adapter remembers its newest changes until it stops; a line below the table says since when
    they are complete. Earlier ones are in its log, as events admin.call, which say who, and in its journal, with rewinds and
    expiries: --log and --journal read them, also while the adapter is away. Each line says where it is from.

    \b
    journalctl --unit offset-adapter --output cat | offset-adapter offsets history my-group --log -
    """
    shown = Columns(_COLUMNS, len(_COLUMNS), ("known-from", "namespace", *(["group"] if group else ()))).chosen(columns)
    wanted = ListChangesRequest(namespace=(namespace or DEFAULT_NAMESPACE) if group else namespace, group=group, limit=limit)
    run(_history, target, wanted, shown, form, log=log, journal=journal)


async def _history(
    target: Target, wanted: ListChangesRequest, shown: Chosen, form: Form, *, log: TextIO | None, journal: str | None
) -> None:
    found = [*in_log(log, wanted.namespace, wanted.group)] if log else []
    found += in_journal(journal, wanted.namespace, wanted.group) if journal else ()
    reply, broker = offsets_pb.ListChangesReply(since_ms=U64_MAX), ""
    try:
        async with connected(target) as client:
            reply = await client.admin.ListChanges(wanted, timeout=TIMEOUT_S)
            if journal:
                broker = (await client.admin.Status(offsets_pb.StatusRequest(), timeout=TIMEOUT_S)).store.broker
    except CallError as error:
        if not (log or journal):
            raise
        warn(f"{error}; what it remembers is missing here")
    every = merged([*found, *(Found(change, MEMORY) for change in reply.changes)], reply.since_ms, broker)[: wanted.limit]
    if form != TABLE:
        changes: Rows[Found] = listing(form, {}, lambda _: (), FIELDS, _values)
        with changes:
            for one in every:
                changes.add(one)
        return
    with listing(form, shown, _cells, []) as rows:
        for one in every:
            for row in one.change.rows or [None]:
                rows.add(Moved(one, row))
    if reply.since_ms != U64_MAX:
        since = when(reply.since_ms)
        others = " and ".join(name for name, asked in (("log", log), ("journal", journal)) if not asked)
        note(
            f"{counted(len(every), 'change')}; all since {since} are remembered"
            + (f", earlier ones are in the adapter's {others}" if others else "")
        )


def _values(found: Found) -> dict[str, Any]:
    return {**as_dict(found.change), "source": found.source, "broker": found.broker}


def _cells(moved: Moved) -> Sequence[str]:
    (change, source, broker), row = moved
    shard, before, after = "", "", ""
    if row is not None:
        before = position_text(row.before if row.HasField("before") else None)
        after = position_text(row.after if row.HasField("after") else None)
        more = change.shards - len(change.rows)
        shard = row.shard + (f" (and {more:,} more)" if more > 0 and row is change.rows[-1] else "")
    who = change.who + (f" ({change.claimed})" if change.claimed else "")
    known_from = f"{source} of {broker}" if broker else source
    return when(change.at_ms), change.kind, change.namespace, change.group, shard, before, after, who, known_from
