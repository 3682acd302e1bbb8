"""The command `groups broadcast`: the lowest offset among the clients of a broadcasting group. Read-only."""

import click

from adapter.cli import options, watch
from adapter.cli.connection import Target, connected, run
from adapter.cli.output import TABLE, Form, as_dict, listing, note
from adapter.cli.table import LEFT, RIGHT, Side
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

FIELDS = ("shard", "lowest", "lowest_client", "clients")


@click.command(cls=watch.WatchCommand)
@options.group
@options.shards
@options.namespace
@watch.option
@options.target_without_token
@options.form
def broadcast(group: str, shards: tuple[str, ...], namespace: str, target: Target, form: Form, every_s: float | None) -> None:
    """Show the lowest offset among the live clients of a broadcasting GROUP: in all of its shards, or in those named.

    Without a live client it is the lowest offset known last. Exit code 1 when a shard, or the group, has none.
    """
    watch.look(lambda: run(_show, target, namespace, group, shards, form), every_s)


async def _show(target: Target, namespace: str, group: str, shards: tuple[str, ...], form: Form) -> bool:
    async with connected(target) as client:
        found = await client.read_broadcast(group, shards, namespace=namespace)
    columns: dict[str, Side] = {"shard": LEFT, "lowest": RIGHT, "client": LEFT, "live clients": RIGHT}
    with listing(form, columns, _cells, FIELDS, _values) as rows:
        for row in found.values():
            rows.add(row)
    if form == TABLE:
        note(counted(len(found), "shard"))
    return bool(found) and all(row.HasField("lowest") for row in found.values())


def _values(row: offsets_pb.BroadcastOffset) -> dict[str, object]:
    """The reply without its field `own`, which is the offset of a client that asks for itself."""
    values = as_dict(row)
    return {name: values.get(name) for name in FIELDS}


def _cells(row: offsets_pb.BroadcastOffset) -> list[str]:
    return [row.shard, str(row.lowest) if row.HasField("lowest") else "-", row.lowest_client or "-", str(row.clients)]
