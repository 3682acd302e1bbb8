"""The commands `get` (the offsets of one group) and `list` (all local offsets, or those of the Meta Service)."""

from collections.abc import Sequence

import click
import grpc.aio

from adapter.cli import completing, options
from adapter.cli.connection import Target, connected, not_by_meta, run, run_or_exit
from adapter.cli.output import TABLE, Form, fields_of, listing, note, when
from adapter.cli.table import LEFT, RIGHT, Rows, Side
from adapter.model.records import ReadMode, epoch_text
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

MODES = {"memory-first": ReadMode.MEMORY_FIRST_THEN_STORE, "memory": ReadMode.MEMORY, "store": ReadMode.STORE}

_COLUMNS: dict[str, Side] = {
    "namespace": LEFT,
    "group": LEFT,
    "shard": LEFT,
    "offset": RIGHT,
    "epoch": RIGHT,
    "committed": LEFT,
    "state": LEFT,
    "metadata": LEFT,
}


@click.command()
@options.group
@options.shards
@options.namespace
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default="memory-first",
    show_default=True,
    help="memory: local only. store: ask the Meta Service. memory-first: ask it for what is not local.",
)
@options.target_without_token
@options.form
def get(group: str, shards: tuple[str, ...], namespace: str, mode: str, target: Target, form: Form) -> None:
    """Show a group's offsets. Exit code 1 when a named shard has none."""
    run_or_exit(_get, target, namespace, group, shards, mode, form)


@click.command("list", cls=options.MetaCommand)
@options.only_namespace
@click.option("--group", "-g", default="", shell_complete=completing.group, help="Only this group; needs --namespace.")
@options.meta_instead
@options.cluster
@options.target
@options.form
def list_command(namespace: str, group: str, meta: str | None, cluster: str, target: Target, form: Form) -> None:
    """List the adapter's local offsets, or the Meta Service's."""
    listed = offsets_listing(form)
    if meta is not None:
        from adapter.cli.meta.listing import list_meta  # noqa: PLC0415 - ten times as slow to import as the rest

        run(list_meta, target, cluster, namespace, group, listed)
    else:
        run(_list, target, namespace, group, listed)
    if form == TABLE:
        note(counted(listed.count, "offset"))


async def _get(target: Target, namespace: str, group: str, shards: Sequence[str], mode: str, form: Form) -> bool:
    """Print the offsets of a group; True if every named shard has one."""
    async with connected(target) as client:
        try:
            found = await client.read(group, shards, namespace=namespace, mode=MODES[mode], keep_hold=True)
        except grpc.aio.AioRpcError as error:
            if mode != "memory" and not_by_meta(error):
                note("--mode memory shows what is at the adapter, without the Meta Service")
            raise
        absent = ""
        if not found and form == TABLE:
            from adapter.cli.offsets.reading import perhaps_meant  # noqa: PLC0415 - takes as long as the rest of this module

            absent = await perhaps_meant(client, namespace, group)
    with offsets_listing(form) as rows:
        for row in found.values():
            rows.add(row)
    if form == TABLE:
        note(counted(rows.count, "offset") + absent)
    return bool(found) and all(shard in found for shard in shards)


async def _list(target: Target, namespace: str, group: str, listed: Rows[offsets_pb.ShardOffset]) -> None:
    async with connected(target) as client:
        with listed as rows:
            async for row in client.list(namespace, group):
                rows.add(row)


def offsets_listing(form: Form) -> Rows[offsets_pb.ShardOffset]:
    """A printer of offsets."""
    return listing(form, _COLUMNS, _cells, fields_of(offsets_pb.ShardOffset))


def _cells(row: offsets_pb.ShardOffset) -> Sequence[str]:
    return (
        row.namespace,
        row.group,
        row.shard,
        str(row.offset),
        epoch_text(row.epoch),
        when(row.committed_at_ms),
        ("dirty" if row.dirty else "clean") + (", held" if row.held else "") + (", not compared" if row.uncompared else ""),
        row.metadata,
    )
