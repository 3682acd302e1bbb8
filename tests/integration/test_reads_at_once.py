"""Reads while the recovery goes on: each has its own group compared first, and waits for no other one (invariant 9).

The recovery goes through the groups in their order. Here it is held at the first one, `a`, and never comes to `z`.
"""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from adapter.client.broker_log import NoBrokerLog
from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.meta.client import GroupsPage
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, ReadMode, next_era
from adapter.rpc import lag_pb, offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.sidecar.bridge.bridge import Bridge
from adapter.sidecar.engine.core import Core
from adapter.sidecar.process import Sidecar
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from adapter.testing.waiting import eventually
from tests.durability.wal_damage import WAL_DAMAGE
from tests.integration.helpers import PATIENCE_S, key, record, serving

STATE = offsets_pb.StatusReply
Z = key("s", group="z")


class HeldAtA(FakeMeta):
    """A Meta Service that does not answer what is asked of the group `a`, until the test says so."""

    def __init__(self, records: dict[OffsetKey, OffsetRecord] | None = None) -> None:
        super().__init__(records)
        self.asked, self.answers = anyio.Event(), anyio.Event()
        self.gone = False
        self.got: list[int] = []  # how many keys each call has asked for

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """What the recovery asks."""
        self.got.append(len(keys))
        if any(one.group == "a" for one in keys):
            self.asked.set()
            await self.answers.wait()
        elif self.gone:
            raise MetaUnavailableError("gone by the test")
        return await super().get(keys, patient=patient)


@asynccontextmanager
async def comparing(directory: Path, meta: HeldAtA, **sections: Any) -> AsyncIterator[tuple[Sidecar, OffsetClient]]:
    """A sidecar that is ready, and whose recovery is held."""
    config = adapter_config(directory, recovery={"timeout_ms": 60_000, "batch_keys": 1}, **sections)
    sidecar = Sidecar(config, meta, NoBrokerLog())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sidecar.run)
        with anyio.fail_after(PATIENCE_S):
            await sidecar.ready.wait()
            await meta.asked.wait()
        async with OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client:
            yield sidecar, client
        meta.answers.set()
        sidecar.stop()


async def left(directory: Path, offset: int = 5, *, flushed: bool = True) -> None:
    """Leave a store with an offset in `a` and one in `z`."""
    meta = FakeMeta()
    if not flushed:
        meta.down = MetaUnavailableError("gone")
    sections: dict[str, Any] = {"recovery": {"timeout_ms": 0}, "stop": {"drain_timeout_ms": 100}}
    async with serving(directory, meta, **sections) as (_, client):
        for group in ("a", "z"):
            await client.commit(group, {"s": offset})


async def test_a_read_does_not_wait_for_the_groups_before_its_own(directory: Path) -> None:
    """It gets what another adapter saved meanwhile; the group is as it was for MEMORY, which says so."""
    await left(directory)
    meta = HeldAtA({Z: record(100)})
    async with comparing(directory, meta) as (sidecar, client):
        status = await client.status()
        assert (status.state, status.recovery.done) == (STATE.SERVING, False)
        assert "the recovery has compared 0 of 2 keys" in status.reason
        rows = await client.store.ReadOffsets(
            offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group="z")], mode=offsets_pb.MEMORY), timeout=PATIENCE_S
        )
        assert [(row.offset, row.uncompared) for row in rows.offsets] == [(5, True)]
        assert (await client.read("z", ["s"], mode=ReadMode.MEMORY_FIRST_THEN_STORE))["s"].offset == 100
        assert (await client.read("z"))["s"].offset == 100
        described = await client.admin.DescribeGroup(offsets_pb.DescribeGroupRequest(group="z"), timeout=PATIENCE_S)
        assert described.shards[0].local.offset == 100
        meta.answers.set()
        await eventually(lambda: sidecar.core().ledger.recovered.now, PATIENCE_S)
        assert (await client.status()).reason == ""


async def test_a_start_position_takes_up_what_is_held(directory: Path) -> None:
    """A reset made elsewhere, while this adapter was away, is found by whoever asks where to begin."""
    await left(directory)
    meta = HeldAtA({Z: record(3, next_era(1), committed_at_ms=wall_ms())})
    async with comparing(directory, meta) as (_, client):
        assert (await client.read("z", mode=ReadMode.STORE))["s"].offset == 3
        await client.commit("z", {"s": 4})
        assert (await client.read("z"))["s"].offset == 4


