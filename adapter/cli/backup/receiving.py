"""Takes a backup from an adapter or a Meta Service, into a directory of backups."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc
import grpc.aio

from adapter.cli.backup.directory import BackupDirectory
from adapter.cli.connection import CallError, Target, connected
from adapter.meta.channel import CHANNEL_OPTIONS
from adapter.meta.errors import NOT_THERE
from adapter.rpc import backup_grpc, backup_pb
from adapter.runtime.channels import open_channel
from adapter.runtime.durable.backups import ADAPTER, META, Backup
from adapter.runtime.durable.checkpoint import File

if TYPE_CHECKING:
    Stub = backup_grpc.StoreBackupAsyncStub

TIMEOUT_S = 60.0  # between two replies

Reply = backup_pb.BackupStoreReply


class Taken(NamedTuple):
    """A new backup, which of its files were sent, and which old ones were deleted for it."""

    backup: Backup
    sent: Sequence[File]
    deleted: Sequence[Path]


async def take_of_adapter(target: Target, directory: Path, keep: int | None) -> Taken:
    """Take a backup of an adapter's store, and delete all but the newest `keep`.

    Raises CallError, InvalidInputError for the directory, StoreDamagedError, ConfigError for a token or TLS file.
    """
    return await _take(ADAPTER, _to_adapter(target), target, directory, keep)


async def take_of_meta(target: Target, directory: Path, keep: int | None) -> Taken:
    """The same of a Meta Service's embedded store."""
    return await _take(META, _to_meta(target), target, directory, keep)


async def _take(
    kind: str, connecting: "AbstractAsyncContextManager[Stub]", target: Target, directory: Path, keep: int | None
) -> Taken:
    with BackupDirectory.opened(directory) as backups:
        known = await asyncio.to_thread(backups.known)
        request = backup_pb.BackupStoreRequest(known=[backup_pb.BackupFile(**file._asdict()) for file in known])
        async with connecting as stub:
            replies = aiter(stub.BackupStore(request))
            first = await _next(replies, target)
            if first is None or not first.HasField("store"):
                raise CallError(f"{target.address}: did not begin with what it is; nothing was kept")
            backups.begin(first.store, kind)
            while reply := await _next(replies, target):
                await asyncio.to_thread(backups.add, reply)
        backup = await asyncio.to_thread(backups.finish)
        deleted = await asyncio.to_thread(backups.keep, keep) if keep else ()
        return Taken(backup, backups.sent, deleted)


async def _next(replies: AsyncIterator[Reply], target: Target) -> Reply | None:
    """The next reply; None after the last one. Raises CallError if none comes within TIMEOUT_S."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await anext(replies, None)
    except TimeoutError as error:
        raise CallError(f"{target.address}: sent nothing for {TIMEOUT_S:g} s; nothing was kept") from error


@asynccontextmanager
async def _to_adapter(target: Target) -> "AsyncIterator[Stub]":
    async with connected(target) as client:
        yield client.backup


@asynccontextmanager
async def _to_meta(target: Target) -> "AsyncIterator[Stub]":
    try:
        async with open_channel(target.address, target.tls, CHANNEL_OPTIONS) as channel:
            yield backup_grpc.StoreBackupStub(channel)
    except grpc.aio.AioRpcError as error:
        why = NOT_THERE if error.code() is grpc.StatusCode.UNIMPLEMENTED else error.details()
        raise CallError(f"{target.address}: {error.code().name}: {why}; nothing was kept") from error
