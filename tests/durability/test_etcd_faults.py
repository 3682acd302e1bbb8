"""Members of etcd and Meta Services killed, frozen, cut off, without disk or space: nothing acknowledged is ever missing (2, 3).

`ETCD_KILLS=30 ETCD_TIMERS=default` in the environment: so many kills, with etcd's own timers. The output has the longest gap
between two acknowledgements.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import grpc
import pytest
from anyio.to_thread import run_sync

from adapter.client.client import OffsetClient
from adapter.model.records import DEFAULT_NAMESPACE, FIRST_EPOCH, OffsetKey
from adapter.rpc import etcd_grpc, etcd_pb
from adapter.testing.etcd import CHANNEL_OPTIONS, LocalCluster, LocalMember
from adapter.testing.history import META, History
from adapter.testing.processes import ServiceProcess, adapter_process, ended
from adapter.testing.waiting import eventually
from tests.durability import machine
from tests.durability.callers import Callers, check_remote, under
from tests.durability.etcd_cluster import WAIT_S, Fleet, Savers, etcd, meta_process, revision, saving
from tests.durability.load import status_when
from tests.durability.machine import Strace, require
from tests.durability.proxy import Proxy

KILLS = int(os.environ.get("ETCD_KILLS", "3"))  # of the leader
FAST = os.environ.get("ETCD_TIMERS", "fast") == "fast"
OUTAGE_S = float(os.environ.get("ETCD_OUTAGE_S", "2"))  # without any Meta Service
DRILLS = 6  # within the time of a wait
BACKLOG = 5_000  # keys that become dirty meanwhile, besides those of the load


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The fleet that these tests share."""
    require("the Meta Service on etcd under faults", etcd)
    with Fleet.running(tmp_path_factory.mktemp("fleet"), fast=FAST) as fleet:
        yield fleet


@pytest.fixture
def fleet(started: Fleet) -> Fleet:
    """The same, without what a test before left behind."""
    started.mend()
    return started