async def test_what_a_former_process_left_is_persisted_when_it_is_asked_for(directory: Path) -> None:
    """It is not known to be dirty before its group is compared: a hand-over would lose it (3)."""
    await left(directory, flushed=False)
    meta = HeldAtA()
    async with comparing(directory, meta) as (sidecar, client):
        assert not len(sidecar.core().ledger.dirty)
        await client.persist("z")
        assert meta.records[Z].offset == 5
        await client.remove("z", ["s"])
        assert sidecar.core().ledger.store.get(Z) is None
    assert meta.records[Z].offset == 5


async def test_a_flush_sends_what_a_former_process_left(directory: Path) -> None:
    """Else who asks for it would take for sent what is on this disk alone (3)."""
    await left(directory, flushed=False)
    meta = HeldAtA()
    async with comparing(directory, meta) as (sidecar, client):
        assert await client.flush() == 2
        assert {where.group: found.offset for where, found in meta.records.items()} == {"a": 5, "z": 5}
        assert not sidecar.core().ledger.recovered.now


async def test_a_reset_is_decided_by_what_stands_in_the_meta_service(directory: Path) -> None:
    """Its plan has what is there, and it stands above that."""
    await left(directory)
    meta = HeldAtA({Z: record(100, 7)})
    async with comparing(directory, meta) as (_, client):
        change = offsets_pb.ResetOffsetsRequest(group="z", execute=True, to_offset=50)
        reply = await client.admin.ResetOffsets(change, timeout=PATIENCE_S)
        assert [(row.before.offset, row.after.offset) for row in reply.rows] == [(100, 50)]
        assert (meta.records[Z].offset, meta.records[Z].epoch > 7) == (50, True)


async def test_a_group_that_cannot_be_compared_is_refused_alone(directory: Path) -> None:
    """With what else may be done; commits are taken, and a group that was compared is answered."""
    await left(directory)
    meta = HeldAtA()
    async with comparing(directory, meta) as (_, client):
        meta.gone = True
        await client.commit("z", {"s": 6})
        for mode in (ReadMode.STORE, ReadMode.MEMORY_FIRST_THEN_STORE):
            with pytest.raises(
                grpc.aio.AioRpcError, match=r"default/z: not compared .*--mode memory.*gone by the test"
            ) as caught:
                await client.read("z", ["s"], mode=mode, keep_hold=True)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await client.read("z", ["s"], mode=ReadMode.MEMORY))["s"].offset == 6


async def test_what_was_left_reaches_the_meta_service_though_a_part_of_it_is_away(directory: Path) -> None:
    """The comparison is held up by the part with the group `a`; the offsets of the other parts do not wait for it (3)."""
    await left(directory, flushed=False)

    class PartAway(HeldAtA):
        async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
            if any(one.group == "a" for one in keys) and not self.answers.is_set():
                self.asked.set()
                raise MetaUnavailableError("a part is away")
            return await FakeMeta.get(self, keys, patient=patient)

    meta = PartAway()
    config = adapter_config(directory, recovery={"timeout_ms": 0, "batch_keys": 1})
    sidecar = Sidecar(config, meta, NoBrokerLog())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sidecar.run)
        with anyio.fail_after(PATIENCE_S):
            await sidecar.ready.wait()
        await eventually(lambda: Z in meta.records, PATIENCE_S)
        assert sidecar.state.state == STATE.SERVING
        meta.answers.set()
        await eventually(lambda: sidecar.core().ledger.recovered.now, PATIENCE_S)
        sidecar.stop()


async def test_calls_are_shared_and_made_only_for_what_is_here(directory: Path) -> None:
    """A hand-over of many groups, and a description of them: neither one call for each, nor one group in many calls (5)."""
    groups = [f"g{number:02}" for number in range(40)]
    async with serving(directory, FakeMeta(), recovery={"timeout_ms": 0}) as (_, client):
        await client.commit("a", {"s": 5})
        for group in groups:
            await client.commit(group, {f"s{number}": 5 for number in range(100)})
    meta = HeldAtA()
    async with comparing(directory, meta, flush={"interval_ms": 60_000}) as (_, client):
        meta.got.clear()
        wanted = [offsets_pb.GroupShards(group=group) for group in groups]
        async for _ in client.admin.DescribeGroups(offsets_pb.DescribeGroupsRequest(groups=groups), timeout=PATIENCE_S):
            pass
        assert (sum(meta.got), len(meta.got) < len(groups)) == (4_000, True)
        meta.got.clear()
        await client.store.PersistOffsets(offsets_pb.PersistOffsetsRequest(groups=wanted), timeout=PATIENCE_S)
        assert (sum(meta.got), len(meta.got) <= 4_000 // 2_000 + 1) == (4_000, True)
        meta.gone = True
        await client.persist("nobody", ["x"])


async def test_a_group_whose_part_is_away_fails_no_other(directory: Path) -> None:
    """Though they share a call."""
    await left(directory, flushed=False)

    class PartAway(HeldAtA):
        async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
            if any(one.group == "a" for one in keys) and not self.answers.is_set():
                self.asked.set()
                await anyio.sleep(0.2)
                raise MetaUnavailableError("a part is away")
            return await FakeMeta.get(self, keys, patient=patient)

    async def fails(client: OffsetClient) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match="a part is away"):
            await client.persist("a")

    async with comparing(directory, PartAway()) as (_, client), anyio.create_task_group() as tasks:
        for _ in range(2):  # the second one waits behind the first, with the call for `z`
            tasks.start_soon(fails, client)
            await anyio.sleep(0.05)
        await client.persist("z")


