"""Rebalances over fake Raft groups."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import anyio
import pytest

from adapter.errors import ConfigError, MetaUnavailableError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.engine import Expiry
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.keys import Keys, encode_value
from adapter.metaservice.etcd.rebalancing import Watcher, running
from adapter.metaservice.etcd.sharding import first_layout
from adapter.model.codec import pack_names
from adapter.model.records import KnownStore, OffsetKey, OffsetRecord, StoreReport
from adapter.rpc import etcd_pb
from tests.unit.fake_etcd import FakeCluster

SECTION = EtcdSection()
KEYS = Keys(SECTION.prefix)
BEFORE, AFTER = first_layout(["a"]), first_layout(["a", "b"])
GROUP = next(name for name in map(str, range(100)) if AFTER.home(pack_names("cluster", "default", name)) == "b")
WHERE = KEYS.offset("cluster", OffsetKey("default", GROUP, "0"))
VALUE = encode_value(OffsetRecord(1, 7))
BROKER = next(name for name in map(str, range(100)) if AFTER.home(pack_names("cluster", name)) == "b")
REPORT = StoreReport(BROKER, "/store", b"sixteen bytes, 1", 7)
MANY = 150  # shards: more than one transaction of an expiry takes


class Silent:
    """A watcher of nothing."""

    def step(self, what: str, keys: int) -> None:
        pass

    def looked(self, keys: int) -> None:
        pass


Request = etcd_pb.RangeRequest | etcd_pb.TxnRequest


class Worker(Protocol):
    """A rebalancer, or who stands for one."""

    async def run(self, groups: Iterable[str], watcher: Watcher) -> None:
        """Move the offsets."""


class Overtaken:
    """A client of a Raft group. Before a call of its own, another rebalance does all of its work."""

    mark = None

    def __init__(self, cluster: FakeCluster, other: Worker, before: Callable[[Request], bool]) -> None:
        self.name = cluster.name
        self._cluster = cluster
        self._other = other
        self._before = before

    async def range(self, request: etcd_pb.RangeRequest) -> etcd_pb.RangeResponse:
        await self._overtake(request)
        return await self._cluster.range(request)

    async def txn(self, request: etcd_pb.TxnRequest, *, resend: bool = True) -> etcd_pb.TxnResponse:
        await self._overtake(request)
        return await self._cluster.txn(request, resend=resend)

    async def _overtake(self, request: Request) -> None:
        if self._before(request):
            await self._other.run(["a", "b"], Silent())


def looks_for_offsets(request: Request) -> bool:
    """Whether a rebalance looks for offsets in a new Raft group."""
    return isinstance(request, etcd_pb.RangeRequest) and request.key == KEYS.offsets


def changes_layout(request: Request) -> bool:
    """Whether a rebalance changes the layout."""
    return isinstance(request, etcd_pb.TxnRequest) and any(op.request_put.key == KEYS.layout for op in request.success)


def copies_reports(request: Request) -> bool:
    """Whether a rebalance writes reports of stores into their new Raft group."""
    return isinstance(request, etcd_pb.TxnRequest) and any(
        put.request_put.key.startswith(KEYS.stores) for op in request.success for put in op.request_txn.failure
    )


def clusters() -> tuple[FakeCluster, FakeCluster, FakeCluster]:
    """Metadata with a layout of one Raft group, that group with an offset that will move, and a new one."""
    metadata, a, b = FakeCluster("metadata"), FakeCluster("a"), FakeCluster("b")
    metadata.put(KEYS.layout, BEFORE.encode())
    a.put(WHERE, VALUE)
    return metadata, a, b


@asynccontextmanager
async def serving(engine: EtcdEngine) -> AsyncIterator[EtcdEngine]:
    """An engine as a Meta Service runs it."""
    await engine.open()
    task = asyncio.create_task(engine.run())
    try:
        yield engine
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_rebalance_that_is_overtaken_takes_the_others_copies_for_no_foreign_offsets() -> None:
    """Else it would advise to delete them, and they are the only ones (1)."""
    metadata, a, b = clusters()
    async with (
        running(metadata, [a, b], SECTION) as first,  # type: ignore[arg-type, list-item]  # as much of them as it uses
        running(metadata, [a, Overtaken(b, first, looks_for_offsets)], SECTION) as second,  # type: ignore[arg-type, list-item]
    ):
        await second.run(["a", "b"], Silent())
    assert a.value(WHERE) is None
    assert b.value(WHERE) == VALUE


async def test_a_rebalance_whose_change_comes_too_late_goes_on_at_once() -> None:
    """It does not repeat for a minute what can never succeed."""
    metadata, a, b = clusters()
    async with (
        running(metadata, [a, b], SECTION) as first,  # type: ignore[arg-type, list-item]  # as much of them as it uses
        running(Overtaken(metadata, first, changes_layout), [a, b], SECTION) as second,  # type: ignore[arg-type, list-item]
    ):
        with anyio.fail_after(20):
            await second.run(["a", "b"], Silent())
    assert b.value(WHERE) == VALUE


async def test_a_new_raft_group_with_foreign_offsets_is_refused() -> None:
    """They would come back."""
    metadata, a, b = clusters()
    b.put(WHERE, VALUE)
    async with running(metadata, [a, b], SECTION) as rebalancer:  # type: ignore[arg-type, list-item]
        with pytest.raises(ConfigError, match="b holds offsets already"):
            await rebalancer.run(["a", "b"], Silent())
    assert a.value(WHERE) == VALUE


async def test_the_report_of_a_store_moves_although_its_adapter_is_down() -> None:
    """When its Raft group is gone, a store that is put back or replaced is still noticed."""
    metadata, a, b = clusters()
    async with serving(EtcdEngine(metadata, [a, b], SECTION)) as engine:  # type: ignore[arg-type, list-item]
        await engine.report_store("cluster", REPORT, b"", 5)
    async with running(metadata, [a, b], SECTION) as rebalancer:  # type: ignore[arg-type, list-item]
        await rebalancer.run(["a", "b"], Silent())
    assert not any(key.startswith(KEYS.stores) for key in a.kvs)
    a.fail = lambda _: MetaUnavailableError("switched off")
    async with serving(EtcdEngine(metadata, [a, b], SECTION)) as engine:  # type: ignore[arg-type, list-item]
        assert await engine.report_store("cluster", REPORT._replace(flushed_seq=0), b"", 7) == KnownStore(REPORT, 5)


async def test_what_an_adapter_reports_while_its_report_moves_stands() -> None:
    """The copy comes later, and has less."""
    metadata, a, b = clusters()
    later = REPORT._replace(flushed_seq=9)
    async with serving(EtcdEngine(metadata, [a, b], SECTION)) as engine:  # type: ignore[arg-type, list-item]
        await engine.report_store("cluster", REPORT, b"", 5)

        class Adapter:
            """Reports once the rebalance has read what it reported before."""

            async def run(self, groups: Iterable[str], watcher: Watcher) -> None:  # noqa: ARG002 - as a rebalancer's
                await engine.report_store("cluster", later, b"", 6)

        overtaken = Overtaken(b, Adapter(), copies_reports)
        async with running(metadata, [a, overtaken], SECTION) as rebalancer:  # type: ignore[arg-type, list-item]
            await rebalancer.run(["a", "b"], Silent())
        assert await engine.report_store("cluster", REPORT, b"", 7) == KnownStore(later, 6)


async def test_an_expiry_that_a_rebalance_interrupts_is_taken_back_where_the_offsets_are_now() -> None:
    """Its first transaction was applied, and its second one refused by the fence; then the group got a commit (1)."""
    metadata, a, b = clusters()
    shards = [KEYS.offset("cluster", OffsetKey("default", GROUP, f"{number:03}")) for number in range(MANY)]
    for where in shards:
        a.put(where, VALUE)
    expiring = 0

    def second_part(request: Request) -> bool:
        nonlocal expiring
        expiring += isinstance(request, etcd_pb.TxnRequest) and any(compare.range_end for compare in request.compare)
        return expiring == 2

    class Rebalance:
        """All of a rebalance, and a commit behind it."""

        async def run(self, groups: Iterable[str], watcher: Watcher) -> None:
            await other.run(groups, watcher)
            b.put(WHERE, encode_value(OffsetRecord(1, 8, committed_at_ms=20)))

    async with running(metadata, [a, b], SECTION) as other:  # type: ignore[arg-type, list-item]  # as much of them as it uses
        engine = EtcdEngine(metadata, [Overtaken(a, Rebalance(), second_part), b], SECTION)  # type: ignore[arg-type, list-item]
        async with serving(engine):
            assert await engine.expire("cluster", "default", GROUP, 10, 15) == Expiry(0, 20)
    assert [b.value(where) for where in shards] == [VALUE] * MANY
