"""The command `meta snapshot`: writes a cluster's offsets, as they are at one instant, to a directory of Parquet files."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import grpc
import grpc.aio

from adapter.cli import options
from adapter.cli.connection import CallError, Target, run
from adapter.cli.output import progress, tell
from adapter.cli.table import print_json
from adapter.errors import ConfigError
from adapter.meta.client import CHANNEL_OPTIONS
from adapter.meta.errors import NOT_THERE
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import open_channel
from adapter.runtime.wording import counted

if TYPE_CHECKING:
    from adapter.cli.snapshot_directory import SnapshotDirectory

TIMEOUT_S = 60.0  # between two replies

Reply = meta_pb.SnapshotOffsetDataReply


@click.command("snapshot")
@click.option(
    "--output",
    required=True,
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="The directory to make. It must not exist; it appears when it is complete.",
)
@click.option("--cluster", default="default", show_default=True, help="The cluster whose offsets are written.")
@options.meta_target
@options.as_json
def snapshot(output: Path, cluster: str, target: Target, *, as_json: bool) -> None:
    """Write all offsets as they are at one instant as Parquet files, tombstones included, while the Meta Service serves.

    With etcd it is one instant of each Raft group: a group's offsets are always from one.
    """
    run(_take, output, cluster, target, as_json)


async def _take(output: Path, cluster: str, target: Target, as_json: bool) -> None:
    """Take a snapshot and print its counts. Raises CallError, InvalidInputError (the directory), ConfigError without pyarrow."""
    kind = _directory_kind()
    try:
        async with open_channel(target.address, target.tls, CHANNEL_OPTIONS) as channel:
            request = meta_pb.SnapshotOffsetDataRequest(cluster_name=cluster)
            replies = aiter(meta_grpc.MetaServiceServiceStub(channel).SnapshotOffsetData(request))
            head = await _next(replies, target)
            with kind(output, cluster, head.taken_at_ms) as directory, progress("records", None) as advance:
                records = await _write(directory, replies, target, advance)
                if directory.manifest.records != records:
                    found = directory.manifest.records
                    raise CallError(f"{target.address}: sent {found:,} of {counted(records, 'record')}; nothing was written")
    except grpc.aio.AioRpcError as error:
        why = NOT_THERE if error.code() is grpc.StatusCode.UNIMPLEMENTED else error.details()
        raise CallError(f"{target.address}: {error.code().name}: {why}; nothing was written") from error
    _tell(output, directory, as_json=as_json)


async def _write(
    directory: "SnapshotDirectory", replies: AsyncIterator[Reply], target: Target, advance: Callable[[int], None]
) -> int:
    """Write all pages, each while the next one comes. Returns the number of records that the server sent."""
    writing = asyncio.create_task(asyncio.sleep(0))
    try:
        while not (reply := await _next(replies, target)).HasField("records"):
            await writing
            writing = asyncio.create_task(asyncio.to_thread(directory.add, reply.packed))
            advance(len(reply.packed.key_sizes) // 2)
        await writing
    finally:
        await asyncio.wait([writing])  # also after an error: the directory is deleted next
    return reply.records


def _directory_kind() -> "type[SnapshotDirectory]":
    try:
        from adapter.cli.snapshot_directory import SnapshotDirectory  # noqa: PLC0415 - needs the extra `journal`
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"snapshots need {error.name}, which is not installed: pip install 'offset-adapter[journal]'"
        ) from error
    return SnapshotDirectory


async def _next(replies: AsyncIterator[Reply], target: Target) -> Reply:
    """The next reply. Raises CallError if there is none, or none comes within TIMEOUT_S."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await anext(replies)
    except StopAsyncIteration:
        raise CallError(f"{target.address}: ended before the snapshot was complete; nothing was written") from None
    except TimeoutError as error:
        raise CallError(f"{target.address}: sent nothing for {TIMEOUT_S:g} s; nothing was written") from error


def _tell(output: Path, directory: "SnapshotDirectory", *, as_json: bool) -> None:
    manifest = directory.manifest
    if as_json:
        print_json({"path": str(output), **manifest._asdict(), "files": len(manifest.files)})
        return
    tell(
        f"{output}: {counted(manifest.records, 'record')} of the cluster {manifest.cluster}, of which {manifest.tombstones:,} "
        f"are tombstones, in {counted(len(manifest.files), 'file')}"
    )
