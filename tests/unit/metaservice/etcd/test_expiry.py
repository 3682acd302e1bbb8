"""Removal from etcd applies only to what was read: a commit in between survives, and so does its group."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import pytest

from adapter.errors import MetaUnavailableError
from adapter.metaservice.engine import Expiry
from adapter.metaservice.etcd.expiry import CHANGES, Expirer
from adapter.metaservice.etcd.keys import Keys, decode_value, encode_value
from adapter.metaservice.etcd.sharding import Layout, first_layout
from adapter.metaservice.etcd.txn_batcher import Item, TxnBatcher
from adapter.model.codec import pack_names
from adapter.model.records import OffsetKey, OffsetRecord, expired, next_era
from adapter.rpc import etcd_pb
from tests.unit.fake_etcd import MAX_TXN_OPS, FakeCluster
from tests.unit.helpers import key, record

KEYS = Keys("p/")
GROUP = pack_names("c", "default", "g")
BEFORE, NOW = 1_000, 5_000
OLD, YOUNG = record(5, committed_at_ms=BEFORE - 1), record(6, committed_at_ms=BEFORE + 1)
HELD = OLD._replace(epoch=next_era(1))
MANY = 150  # shards: more than one transaction takes


class Open:
    """Fences that allow everything."""

    def guard(self, layout: Layout, name: str) -> etcd_pb.Compare:
        """A comparison that always holds."""
        del layout, name
        return etcd_pb.Compare(target=etcd_pb.Compare.VERSION, key=KEYS.fence, version=0)


class Bench(NamedTuple):
    """A Raft group and an expirer."""

    cluster: FakeCluster
    batcher: TxnBatcher
    expirer: Expirer
    layout: Layout

    async def expire(self) -> Expiry:
        """Expire the group."""
        return await self.expirer.expire(self.batcher, self.layout, GROUP, BEFORE, NOW)

    def put(self, where: OffsetKey, found: OffsetRecord) -> None:
        """Write as another process."""
        self.cluster.put(KEYS.offset("c", where), encode_value(found))

    def stands(self, where: OffsetKey) -> OffsetRecord | None:
        """The stored record."""
        value = self.cluster.value(KEYS.offset("c", where))
        return None if value is None else decode_value(value)


@asynccontextmanager
async def bench(max_ops: int = MAX_TXN_OPS) -> AsyncIterator[Bench]:
    """An empty Raft group."""
    cluster = FakeCluster(max_ops=max_ops)
    batcher = TxnBatcher(cluster, KEYS, "writer", max_ops)  # type: ignore[arg-type]  # as much of one as a lane uses

    async def merge(items: Sequence[Item]) -> None:
        await batcher.merge(etcd_pb.Compare(target=etcd_pb.Compare.VERSION, key=KEYS.fence, version=0), items)

    running = asyncio.create_task(batcher.run())
    try:
        yield Bench(cluster, batcher, Expirer(Open(), KEYS, max_ops, merge), first_layout([cluster.name]))  # type: ignore[arg-type]
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def shard(number: int) -> OffsetKey:
    """Shards in the order of their numbers."""
    return key(f"s{number:03}")


def before_write(found: Bench, number: int, what: OffsetRecord, where: OffsetKey) -> None:
    """Let another process write something right before this transaction of the expiry, counted from 1."""
    seen = 0

    def look(request: etcd_pb.TxnRequest) -> None:
        nonlocal seen
        seen += any(op.HasField("request_put") for op in request.success)
        if seen == number:
            found.cluster.fail = lambda _: None
            found.put(where, what)

    found.cluster.fail = look


def before_deletion(found: Bench, change: Callable[[], None]) -> None:
    """Let another process write something right before tombstones are deleted."""

    def look(request: etcd_pb.TxnRequest) -> None:
        if any(inner.HasField("request_delete_range") for op in request.success for inner in (op, *op.request_txn.success)):
            found.cluster.fail = lambda _: None
            change()

    found.cluster.fail = look


def entries_in(found: Bench) -> list[bytes]:
    """The index entries of tombstones."""
    return [where for where in found.cluster.kvs if where.startswith(KEYS.tombstones)]


@pytest.mark.parametrize("where", [shard(0), shard(3), shard(9), key("zz")])
async def test_a_commit_between_the_look_and_the_expiry_keeps_the_group(where: OffsetKey) -> None:
    """Of any shard, also a new one: the whole group stays, and the result is the commit's time (7)."""
    async with bench() as found:
        for number in range(10):
            found.put(shard(number), OLD)
        before_write(found, 1, YOUNG, where)
        assert await found.expire() == Expiry(0, BEFORE + 1)
        assert [found.stands(shard(number)) for number in range(10) if shard(number) != where] == [OLD] * (
            10 - (where != key("zz"))
        )
        assert found.stands(where) == YOUNG


