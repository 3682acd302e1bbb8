"""Many groups that are described together: each as it is alone, in order, in bounded pieces, without a false alarm."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from adapter.errors import MetaUnavailableError, TooLargeError
from adapter.model.records import GroupKey, OffsetKey
from adapter.rpc import offsets_pb
from adapter.sidecar.api.describing import Describing
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, core_over, record, send

GROUPS = [GroupKey("default", f"g{number}") for number in range(7)]


def of(core: Core) -> Describing:
    """For one call."""
    return Describing(core, lambda *_: "write_back", None)


async def described(core: Core, groups: Sequence[GroupKey] = GROUPS) -> list[offsets_pb.DescribeGroupsReply]:
    """All replies."""
    return [reply async for reply in of(core).many(groups)]


def filled() -> FakeMeta:
    """Five of the groups, each with some shards."""
    return FakeMeta(
        {OffsetKey(*group, f"t/{shard}"): record(at + shard) for at, group in enumerate(GROUPS[:5]) for shard in range(3)}
    )


@pytest.mark.parametrize("page_rows", [2, 3, 4, 1_000])
@pytest.mark.parametrize("together", [1, 4, 1_000])
async def test_each_is_as_it_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_rows: int, together: int) -> None:
    """Wherever pages of the Meta Service and replies end."""
    monkeypatch.setattr("adapter.sidecar.api.describing.SHARDS_TOGETHER", together)
    meta = filled()
    meta.page_rows = page_rows
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({OffsetKey(*GROUPS[group], "t/1"): 90 + group for group in (1, 3, 5)}))
        rows = [row for reply in await described(core) for row in reply.groups]
        assert [row.group for row in rows] == [group.group for group in GROUPS]
        for group, row in zip(GROUPS, rows, strict=True):
            assert row.description == await of(core).one(Wanted(group, ()))
        assert [len(row.description.shards) for row in rows] == [3, 3, 3, 3, 3, 1, 0]
        assert rows[3].description.shards[1].local.offset == 93


async def test_one_that_is_too_large_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is too large here, or there, where it ends in the middle of a page."""
    monkeypatch.setattr("adapter.sidecar.api.describing.MAX_DESCRIBED", 3)
    meta = filled()
    meta.page_rows = 4
    meta.records |= {OffsetKey(*GROUPS[2], f"u/{number}"): record(1) for number in range(9)}
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({OffsetKey(*GROUPS[5], f"t/{number}"): 1 for number in range(4)}))
        rows = [row for reply in await described(core) for row in reply.groups]
        assert [bool(row.error) for row in rows] == [False, False, True, False, False, True, False]
        assert [len(row.description.shards) for row in rows] == [3, 3, 0, 3, 3, 0, 0]
        assert rows[2].error.startswith("group: default/g2 has more than 3 shards")
        with pytest.raises(TooLargeError, match="default/g2 has more than 3 shards"):
            await of(core).one(Wanted(GROUPS[2], ()))


async def test_what_the_meta_service_has_of_many_groups_is_not_held_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little is here of them, and much there: a reply has about as many rows as one group may have."""
    monkeypatch.setattr("adapter.sidecar.api.describing.MAX_DESCRIBED", 8)
    meta = FakeMeta({OffsetKey(*group, f"t/{shard}"): record(shard) for group in GROUPS for shard in range(6)})
    meta.page_rows = 4
    async with core_over(tmp_path, meta) as core:
        replies = await described(core)
        assert [row.group for reply in replies for row in reply.groups] == [group.group for group in GROUPS]
        assert all(len(row.description.shards) == 6 for reply in replies for row in reply.groups)
        assert max(len(reply.groups) for reply in replies) <= 2


async def test_while_the_meta_service_is_away_what_is_here_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once, not for each group."""
    monkeypatch.setattr("adapter.sidecar.api.describing.SHARDS_TOGETHER", 1)
    meta = filled()
    async with core_over(tmp_path, meta, knows=[group.group for group in GROUPS]) as core:
        await send(core, commit_of({OffsetKey(*GROUPS[at], "t/1"): 90 for at in (0, 6)}))
        meta.down = MetaUnavailableError("away")
        asked = 0
        page = meta.groups_page

        async def counted(*given: object, **more: object) -> object:
            nonlocal asked
            asked += 1
            return await page(*given, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(meta, "groups_page", counted)
        rows = [row for reply in await described(core) for row in reply.groups]
        assert [len(row.description.shards) for row in rows] == [1, 0, 0, 0, 0, 0, 1]
        assert {row.description.remote_error for row in rows} == {"away"}
        assert asked == 1


async def test_what_is_flushed_meanwhile_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The local offset is read first: were it read last, the Meta Service would seem to have less than it acknowledged."""
    meta = filled()
    async with core_over(tmp_path, meta) as core:
        page = meta.groups_page

        async def late(*given: object, **more: object) -> object:
            found = await page(*given, **more)  # type: ignore[arg-type]
            await send(core, commit_of({OffsetKey(*GROUPS[0], "t/0"): 99}))
            await core.flusher.flush_all()
            return found

        await core.loader.load(GROUPS[0])
        monkeypatch.setattr(meta, "groups_page", late)
        ((row, *_),) = [reply.groups for reply in await described(core)]
        shard = row.description.shards[0]
        assert not shard.dirty
        assert (shard.local.offset, shard.remote.offset) == (0, 0)
