"""Between the open of the store and the Meta Service's first answer: commits are taken, and nothing else (invariant 9)."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapter.client.broker_log import NoBrokerLog
from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError, StorageFailedError, StoreDamagedError, StoreLockedError
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import (
    KnownStore,
    OffsetKey,
    OffsetRecord,
    ReadMode,
    SaveEntry,
    SaveOutcome,
    StoreReport,
    next_era,
)
from adapter.rpc import backup_pb, lag_pb, offsets_pb
from adapter.runtime.clocks import wall_ms
from adapter.sidecar.api import state as sidecar_state
from adapter.sidecar.config import AdapterConfig
from adapter.sidecar.engine.core import open_store
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.process import COMMITS, SERVICES, Sidecar
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from adapter.testing.waiting import eventually
from tests.integration.helpers import PATIENCE_S, commits, key, record, serving
from tests.unit.helpers import crash

STATE = offsets_pb.StatusReply
TAKEN = {"CommitOffsets", "StreamCommits", "Status", "Reload"}  # the last two answer nothing about offsets


class HeldMeta(FakeMeta):
    """A Meta Service that answers a recovery only when the test says so, and commits and flushes at once."""

    def __init__(self, records: dict[OffsetKey, OffsetRecord] | None = None) -> None:
        super().__init__(records)
        self.asked = anyio.Event()
        self.answers = anyio.Event()

    async def report_store(self, store: StoreReport, replaces: bytes = b"") -> KnownStore | None:
        """The first call of a recovery."""
        self.asked.set()
        await self.answers.wait()
        return await super().report_store(store, replaces)


@asynccontextmanager
async def recovering(directory: Path, meta: HeldMeta, **sections: Any) -> AsyncIterator[tuple[Sidecar, OffsetClient]]:
    """A sidecar whose recovery has asked and got no answer. At the end it is stopped."""
    sidecar = Sidecar(adapter_config(directory, **sections), meta, NoBrokerLog())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sidecar.run)
        with anyio.fail_after(PATIENCE_S):
            await sidecar.taking_commits.wait()
            await meta.asked.wait()
        async with OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client:
            yield sidecar, client
        sidecar.stop()


async def left(directory: Path, offsets: dict[str, int], meta: FakeMeta | None = None) -> None:
    """Leave a store that holds these offsets."""
    async with serving(directory, meta or FakeMeta()) as (_, client):
        await client.commit("g", offsets)


async def left_dirty(directory: Path) -> None:
    """Leave a store with an offset that no Meta Service has."""
    gone = FakeMeta()
    gone.down = MetaUnavailableError("gone")
    async with serving(directory, gone, recovery={"timeout_ms": 0}, stop={"drain_timeout_ms": 100}) as (_, client):
        await client.commit("g", {"dirty": 5})


async def recovered(sidecar: Sidecar, meta: HeldMeta) -> None:
    """Let the recovery go on, and wait until all that it found is flushed."""
    meta.answers.set()
    with anyio.fail_after(PATIENCE_S):
        await sidecar.ready.wait()
    await eventually(lambda: sidecar.core().ledger.recovered.now and not len(sidecar.core().ledger.dirty), PATIENCE_S)


async def health(sidecar: Sidecar) -> list[bool]:
    """Of the whole, of each service, and of commits alone: whether it is SERVING."""
    async with grpc.aio.insecure_channel(sidecar.addresses[-1]) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        names = ("", *SERVICES, COMMITS)
        replies = [await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE_S) for name in names]
    return [reply.status == health_pb2.HealthCheckResponse.SERVING for reply in replies]


def other_calls() -> list[MethodDescriptor]:
    """Every call that is not taken before the recovery has ended, also those that will be added."""
    services = {
        name: service for file in (offsets_pb, lag_pb, backup_pb) for name, service in file.DESCRIPTOR.services_by_name.items()
    }
    return [method for name in SERVICES for method in services[name.rpartition(".")[2]].methods if method.name not in TAKEN]


async def _refusal(client: OffsetClient, method: MethodDescriptor) -> tuple[grpc.StatusCode, str]:
    stubs = {"OffsetStore": client.store, "OffsetAdmin": client.admin, "OffsetLag": client.lag, "StoreBackup": client.backup}
    stub = stubs[method.containing_service.name]
    call = getattr(stub, method.name)(GetMessageClass(method.input_type)(), timeout=PATIENCE_S)
    try:
        if method.server_streaming:
            async for _ in call:
                break
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


async def test_before_the_store_is_open_and_verified_nothing_is_taken(directory: Path) -> None:
    """A loss is recorded before anything is acknowledged behind it (1)."""
    opens = anyio.Event()

    async def opening(config: AdapterConfig, *, only: bytes | None) -> LocalStore:
        await opens.wait()
        return await open_store(config, only=only)

    sidecar = Sidecar(adapter_config(directory), FakeMeta(), NoBrokerLog(), opening=opening)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sidecar.run)
        await eventually(lambda: bool(sidecar.addresses), PATIENCE_S)
        async with OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client:
            with pytest.raises(grpc.aio.AioRpcError, match="the adapter is starting"):
                await client.store.CommitOffsets(commits({"s": 1}), timeout=PATIENCE_S)
            assert (await client.status()).state == STATE.STARTING
            assert not any(await health(sidecar))
            opens.set()
            with anyio.fail_after(PATIENCE_S):
                await sidecar.ready.wait()
            await client.commit("g", {"s": 1})
        sidecar.stop()


async def test_a_failed_store_is_opened_again_when_its_last_reads_have_ended(directory: Path) -> None:
    """A thread that reads it keeps it locked for a moment; the process goes on."""
    opened: list[LocalStore] = []
    locked = [StoreLockedError("this process has not yet closed this store")]

    async def opening(config: AdapterConfig, *, only: bytes | None) -> LocalStore:
        if opened and locked:
            raise locked.pop()
        opened.append(await open_store(config, only=only))
        return opened[-1]

    sidecar = Sidecar(adapter_config(directory), FakeMeta(), NoBrokerLog(), opening=opening)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sidecar.run)
        with anyio.fail_after(PATIENCE_S):
            await sidecar.ready.wait()
        async with OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client:
            await client.commit("g", {"s": 1})
            opened[0]._fail("by the test")
            await eventually(lambda: len(opened) == 2 and sidecar.state.state == STATE.SERVING, PATIENCE_S)
            assert (await client.read("g"))["s"].offset == 1
        sidecar.stop()
    assert not locked


async def test_what_is_dirty_in_a_store_that_is_damaged_goes_to_the_meta_service(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the damage RocksDB takes no write, and the next open may refuse the store (1)."""
    opened: list[LocalStore] = []

    async def opening(config: AdapterConfig, *, only: bytes | None) -> LocalStore:
        if opened:
            raise StoreDamagedError("its file 000017.sst is damaged")
        opened.append(await open_store(config, only=only))
        return opened[-1]

    def damaged(_: object) -> None:
        raise StoreDamagedError("Corruption: block checksum mismatch")

    meta = FakeMeta()
    sidecar = Sidecar(adapter_config(directory, flush={"interval_ms": 60_000}), meta, NoBrokerLog(), opening=opening)
    running = asyncio.create_task(sidecar.run())
    with anyio.fail_after(PATIENCE_S):
        await sidecar.ready.wait()
    async with OffsetClient.connect(sidecar.addresses[-1], PATIENCE_S) as client:
        await client.commit("g", {"s": 1})
        monkeypatch.setattr(opened[0]._disk, "write", damaged)
        with pytest.raises(StorageFailedError, match="Corruption"):
            opened[0].write({key(): record(2)})
        with pytest.raises(StoreDamagedError, match="000017"):
            await running
    assert meta.records[key()].offset == 1


