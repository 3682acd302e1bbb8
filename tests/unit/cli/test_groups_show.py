"""The state of a shard in `groups describe`, and the reads that commands share."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from adapter.cli.groups_show import TIMEOUT_S, Described, exported, position_text, state_of
from adapter.model.records import GroupKey
from adapter.rpc import offsets_pb
from tests.unit.links import virtual


def at(offset: int, epoch: int = 1, *, deleted: bool = False) -> offsets_pb.Position:
    """A position."""
    return offsets_pb.Position(epoch=epoch, offset=offset, deleted=deleted)


@pytest.mark.parametrize(
    ("local", "remote", "dirty", "state"),
    [
        (at(5), at(5), False, "clean"),
        (at(5), at(4), True, "dirty"),
        (at(5), None, True, "dirty"),
        (at(5), at(6), True, "dirty"),
        (at(5), at(6), False, "behind"),
        (at(5), at(1, epoch=2), False, "behind"),
        (None, at(5), False, "behind"),
        (at(5), at(0, epoch=2, deleted=True), False, "behind"),
        (at(5), at(4), False, "ahead"),
        (at(5), None, False, "ahead"),
        (at(0, deleted=True), at(0, deleted=True), False, "deleted"),
        (at(5, deleted=True), at(5), False, "behind"),
    ],
)
def test_the_state_of_a_shard(
    local: offsets_pb.Position | None, remote: offsets_pb.Position | None, dirty: bool, state: str
) -> None:
    """Positions are compared by (epoch, offset)."""
    assert state_of(Described.Shard(local=local, remote=remote, dirty=dirty), remote_known=True) == state


def test_when_the_meta_service_was_not_asked_nothing_is_ahead_of_it() -> None:
    """Without an answer of the Meta Service, a shard is not `ahead`."""
    assert state_of(Described.Shard(local=at(5)), remote_known=False) == "clean"


def test_absent_is_not_0() -> None:
    """An absent offset is shown as `-`, a deletion as `deleted`."""
    assert [position_text(position) for position in (None, at(0), at(0, deleted=True))] == ["-", "0", "deleted"]


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
