"""The reads of offsets that commands share."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from adapter.cli.offsets.reading import TIMEOUT_S, exported, position_text
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from tests.unit.links import virtual


def test_absent_is_not_0() -> None:
    """An absent offset is shown as `-`, a deletion as `deleted`."""
    assert [position_text(position) for position in (None, offsets_pb.Position(), offsets_pb.Position(deleted=True))] == [
        "-",
        "0",
        "deleted",
    ]


def exporting(*after_s: float) -> Any:
    """A client of an adapter that sends one offset after each of these pauses."""

    async def replies(_: offsets_pb.ExportOffsetsRequest, **options: float) -> AsyncIterator[offsets_pb.ExportOffsetsReply]:
        async with asyncio.timeout(options.get("timeout")):
            for at, seconds in enumerate(after_s):
                await asyncio.sleep(seconds)
                yield offsets_pb.ExportOffsetsReply(offsets=[offsets_pb.ShardOffset(shard="s", offset=at)])

    return SimpleNamespace(admin=SimpleNamespace(ExportOffsets=replies))


@virtual
async def test_an_export_may_take_long_as_long_as_something_comes() -> None:
    """An adapter with millions of offsets sends for longer than one call may take."""
    found = exported(exporting(*[TIMEOUT_S / 2] * 10), [GroupKey("n", "g")])
    assert [row.offset async for row in found] == list(range(10))


@virtual
async def test_an_export_of_which_nothing_more_comes_ends() -> None:
    """With the error of a call that had no answer."""
    found = exported(exporting(0, 2 * TIMEOUT_S), [GroupKey("n", "g")])
    assert (await anext(found)).offset == 0
    with pytest.raises(grpc.aio.AioRpcError, match="sent nothing for 30 s") as ended:
        await anext(found)
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
