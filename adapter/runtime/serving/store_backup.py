"""How both services answer `offsets.v1.StoreBackup`: the request and the replies of proto/backup.proto."""

import asyncio
from contextlib import aclosing

from adapter.errors import InvalidInputError, NotReadyError
from adapter.rpc import backup_pb
from adapter.runtime.durable.checkpoint import Checkpoints, File, Known, Part, Sent
from adapter.runtime.serving.statuses import Context

SERVICE = "offsets.v1.StoreBackup"
MAX_KNOWN = 20_000  # files: tables of 1 TB
FIELDS = 4 * MAX_KNOWN  # of a request that names as many
IDLE_S = 60.0  # of a reader: what it reads keeps files on the disk

Reply = backup_pb.BackupStoreReply


async def answer(store: Reply.Store, checkpoints: Checkpoints, request: backup_pb.BackupStoreRequest, context: Context) -> None:
    """Write all replies to a call.

    Raises InvalidInputError, NotReadyError for a reader that stands still, and what `Checkpoints.read` does.
    """
    if len(request.known) > MAX_KNOWN:
        raise InvalidInputError(f"known: are {len(request.known)} files, over {MAX_KNOWN}")
    known = [File(file.name, file.size, file.sha256) for file in request.known]
    await _write(context, Reply(store=store))
    async with aclosing(checkpoints.read(known)) as parts:
        async for part in parts:
            await _write(context, _reply(part))


def _reply(part: Part) -> Reply:
    match part:
        case Sent(file):
            return Reply(sent=backup_pb.BackupFile(**file._asdict()))
        case Known(file):
            return Reply(known=backup_pb.BackupFile(**file._asdict()))
        case _:
            return Reply(data=part)


async def _write(context: Context, reply: Reply) -> None:
    try:
        async with asyncio.timeout(IDLE_S):
            await context.write(reply)
    except TimeoutError as error:
        raise NotReadyError(f"the backup was ended: its reader did nothing for {IDLE_S:g} s") from error
