"""Members of etcd that nobody else of their Raft group can reach, though clients can: no stale read, nothing missing (2, 3)."""

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from tests.durability.etcd_cluster import Fleet, Savers, engine_before, etcd, held_revision, revision, saving
from tests.durability.machine import require

CALL_S = 0.5  # of a call that shall not be answered; what must not be told would be told at once


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Whose members of offsets can be cut off."""
    require("an etcd cluster that is divided", etcd)
    with Fleet.running(tmp_path, divisible=True) as fleet:
        yield fleet


async def test_a_member_that_is_cut_off_answers_no_read_and_loses_nothing(fleet: Fleet) -> None:
    """The leader, then others: it holds what was true before; a Meta Service that asks it what is true gets no answer (2, 3)."""
    async with saving(Savers(fleet.metas, "cut", savers=2)) as savers:
        leader = await run_sync(fleet.offsets.leader)
        for member in sorted(fleet.offsets.members, key=lambda member: member is not leader):
            async with engine_before(fleet, member) as engine:
                assert await engine.get("default", savers.keys)
                fleet.network.isolate(member)
                await savers.acknowledged_more()
                assert await run_sync(held_revision, member) < await run_sync(revision, await run_sync(fleet.offsets.leader))
                with pytest.raises(TimeoutError), anyio.fail_after(CALL_S):
                    await engine.get("default", savers.keys)
                fleet.network.heal()
                await savers.acknowledged_more()
                assert await engine.get("default", savers.keys)
    await savers.check(*fleet.metas)
