"""Offsets on their way between Raft groups, under load: nothing acknowledged is lost, and no read goes back (2, 3)."""

import asyncio
from contextlib import AsyncExitStack
from itertools import count

import pytest

from adapter.metaservice import rebalancing
from adapter.model import OffsetKey, OffsetRecord, SaveEntry
from tests.durability.etcd_cluster import etcd
from tests.durability.machine import require
from tests.durability.moving import CLUSTER, A, B, C, Life, Load, check_clean, front, lived, rebalance, section_of, under

PAGE = 16  # keys, so that a few are many pages
STEP = 7  # calls; each life is so much longer than the one before


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    require("Raft groups that offsets move between", etcd)
    monkeypatch.setattr(rebalancing, "PAGE", PAGE)


async def test_rebalances_that_die_at_every_point_lose_nothing() -> None:
    """With fronts that die, too. A Raft group is added, and another one taken away; the next rebalance goes on (2, 3)."""
    section = section_of(A, B, C)
    first = section.model_copy(update={"offsets": section.offsets[:2]})
    async with front(first):
        pass
    async with AsyncExitStack() as stack:
        fronts = [await stack.enter_async_context(front(section)) for _ in range(2)]
        load = Load(fronts)
        await load.fill()
        async with under(load):
            for target in ((A, B, C), (A, C)):
                await load.acknowledged_more()
                for number in count(1, STEP):
                    finished = await rebalance(section, target, Life(number, done=number % 2 == 0))
                    await lived(_look_at_all(section, load, Life(number)), None)
                    if finished:
                        break
                await check_clean(section, *target)
                await load.acknowledged_more()
        await load.check(*fronts)
        async with front(section) as other:
            await load.check(other)
    assert load.conflicts


async def _look_at_all(section, load, life) -> None:
    async def work() -> None:
        async with front(section, life) as each:
            await load.check(each)

    await lived(work(), life)