async def test_what_is_deleted_here_may_have_begun_anew(directory: Path) -> None:
    """An export of everything has it, as behind the comparison."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        for group in ("a", "z"):
            await client.commit(group, {"s": 5})
        await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(group="z", execute=True), timeout=PATIENCE_S)
    held = HeldAtA({Z: record(100, meta.records[Z].epoch + 1)})
    async with comparing(directory, held) as (_, client):
        request = offsets_pb.ExportOffsetsRequest(namespace="default")
        found = [(row.group, row.offset) async for reply in client.admin.ExportOffsets(request) for row in reply.offsets]
        assert found == [("a", 5), ("z", 100)]


async def test_a_broadcasting_client_that_looks_expired_here_may_have_gone_on(directory: Path) -> None:
    """Its commit of a lower offset is told what stands there, and lowers nothing."""
    inner = key("s", group="z@broadcast@c1")
    async with serving(directory, FakeMeta(), recovery={"timeout_ms": 0}) as (_, client):
        await client.commit("a", {"s": 5})
        old = offsets_pb.ShardCommit(shard="s", offset=50, committed_at_ms=wall_ms() - 36_000_000)
        groups = [offsets_pb.GroupCommits(group=inner.group, shards=[old])]
        await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=PATIENCE_S)
    meta = HeldAtA({inner: record(100, committed_at_ms=wall_ms() - 1_000)})
    async with comparing(directory, meta) as (_, client):
        shards = [offsets_pb.ShardCommit(shard="s", offset=3)]
        commit = offsets_pb.CommitBroadcastRequest(namespace="default", group="z", client_id="c1", shards=shards)
        reply = await client.store.CommitBroadcast(commit, timeout=PATIENCE_S)
        assert [row.offset for row in reply.superseded] == [100]


async def test_lag_is_not_known_before_all_is_compared(directory: Path) -> None:
    """It goes by all offsets; a scaler is told so."""
    await left(directory)
    meta = HeldAtA()
    async with comparing(directory, meta) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError, match="lag is not known before all offsets are compared"):
            await client.lag.ListGroupLag(lag_pb.ListGroupLagRequest(), timeout=PATIENCE_S)
        meta.answers.set()
        await eventually_listed(client)


async def eventually_listed(client: OffsetClient) -> None:
    """Return when lag is listed."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                await client.lag.ListGroupLag(lag_pb.ListGroupLagRequest(), timeout=PATIENCE_S)
            except grpc.aio.AioRpcError:
                await anyio.sleep(0.01)
            else:
                return


async def test_what_the_meta_service_lost_is_there_before_it_is_removed_here(directory: Path) -> None:
    """While all is compared once more, a hand-over compares first what it forgets (3)."""
    await left(directory)
    meta = HeldAtA()
    async with comparing(directory, meta) as (sidecar, client):
        meta.answers.set()
        recovered = sidecar.core().ledger.recovered
        await eventually(lambda: recovered.now, PATIENCE_S)
        meta.answers = anyio.Event()
        meta.records.clear()
        meta.server_reports.record_loss("by the test")
        await eventually(lambda: not recovered.now, PATIENCE_S)
        await client.remove("z", ["s"])
        assert meta.records[Z].offset == 5