@pytest.mark.parametrize("where", [shard(0), shard(MANY - 1), key("zz")])
async def test_a_commit_in_the_middle_of_a_long_expiry_takes_it_back(where: OffsetKey) -> None:
    """Shards that already had a tombstone are live again, unchanged."""
    async with bench() as found:
        for number in range(MANY):
            found.put(shard(number), OLD)
        before_write(found, 2, YOUNG, where)
        assert await found.expire() == Expiry(0, BEFORE + 1)
        others = [shard(number) for number in range(MANY) if shard(number) != where]
        assert [found.stands(other) for other in others] == [OLD] * len(others)
        assert found.stands(where) == YOUNG


async def test_a_reset_that_nobody_took_up_comes_back_with_its_group() -> None:
    """Its tombstone is in the epoch behind the hold, and so above the record as it was (7)."""
    async with bench() as found:
        for number in range(MANY):
            found.put(shard(number), HELD)
        before_write(found, 2, YOUNG, key("zz"))
        assert await found.expire() == Expiry(0, BEFORE + 1)
        assert {found.stands(shard(number)) for number in range(MANY)} <= {HELD, HELD._replace(epoch=HELD.epoch + 1)}


async def test_a_long_group_expires_whole() -> None:
    """It takes several transactions, whose own writes do not count as changes."""
    async with bench() as found:
        for number in range(MANY):
            found.put(shard(number), OLD)
        assert await found.expire() == Expiry(MANY)
        assert {found.stands(shard(number)) for number in range(MANY)} == {expired(OLD, NOW)}


async def test_a_group_expires_whose_names_are_long_where_etcd_allows_very_many_operations() -> None:
    """A transaction stays below the 1.5 MiB that etcd takes, and so does the removal of its tombstones."""
    async with bench(100_000) as found:
        for number in range(2_000):
            found.put(key(f"{number:0255}"), OLD)
        assert await found.expire() == Expiry(2_000)
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 1) == 2_000
        assert max(request.ByteSize() for request in found.cluster.txns) <= 1_000_000


async def test_a_group_that_never_stands_still_is_left_to_the_next_sweep() -> None:
    """Each commit has an old time. That is unrealistic, but the expiry must not hang."""
    async with bench() as found:
        found.put(shard(0), OLD)
        puts = 0

        def change(request: etcd_pb.TxnRequest) -> None:
            nonlocal puts
            if any(compare.range_end for compare in request.compare):
                puts += 1
                found.put(shard(0), OLD._replace(offset=10 + puts))

        found.cluster.fail = change
        with pytest.raises(MetaUnavailableError, match="next sweep"):
            await found.expire()
        assert puts == CHANGES
        assert found.stands(shard(0)) == OLD._replace(offset=10 + puts)


async def test_a_commit_over_a_tombstone_that_is_being_forgotten_stays() -> None:
    """It came between the read and the deletion (1)."""
    async with bench() as found:
        found.put(shard(0), OLD)
        await found.expire()
        live = record(7, committed_at_ms=NOW + 1)

        before_deletion(found, lambda: found.put(shard(0), live))
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 1) == 0
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 1) == 0
        assert found.stands(shard(0)) == live
        assert not entries_in(found)


@pytest.mark.parametrize("stands", [True, False])
async def test_the_same_tombstone_put_again_while_its_entry_is_deleted_keeps_one(stands: bool) -> None:
    """Over itself, or where it had been removed: without an entry nothing would remove it any more."""
    async with bench() as found:
        found.put(shard(0), OLD)
        await found.expire()
        where = KEYS.offset("c", shard(0))
        tombstone, entry = expired(OLD, NOW), KEYS.tombstone(KEYS.offset("c", shard(0)), expired(OLD, NOW))
        if not stands:
            found.cluster.delete(where)

        def again() -> None:
            found.put(shard(0), tombstone)
            found.cluster.put(entry, b"")

        before_deletion(found, again)
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 1) == 0
        assert (found.stands(shard(0)), entries_in(found)) == (tombstone, [entry])
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 1) == 1
        assert (found.stands(shard(0)), entries_in(found)) == (None, [])


async def test_what_another_program_has_written_keeps_no_tombstone() -> None:
    """It stays where it is, and the tombstones are removed."""
    async with bench() as found:
        for number in range(2):
            found.put(shard(number), OLD)
        await found.expire()
        found.cluster.put(KEYS.offset("c", shard(0)), b"of another program")
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 1) == 1
        assert found.cluster.value(KEYS.offset("c", shard(0))) == b"of another program"


async def test_a_young_tombstone_over_an_old_one_stays_with_its_entry() -> None:
    """Only stored, old tombstones are removed; of the replaced one only the index entry is."""
    async with bench() as found:
        found.put(shard(0), OLD)
        await found.expire()
        young = expired(record(8, committed_at_ms=NOW), NOW + 10)
        where = KEYS.offset("c", shard(0))
        found.put(shard(0), young)
        found.cluster.put(KEYS.tombstone(where, young), b"")
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 1) == 0
        assert found.stands(shard(0)) == young
        assert entries_in(found) == [KEYS.tombstone(where, young)]
        assert await found.expirer.drop(found.batcher, found.layout, NOW + 11) == 1
        assert found.stands(shard(0)) is None
