"""The commands `commit` (one offset) and `flush` (all dirty offsets to the Meta Service)."""

import click

from adapter.cli import completing, options
from adapter.cli.connection import Target, connected, run, run_or_exit
from adapter.cli.output import as_dict, tell
from adapter.cli.table import print_json
from adapter.model.records import CommitMode, epoch_text
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

COMMIT_TIMEOUT_S = 5.0


class _Commit(click.Command):
    """An offset below 0 looks like an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raises InvalidInputError for such an offset."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption:
            for given in typed:
                if given[:1] == "-" and given[1:].isdecimal():
                    options.parse_offset(given, "OFFSET")
            raise


@click.command(cls=_Commit)
@options.group
@click.argument("shard", shell_complete=completing.shard)
@click.argument("offset")
@options.namespace
@click.option("--epoch", default="0", help="The epoch that was read with the offset: a commit of an older one changes nothing.")
@click.option("--overwrite", is_flag=True, help="Also accept a lower offset: a rewind, stored under the next epoch.")
@click.option("--metadata", default="", help="At most 4,096 bytes.")
@options.target_without_token
@options.as_json
def commit(
    group: str,
    shard: str,
    offset: str,
    namespace: str,
    epoch: str,
    metadata: str,
    target: Target,
    *,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Commit OFFSET, the next offset to read. Exit code 1 when a larger one is stored."""
    item = offsets_pb.ShardCommit(
        shard=shard,
        offset=options.parse_offset(offset, "OFFSET"),
        metadata=metadata,
        epoch=options.parse_epoch(epoch, "--epoch"),
    )
    mode = CommitMode.OVERWRITE if overwrite else CommitMode.INCREASE_ONLY
    request = offsets_pb.CommitOffsetsRequest(
        groups=[offsets_pb.GroupCommits(namespace=namespace, group=group, shards=[item])],
        mode=offsets_pb.CommitMode.ValueType(mode.value),
    )
    run_or_exit(_commit, target, request, as_json)


@click.command()
@options.target
@options.as_json
def flush(target: Target, *, as_json: bool) -> None:
    """Send every dirty offset to the Meta Service now."""
    run(_flush, target, as_json)


async def _commit(target: Target, request: offsets_pb.CommitOffsetsRequest, as_json: bool) -> bool:
    """Commit one offset and print the outcome; False if a larger offset is stored."""
    async with connected(target) as client:
        reply = await client.store.CommitOffsets(request, timeout=COMMIT_TIMEOUT_S)
    if as_json:
        print_json(as_dict(reply))
    elif reply.superseded:
        row = reply.superseded[0]
        what = "a deletion" if row.deleted else row.offset
        how = (
            f"it is held until a consumer has read it from the store; --epoch {epoch_text(row.epoch)} commits over it"
            if row.held
            else "--overwrite rewinds"
        )
        tell(f"not applied: {what} (epoch {epoch_text(row.epoch)}) stands; {how}")
    else:
        tell("committed")
    return not reply.superseded


async def _flush(target: Target, as_json: bool) -> None:
    async with connected(target) as client:
        flushed = await client.flush()
    if as_json:
        print_json({"flushed": flushed})
    else:
        tell(f"flushed {counted(flushed, 'offset')}")
