"""What RemoteOffsetStore does with updates, removals, resets and other persists while it waits for its adapter."""

import asyncio

import anyio
import pytest

from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.store import ReadOffsetType
from adapter.model.queues import MessageQueue
from adapter.model.records import CommitMode
from adapter.testing.waiting import PATIENCE_S
from tests.unit.fake_adapter import FakeAdapter

A, B = (MessageQueue("t", number, "broker-a") for number in range(2))
SHARD = "broker-a/t/0"
MEMORY, STORE = ReadOffsetType.READ_FROM_MEMORY, ReadOffsetType.READ_FROM_STORE
LIMIT_S = PATIENCE_S
INCREASE_ONLY, OVERWRITE = CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE


def store_over(adapter: FakeAdapter, resets: dict[MessageQueue, int | None] | None = None) -> RemoteOffsetStore:
    """A store that records the resets it is informed of."""
    return RemoteOffsetStore(adapter, "g", on_reset=None if resets is None else resets.__setitem__)


async def test_what_comes_in_during_a_persist_stays_to_be_persisted() -> None:
    """The reply acknowledges the value that was sent, not the newer one in memory."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    store.update_offset(A, 1)
    adapter.gate.clear()
    persist = asyncio.create_task(store.persist(A))
    await adapter.arrived.wait()
    store.update_offset(A, 2)
    adapter.gate.set()
    await persist
    assert adapter.records[SHARD].offset == 1
    await store.persist(A)
    assert adapter.records[SHARD].offset == 2


async def test_a_rewind_during_a_persist_stays_a_rewind() -> None:
    """The next persist stores it, after the value that was in flight."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    store.update_offset(A, 9)
    adapter.gate.clear()
    persist = asyncio.create_task(store.persist(A))
    await adapter.arrived.wait()
    store.update_offset(A, 3)
    second = asyncio.create_task(store.persist(A))
    adapter.gate.set()
    await asyncio.gather(persist, second)
    assert adapter.commits == [(INCREASE_ONLY, {SHARD: 9}), (OVERWRITE, {SHARD: 3})]
    assert adapter.records[SHARD].offset == 3


async def test_a_value_that_is_under_way_is_not_sent_twice() -> None:
    """A second persist of the same value waits for the reply to the first."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    store.update_offset(A, 9)
    adapter.gate.clear()
    persists = [asyncio.create_task(store.persist(A)) for _ in range(2)]
    await adapter.arrived.wait()
    await anyio.wait_all_tasks_blocked()
    adapter.gate.set()
    await asyncio.gather(*persists)
    assert adapter.commits == [(INCREASE_ONLY, {SHARD: 9})]


@pytest.mark.parametrize("reset", [False, True])
async def test_what_is_removed_while_its_persist_waits_is_not_sent(*, reset: bool) -> None:
    """The consumer is also not informed of a reset of the removed queue."""
    adapter, resets = FakeAdapter({SHARD: 1}), dict[MessageQueue, int | None]()
    store = store_over(adapter, resets)
    await store.read_offset(A)
    if reset:
        adapter.reset(SHARD, 0)
    store.update_offset(A, 9)
    adapter.gate.clear()
    persists = [asyncio.create_task(store.persist(A)) for _ in range(2)]
    await adapter.arrived.wait()
    await anyio.wait_all_tasks_blocked()
    store.update_offset(A, 10)
    store.remove_offset(A)
    adapter.gate.set()
    await asyncio.gather(*persists)
    assert (adapter.commits, resets) == ([(INCREASE_ONLY, {SHARD: 9})], {})


async def test_what_comes_in_during_a_release_is_not_forgotten() -> None:
    """The update is not stored yet, so it stays in memory."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    store.update_offset(A, 1)
    store.update_offset(B, 1)
    adapter.gate.clear()
    release = asyncio.create_task(store.release([A, B]))
    await adapter.arrived.wait()
    store.update_offset(A, 2)
    adapter.gate.set()
    await release
    assert store.clone_offset_table() == {A: 2}


