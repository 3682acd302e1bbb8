"""A consumer's rebalance: which queues are handed over or begun, what fails for one queue only, and repeated rebalances."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.client.offset_store.rebalance import Change, Queues, Rebalance, Rebalanced, change
from adapter.client.offset_store.remote import RemoteOffsetStore
from adapter.client.offset_store.start import ConsumeFromWhere, QueueBounds, Start, StartPositions
from adapter.model.queues import MessageQueue
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from tests.integration.helpers import serving
from tests.unit.offset_stores import DOWN, FakeStore, Logs

A, B, C = (MessageQueue("orders", number) for number in range(3))
LOGS = Logs(dict.fromkeys((A, B, C), QueueBounds(0, 1_000)))
NONE: Queues = frozenset()
QUEUES = st.frozensets(st.sampled_from([A, B, C]))

Hook = Callable[[MessageQueue], Awaitable[None]]


class Hooks:
    """The hook that stops workers: records the queue, and stores the last offset that the worker finished."""

    def __init__(self, store: FakeStore, last: dict[MessageQueue, int] | None = None) -> None:
        self.store = store
        self.last = last or {}
        self.errors: dict[MessageQueue, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, queue: MessageQueue) -> None:
        """Record the queue, wait for the gate, then fail or store the last finished offset."""
        self.store.done.append(("stop", queue))
        await self.gate.wait()
        if queue in self.errors:
            raise self.errors[queue]
        if queue in self.last:
            self.store.update_offset(queue, self.last[queue], increase_only=True)


def only(*queues: MessageQueue) -> Queues:
    """These queues as a set."""
    return frozenset(queues)


def consumer(store: FakeStore, hook: Hook | None = None) -> Rebalance:
    """A consumer that begins at offset 0 where its group has no offset."""
    return Rebalance(store, StartPositions(store, LOGS, ConsumeFromWhere.FIRST), hook or Hooks(store))


async def test_what_went_is_persisted_before_and_after_its_workers_stop_and_then_forgotten() -> None:
    """RebalancePushImpl.removeUnnecessaryMessageQueue:94-107 and tryRemoveOrderMessageQueue:112-117, of an orderly consumer."""
    store = FakeStore({A: 10})
    rebalance = consumer(store, Hooks(store, {A: 30}))
    await rebalance.to([A])
    store.update_offset(A, 20)
    store.done.clear()
    assert await rebalance.to([]) == Rebalanced({}, NONE, only(A), {}, {})
    assert store.done == [("persist", A), ("stop", A), ("release", A)]
    assert (store.stored, store.memory, rebalance.reads) == ({A: 30}, {}, NONE)


async def test_a_consumer_that_dies_while_its_workers_stop_has_persisted_what_it_knew() -> None:
    """The first persist comes before the workers stop, so a slow stop does not increase what is delivered twice."""
    store = FakeStore({A: 10})
    hooks = Hooks(store)
    rebalance = consumer(store, hooks)
    await rebalance.to([A])
    store.update_offset(A, 20)
    hooks.gate.clear()
    going = asyncio.create_task(rebalance.to([]))
    while ("stop", A) not in store.done:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)
    assert store.stored == {A: 20}
    going.cancel()


async def test_what_came_begins_where_the_store_says_and_not_where_memory_does() -> None:
    """RebalanceImpl.updateProcessQueueTableInRebalance:476-479: removeDirtyOffset, then computePullFromWhere."""
    store = FakeStore({A: 500, B: 600})
    store.memory = {A: 100, C: 7}
    assert await consumer(store).to([A, B, C]) == Rebalanced(
        {A: Start(500, 500), B: Start(600, 600), C: Start(0, None)}, NONE, NONE, {}, {}
    )
    assert store.memory == {A: 500, B: 600, C: 0}


async def test_a_queue_that_goes_before_its_first_message_begins_where_it_began() -> None:
    """DefaultMQPushConsumerImpl.pullMessage:396-398, correctTagsOffset:713-717. LAST passes over nothing then."""
    logs = Logs({A: QueueBounds(0, 100)})
    first, second = FakeStore(), FakeStore()
    second.stored = first.stored
    owner, heir = (Rebalance(store, StartPositions(store, logs), Hooks(store)) for store in (first, second))
    assert (await owner.to([A])).starts == {A: Start(100, None)}
    logs.log[A] = QueueBounds(0, 150)
    await owner.to([])
    assert (await heir.to([A])).starts == {A: Start(100, 100)}


async def test_what_stays_is_left_alone() -> None:
    """A queue in both assignments is neither stopped, nor persisted, nor read again."""
    store = FakeStore({A: 10})
    rebalance = consumer(store)
    await rebalance.to([A])
    store.update_offset(A, 20)
    store.done.clear()
    found = await rebalance.to([A, B])
    assert (found.stays, only(*found.starts), store.memory[A]) == (only(A), only(B), 20)
    assert only(*(queue for _, queue in store.done)) == only(B)


async def test_a_queue_whose_offset_is_not_in_the_meta_service_is_not_given_up() -> None:
    """The result names it, and the next rebalance tries again; the other queues are handed over and begun."""
    store = FakeStore({A: 10, B: 10, C: 10})
    hooks = Hooks(store, {A: 30, B: 40})
    rebalance = consumer(store, hooks)
    await rebalance.to([A, B])
    store.persist_faults[A] = DOWN
    found = await rebalance.to([C])
    assert (found.handed_over, found.held, only(*found.starts)) == (only(B), {A: DOWN}, only(C))
    assert (store.stored, store.memory[A], rebalance.reads) == ({A: 10, B: 40, C: 10}, 30, only(C))
    store.persist_faults.clear()
    found = await rebalance.to([C])
    assert (found.handed_over, found.held, found.stays) == (only(A), {}, only(C))
    assert (store.stored[A], store.memory) == (30, {C: 10})


async def test_a_held_queue_that_comes_back_is_begun_anew_where_its_workers_ended() -> None:
    """Its workers are stopped, so it is begun again, after the offset that only memory has is persisted."""
    store = FakeStore({A: 10})
    rebalance = consumer(store, Hooks(store, {A: 30}))
    await rebalance.to([A])
    store.persist_faults[A] = DOWN
    await rebalance.to([])
    assert await rebalance.to([A]) == Rebalanced({}, NONE, NONE, {A: DOWN}, {})
    store.persist_faults.clear()
    assert await rebalance.to([A]) == Rebalanced({A: Start(30, 30)}, NONE, NONE, {}, {})
    assert rebalance.reads == only(A)


async def test_a_hook_that_fails_holds_its_queue_alone() -> None:
    """Its workers may still run: what they finish would be lost if the queue went to the next owner."""
    store = FakeStore({A: 10, B: 10})
    hooks = Hooks(store)
    rebalance = consumer(store, hooks)
    await rebalance.to([A, B])
    hooks.errors[A] = TimeoutError("a worker hangs")
    found = await rebalance.to([C])
    assert (found.held, found.handed_over, only(*found.starts)) == (hooks.errors, only(B), only(C))
    assert ("release", A) not in store.done


async def test_a_queue_without_a_beginning_is_not_read_and_comes_again() -> None:
    """As RebalanceImpl.updateProcessQueueTableInRebalance:494-496: it is not in the table, so the next rebalance adds it."""
    store = FakeStore({A: 10, B: 20})
    store.faults[A] = DOWN
    rebalance = consumer(store)
    found = await rebalance.to([A, B])
    assert (found.failed, only(*found.starts), rebalance.reads) == ({A: DOWN}, only(B), only(B))
    store.faults.clear()
    assert await rebalance.to([A, B]) == Rebalanced({A: Start(10, 10)}, only(B), NONE, {}, {})


async def test_a_rebalance_that_is_repeated_changes_nothing() -> None:
    """Also for a restarted consumer, which has no memory of the first rebalance."""
    store = FakeStore({A: 10, B: 20})
    rebalance = consumer(store)
    await rebalance.to([A, B])
    await rebalance.to([A])
    assert await rebalance.to([A]) == Rebalanced({}, only(A), NONE, {}, {})
    started_again = consumer(FakeStore(store.stored))
    assert await started_again.to([A]) == Rebalanced({A: Start(10, 10)}, NONE, NONE, {}, {})
    assert store.stored == {A: 10, B: 20}


async def test_a_cancelled_rebalance_is_taken_up_by_the_next() -> None:
    """The next one begins queues whose workers were stopped, and those that had not been begun."""
    store = FakeStore({A: 10, B: 20})
    hooks = Hooks(store, {A: 30})
    rebalance = consumer(store, hooks)
    await rebalance.to([A])
    hooks.gate.clear()
    going = asyncio.create_task(rebalance.to([B]))
    while ("stop", A) not in store.done:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert rebalance.reads == NONE
    hooks.gate.set()
    assert await rebalance.to([A, B]) == Rebalanced({A: Start(30, 30), B: Start(20, 20)}, NONE, NONE, {}, {})


async def test_rebalances_come_one_after_the_other() -> None:
    """The second one starts from the result of the first, and begins no queue that the first is still handing over."""
    store = FakeStore({A: 10})
    hooks = Hooks(store)
    rebalance = consumer(store, hooks)
    await rebalance.to([A])
    hooks.gate.clear()
    going, coming = (asyncio.create_task(rebalance.to(assignment)) for assignment in ([], [A]))
    while ("stop", A) not in store.done:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)
    hooks.gate.set()
    gone, back = await asyncio.gather(going, coming)
    assert (gone.handed_over, back.starts) == (only(A), {A: Start(10, 10)})
    assert store.done.count(("stop", A)) == 1


async def test_a_late_commit_of_a_lost_queue_neither_rewinds_it_nor_is_begun_from(tmp_path: Path) -> None:
    """confluentinc/librdkafka #2782: a worker of the old owner finishes after the rebalance. Runs over adapters."""
    meta, log = FakeMeta(), Logs({A: QueueBounds(0, 1_000)})

    async def nothing_more(_: MessageQueue) -> None:
        pass

    async with serving(tmp_path / "1", meta) as (_, here), serving(tmp_path / "2", meta) as (_, there):
        old, new = (RemoteOffsetStore(client, "g") for client in (here, there))
        loser, winner = (Rebalance(store, StartPositions(store, log), nothing_more) for store in (old, new))
        await here.commit("g", {"orders/0": 100})
        assert (await loser.to([A])).starts == {A: Start(100, 100)}
        await loser.to([])
        assert (await winner.to([A])).starts == {A: Start(100, 100)}
        new.update_offset(A, 500, increase_only=True)
        await winner.to([])
        old.update_offset(A, 90)
        assert (await loser.to([A])).starts == {A: Start(500, 500)}
        assert old.clone_offset_table() == {A: 500}
        old.update_offset(A, 510, increase_only=True)
        await loser.to([])
        assert [record.offset for record in meta.records.values()] == [510]