async def test_the_bridge_waits_for_the_comparison(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives a broker what is here, which must not be less than another adapter has saved."""
    await left(directory)
    began: list[bool] = []

    async def run(self: Bridge, core: Core) -> None:  # noqa: ARG001 - as Bridge.run
        began.append(core.ledger.recovered.now)

    monkeypatch.setattr(Bridge, "run", run)
    meta = HeldAtA({Z: record(100)})
    async with comparing(directory, meta, rocketmq={"broker": "127.0.0.1:1"}) as (sidecar, client):
        assert (await client.read("z"))["s"].offset == 100
        assert not began
        meta.answers.set()
        await eventually(lambda: bool(began), PATIENCE_S)
        assert began == [True]
        assert sidecar.core().ledger.recovered.now


class Late(HeldAtA):
    """A Meta Service without epochs. It looks for the group `z`, and its answer is late."""

    kind = OFFSETS_ONLY

    def __init__(self) -> None:
        super().__init__({key("s", group="a"): record(100, 0), Z: record(120, 0)})
        self.looked, self.arrives = anyio.Event(), anyio.Event()

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """What stands now, which another call may change before the answer is there."""
        found = await super().get(keys, patient=patient)
        if Z in keys and not self.looked.is_set():
            self.looked.set()
            await self.arrives.wait()
        return found


@pytest.mark.parametrize("how", ["read", "persist", "recovery"])
async def test_a_reset_stands_though_the_offset_before_it_arrives_later(directory: Path, how: str) -> None:
    """Before a server without epochs, 120 of before the reset looks like progress of the epoch that the reset began (8)."""
    await left(directory, 100)
    meta = Late()
    async with comparing(directory, meta) as (sidecar, client), anyio.create_task_group() as tasks:
        if how == "read":
            tasks.start_soon(partial(client.read, "z", ["s"], mode=ReadMode.MEMORY_FIRST_THEN_STORE))
        elif how == "persist":
            tasks.start_soon(client.persist, "z", ["s"])
        else:
            meta.answers.set()
        with anyio.fail_after(PATIENCE_S):
            await meta.looked.wait()
        reset = offsets_pb.ResetOffsetsRequest(group="z", execute=True, to_offset=50, shards=["s"])
        await client.admin.ResetOffsets(reset, timeout=PATIENCE_S)
        meta.arrives.set()
        meta.answers.set()
        await eventually(lambda: sidecar.core().ledger.recovered.now, PATIENCE_S)
        assert (await client.read("z", mode=ReadMode.STORE))["s"].offset == 50
        assert meta.records[Z].offset == 50


class HeldGroups(HeldAtA):
    """The same, for a recovery that fetches whole groups, which it does after a loss."""

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """The first page of the recovery begins with `a`."""
        if groups[0].group == "a":
            self.asked.set()
            await self.answers.wait()
        return await super().groups_page(groups, after, patient=patient)


@pytest.mark.parametrize(
    "damage", ["last 7 bytes of the wal cut", "wal truncated to half", "zeroed page in the middle of the wal"]
)
async def test_what_was_compared_before_a_power_cut_does_not_count(directory: Path, tmp_path: Path, damage: str) -> None:
    """In the middle of a comparison the store loses its last writes: with them, what the comparison had adopted (1, 9)."""
    await left(directory, 100)
    meta = HeldAtA({key("s", group="a"): record(100), Z: record(120)})
    async with comparing(directory, meta) as (_, client):
        assert (await client.read("z"))["s"].offset == 120
        for offset in range(121, 200):
            await client.commit("z", {"s": offset, "t": offset})
        await client.flush()
        cut = tmp_path / "cut"
        shutil.copytree(directory / "adapter", cut / "adapter")
    WAL_DAMAGE[damage](cut / "adapter" / "db")
    meta = HeldGroups(meta.records)
    async with comparing(cut, meta) as (sidecar, client):
        assert sidecar.core().ledger.store.loss_at_open
        memory = offsets_pb.ReadOffsetsRequest(groups=[offsets_pb.GroupShards(group="z")], mode=offsets_pb.MEMORY)
        rows = (await client.store.ReadOffsets(memory, timeout=PATIENCE_S)).offsets
        assert all(row.uncompared or row.offset == 199 for row in rows)
        assert (await client.read("z", mode=ReadMode.MEMORY_FIRST_THEN_STORE))["s"].offset == 199
        await client.commit("z", {"s": 150})
        meta.answers.set()
        await eventually(lambda: sidecar.core().ledger.recovered.now, PATIENCE_S)
        assert {shard: row.offset for shard, row in (await client.read("z", mode=ReadMode.MEMORY)).items()} == {
            "s": 199,
            "t": 199,
        }
    assert meta.records[Z].offset == 199