async def test_two_persists_of_the_same_queues_do_not_wait_for_each_other_for_ever() -> None:
    """There is no deadlock, whichever order each of them names the queues in."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    adapter.gate.clear()
    persists: list[asyncio.Task[None]] = []
    for queues in ([A], [B], [A, B], [B, A]):
        for queue in queues:
            store.update_offset(queue, len(persists) + 1)
        persists.append(asyncio.create_task(store.force_persist(queues)))
        await anyio.wait_all_tasks_blocked()
    adapter.gate.set()
    with anyio.fail_after(LIMIT_S):
        await asyncio.gather(*persists)
    assert store.clone_offset_table() == {A: 4, B: 4}


async def test_a_reset_right_after_the_first_commit_is_noticed() -> None:
    """The reset comes before the queue's epoch was learned."""
    adapter, resets = FakeAdapter(), dict[MessageQueue, int | None]()
    store = store_over(adapter, resets)
    store.update_offset(A, 9)
    adapter.gate.clear()
    persist = asyncio.create_task(store.persist(A))
    await adapter.arrived.wait()
    adapter.reset(SHARD, 2)
    adapter.gate.set()
    await persist
    store.update_offset(A, 10)
    await store.persist(A)
    assert (resets, adapter.records[SHARD].offset) == ({A: 2}, 2)


async def test_a_cancelled_persist_is_persisted_again() -> None:
    """It is unknown whether the cancelled request was applied."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    store.update_offset(A, 9)
    await store.persist(A)
    store.update_offset(A, 3)
    adapter.gate.clear()
    adapter.arrived.clear()
    persist = asyncio.create_task(store.persist(A))
    await adapter.arrived.wait()
    persist.cancel()
    with pytest.raises(asyncio.CancelledError):
        await persist
    adapter.gate.set()
    store.update_offset(A, 4)
    await store.persist(A)
    assert adapter.records[SHARD].offset == 4


async def test_commits_of_one_queue_wait_for_each_other_and_share() -> None:
    """Ten concurrent commits make two requests: the first, then the newest. A late lower offset makes none."""
    adapter = FakeAdapter()
    store = store_over(adapter)
    adapter.gate.clear()
    commits = [asyncio.create_task(store.update_consume_offset_to_broker(A, offset)) for offset in range(1, 11)]
    await anyio.wait_all_tasks_blocked()
    adapter.gate.set()
    await asyncio.gather(*commits)
    await store.update_consume_offset_to_broker(A, 7)
    assert adapter.commits == [(INCREASE_ONLY, {SHARD: 1}), (INCREASE_ONLY, {SHARD: 10})]


async def test_what_is_said_while_the_store_is_read_is_newer() -> None:
    """An update during the read stays; RocketMQ's client would overwrite it."""
    adapter = FakeAdapter({SHARD: 9})
    store = store_over(adapter)
    await store.read_offset(A)
    adapter.gate.clear()
    read = asyncio.create_task(store.read_offset(A, STORE))
    await asyncio.sleep(0)
    store.update_offset(A, 4)
    adapter.gate.set()
    assert await read == 9
    assert await store.read_offset(A, MEMORY) == 4
    await store.persist(A)
    assert adapter.records[SHARD].offset == 4


async def test_what_is_removed_while_the_store_is_read_stays_removed() -> None:
    """The reply to the read does not bring a removed queue back."""
    adapter = FakeAdapter({SHARD: 9})
    store = store_over(adapter)
    store.update_offset(A, 1)
    adapter.gate.clear()
    read = asyncio.create_task(store.read_offset(A, STORE))
    await asyncio.sleep(0)
    store.remove_offset(A)
    adapter.gate.set()
    assert await read == 9
    assert store.clone_offset_table() == {}


async def test_a_read_waits_for_a_persist_of_its_queue() -> None:
    """Otherwise the read could return the offset that is just being rewound."""
    adapter = FakeAdapter({SHARD: 9})
    store = store_over(adapter)
    store.update_and_freeze_offset(A, 3)
    adapter.gate.clear()
    persist = asyncio.create_task(store.persist(A))
    read = asyncio.create_task(store.read_offset(A, STORE))
    await anyio.wait_all_tasks_blocked()
    assert adapter.reads == 0
    adapter.gate.set()
    await persist
    assert await read == 3
