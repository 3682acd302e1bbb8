"""The command `meta copy`: merges all offsets of one Meta Service into another while both keep serving."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import click
import grpc
import grpc.aio

from adapter.cli import options
from adapter.cli.connection import CallError, Target, run
from adapter.cli.output import progress, tell
from adapter.cli.table import print_json
from adapter.meta.channel import CHANNEL_OPTIONS
from adapter.meta.errors import NOT_THERE
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import open_channel
from adapter.runtime.wording import counted

if TYPE_CHECKING:  # exists only in the stubs
    from adapter.rpc.meta_service_pb2_grpc import MetaServiceServiceAsyncStub as Stub

TIMEOUT_S = 60.0  # of one page
PAGE = 10_000


@click.command("copy")
@click.argument("source")
@click.option("--cluster", default="default", show_default=True, help="The cluster whose offsets are copied.")
@options.meta_target
@options.as_json
def copy(source: str, cluster: str, target: Target, *, as_json: bool) -> None:
    """Copy all offsets from the Meta Service SOURCE (host:port) to the one at --address, tombstones included.

    The larger (epoch, offset) wins, so the copy can be stopped and repeated at any time. TLS options apply to both.
    """
    counts = run(_copy, Target(source, tls=target.tls), target, cluster)
    if as_json:
        print_json(counts)
    else:
        read, applied, superseded = counts.values()
        tell(f"{counted(read, 'offset')}: {applied:,} stand now, above {superseded:,} a larger one stands")


async def _copy(source: Target, target: Target, cluster: str) -> dict[str, int]:
    counts = {"read": 0, "applied": 0, "superseded": 0}
    async with _connected(source) as read, _connected(target) as write:
        with _naming_address(source):
            split = await read.SplitOffsetData(meta_pb.SplitOffsetDataRequest(cluster_name=cluster, parts=1), timeout=TIMEOUT_S)
        with progress("offsets", split.records) as advance:
            token = b""
            while True:
                request = meta_pb.ScanOffsetDataRequest(cluster_name=cluster, page_size=PAGE, page_token=token)
                with _naming_address(source):
                    page = await read.ScanOffsetData(request, timeout=TIMEOUT_S)
                merge = meta_pb.MergeOffsetDataRequest(cluster_name=cluster, keys=page.keys, records=page.records)
                with _naming_address(target):
                    reply = await write.MergeOffsetData(merge, timeout=TIMEOUT_S)
                if reply.rejected:
                    raise CallError(f"{target.address}: refused an offset: {reply.rejected[0].message}")
                counts["read"] += len(page.keys)
                counts["applied"] += reply.applied
                counts["superseded"] += reply.superseded
                advance(len(page.keys))
                token = page.next_page_token
                if not token:
                    return counts


@asynccontextmanager
async def _connected(target: Target) -> "AsyncIterator[Stub]":
    async with open_channel(target.address, target.tls, CHANNEL_OPTIONS) as channel:
        yield meta_grpc.MetaServiceServiceStub(channel)


@contextmanager
def _naming_address(target: Target) -> Iterator[None]:
    """Raise a failed call as a CallError that names the address."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise CallError(
                f"{target.address}: cannot be copied from or to: {NOT_THERE}. To move its offsets, `export` the groups at an "
                "adapter before it, and `import` the file at an adapter before the other Meta Service"
            ) from error
        raise CallError(
            f"{target.address}: {error.code().name}: {error.details()}; run it again: it starts over, which is safe"
        ) from error
