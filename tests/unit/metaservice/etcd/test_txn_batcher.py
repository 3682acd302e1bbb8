"""Writes into one Raft group: the content of transactions, and what happens to entries when one fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from adapter.errors import DiskFullError, MetaUnavailableError, NotReadyError
from adapter.metaservice.etcd.keys import Keys, decode_value, encode_value
from adapter.metaservice.etcd.txn_batcher import Item, TxnBatcher
from adapter.model.records import FIRST_EPOCH, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status
from adapter.rpc import etcd_pb
from tests.unit.fake_etcd import MAX_TXN_OPS, FakeCluster
from tests.unit.helpers import key, record, tombstone

KEYS = Keys("p/")
OPEN = etcd_pb.Compare(target=etcd_pb.Compare.VERSION, key=KEYS.fence, version=0)
SHUT = etcd_pb.Compare(target=etcd_pb.Compare.VALUE, key=KEYS.fence, value=b"another")
A, B = key("a"), key("b")


def item(where: OffsetKey, offered: OffsetRecord, expected: int | None = None) -> Item:
    """An entry on its way."""
    return Item(SaveEntry(where, offered, expected), KEYS.offset("c", where))


@asynccontextmanager
async def running(cluster: FakeCluster) -> AsyncIterator[TxnBatcher]:
    """A running batcher for this cluster."""
    batcher = TxnBatcher(cluster, KEYS, "writer", MAX_TXN_OPS)  # type: ignore[arg-type]  # as much of one as a lane uses
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def stands(cluster: FakeCluster, where: OffsetKey) -> OffsetRecord | None:
    """The stored record."""
    value = cluster.value(KEYS.offset("c", where))
    return None if value is None else decode_value(value)


async def test_a_save_is_one_transaction_with_a_put_beside_the_nested_ones() -> None:
    """Etcd does not count nested puts against its quota."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        items = [item(key(str(at)), record(at)) for at in range(100)]
        await batcher.merge(OPEN, items)
        assert [found.outcome for found in items] == [SaveOutcome(Status.APPLIED, record(at)) for at in range(100)]
    (request,) = cluster.txns
    assert [op.WhichOneof("request") for op in request.success] == ["request_put"] + ["request_txn"] * 100


async def test_no_transaction_is_larger_than_etcd_allows() -> None:
    """In operations and in bytes; also for tombstones, which take two puts."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        large = [item(key(str(at)), record(at, metadata="é" * 2000)) for at in range(300)]
        buried = [item(key(f"d{at}"), tombstone(2)) for at in range(300)]
        await batcher.merge(OPEN, large + buried)
        assert all(found.outcome and found.outcome.status is Status.APPLIED for found in large + buried)
    assert max(request.ByteSize() for request in cluster.txns) <= 1_500_000


async def test_what_stands_may_be_much_longer_than_what_is_decided_on_it() -> None:
    """Else etcd would refuse the transaction, and each one in which these entries come again."""
    cluster = FakeCluster()
    where = [key(str(at)) for at in range(300)]
    for each in where:
        cluster.put(KEYS.offset("c", each), encode_value(record(5, metadata="é" * 2000)))
    async with running(cluster) as batcher:
        items = [item(each, record(7), expected=5) for each in where]
        await batcher.merge(OPEN, items)
        assert [found.outcome for found in items] == [SaveOutcome(Status.APPLIED, record(7))] * 300
    assert max(request.ByteSize() for request in cluster.txns) <= sum(found.cost for found in items)


async def test_saves_that_wait_share_a_transaction() -> None:
    """They are collected while four transactions are in progress."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        await asyncio.gather(*(batcher.merge(OPEN, [item(key(str(at)), record(at))]) for at in range(40)))
    assert len(cluster.txns) <= 5


async def test_the_same_key_of_two_saves_is_in_two_transactions() -> None:
    """Etcd, and the fake, refuse a transaction that writes a key twice."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        await asyncio.gather(*(batcher.merge(OPEN, [item(A, record(at)), item(B, record(at))]) for at in range(10)))
        assert [stands(cluster, where) for where in (A, B)] == [record(9)] * 2


async def test_a_refused_fence_leaves_items_without_an_outcome_and_nothing_written() -> None:
    """The engine then reads the new layout and sends them to the right Raft group."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        refused = [item(A, record(5)), item(B, tombstone(2))]
        await batcher.merge(SHUT, refused)
        assert [found.outcome for found in refused] == [None, None]
    assert not cluster.kvs


async def test_items_for_two_layouts_are_never_in_one_transaction() -> None:
    """Each under its own fence."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        cluster.fail = lambda _: None
        let_in, refused = (
            [item(key(str(at)), record(at)) for at in range(20)],
            [item(key(f"r{at}"), record(at)) for at in range(20)],
        )
        await asyncio.gather(*(batcher.merge(OPEN, [one]) for one in let_in), *(batcher.merge(SHUT, [one]) for one in refused))
        assert all(found.outcome for found in let_in)
        assert not any(found.outcome for found in refused)


@pytest.mark.parametrize("error", [MetaUnavailableError("no leader"), DiskFullError("quota")])
async def test_a_failed_transaction_makes_its_items_unavailable_and_no_others(
    error: MetaUnavailableError | DiskFullError,
) -> None:
    """They carry the reason; the next transaction is tried."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        cluster.fail = lambda _: error
        failed = item(A, record(5))
        await batcher.merge(OPEN, [failed])
        assert failed.outcome == SaveOutcome(Status.UNAVAILABLE, None, str(error))
        assert failed.error is error
        cluster.fail = lambda _: None
        passed = item(A, record(5))
        await batcher.merge(OPEN, [passed])
        assert passed.outcome == SaveOutcome(Status.APPLIED, record(5))


