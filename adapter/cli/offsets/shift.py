"""The work of `offsets reset --shift-by`: the only reset that a repeat would make once more, from where the first one has gone.

So its requests have IDs, which are kept in a file until all is answered. Run again after a lost answer or a kill, the command
finishes what was planned then.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio

from adapter.cli.connection import Target, connected
from adapter.cli.offsets import unanswered
from adapter.cli.offsets.change import Call, ChangeOptions, Reply, Shards, reset_requests, save_plan, send, show
from adapter.cli.offsets.unanswered import Unanswered
from adapter.cli.output import note, warn
from adapter.errors import InvalidInputError
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.wording import counted

AGAIN = "run the same command again: it finishes this shift, and shifts nothing twice"
LOOK_FIRST = "If the answer is lost, look at the offsets (`groups describe`) before you repeat it: a repeat shifts again"
_REFUSED = {  # with these, an adapter has changed nothing
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}

Requests = Sequence[offsets_pb.ResetOffsetsRequest]


async def shift(target: Target, group: GroupKey, shards: Shards, by: int, change: ChangeOptions) -> bool:
    """Shift shards of a group, or of all groups if its name is empty; True if all were shifted."""
    path = unanswered.path_of([*group, *shards.names, "", *shards.topics, "", str(by), str(change.create)])
    async with connected(target) as client:
        call = client.admin.ResetOffsets
        before = unanswered.find(path)
        if before:
            note(f"{_sent(before)}: it is finished, not made again; to make a new one, remove {path}")
            requests = before.requests
        else:
            requests = await reset_requests(client, group, shards, {"shift_by": by}, create=change.create)
            if change.execute:
                unanswered.give_ids(requests)
        try:
            plan = await _planned(call, requests, change, before)
        except grpc.aio.AioRpcError:
            if before:
                warn(AGAIN)
            raise
        if change.export and not before:
            save_plan(change, plan)
        if not change.execute:
            return show(plan, "moved", change)
        kept = _kept(path, target.address, requests, plan, before)
        replies: list[Reply] = []
        try:
            await send(call, requests, replies, change)
        except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
            return _ended(error, requests, replies, change, kept)
        if kept:
            unanswered.forget(kept)
        return show(replies, "moved", change)


async def _planned(call: Call, requests: Requests, change: ChangeOptions, before: Unanswered | None) -> list[Reply]:
    """Plan. Where IDs are not remembered, they are taken from the requests; a shift that was sent cannot be finished there."""
    dry = change._replace(execute=False)
    plan: list[Reply] = []
    reason = ""
    try:
        await send(call, requests, plan, dry)
    except grpc.aio.AioRpcError as error:
        if before or not change.execute or error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        reason = error.details() or ""
    if not reason and any(reply.change_id != request.change_id for reply, request in zip(plan, requests, strict=True)):
        reason = "change_id: this adapter remembers no changes: it is of an earlier release"
    if not reason:
        return plan
    if before:
        raise InvalidInputError(f"{reason}; ask a newer one, or look at the offsets (`groups describe`)")
    unanswered.take_ids(requests)
    plan.clear()
    await send(call, requests, plan, dry)
    warn(f"{reason}. {LOOK_FIRST}")
    return plan


def _kept(path: Path, address: str, requests: Requests, plan: Sequence[Reply], before: Unanswered | None) -> Path | None:
    """The file that ends with this execution, which is written first; None if there is none."""
    if before:
        # At another address, and with nothing done, it may be another Meta Service: the first one has its shift to finish still.
        elsewhere = before.address != address and not any(reply.planned_at_ms for reply in plan)
        return None if elsewhere else path
    if not all(request.change_id for request in requests):
        return None
    unanswered.keep(path, address, requests)
    return path


def _ended(
    error: grpc.aio.AioRpcError | asyncio.CancelledError,
    requests: Requests,
    replies: Sequence[Reply],
    change: ChangeOptions,
    kept: Path | None,
) -> bool:
    """Say what was done before an error, and what to do. Raises it, unless it was an answer."""
    if replies:
        show(replies, "moved", change, whole=False)
        warn(f"this is what was done before the error: {len(replies)} of {counted(len(requests), 'request')}")
    code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
    contended = code is grpc.StatusCode.ABORTED
    answered = (contended and len(replies) == len(requests) - 1) or (code in _REFUSED and not replies)
    if kept and answered:
        unanswered.forget(kept)
    elif kept:
        warn(AGAIN)
    if isinstance(error, asyncio.CancelledError) or not contended:
        raise error
    note(f"not as it was asked for: {error.details()}", style="red")
    return False


def _sent(before: Unanswered) -> str:
    when = datetime.fromtimestamp(before.sent_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"this shift was sent to {before.address} at {when} and not answered"
