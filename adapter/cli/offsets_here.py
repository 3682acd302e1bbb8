"""The commands on single offsets and on the adapter as a whole: status, get, commit, list, flush."""

import sys
from collections.abc import Sequence

import click

from adapter.cli import options
from adapter.cli.adapter_calls import Target, connected, counted, listing, run
from adapter.cli.output import as_dict, note, tell, when
from adapter.cli.status import status_rows
from adapter.cli.table import LEFT, RIGHT, Rows, Side, print_json, print_table
from adapter.model.records import CommitMode, ReadMode
from adapter.rpc import offsets_pb

MODES = {"memory-first": ReadMode.MEMORY_FIRST_THEN_STORE, "memory": ReadMode.MEMORY, "store": ReadMode.STORE}
COMMIT_TIMEOUT_S = 5.0

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
@options.target
@options.as_json
def status(target: Target, *, as_json: bool) -> None:
    """Show what the adapter does, and what is at risk. Exit code 1 unless it is serving."""
    if not run(_status, target, as_json):
        sys.exit(1)


@click.command()
@click.argument("group")
@click.argument("shards", nargs=-1)
@options.namespace
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default="memory-first",
    show_default=True,
    help="memory: local only. store: ask the Meta Service. memory-first: ask it for what is not local.",
)
@options.target_without_token
@options.as_json
def get(group: str, shards: tuple[str, ...], namespace: str, mode: str, target: Target, *, as_json: bool) -> None:
    """Show a group's offsets. Exit code 1 when a named shard has none."""
    if not run(_get, target, namespace, group, shards, mode, as_json):
        sys.exit(1)


@click.command()
@click.argument("group")
@click.argument("shard")
@click.argument("offset")
@options.namespace
@click.option("--overwrite", is_flag=True, help="A lower offset is a rewind, stored under the next epoch.")
@click.option("--metadata", default="", help="At most 4,096 bytes.")
@options.target_without_token
@options.as_json
def commit(
    group: str, shard: str, offset: str, namespace: str, metadata: str, target: Target, *, overwrite: bool, as_json: bool
) -> None:
    """Commit OFFSET, the next offset to read. Exit code 1 when a larger one stands."""
    item = offsets_pb.ShardCommit(shard=shard, offset=options.parse_offset(offset, "OFFSET"), metadata=metadata)
    mode = CommitMode.OVERWRITE if overwrite else CommitMode.INCREASE_ONLY
    request = offsets_pb.CommitOffsetsRequest(
        groups=[offsets_pb.GroupCommits(namespace=namespace, group=group, shards=[item])],
        mode=offsets_pb.CommitMode.ValueType(mode.value),
    )
    if not run(_commit, target, request, as_json):
        sys.exit(1)


@click.command("list")
@click.option("--namespace", "-n", default="", help="Only this namespace.")
@click.option("--group", "-g", default="", help="Only this group; needs --namespace.")
@click.option("--meta", "meta_address", default="", help="List what the Meta Service at host:port holds instead.")
@click.option("--cluster", default="default", show_default=True, help="With --meta: the cluster.")
@options.target
@options.as_json
def list_command(namespace: str, group: str, meta_address: str, cluster: str, target: Target, *, as_json: bool) -> None:
    """List the adapter's local offsets, or the Meta Service's."""
    listed = offsets_listing(as_json=as_json)
    if meta_address:
        from adapter.cli.meta_list import list_meta  # noqa: PLC0415 - the Meta Service's client is ten times as much to import

        run(list_meta, Target(meta_address, tls=target.tls), cluster, namespace, group, listed)
    else:
        run(_list, target, namespace, group, listed)
    if not as_json:
        note(counted(listed.count, "offset"))


@click.command()
@options.target
@options.as_json
def flush(target: Target, *, as_json: bool) -> None:
    """Send every dirty offset to the Meta Service now."""
    run(_flush, target, as_json)


def offsets_listing(*, as_json: bool) -> Rows[offsets_pb.ShardOffset]:
    """What rows of offsets go to."""
    return listing(_COLUMNS, _cells, as_json=as_json)


def _cells(row: offsets_pb.ShardOffset) -> Sequence[str]:
    return (
        row.namespace,
        row.group,
        row.shard,
        str(row.offset),
        str(row.epoch),
        when(row.committed_at_ms),
        "dirty" if row.dirty else "clean",
        row.metadata,
    )


async def _status(target: Target, as_json: bool) -> bool:
    """True when the adapter is serving."""
    async with connected(target) as client:
        reply = await client.status()
    if as_json:
        print_json(as_dict(reply))
    else:
        print_table({"status": LEFT, "value": LEFT}, status_rows(reply))
    return reply.state == offsets_pb.StatusReply.SERVING


async def _get(target: Target, namespace: str, group: str, shards: Sequence[str], mode: str, as_json: bool) -> bool:
    """True when every named shard has an offset."""
    async with connected(target) as client:
        found = await client.read(group, shards, namespace=namespace, mode=MODES[mode])
    with offsets_listing(as_json=as_json) as rows:
        for row in found.values():
            rows.add(row)
    if not as_json:
        note(counted(rows.count, "offset"))
    return bool(found) and all(shard in found for shard in shards)


async def _commit(target: Target, request: offsets_pb.CommitOffsetsRequest, as_json: bool) -> bool:
    """True when it stands."""
    async with connected(target) as client:
        reply = await client.store.CommitOffsets(request, timeout=COMMIT_TIMEOUT_S)
    if as_json:
        print_json(as_dict(reply))
    elif reply.superseded:
        row = reply.superseded[0]
        tell(f"not applied: {'a deletion' if row.deleted else row.offset} (epoch {row.epoch}) stands; --overwrite rewinds")
    else:
        tell("committed")
    return not reply.superseded


async def _list(target: Target, namespace: str, group: str, listed: Rows[offsets_pb.ShardOffset]) -> None:
    async with connected(target) as client:
        with listed as rows:
            async for row in client.list(namespace, group):
                rows.add(row)


async def _flush(target: Target, as_json: bool) -> None:
    async with connected(target) as client:
        flushed = await client.flush()
    if as_json:
        print_json({"flushed": flushed})
    else:
        tell(f"flushed {counted(flushed, 'offset')}")