async def test_an_expected_offset_is_never_sent_twice_by_the_client() -> None:
    """It would meet its own write and report a conflict. Merges may be resent."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        await asyncio.gather(batcher.merge(OPEN, [item(A, record(5))]), batcher.merge(OPEN, [item(B, record(5), expected=0)]))
    assert len(cluster.resent) == 3  # the merge; the read and the write of the other
    for request, resent in zip(cluster.txns, cluster.resent, strict=True):
        assert resent == (KEYS.offset("c", A) in request.SerializeToString())


async def test_a_value_that_another_program_has_written_fails_its_own_entry_alone() -> None:
    """The others of the transaction are saved, and the process goes on."""
    cluster = FakeCluster()
    cluster.put(KEYS.offset("c", A), b"\xff of another program")
    async with running(cluster) as batcher:
        bad, good = item(A, record(5)), item(B, record(5))
        await batcher.merge(OPEN, [bad, good])
        assert bad.outcome
        assert bad.outcome.status is Status.UNAVAILABLE
        assert "was not written by a Meta Service" in bad.outcome.message
        assert good.outcome == SaveOutcome(Status.APPLIED, record(5))
        await batcher.merge(OPEN, [later := item(B, record(6))])
        assert later.outcome == SaveOutcome(Status.APPLIED, record(6))


async def test_what_stands_when_it_is_written_decides_and_not_what_was_read() -> None:
    """After a commit between read and write of a compare-and-set, both are repeated (2)."""
    cluster = FakeCluster()
    where = KEYS.offset("c", A)
    cluster.put(where, encode_value(record(5)))

    def commit_between(request: etcd_pb.TxnRequest) -> None:
        if any(op.request_txn.compare for op in request.success):
            cluster.fail = lambda _: None
            cluster.put(where, encode_value(record(7)))

    async with running(cluster) as batcher:
        cluster.fail = commit_between
        found = item(A, record(6), expected=5)
        await batcher.merge(OPEN, [found])
        assert found.outcome == SaveOutcome(Status.CONFLICT, record(7))
    assert stands(cluster, A) == record(7)


async def test_an_unknown_epoch_takes_the_one_that_stands() -> None:
    """By a second step, needed only if the stored epoch is not the first."""
    cluster = FakeCluster()
    cluster.put(KEYS.offset("c", A), encode_value(record(5, 3)))
    async with running(cluster) as batcher:
        raised, first = item(A, record(6, 0)), item(B, record(6, 0))
        await batcher.merge(OPEN, [raised, first])
        assert raised.outcome == SaveOutcome(Status.APPLIED, record(6, 3))
        assert first.outcome == SaveOutcome(Status.APPLIED, record(6, FIRST_EPOCH))
    assert len(cluster.txns) == 2


async def test_a_merge_whose_answer_was_lost_is_harmless_to_send_again() -> None:
    """When the caller resends it, as an adapter does, the stored record stays the same."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        cluster.fail_after = lambda _: MetaUnavailableError("the answer was lost")
        lost = item(A, record(5))
        await batcher.merge(OPEN, [lost])
        assert lost.outcome is not None
        assert lost.outcome.status is Status.UNAVAILABLE
        cluster.fail_after = lambda _: None
        again = item(A, record(5))
        await batcher.merge(OPEN, [again])
        assert again.outcome == SaveOutcome(Status.APPLIED, record(5))


async def test_what_nobody_waits_for_any_more_is_not_sent() -> None:
    """Otherwise adapters that time out and resend would make the queue grow without limit."""
    cluster = FakeCluster()
    async with running(cluster) as batcher:
        waiting = [asyncio.create_task(batcher.merge(OPEN, [item(key(str(at)), record(at))])) for at in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await batcher.merge(OPEN, [item(A, record(5))])
        assert batcher.waiting == 0
    assert stands(cluster, key("0")) is None
    assert stands(cluster, A) == record(5)


async def test_a_lane_that_ends_tells_those_who_wait() -> None:
    """Callers get an error that the outcome is unknown; new entries are refused."""
    cluster = FakeCluster()
    sent = asyncio.Event()

    async def silent(request: etcd_pb.TxnRequest, *, resend: bool = True) -> etcd_pb.TxnResponse:
        del request, resend
        sent.set()
        return await asyncio.Future()

    cluster.txn = silent  # type: ignore[method-assign]
    async with running(cluster) as batcher:
        waiting = [asyncio.create_task(batcher.merge(OPEN, [item(key(str(at)), record(at))])) for at in range(10)]
        await sent.wait()
    for found in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(found, NotReadyError)
    with pytest.raises(NotReadyError):
        await batcher.merge(OPEN, [item(A, record(5))])