async def test_a_reset_while_the_queue_changes_hands_is_where_the_next_owner_begins(tmp_path: Path) -> None:
    """apache/rocketmq #4206: the last commit of the old owner, still in flight, must not undo the reset."""
    meta, log = FakeMeta(), Logs({A: QueueBounds(0, 1_000)})
    async with serving(tmp_path / "1", meta) as (_, here), serving(tmp_path / "2", meta) as (_, there):
        old, new = (RemoteOffsetStore(client, "g") for client in (here, there))

        async def finish_and_be_reset(queue: MessageQueue) -> None:
            request = offsets_pb.ResetOffsetsRequest(group="g", shards=["orders/0"], to_offset=40, execute=True)
            assert (await here.admin.ResetOffsets(request)).executed
            old.update_offset(queue, 200, increase_only=True)

        await here.commit("g", {"orders/0": 100})
        loser = Rebalance(old, StartPositions(old, log), finish_and_be_reset)
        winner = Rebalance(new, StartPositions(new, log), finish_and_be_reset)
        await loser.to([A])
        assert (await loser.to([])).handed_over == only(A)
        assert (await winner.to([A])).starts == {A: Start(40, 40)}


@given(QUEUES, QUEUES, QUEUES)
def test_every_queue_has_one_place_in_a_change(reads: Queues, holds: Queues, assigned: Queues) -> None:
    """For any old and new assignment, each queue either goes, comes or stays."""
    step = change(reads, holds - reads, assigned)
    assert step.came | step.stays == assigned
    assert step.went | (assigned & (reads | holds)) == reads | holds
    assert not step.went & assigned
    assert not step.came & step.stays
    assert holds - reads - step.went <= step.came


def test_a_change_in_small() -> None:
    """One queue goes, one comes and one stays."""
    assert change(only(A, B), NONE, only(B, C)) == Change(only(A), only(C), only(B))
