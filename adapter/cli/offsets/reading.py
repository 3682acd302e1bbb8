"""Reads of offsets that commands share: groups, their offsets, and how an offset is shown. Nothing here changes one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from adapter.cli.names import guesses
from adapter.client.client import OffsetClient
from adapter.client.pending import rpc_error
from adapter.formats.rows import OffsetRow
from adapter.model.codec import decode_stored
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb

TIMEOUT_S = 30.0  # of one admin call, or one reply of an export: the Meta Service and the broker may take seconds each
KNOWN = 10_000  # groups, among which those are looked for that somebody may have meant
PIECE = 1_000  # shards or groups of one request

Group = offsets_pb.ListGroupsReply.Group

R = TypeVar("R")


async def groups_of(client: OffsetClient, namespace: str) -> AsyncIterator[Group]:
    """Yield the groups that have local offsets in a namespace (empty: in all), reading page by page."""
    request = offsets_pb.ListGroupsRequest(namespace=namespace)
    while True:
        reply = await client.admin.ListGroups(request, timeout=TIMEOUT_S)
        for row in reply.groups:
            yield row
        if not reply.next_page_token:
            return
        request.page_token = reply.next_page_token


async def exported(client: OffsetClient, groups: Sequence[GroupKey]) -> AsyncIterator[OffsetRow]:
    """Yield all offsets of some groups, group by group: for each shard the larger of the local one and the Meta Service's.

    Raises AioRpcError, with DEADLINE_EXCEEDED if no further offsets come within TIMEOUT_S.
    """
    async for rows in exported_slices(client, groups):
        for row in rows:
            yield row


async def exported_slices(client: OffsetClient, groups: Sequence[GroupKey]) -> AsyncIterator[list[OffsetRow]]:
    """As `exported`, in lists."""
    for at in range(0, len(groups), PIECE):
        wanted = [offsets_pb.GroupShards(**group._asdict()) for group in groups[at : at + PIECE]]
        async for reply in _export(client, offsets_pb.ExportOffsetsRequest(groups=wanted)):
            yield _rows_of(reply)


async def exported_locally(
    client: OffsetClient, namespace: str, told: Callable[[offsets_pb.ExportOffsetsReply.Missing], None]
) -> AsyncIterator[list[OffsetRow]]:
    """As `exported`, in lists: of all groups that have local offsets in a namespace (empty: in all).

    `told` gets what the Meta Service has besides; it is not called by an adapter of 0.2.0, which does not look.
    """
    request = offsets_pb.ExportOffsetsRequest(namespace=namespace, tell_missing=True)
    async for reply in _export(client, request):
        if reply.HasField("missing"):
            told(reply.missing)
        # An adapter of 0.2.0 does not know `namespace`.
        yield [row for row in _rows_of(reply) if namespace in ("", row.namespace)]


async def _export(client: OffsetClient, request: offsets_pb.ExportOffsetsRequest) -> AsyncIterator[offsets_pb.ExportOffsetsReply]:
    request.as_packed = True
    replies = aiter(client.admin.ExportOffsets(request))
    while reply := await next_reply(replies):
        yield reply


def _rows_of(reply: offsets_pb.ExportOffsetsReply) -> list[OffsetRow]:
    """An adapter of 0.2.0 does not know `as_packed`."""
    return list(map(exported_row, reply.keys, reply.records)) or list(map(row_of_message, reply.offsets))


def exported_row(key: bytes, value: bytes) -> OffsetRow:
    """An offset of a packed export."""
    (namespace, group, shard), (epoch, offset, _, at_ms, metadata, topic, partition), _ = decode_stored(key, value)
    return OffsetRow(namespace, group, shard, offset, metadata, at_ms, topic, partition, epoch)


def row_of_message(row: offsets_pb.ShardOffset) -> OffsetRow:
    """An offset of one that is not packed."""
    names = (row.namespace, row.group, row.shard)
    return OffsetRow(*names, row.offset, row.metadata, row.committed_at_ms, row.topic, row.partition, row.epoch)


async def next_reply(replies: AsyncIterator[R]) -> R | None:
    """The next reply; None after the last one. There is no deadline for all of them: a large adapter sends for minutes."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await anext(replies, None)
    except TimeoutError:
        raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, f"sent nothing for {TIMEOUT_S:g} s") from None


async def meant(client: OffsetClient, namespace: str, group: str) -> str:
    """Of a group without offsets: where else it has some, or which others are called alike; or how to list them.

    Looks at the first KNOWN groups.
    """
    found = []
    async for row in groups_of(client, ""):
        found.append((row.namespace, row.group))
        if len(found) == KNOWN:
            break
    for other, name in found:
        if name == group and other != namespace:
            return f"; it has some in {other}: -n {other}"
    alike = guesses(group, [name for other, name in found if other == namespace])
    return alike or "; `groups list` shows the groups that have"


async def perhaps_meant(client: OffsetClient, namespace: str, group: str) -> str:
    """The same for a call that needs no token, where listing groups may need one: then nothing."""
    try:
        return await meant(client, namespace, group)
    except grpc.aio.AioRpcError:
        return ""


def position_text(position: offsets_pb.Position | None) -> str:
    """An offset as a table shows it: the number, `deleted`, or `-` for none."""
    if position is None:
        return "-"
    return "deleted" if position.deleted else str(position.offset)
