"""The RemoteOffsetStore over real adapters: resets in its way, adapters that stop, and hand-overs."""

from pathlib import Path

import pytest

from adapter.client.client import OffsetClient
from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.store import OffsetStoreError, ReadOffsetType
from adapter.errors import InvalidInputError, MetaUnavailableError
from adapter.model.queues import MessageQueue, shard_of
from adapter.model.records import CommitMode, ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import PATIENCE_S
from tests.integration.helpers import key, serving

A, B = (MessageQueue("orders", number, "broker-a") for number in range(2))
MEMORY, STORE = ReadOffsetType.READ_FROM_MEMORY, ReadOffsetType.READ_FROM_STORE
NEVER = {"interval_ms": 60_000}  # nothing is flushed unless asked for

Resets = dict[MessageQueue, int | None]


async def reset(client: OffsetClient, queue: MessageQueue, offset: int) -> None:
    """An operator resets the group's offset of a queue."""
    request = offsets_pb.ResetOffsetsRequest(
        namespace="default", group="g", shards=[shard_of(queue)], to_offset=offset, execute=True
    )
    assert (await client.admin.ResetOffsets(request)).executed


async def offset_in(client: OffsetClient, queue: MessageQueue) -> int:
    """What stands in the adapter."""
    return (await client.read("g", [shard_of(queue)], mode=ReadMode.MEMORY))[shard_of(queue)].offset


async def test_a_commit_in_flight_does_not_undo_a_reset(directory: Path) -> None:
    """The consumer is told, its late updates are ignored, and after a remove and a read it goes on from the reset (7)."""
    resets: Resets = {}
    async with serving(directory) as (_, client):
        store = RemoteOffsetStore(client, "g", on_reset=resets.__setitem__)
        assert await store.read_offset(A) is None
        store.update_offset(A, 100)
        await store.persist(A)
        assert await store.read_offset(A, STORE) == 100
        await reset(client, A, 40)
        store.update_offset(A, 101)
        store.update_offset(B, 7)
        await store.persist_all([A, B])
        assert resets == {A: 40}
        store.update_offset(A, 102)
        await store.persist_all([A, B])
        assert await store.read_offset(A) == 40
        assert (await offset_in(client, A), await offset_in(client, B)) == (40, 7)

        store.remove_offset(A)
        assert await store.read_offset(A) == 40
        store.update_offset(A, 41)
        await store.persist(A)
        assert await offset_in(client, A) == 41
        assert resets == {A: 40}


async def test_a_rewind_in_flight_does_not_undo_a_reset_either(directory: Path) -> None:
    """Nor does what the consumer froze itself."""
    async with serving(directory) as (_, client):
        await client.commit("g", {shard_of(A): 100, shard_of(B): 100})
        resets: Resets = {}
        store = RemoteOffsetStore(client, "g", on_reset=resets.__setitem__)
        for queue in (A, B):
            assert await store.read_offset(queue) == 100
            await reset(client, queue, 200)
        store.update_offset(A, 50)
        store.update_and_freeze_offset(B, 60)
        await store.persist_all([A, B])
        assert resets == {A: 200, B: 200}
        assert (await offset_in(client, A), await offset_in(client, B)) == (200, 200)


async def test_a_delete_leaves_nothing_and_says_so(directory: Path) -> None:
    """Absent is None, not 0, and what was deleted does not come back."""
    resets: Resets = {}
    async with serving(directory) as (_, client):
        await client.commit("g", {shard_of(A): 9})
        store = RemoteOffsetStore(client, "g", on_reset=resets.__setitem__)
        await store.read_offset(A)
        request = offsets_pb.DeleteOffsetsRequest(namespace="default", group="g", shards=[shard_of(A)], execute=True)
        assert (await client.admin.DeleteOffsets(request)).executed
        store.update_offset(A, 10)
        await store.persist(A)
        assert resets == {A: None}
        assert (await store.read_offset(A, MEMORY), await store.read_offset(A)) == (None, None)
        assert store.clone_offset_table() == {}
        store.update_offset(A, 11)
        await store.persist(A)
        assert await client.read("g") == {}


async def test_a_rewind_of_another_freezes(directory: Path) -> None:
    """What a consumer has read before it is from before it."""
    resets: Resets = {}
    async with serving(directory) as (_, client):
        one, other = RemoteOffsetStore(client, "g"), RemoteOffsetStore(client, "g", on_reset=resets.__setitem__)
        one.update_offset(A, 100)
        await one.persist(A)
        assert await other.read_offset(A) == 100
        one.update_offset(A, 30)
        await one.persist(A)
        other.update_offset(A, 110)
        await other.persist(A)
        assert (resets, await offset_in(client, A)) == ({A: 30}, 30)


