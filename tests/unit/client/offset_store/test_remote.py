"""The requests of RemoteOffsetStore, and its state after lost replies, over an adapter in memory."""

import pytest

from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.store import OffsetStoreError, ReadOffsetType
from adapter.model.queues import MessageQueue
from adapter.model.records import CommitMode
from tests.unit.fake_adapter import FakeAdapter, Fault

A, B, C = (MessageQueue("t", number, "broker-a") for number in range(3))
SHARD = "broker-a/t/0"
MEMORY = ReadOffsetType.READ_FROM_MEMORY
INCREASE_ONLY, OVERWRITE = CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE


def store_over(adapter: FakeAdapter, resets: dict[MessageQueue, int | None] | None = None) -> RemoteOffsetStore:
    """A store that records the resets it is informed of."""
    return RemoteOffsetStore(adapter, "g", on_reset=None if resets is None else resets.__setitem__)


async def test_only_what_changed_is_sent_in_one_request() -> None:
    """Many queues go in one commit; offsets that the adapter already has are left out."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    for queue in (A, B, C):
        store.update_offset(queue, 5)
    await store.persist_all([A, B, C])
    store.update_offset(B, 6)
    store.update_offset(C, 5)
    await store.persist_all([A, B, C])
    await store.persist_all([A, B, C])
    assert adapter.commits == [
        (INCREASE_ONLY, {"broker-a/t/0": 5, "broker-a/t/1": 5, "broker-a/t/2": 5}),
        (INCREASE_ONLY, {"broker-a/t/1": 6}),
    ]


async def test_more_queues_than_a_request_may_have_go_in_several() -> None:
    """An adapter refuses a commit of more than 5,000 offsets as a whole: nothing would be stored, however often it is tried."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    queues = [MessageQueue("t", number, "broker-a") for number in range(5_001)]
    for offset, mode in ((5, INCREASE_ONLY), (4, OVERWRITE)):
        for queue in queues:
            store.update_offset(queue, offset)
        adapter.commits.clear()
        await store.persist_all(queues)
        assert [mode] * 3 == [sent for sent, _ in adapter.commits]
        assert max(len(offsets) for _, offsets in adapter.commits) <= 5_000
        assert {shard: at for _, offsets in adapter.commits for shard, at in offsets.items()} == {
            f"broker-a/t/{queue.queue_id}": offset for queue in queues
        }


async def test_what_was_read_is_not_sent_back() -> None:
    """A read offset is known to be in the adapter."""
    adapter = FakeAdapter({SHARD: 9})
    store = store_over(adapter)
    assert await store.read_offset(A) == 9
    await store.persist_all([A])
    assert adapter.commits == []


async def test_a_rewind_goes_by_itself_and_overwrites() -> None:
    """It has a request of its own with OVERWRITE; the other queues go with INCREASE_ONLY."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    store.update_offset(A, 9)
    store.update_offset(B, 9)
    await store.persist_all([A, B])
    store.update_offset(A, 4)
    store.update_offset(B, 10)
    await store.persist_all([A, B])
    assert adapter.commits[1:] == [(INCREASE_ONLY, {"broker-a/t/1": 10}), (OVERWRITE, {SHARD: 4})]
    assert adapter.records[SHARD].position == (2, 4)


async def test_progress_after_a_rewind_is_stored() -> None:
    """The store learns the rewind's epoch; without it every later commit would be superseded."""
    adapter, resets = FakeAdapter({SHARD: 9}), dict[MessageQueue, int | None]()
    store = store_over(adapter, resets)
    await store.read_offset(A)
    for offset in (4, 5, 2, 3, 11):
        store.update_offset(A, offset)
        await store.persist(A)
        assert adapter.records[SHARD].offset == offset
    assert resets == {}


async def test_a_larger_offset_of_another_stays_and_is_not_taken_for_ones_own() -> None:
    """The larger offset is another consumer's, so this consumer's next lower offset is no rewind."""
    adapter = FakeAdapter({SHARD: 10})
    store = store_over(adapter)
    await store.read_offset(A)
    await adapter.commit("g", {SHARD: 20})
    for offset in (12, 13):
        store.update_offset(A, offset)
        await store.persist(A)
        assert adapter.records[SHARD].position == (1, 20)
    assert await store.read_offset(A, MEMORY) == 13