async def test_what_is_not_a_commit_waits_for_the_first_answer(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart that the Meta Service answers at once is refused to nobody (9)."""
    monkeypatch.setattr(sidecar_state, "FIRST_ANSWER_S", PATIENCE_S)
    await left(directory, {"s": 1})
    meta = HeldMeta({key(): record(100)})
    async with recovering(directory, meta) as (sidecar, client):
        modes = ReadMode.STORE, ReadMode.MEMORY_FIRST_THEN_STORE
        reads = [asyncio.create_task(client.read("g", ["s"], mode=mode)) for mode in modes]
        groups = asyncio.ensure_future(client.admin.ListGroups(offsets_pb.ListGroupsRequest(), timeout=PATIENCE_S))
        await asyncio.sleep(0)
        await client.commit("g", {"new": 1})  # behind them on the same connection
        assert not any(call.done() for call in (*reads, groups))
        await recovered(sidecar, meta)
        assert [(await read)["s"].offset for read in reads] == [100, 100]
        assert [row.group for row in (await groups).groups] == ["g"]


async def test_commits_are_taken_and_nothing_else_is_answered(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other call could be answered with what the recovery is about to adopt over (9); it waits for so long at most."""
    monkeypatch.setattr(sidecar_state, "FIRST_ANSWER_S", 0.01)
    await left(directory, {"s": 1})
    meta = HeldMeta({key(): record(100)})
    async with recovering(directory, meta) as (sidecar, client):
        await client.commit("g", {"s": 2, "new": 1})
        assert other_calls()
        for method in other_calls():
            code, text = await _refusal(client, method)
            assert code is grpc.StatusCode.UNAVAILABLE, method.full_name
            assert text.startswith("the adapter is recovering: commits are taken"), method.full_name
        for mode in ReadMode:
            with pytest.raises(grpc.aio.AioRpcError, match="the adapter is recovering"):
                await client.read("g", ["s"], mode=mode, keep_hold=True)
        status = await client.status()
        assert (status.state, status.recovery.done) == (STATE.RECOVERING, False)
        assert "until the Meta Service has said what it knows" in status.reason
        assert await health(sidecar) == [*[False] * (1 + len(SERVICES)), True]
        assert sidecar.state.ready()[0] is False
        await recovered(sidecar, meta)
        assert all(await health(sidecar))
        rows = await client.read("g", ["s", "new"], mode=ReadMode.MEMORY)
        assert {shard: row.offset for shard, row in rows.items()} == {"s": 100, "new": 1}


async def test_a_stream_is_taken_as_well(directory: Path) -> None:
    """Its commits are acknowledged before the recovery has ended, and are flushed."""
    await left(directory, {"s": 1})
    meta = HeldMeta()
    async with recovering(directory, meta) as (_, client):

        async def requests() -> AsyncIterator[offsets_pb.StreamCommitsRequest]:
            for number in range(1, 4):
                yield offsets_pb.StreamCommitsRequest(id=number, commit=commits({"s": number + 1}))

        replies = [reply async for reply in client.store.StreamCommits(requests(), timeout=PATIENCE_S)]
        assert sum(reply.covers for reply in replies) == 3
        assert not any(reply.code for reply in replies)
        await eventually(lambda: meta.records.get(key(), record(0)).offset == 4, PATIENCE_S)


async def test_what_is_larger_there_wins_over_an_early_commit_and_what_is_smaller_does_not(directory: Path) -> None:
    """As with every merge: by epoch, then by offset (2, 7)."""
    await left(directory, {"ahead": 10, "behind": 10, "reset": 10})
    held = record(3, next_era(1), committed_at_ms=wall_ms())
    meta = HeldMeta({key("ahead"): record(90), key("behind"): record(5), key("reset"): held})
    async with recovering(directory, meta) as (sidecar, client):
        for offset in (11, 12):  # the second one on the fast path
            for shard in ("ahead", "behind", "reset"):
                await client.commit("g", {shard: offset}, check=False)  # a flush may have told of the reset by then
        await recovered(sidecar, meta)
        core = sidecar.core()
        stands = {shard: core.ledger.store.get(key(shard)) for shard in ("ahead", "behind", "reset")}
        assert {shard: found.offset for shard, found in stands.items() if found} == {"ahead": 90, "behind": 12, "reset": 3}
        assert {shard: meta.records[key(shard)] for shard in stands} == stands


@pytest.mark.parametrize("large", [False, True])
async def test_a_rewind_is_decided_by_what_stands_in_the_meta_service(directory: Path, *, large: bool) -> None:
    """Forward here and back there: without a new epoch it would be acknowledged and then lost."""
    await left(directory, {"s": 100})
    meta = HeldMeta({key(): record(200)} | {key(f"o{number:04}"): record(1) for number in range(2_500 if large else 1)})
    async with recovering(directory, meta) as (sidecar, client):
        await client.commit("g", {"s": 101})  # it is in memory now, where the fast path finds it
        await client.store.CommitOffsets(commits({"s": 150}, overwrite=True), timeout=PATIENCE_S)
        await recovered(sidecar, meta)
        assert meta.records[key()].position == (2, 150)
        found = sidecar.core().ledger.store.get(key())
        assert found is not None
        assert found.position == (2, 150)


async def test_a_rewind_does_not_wait_for_a_meta_service_that_is_down(directory: Path) -> None:
    """It is taken as it is without the Meta Service: decided by what is here."""
    await left(directory, {"s": 100})
    meta = HeldMeta()
    meta.down = MetaUnavailableError("gone")
    async with recovering(directory, meta) as (sidecar, client):
        await client.store.CommitOffsets(commits({"s": 50}, overwrite=True), timeout=PATIENCE_S)
        meta.down = None
        await recovered(sidecar, meta)
        assert meta.records[key()].position == (2, 50)


async def test_nothing_counts_as_flushed_before_the_recovery_has_ended(directory: Path) -> None:
    """What a former process left dirty is not known before, so a kill must find it above `flushed_seq` (3)."""
    await left_dirty(directory)
    meta = HeldMeta()
    async with recovering(directory, meta) as (sidecar, client):
        await client.commit("g", {"s": 2})
        await eventually(lambda: key() in meta.records, PATIENCE_S)
        core = sidecar.state.committing_core()
        await eventually(lambda: not len(core.ledger.dirty), PATIENCE_S)
        assert key("dirty") not in meta.records
        assert (core.ledger.store.flushed_seq, core.meta_watch.local().flushed_seq) == (0, 0)
        await recovered(sidecar, meta)
        await client.commit("g", {"s": 3})
        await eventually(lambda: core.ledger.store.flushed_seq == core.ledger.store.seq, PATIENCE_S)
        assert meta.records[key("dirty")].offset == 5


@pytest.mark.parametrize("taken", [{"s": 2}, {}])
async def test_a_stop_during_the_recovery_flushes_what_was_taken_and_what_was_left(
    directory: Path, taken: dict[str, int]
) -> None:
    """It does not wait for the recovery (8)."""
    await left_dirty(directory)
    meta = HeldMeta()
    async with recovering(directory, meta) as (sidecar, client):
        if taken:
            await client.commit("g", taken)
    assert not sidecar.ready.is_set()
    assert {where.shard: found.offset for where, found in meta.records.items()} == {"dirty": 5, **taken}


class ComparingMeta(HeldMeta):
    """Its comparison of rows has no end. `beside`: whether it was under way, at each save."""

    def __init__(self) -> None:
        super().__init__()
        self.comparing = False
        self.beside: list[bool] = []

    async def differing(self, _: Sequence[tuple[bytes, bytes]]) -> dict[OffsetKey, OffsetRecord | None] | None:
        """Wait for ever."""
        self.comparing = True
        try:
            await anyio.sleep_forever()
        finally:
            self.comparing = False
        raise AssertionError

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Note what goes on."""
        self.beside.append(self.comparing)
        return await super().save(entries)


async def test_a_stop_ends_the_comparison_before_it_flushes(directory: Path) -> None:
    """With a million keys, what a stop does took four times as long beside it (8)."""
    await left_dirty(directory)
    meta = ComparingMeta()
    async with recovering(directory, meta, flush={"interval_ms": 60_000}) as (_, client):
        meta.answers.set()
        await eventually(lambda: meta.comparing, PATIENCE_S)
        await client.commit("g", {"s": 2})
    assert {where.shard: found.offset for where, found in meta.records.items()} == {"dirty": 5, "s": 2}
    assert set(meta.beside) == {False}


async def test_an_older_copy_is_noticed_though_commits_have_overtaken_it(directory: Path) -> None:
    """Also by a start behind one that was killed before it could ask: the commits were taken before the question (1)."""
    meta = FakeMeta()
    await left(directory, {"s": 1}, meta)
    config = adapter_config(directory)
    copy = directory / "copy"
    shutil.copytree(config.store.path, copy)
    async with serving(directory, meta) as (sidecar, client):
        for offset in range(2, 6):
            await client.commit("g", {"s": offset})
        await client.flush()
        await sidecar.core().meta_watch.report()
    (known,) = meta.stores.values()
    assert known.store.flushed_seq == 5
    shutil.rmtree(config.store.path)
    copy.rename(config.store.path)
    for seq in (2, 9):  # starts that take commits, the last one beyond what the Meta Service remembers, and are killed
        store = LocalStore.open(config.store.path, config.store.wal_sync)
        while store.seq < seq:
            store.write({key(): record(store.seq)})
        crash(store)
    held = HeldMeta(meta.records)
    held.stores = meta.stores
    async with recovering(directory, held) as (sidecar, client):
        await client.commit("g", {"s": 20})
        await recovered(sidecar, held)
        loss = (await client.status()).loss
        assert "it was put back from an older copy" in loss.why
        assert loss.writes == 4
    async with serving(directory, held) as (sidecar, client):
        await client.commit("g", {"s": 21})
        assert not sidecar.core().ledger.store.loss_at_open  # it is told once


@pytest.mark.parametrize("through", [False, True])
async def test_each_mode_takes_commits(directory: Path, *, through: bool) -> None:
    """`write_through` goes to the Meta Service first, which decides by what it has; `always` is synced before the answer."""
    sections: dict[str, Any] = {"mode": "write_through"} if through else {"store": {"wal_sync": "always"}}
    async with serving(directory, FakeMeta(), **sections) as (_, client):
        await client.commit("g", {"ahead": 10, "s": 1})
    meta = HeldMeta({key("ahead"): record(90)})
    async with recovering(directory, meta, **sections) as (sidecar, client):
        rows: Sequence[Any] = (await client.store.CommitOffsets(commits({"ahead": 20, "s": 2}), timeout=PATIENCE_S)).superseded
        if through:
            assert [(row.shard, row.offset) for row in rows] == [("ahead", 90)]
            assert meta.records[key()].offset == 2
        core = sidecar.state.committing_core()
        if not through:
            assert core.ledger.store.synced_seq >= core.ledger.store.seq_of(key())
        await recovered(sidecar, meta)
        assert (meta.records[key()].offset, meta.records[key("ahead")].offset) == (2, 90)


async def test_a_server_without_epochs_gets_no_rewind_before_the_recovery(directory: Path) -> None:
    """There the larger offset stands until the key was compared: the rewind would be acknowledged and then lost (1)."""
    before = FakeMeta()
    before.kind = OFFSETS_ONLY
    await left(directory, {"s": 100}, before)
    meta = HeldMeta(before.records)
    meta.kind = OFFSETS_ONLY
    rewind = commits({"s": 50}, overwrite=True)
    async with recovering(directory, meta) as (sidecar, client):
        await client.commit("g", {"s": 101})
        for _ in range(2):  # also when its group is loaded
            with pytest.raises(grpc.aio.AioRpcError, match="OVERWRITE is taken when that is done") as caught:
                await client.store.CommitOffsets(rewind, timeout=PATIENCE_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await recovered(sidecar, meta)
        await client.store.CommitOffsets(rewind, timeout=PATIENCE_S)
        await client.flush()
        assert meta.records[key()].offset == 50
