"""Reads of offsets that commands share: groups, their offsets, and how an offset is shown. Nothing here changes one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import grpc

from adapter.client.client import OffsetClient
from adapter.client.pending import rpc_error
from adapter.formats.rows import OffsetRow
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb

TIMEOUT_S = 30.0  # of one admin call, or one reply of an export: the Meta Service and the broker may take seconds each
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
    for at in range(0, len(groups), PIECE):
        wanted = [offsets_pb.GroupShards(**group._asdict()) for group in groups[at : at + PIECE]]
        replies = aiter(client.admin.ExportOffsets(offsets_pb.ExportOffsetsRequest(groups=wanted)))
        while reply := await next_reply(replies):
            for row in reply.offsets:
                yield OffsetRow(
                    row.namespace,
                    row.group,
                    row.shard,
                    row.offset,
                    row.metadata,
                    row.committed_at_ms,
                    row.topic,
                    row.partition,
                    row.epoch,
                )


async def next_reply(replies: AsyncIterator[R]) -> R | None:
    """The next reply; None after the last one. There is no deadline for all of them: a large adapter sends for minutes."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await anext(replies, None)
    except TimeoutError:
        raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, f"sent nothing for {TIMEOUT_S:g} s") from None


def position_text(position: offsets_pb.Position | None) -> str:
    """An offset as a table shows it: the number, `deleted`, or `-` for none."""
    if position is None:
        return "-"
    return "deleted" if position.deleted else str(position.offset)