async def test_a_rewind_of_another_is_not_taken_for_ones_own() -> None:
    """The own rewind did not raise the epoch, as the reply to the next commit showed."""
    adapter, resets = FakeAdapter({SHARD: 1}), dict[MessageQueue, int | None]()
    store = store_over(adapter, resets)
    await store.read_offset(A)
    for offset in (9, 4):
        store.update_offset(A, offset)
    await store.persist(A)
    store.update_offset(A, 5)
    await store.persist(A)
    await adapter.commit("g", {SHARD: 4}, mode=OVERWRITE)
    store.update_offset(A, 6)
    await store.persist(A)
    assert resets == {A: 4}


async def test_a_rewind_of_another_below_ones_own_that_was_lost_stands() -> None:
    """The stored offset is below the one this consumer rewound to, so it is another consumer's."""
    adapter, resets = FakeAdapter({SHARD: 9}), dict[MessageQueue, int | None]()
    store = store_over(adapter, resets)
    await store.read_offset(A)
    store.update_offset(A, 4)
    adapter.faults.append(Fault.LOST)
    with pytest.raises(OffsetStoreError):
        await store.persist(A)
    await adapter.commit("g", {SHARD: 2}, mode=OVERWRITE)
    await store.persist(A)
    assert (resets, adapter.records[SHARD].position) == ({A: 2}, (2, 2))


async def test_a_reset_of_a_queue_that_was_new_is_noticed() -> None:
    """The epoch of a new queue is learned from its first commit."""
    adapter, resets = FakeAdapter(), dict[MessageQueue, int | None]()
    store = store_over(adapter, resets)
    assert await store.read_offset(A) is None
    store.update_offset(A, 9)
    await store.persist(A)
    adapter.reset(SHARD, 2)
    store.update_offset(A, 10)
    await store.persist(A)
    assert (resets, adapter.records[SHARD].offset) == ({A: 2}, 2)


async def test_an_epoch_that_could_not_be_learned_fails_nothing() -> None:
    """The offset is stored, and the next commit asks for the epoch again."""
    adapter, resets = FakeAdapter(), dict[MessageQueue, int | None]()
    store = store_over(adapter, resets)
    adapter.unreadable = True
    store.update_offset(A, 9)
    await store.persist(A)
    adapter.unreadable = False
    store.update_offset(A, 10)
    await store.persist(A)
    adapter.reset(SHARD, 2)
    store.update_offset(A, 11)
    await store.persist(A)
    assert resets == {A: 2}


async def test_every_broker_is_tried_before_a_persist_fails() -> None:
    """The error names each failed queue with its reason; the next persist sends only those."""
    good, bad = FakeAdapter(), FakeAdapter()
    bad.faults.append(Fault.LOST)
    store = RemoteOffsetStore({"broker-a": good, "broker-b": bad}, "g")
    there, unknown = MessageQueue("t", 0, "broker-b"), MessageQueue("t", 0, "broker-c")
    for queue in (unknown, there, A):
        store.update_offset(queue, 5)
    with pytest.raises(OffsetStoreError) as failure:
        await store.persist_all([unknown, there, A])
    assert failure.value.failed == {
        there: "UNAVAILABLE: no route",
        unknown: "no adapter is known for the broker 'broker-c'",
    }
    assert "of broker-c/t/0 failed: no adapter is known" in str(failure.value)
    await store.persist_all([there, A])
    assert (good.records[SHARD].offset, bad.records["broker-b/t/0"].offset) == (5, 5)
    assert len(good.commits) == 1


async def test_reading_a_queue_of_an_unknown_broker_fails_by_name() -> None:
    """As RemoteBrokerOffsetStore.java:253."""
    store = RemoteOffsetStore({}, "g")
    with pytest.raises(OffsetStoreError, match="broker 'broker-a'"):
        await store.read_offset(A)


def test_an_error_names_some_and_has_all() -> None:
    """The text names a few queues so that a thousand do not fill a log; the attribute has all of them."""
    error = OffsetStoreError.of("storing", {MessageQueue("t", number): "no route" for number in range(12)})
    assert str(error).endswith("t/8, t/9 and 2 more failed: no route")
    assert len(error.failed) == 12


async def test_a_forced_persist_of_no_queues_asks_nobody() -> None:
    """A request that names no shard would mean the whole group."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    await store.force_persist([])
    store.update_offset(A, 1)
    adapter.faults.append(Fault.LOST)
    with pytest.raises(OffsetStoreError):
        await store.force_persist([A])
    assert adapter.persisted == []
    await store.force_persist([A, B])
    assert adapter.persisted == [[SHARD, "broker-a/t/1"]]