async def test_a_persist_outlives_the_adapter(directory: Path) -> None:
    """It fails while there is none, keeps what it has, and the next one stores it."""
    meta, config = FakeMeta(), adapter_config(directory)
    async with running_sidecar(config, meta) as sidecar:
        address = sidecar.addresses[-1]
    async with OffsetClient.connect(address, 0.1) as impatient, OffsetClient.connect(address, PATIENCE_S) as patient:
        clients = {"broker-a": impatient}
        store = RemoteOffsetStore(clients, "g")
        store.update_offset(A, 5)
        for call in (store.persist(A), store.persist_all([A]), store.force_persist([A]), store.release([A])):
            with pytest.raises(OffsetStoreError) as failure:
                await call
            assert list(failure.value.failed) == [A]
        with pytest.raises(OffsetStoreError):
            await store.read_offset(B)
        assert store.clone_offset_table() == {A: 5}
        clients["broker-a"] = patient
        async with running_sidecar(config, meta):
            await store.persist(A)
            assert await store.read_offset(A, STORE) == 5


async def test_each_broker_has_its_adapter(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A queue's offset goes to that of its broker, and is found there."""
    there = MessageQueue("orders", 0, "broker-b")
    async with serving(tmp_path_factory.mktemp("d")) as (_, a), serving(tmp_path_factory.mktemp("d")) as (_, b):
        store = RemoteOffsetStore({"broker-a": a, "broker-b": b}, "g", namespace="n")
        store.update_offset(A, 1)
        store.update_offset(there, 2)
        await store.persist_all([A, there])
        assert {shard: row.offset for shard, row in (await a.read("g", namespace="n")).items()} == {"broker-a/orders/0": 1}
        assert {shard: row.offset for shard, row in (await b.read("g", namespace="n")).items()} == {"broker-b/orders/0": 2}
        store.remove_offset(there)
        assert await store.read_offset(there) == 2


async def test_a_forced_persist_returns_when_the_meta_service_has_it(directory: Path) -> None:
    """Also what was committed before; a plain persist leaves that to the flush."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=NEVER) as (_, client):
        store = RemoteOffsetStore(client, "g")
        store.update_offset(A, 5)
        await store.persist(A)
        assert meta.records == {}
        store.update_offset(B, 6)
        await store.force_persist([A, B])
        assert {at.shard: record.offset for at, record in meta.records.items()} == {shard_of(A): 5, shard_of(B): 6}
        assert store.clone_offset_table() == {A: 5, B: 6}


async def test_what_is_released_is_forgotten_here_and_kept_there(directory: Path) -> None:
    """Whoever takes it over reads it from the Meta Service; a queue that could not be handed over stays in memory."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=NEVER) as (_, client):
        store = RemoteOffsetStore(client, "g")
        store.update_offset(A, 5)
        store.update_offset(B, 6)
        await store.release([A])
        assert store.clone_offset_table() == {B: 6}
        assert list(await client.read("g", mode=ReadMode.MEMORY)) == []
        assert meta.records[key(shard_of(A))].offset == 5
        meta.down = MetaUnavailableError("no route")
        with pytest.raises(OffsetStoreError):
            await store.release([B])
        assert store.clone_offset_table() == {B: 6}
        meta.down = None


async def test_a_commit_is_durable_before_it_returns(directory: Path) -> None:
    """Per message, without a persist; an OVERWRITE in between is another's, and stands."""
    async with serving(directory) as (_, client):
        store = RemoteOffsetStore(client, "g")
        for offset in range(1, 4):
            await store.update_consume_offset_to_broker(A, offset)
            assert await offset_in(client, A) == offset
        await client.commit("g", {shard_of(A): 1}, mode=CommitMode.OVERWRITE)
        assert await store.read_offset(A) == 3
        assert await store.read_offset(A, STORE) == 1


def test_names_and_offsets_are_refused_at_once() -> None:
    """Before anything is sent."""
    for group, namespace in (("", "n"), ("g", "a\nb")):
        with pytest.raises(InvalidInputError):
            RemoteOffsetStore({}, group, namespace=namespace)
    store = RemoteOffsetStore({}, "g")
    store.update_offset(A, 2**64 - 1)
    for queue, offset in ((MessageQueue("a/b", 0), 1), (MessageQueue("t", -1), 1), (B, -1), (B, 2**64)):
        with pytest.raises(InvalidInputError):
            store.update_offset(queue, offset)
    assert store.clone_offset_table() == {A: 2**64 - 1}


async def test_a_queue_that_cannot_be_is_refused_in_a_read() -> None:
    """Not as absent, nor as failed."""
    with pytest.raises(InvalidInputError, match="queue_id"):
        await RemoteOffsetStore({}, "g").read_offset(MessageQueue("t", -1))
