"""The command `meta snapshot`: writes a cluster's offsets, as they are at one instant, to a directory of Parquet files."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
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
from adapter.meta.channel import CHANNEL_OPTIONS
from adapter.meta.errors import NOT_THERE
from adapter.rpc import meta_grpc, meta_pb
from adapter.runtime.channels import open_channel
from adapter.runtime.version import install_extra
from adapter.runtime.wording import counted

if TYPE_CHECKING:
    from adapter.cli.meta.snapshot_directory import SnapshotDirectory

TIMEOUT_S = 60.0  # between two replies
AHEAD_BYTES = 64 * 2**20  # of replies that wait to be written

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
    try:
        async with open_channel(target.address, target.tls, CHANNEL_OPTIONS) as channel:
            request = meta_pb.SnapshotOffsetDataRequest(cluster_name=cluster)
            async with _Received.of(meta_grpc.MetaServiceServiceStub(channel).SnapshotOffsetData(request), target) as received:
                kind = await asyncio.to_thread(_directory_kind)  # takes as long as the first 500,000 records to come
                head = await received.next()
                with kind(output, cluster, head.taken_at_ms) as directory, progress("records", None) as advance:
                    records = await _write(directory, received, advance)
                    if directory.manifest.records != records:
                        found = directory.manifest.records
                        raise CallError(f"{target.address}: sent {found:,} of {counted(records, 'record')}; nothing was written")
    except grpc.aio.AioRpcError as error:
        why = NOT_THERE if error.code() is grpc.StatusCode.UNIMPLEMENTED else error.details()
        raise CallError(f"{target.address}: {error.code().name}: {why}; nothing was written") from error
    _tell(output, directory, as_json=as_json)


async def _write(directory: "SnapshotDirectory", received: "_Received", advance: Callable[[int], None]) -> int:
    """Write all pages. Returns the number of records that the server sent."""
    while not (reply := await received.next()).HasField("records"):
        writing = asyncio.create_task(asyncio.to_thread(directory.add, reply.packed))
        try:
            await asyncio.shield(writing)
        finally:
            await asyncio.wait([writing])  # also when this is cancelled: the directory is deleted next
        advance(len(reply.packed.key_sizes) // 2)
    return reply.records


class _Received:
    """Replies that have come and are not written yet: up to AHEAD_BYTES, and one more."""

    def __init__(self, replies: AsyncIterator[Reply], target: Target) -> None:
        self._replies = replies
        self._target = target
        self._waiting: asyncio.Queue[Reply | Exception] = asyncio.Queue()
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    @classmethod
    @asynccontextmanager
    async def of(cls, replies: AsyncIterable[Reply], target: Target) -> "AsyncIterator[_Received]":
        """Receive replies within the context."""
        received = cls(aiter(replies), target)
        receiving = asyncio.create_task(received._receive(), name="snapshot.receive")
        try:
            yield received
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])

    async def next(self) -> Reply:
        """The next reply. Raises CallError if there is none, or none comes within TIMEOUT_S, and what the call raises."""
        found = await self._waiting.get()
        if isinstance(found, Exception):
            raise found
        self._bytes -= found.ByteSize()
        if self._bytes < AHEAD_BYTES:
            self._has_room.set()
        return found

    async def _receive(self) -> None:
        try:
            while True:
                reply = await _next(self._replies, self._target)
                self._waiting.put_nowait(reply)
                self._bytes += reply.ByteSize()
                if reply.HasField("records"):
                    return
                if self._bytes >= AHEAD_BYTES:
                    self._has_room.clear()
                await self._has_room.wait()
        except Exception as error:  # noqa: BLE001 - raised where the reply is waited for
            self._waiting.put_nowait(error)


def _directory_kind() -> "type[SnapshotDirectory]":
    try:
        from adapter.cli.meta.snapshot_directory import SnapshotDirectory  # noqa: PLC0415 - needs the extra `journal`
    except ModuleNotFoundError as error:
        raise ConfigError(f"snapshots need {error.name}, which is not installed: {install_extra('journal')}") from error
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