@pytest.fixture(scope="module")
def started_adapter(started: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """An adapter whose Meta Service is both Meta Services."""
    adapter = adapter_process(tmp_path_factory.mktemp("adapter"), "', '".join(meta.address for meta in started.metas))
    with ended(adapter):
        adapter.start()
        yield adapter


@pytest.fixture
def adapter(fleet: Fleet, started_adapter: ServiceProcess) -> ServiceProcess:
    """The same, with a fleet that is whole."""
    assert fleet
    return started_adapter


async def test_kills_of_the_leader_lose_nothing(fleet: Fleet) -> None:
    """Each SIGKILL strikes the leader of the offsets under load; another member goes on with all that was acknowledged (2, 3)."""
    async with saving(Savers(fleet.metas, "kills")) as savers:
        for _ in range(KILLS):
            leader = await run_sync(fleet.offsets.leader)
            leader.kill()
            await savers.acknowledged_more()
            await run_sync(leader.start)
            await savers.acknowledged_more()
    await savers.check(*fleet.metas)
    sys.stdout.write(f"kills={KILLS} fast={FAST} longest gap between acknowledgements: {savers.longest_gap_s:.2f} s\n")


async def test_a_frozen_leader_loses_nothing(fleet: Fleet) -> None:
    """SIGSTOP: it keeps its connections. Thawed, it does not answer with what was true when it was frozen (2, 3)."""
    async with saving(Savers(fleet.metas, "frozen")) as savers:
        leader = await run_sync(fleet.offsets.leader)
        leader.freeze()
        await savers.acknowledged_more()
        newest = await run_sync(revision, await run_sync(fleet.offsets.leader))
        leader.thaw()
        assert await run_sync(revision, leader) >= newest
        await savers.acknowledged_more()
    await savers.check(*fleet.metas)


async def test_without_a_minority_saves_go_on_and_without_a_majority_adapters_do(fleet: Fleet, adapter: ServiceProcess) -> None:
    """One member of three is not missed. Without two, commits are acknowledged from the store, and arrive afterwards (3, 4)."""
    history = History()
    callers = Callers(adapter.address, history, group="majority")
    async with saving(Savers(fleet.metas, "lost")) as savers, under(callers):
        leader = await run_sync(fleet.offsets.leader)
        follower, other = (member for member in fleet.offsets.members if member is not leader)
        follower.kill()
        await savers.acknowledged_more()
        other.kill()
        await savers.failed_more()
        saved = len(savers.acknowledged_at)
        await callers.acknowledged_more()
        await status_when(adapter.address, lambda status: bool(status.last_flush_error))
        await callers.acknowledged_more()
        assert len(savers.acknowledged_at) == saved
        await run_sync(fleet.offsets.start)
        await savers.acknowledged_more()
    assert not callers.refused
    await _everything_arrives(adapter, fleet, history)
    await savers.check(*fleet.metas)


async def test_a_leader_whose_disk_fails_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """The member ends itself at the first failed fdatasync, before it says that it has what it has not (3)."""
    require("fdatasync EIO on the leader of etcd", machine.strace)
    before, savers = Savers(fleet.metas, "before"), Savers(fleet.metas, "disk")
    async with saving(before):
        leader = await run_sync(fleet.offsets.leader)
    # Attached while nobody saves: it would end before every thread of it is traced.
    with Strace(leader.pid, tmp_path / "trace", error="EIO") as fault:
        async with saving(savers):
            await eventually(lambda: leader.process is not None and leader.process.poll() is not None, WAIT_S)
            await savers.acknowledged_more()
            await run_sync(leader.start)
            await savers.acknowledged_more()
    assert fault.failures
    await before.check(*fleet.metas)
    await savers.check(*fleet.metas)


async def test_a_meta_that_dies_between_the_txn_and_its_reply_loses_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """What was written without saying so stands; it is sent again to the next Meta Service, which changes nothing (2, 3)."""
    proxy = Proxy(fleet.offsets.endpoints[0])
    meta = meta_process(tmp_path, fleet.metadata.endpoints, [proxy.address])
    with ended(meta):
        async with proxy.listening():
            await run_sync(meta.start)
            async with saving(Savers([meta], "reply")) as savers:
                proxy.delay_s = WAIT_S
                await eventually(lambda: proxy.disturbed > 0, WAIT_S)
                meta.kill()
                proxy.delay_s = 0.0
                await run_sync(meta.start)
                await savers.acknowledged_more()
        await savers.check(*fleet.metas)


async def test_a_backlog_is_saved_when_the_meta_service_is_back(fleet: Fleet, adapter: ServiceProcess) -> None:
    """Without any Meta Service, and without etcd behind them, adapters go on; then everything arrives at once (3, 4)."""
    history = History()
    callers = Callers(adapter.address, history, group="backlog")
    async with under(callers):
        await callers.acknowledged_more()
        for meta in fleet.metas:
            meta.kill()
        fleet.offsets.stop()
        until = time.monotonic() + OUTAGE_S
        await _commit_many(adapter, history)
        await eventually(lambda: time.monotonic() > until, OUTAGE_S + WAIT_S)
        await callers.acknowledged_more()
    assert not callers.refused
    backlog = (await status_when(adapter.address)).dirty_keys
    await run_sync(fleet.mend)
    back_at = time.monotonic()
    await _everything_arrives(adapter, fleet, history)
    took_s = time.monotonic() - back_at
    sys.stdout.write(f"outage={OUTAGE_S:g} s: {backlog} dirty keys arrived and were compared within {took_s:.2f} s\n")


async def test_a_full_quota_stops_saves_until_the_drill(fleet: Fleet, adapter: ServiceProcess) -> None:
    """NOSPACE: nothing is lost, adapters go on; compacted, defragmented and disarmed, everything arrives (3, 4)."""
    history = History()
    callers = Callers(adapter.address, history, group="full")
    async with saving(Savers(fleet.metas, "quota")) as savers, under(callers):
        try:
            await run_sync(_fill, await run_sync(fleet.offsets.leader))
            await savers.failed_more()
            await status_when(adapter.address, lambda status: "quota" in status.last_flush_error)
            await callers.acknowledged_more()
        finally:
            await _drill_until_saved(fleet, savers)
    assert not callers.refused
    await _everything_arrives(adapter, fleet, history)
    # One event for each change, though reads are answered between the refused writes.
    assert 1 <= fleet.metas[0].log.count("quota is used up") <= DRILLS
    await savers.check(*fleet.metas)


async def _everything_arrives(adapter: ServiceProcess, fleet: Fleet, history: History) -> None:
    """Without new commits nothing stays dirty, and the Meta Service has all that was acknowledged."""
    flush = history.carrying()
    await status_when(adapter.address, lambda status: status.dirty_keys == 0)
    flush.done()
    assert history.least(META)
    for meta in fleet.metas:
        await check_remote(meta, history)


async def _commit_many(adapter: ServiceProcess, history: History) -> None:
    shards = {f"s{number}": 1 for number in range(BACKLOG)}
    writes = [history.begin(OffsetKey(DEFAULT_NAMESPACE, "many", shard), (FIRST_EPOCH, 1)) for shard in shards]
    async with OffsetClient.connect(adapter.address, WAIT_S) as client:
        await client.commit("many", shards)
    for write in writes:
        write.acknowledged()


def _fill(member: LocalMember) -> None:
    """Write over one key until the quota is used up."""
    request = etcd_pb.PutRequest(key=b"filler", value=bytes(2**18))
    with grpc.insecure_channel(member.endpoint, CHANNEL_OPTIONS) as channel:
        kv = etcd_grpc.KVStub(channel)
        with contextlib.suppress(grpc.RpcError):
            while kv.Put(request, timeout=WAIT_S):
                pass
        with pytest.raises(grpc.RpcError, match="space exceeded"):
            kv.Put(request, timeout=WAIT_S)


async def _drill_until_saved(fleet: Fleet, savers: Savers) -> None:
    """A member that lagged behind grew again after it was defragmented, and raises the alarm again: once more, then."""
    for _ in range(DRILLS):
        await run_sync(_drill, fleet.offsets)
        with anyio.move_on_after(WAIT_S / DRILLS):
            await savers.acknowledged_more()
            return
    raise AssertionError("the alarm came again and again")


def _drill(cluster: LocalCluster) -> None:
    """What docs/etcd.md says to do by etcdctl: compact, defragment each member, disarm the alarm."""
    for number, member in enumerate(cluster.members):
        with grpc.insecure_channel(member.endpoint, CHANNEL_OPTIONS) as channel:
            kv, maintenance = etcd_grpc.KVStub(channel), etcd_grpc.MaintenanceStub(channel)
            if number == 0:
                newest = maintenance.Status(etcd_pb.StatusRequest(), timeout=WAIT_S).header.revision
                with contextlib.suppress(grpc.RpcError):  # it is compacted already
                    kv.Compact(etcd_pb.CompactionRequest(revision=newest, physical=True), timeout=WAIT_S)
            maintenance.Defragment(etcd_pb.DefragmentRequest(), timeout=WAIT_S)
    with grpc.insecure_channel(cluster.endpoints[0], CHANNEL_OPTIONS) as channel:
        maintenance = etcd_grpc.MaintenanceStub(channel)
        for alarm in maintenance.Alarm(etcd_pb.AlarmRequest(), timeout=WAIT_S).alarms:
            off = etcd_pb.AlarmRequest(action=etcd_pb.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=alarm.alarm)
            maintenance.Alarm(off, timeout=WAIT_S)
