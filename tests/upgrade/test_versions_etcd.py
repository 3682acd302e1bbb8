"""Keys in etcd of a later version: a Meta Service does not start on them, and one that runs on stops writing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import grpc
import pytest

from adapter.errors import MetaUnavailableError, StoreDamagedError, StoreVersionError
from adapter.metaservice.config import EtcdSection
from adapter.metaservice.etcd.client import EtcdCluster
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.fences import fence
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.metadata import EtcdMetadata
from adapter.metaservice.etcd.sharding import Layout
from adapter.model.codec import prefix_end
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry
from adapter.rpc import etcd_grpc, etcd_pb
from adapter.runtime.durable import format_mark
from adapter.runtime.durable.format_mark import META_ETCD
from tests.contract.etcd import shared_cluster, shared_members, shared_section

METADATA, OFFSETS = "contract", "contract-2"  # of the clusters that tests share
LATER = format_mark.encode(META_ETCD._replace(version=2, since="0.9.0"))
REFUSED = "the Meta Service in etcd has version 2, and this program reads version 1: start offset-adapter 0.9.0 or later"
CLUSTER = "cluster"


def entry(offset: int) -> SaveEntry:
    """An offset of one key."""
    return SaveEntry(OffsetKey("default", "g", "0"), OffsetRecord(1, offset, live=True, committed_at_ms=1))


@pytest.fixture
def section() -> EtcdSection:
    """Settings with a prefix of their own."""
    return shared_section()


@asynccontextmanager
async def stores(section: EtcdSection) -> AsyncIterator[tuple[EtcdEngine, EtcdMetadata]]:
    """Both stores of a Meta Service, not open yet."""
    async with AsyncExitStack() as stack:
        metadata, offsets = [
            await stack.enter_async_context(EtcdCluster.open(name, shared_members(name), section)) for name in (METADATA, OFFSETS)
        ]
        engine = EtcdEngine(metadata, [offsets], section)
        running = asyncio.create_task(engine.run())
        try:
            yield engine, EtcdMetadata(metadata, section.prefix)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


def put(name: str, key: bytes, value: bytes) -> None:
    """Write a key as another program does."""
    with grpc.insecure_channel(shared_cluster(name).endpoints[0]) as channel:
        etcd_grpc.KVStub(channel).Put(etcd_pb.PutRequest(key=key, value=value), timeout=60)


def stored(section: EtcdSection) -> dict[tuple[str, bytes], tuple[bytes, int]]:
    """All keys below the prefix, with their values and how often each was written."""
    found: dict[tuple[str, bytes], tuple[bytes, int]] = {}
    prefix = section.prefix.encode()
    for name in (METADATA, OFFSETS):
        with grpc.insecure_channel(shared_cluster(name).endpoints[0]) as channel:
            request = etcd_pb.RangeRequest(key=prefix, range_end=prefix_end(prefix))
            rows = etcd_grpc.KVStub(channel).Range(request, timeout=60).kvs
        found |= {(name, row.key): (row.value, row.version) for row in rows}
    return found


@pytest.mark.parametrize("name", [METADATA, OFFSETS])
@pytest.mark.parametrize(
    ("mark", "error", "text"),
    [(LATER, StoreVersionError, REFUSED), (LATER[:-2], StoreDamagedError, "is damaged, so the version")],
    ids=["later", "damaged"],
)
async def test_a_later_version_in_any_raft_group_is_refused(
    section: EtcdSection, name: str, mark: bytes, error: type[Exception], text: str
) -> None:
    """Also when the metadata Raft group lost its keys, or has them from an older copy; and nothing is written."""
    key = Keys(section.prefix).format
    put(name, key, mark)
    before = stored(section)
    async with stores(section) as (engine, _):
        with pytest.raises(error) as raised:
            await engine.open()
    assert f"{name}: the key {key.decode()}: " in str(raised.value)
    assert text in str(raised.value)
    assert stored(section) == before


async def test_metadata_of_a_later_version_is_not_written(section: EtcdSection) -> None:
    """Not even by a call that comes before the start has looked."""
    put(METADATA, Keys(section.prefix).format, LATER)
    before = stored(section)
    async with stores(section) as (_, entries):
        with pytest.raises(StoreVersionError, match=REFUSED):
            await entries.put(CLUSTER, "k", b"v")
        with pytest.raises(StoreVersionError, match=REFUSED):
            await entries.open()
    assert stored(section) == before


async def test_those_that_start_first_agree(section: EtcdSection) -> None:
    """Several at once: all serve, and each Raft group is marked once; a start after them writes nothing."""
    async with AsyncExitStack() as stack:
        opening = [await stack.enter_async_context(stores(section)) for _ in range(4)]
        await asyncio.gather(*(engine.open() for engine, _ in opening), *(entries.open() for _, entries in opening))
        for number, (engine, _) in enumerate(opening, start=1):
            await engine.save(CLUSTER, [entry(number)])
    key = Keys(section.prefix).format
    before = stored(section)
    assert [before[name, key] for name in (METADATA, OFFSETS)] == [(format_mark.encode(META_ETCD), 1)] * 2
    async with stores(section) as (engine, entries):
        await engine.open()
        await entries.open()
    assert stored(section) == before


async def test_a_process_that_runs_on_stops_when_a_later_version_takes_over(section: EtcdSection) -> None:
    """The later version writes its mark, then a new layout with its fences: from then on no save of this one is applied."""
    keys = Keys(section.prefix)
    async with stores(section) as (engine, _):
        await engine.open()
        await engine.save(CLUSTER, [entry(1)])
        put(METADATA, keys.format, LATER)
        layout = engine.fences.layout
        after = Layout(layout.version + 1, layout.groups)
        put(METADATA, keys.layout, after.encode())
        put(OFFSETS, keys.fence, fence(after, OFFSETS))
        before = stored(section)
        with pytest.raises(MetaUnavailableError, match=REFUSED):
            await engine.save(CLUSTER, [entry(2)])
        assert stored(section) == before
