"""What fails while offsets are on their way between Raft groups: a Raft group, a Meta Service, the rebalance itself (2, 3, 4)."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from anyio.to_thread import run_sync

from adapter.errors import MetaUnavailableError
from adapter.metaservice.config import EtcdSection, RaftGroupSection
from adapter.metaservice.etcd import client as etcd_cluster
from adapter.metaservice.etcd import rebalancing
from adapter.metaservice.etcd.sharding import Layout
from adapter.model.records import Status
from adapter.testing.etcd import LocalCluster
from adapter.testing.processes import ServiceProcess, ended, free_port
from tests import forking
from tests.durability.etcd_cluster import WAIT_S, Savers, etcd, saving
from tests.durability.machine import require
from tests.durability.moving import (
    GROUPS,
    A,
    B,
    C,
    StoppedError,
    Until,
    begun,
    check_clean,
    layout_of,
    meta,
    offsets_at,
    packed,
    rebalance,
    save,
    section_of,
    settings,
)

MANY = 4_000  # keys: a rebalance of them can be hit half way
LOOK_AGAIN_S = 0.005


@pytest.fixture(autouse=True)
def _needs() -> None:
    require("Raft groups that offsets move between", etcd)


async def test_a_raft_group_that_is_down_holds_up_only_what_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move does not begin without it. When it fails later, everybody else's offsets are saved, in the same call (4)."""
    monkeypatch.setattr(etcd_cluster, "LIMIT_S", 0.2)
    monkeypatch.setattr(rebalancing, "_retrying", _at_once)
    with LocalCluster("down", 1, directory=tmp_path) as down:
        named = section_of(A, C)
        own = RaftGroupSection(name="down", endpoints=down.endpoints)
        section = named.model_copy(update={"offsets": (own, *named.offsets), "timeout_ms": 1_000})
        async with meta(section.model_copy(update={"offsets": section.offsets[:-1]})) as each:
            await save(each, 1)
        async with meta(section) as each:
            down.stop()
            with pytest.raises(MetaUnavailableError):
                await rebalance(section, ["down", A, C])
            assert (await layout_of(section)).settled
            await run_sync(down.start)
            with pytest.raises(StoppedError):
                await rebalance(section, ["down", A, C], watcher=Until("copying"))
            down.stop()
            layout = await layout_of(section)
            ways = [{layout.home(packed(number)), layout.former(packed(number))} for number in range(GROUPS)]
            dead = ["down" in way for way in ways]
            assert await save(each, 2) == [Status.UNAVAILABLE if those else Status.APPLIED for those in dead]
            assert {*dead} == {True, False}
            with pytest.raises(MetaUnavailableError):
                await rebalance(section, ["down", A, C])
            await run_sync(down.start)
            assert await rebalance(section, ["down", A, C])
            await check_clean(section, "down", A, C)
            assert await offsets_at(each) == [1 if those else 2 for those in dead]


async def _at_once(work: Callable[..., object], *args: object) -> object:
    return await work(*args)  # type: ignore[misc]


async def test_killed_processes_lose_nothing(tmp_path: Path) -> None:
    """Real ones: SIGKILL to a rebalance that copies, Ctrl-C to one that deletes, SIGKILL to a Meta Service in between (2, 3)."""
    section = await begun(A, B, C, groups=MANY)
    config = tmp_path / "rebalance.toml"
    config.write_text(settings(section))
    metas = [ServiceProcess("meta", tmp_path / f"Meta Service-{number}", "", free_port()) for number in range(2)]
    for process in metas:
        process.settings = settings(section, process.port)
    with ended(*metas):
        for process in metas:
            process.launch()
        for process in metas:
            await run_sync(process.wait_ready)
        async with saving(Savers(metas, "moving")) as savers:
            assert await _struck(section, config, signal.SIGKILL, lambda layout: bool(layout.moving_from)) in {
                -signal.SIGKILL,
                0,
            }  # 0: done before, on a busy machine
            metas[0].kill()
            await savers.acknowledged_more()
            assert await _struck(section, config, signal.SIGINT, lambda layout: bool(layout.leftovers_in)) in {
                0,
                1,
            }  # 0: done before
            await savers.acknowledged_more()
            assert await _struck(section, config, 0, lambda layout: layout.settled) == 0
        await savers.check(metas[1])
    await check_clean(section, A, B, C)
    async with meta(section) as each:
        assert await offsets_at(each, MANY) == [7] * MANY


async def _struck(section: EtcdSection, config: Path, number: int, when: Callable[[Layout], bool]) -> int:
    """Run the command, send it a signal as soon as the layout is so, and return its exit code."""
    with (config.parent / "rebalance.log").open("ab") as log:
        process = forking.start(["meta", "rebalance", "--config", str(config), "--yes"], os.environ, log)
    try:
        async with asyncio.timeout(WAIT_S):
            while process.poll() is None and not when(await layout_of(section)):  # noqa: ASYNC110 - in etcd there is no event
                await asyncio.sleep(LOOK_AGAIN_S)
            if number:
                process.send_signal(number)
            return await asyncio.to_thread(process.wait, WAIT_S)
    finally:
        process.kill()
