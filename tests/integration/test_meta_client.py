"""The way to real Meta Services: failover, older servers, and the wire form that both RobustMQs speak."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.meta.client import GrpcMetaClient
from adapter.model.codec import encode_key
from adapter.model.records import GroupKey, OffsetKey, SaveEntry, Status
from adapter.rpc import meta_pb
from adapter.testing.processes import ServiceProcess, ended, free_port, meta_process
from tests.integration.helpers import PATIENCE_S, key, meta_rpc, meta_section, record, serving, stored_in, until_clean
from tests.unit.helpers import whole_groups

ENTRY = SaveEntry(key(), record(7, metadata="m", committed_at_ms=3, topic="t", partition=2))


@pytest.fixture
def second(directory: Path) -> Iterator[ServiceProcess]:
    """Another Meta Service process."""
    service = meta_process(directory / "second")
    with ended(service):
        service.start()
        yield service


async def test_a_record_makes_the_round_trip(meta: ServiceProcess) -> None:
    """Every field, tombstones included; what stands comes back with SUPERSEDED and CONFLICT."""
    tombstone = SaveEntry(key("dead"), record(0, 5, live=False, committed_at_ms=4))
    async with GrpcMetaClient.open(meta_section(meta.address)) as client:
        saved = await client.save([ENTRY, tombstone])
        assert [(outcome.status, outcome.standing) for outcome in saved] == [
            (Status.APPLIED, ENTRY.record),
            (Status.APPLIED, tombstone.record),
        ]
        assert await client.get([key(), key("dead"), key("absent")]) == {key(): ENTRY.record, key("dead"): tombstone.record}
        assert await whole_groups(client, GroupKey("default", "g"), GroupKey("default", "none")) == [
            {key(): ENTRY.record, key("dead"): tombstone.record},
            {},
        ]
        lower, unexpected = SaveEntry(key(), record(6)), SaveEntry(key(), record(9), expected_offset=1)
        outcomes = await client.save([lower, unexpected])
        assert [(outcome.status, outcome.standing) for outcome in outcomes] == [
            (Status.SUPERSEDED, ENTRY.record),
            (Status.CONFLICT, ENTRY.record),
        ]


async def test_a_list_of_everything_comes_in_pages(meta: ServiceProcess) -> None:
    """Each live key once, in key order; tombstones are not in it (2)."""
    keys = sorted((key(f"s{at:02d}", group) for group in ("a", "ab", "b") for at in range(20)), key=encode_key)
    async with GrpcMetaClient.open(meta_section(meta.address)) as client:
        await client.save([SaveEntry(name, record(1)) for name in keys])
        await client.save([SaveEntry(key("s03", "ab"), record(0, 9, live=False))])
        found: list[OffsetKey] = []
        token = b""
        while True:
            page, token = await client.list_page("", "", 7, token)
            found += [name for name, _ in page]
            if not token:
                break
        assert found == [name for name in keys if name != key("s03", "ab")]
        assert [name for name, _ in (await client.list_page("default", "a", 100, b""))[0]] == keys[:20]


async def test_a_dead_first_endpoint_is_passed_over(meta: ServiceProcess) -> None:
    """In the same call; the one that answered stays the current one."""
    dead = f"127.0.0.1:{free_port()}"
    async with GrpcMetaClient.open(meta_section(dead, meta.address)) as client:
        assert client.endpoint == dead
        assert (await client.save([ENTRY]))[0].status is Status.APPLIED
        assert (client.endpoint, client.available) == (meta.address, True)


async def test_a_hanging_endpoint_is_passed_over_after_its_deadline(meta: ServiceProcess, second: ServiceProcess) -> None:
    """It takes connections and never answers; each endpoint has `timeout_ms` for itself."""
    meta.freeze()
    async with GrpcMetaClient.open(meta_section(meta.address, second.address, timeout_ms=2_000)) as client:
        await client.save([ENTRY])
        assert client.endpoint == second.address
    assert stored_in(second) == {key(): (1, 7)}


@pytest.mark.parametrize("callers", [2, 3, 10])
async def test_concurrent_calls_fail_over_together(meta: ServiceProcess, second: ServiceProcess, callers: int) -> None:
    """All of them meet the endpoint that hangs, at the same time; each gets its answer from the other one."""
    meta.freeze()
    async with GrpcMetaClient.open(meta_section(meta.address, second.address, timeout_ms=2_000)) as client:
        found = await asyncio.gather(*(client.get([key(f"s{at}")]) for at in range(callers)))
        assert found == [{}] * callers
        assert (client.endpoint, client.available) == (second.address, True)


async def test_when_all_are_gone_each_is_named_and_one_that_comes_back_is_used(
    meta: ServiceProcess, second: ServiceProcess
) -> None:
    """The error says what each endpoint did; availability follows."""
    async with GrpcMetaClient.open(meta_section(meta.address, second.address, timeout_ms=1000)) as client:
        await client.save([ENTRY])
        meta.kill()
        second.kill()
        with pytest.raises(MetaUnavailableError, match=rf"{meta.address}.*{second.address}|{second.address}.*{meta.address}"):
            await client.save([ENTRY])
        assert not client.available
        meta.start()
        await _until_it_answers(client)
        assert (client.endpoint, client.available) == (meta.address, True)


async def _until_it_answers(client: GrpcMetaClient) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not client.available:
            try:
                await client.get([key()])
            except MetaUnavailableError:
                await asyncio.sleep(0.05)


async def test_a_sidecar_follows_the_endpoint_that_answers(directory: Path, meta: ServiceProcess, second: ServiceProcess) -> None:
    """Its flushes go on at the second one when the first is killed; nothing that was acknowledged is missing there (3, 4)."""
    section = meta_section(meta.address, second.address, timeout_ms=1000)
    async with GrpcMetaClient.open(section) as way, serving(directory, way) as (_, client):
        await client.commit("g", {"a": 1})
        await client.flush()
        meta.kill()
        await client.commit("g", {"a": 2, "b": 1})
        status = await until_clean(client)
        assert (status.meta_endpoint, status.meta_available) == (second.address, True)
    assert stored_in(second) == {key("a"): (1, 2), key("b"): (1, 1)}


async def test_a_refusal_is_not_an_outage(meta: ServiceProcess) -> None:
    """Another endpoint would refuse it, too: it is not asked, and this one stays available (10)."""
    other = f"127.0.0.1:{free_port()}"
    async with GrpcMetaClient.open(meta_section(meta.address, other)) as client:
        with pytest.raises(RefusedError, match="page_size: 10001 is over 10000"):
            await client.list_page("", "", 10_001, b"")
        assert (client.endpoint, client.available) == (meta.address, True)


def _old(offset: int) -> meta_pb.SaveOffsetDataRequest:
    row = meta_pb.SaveOffsetDataRequestOffset(namespace="n", shard_name="s", offset=offset)
    return meta_pb.SaveOffsetDataRequest(cluster_name="default", offsets=[meta_pb.SaveOffsetData(group="g", offsets=[row])])


def _new(offset: int) -> meta_pb.SaveOffsetDataRequest:
    row = meta_pb.SaveOffsetDataRequestOffset(shard_name="s", offset=offset, topic="t", partition=1)
    return meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(tenant="n", group="g", offsets=[row])])


@pytest.mark.parametrize(("first", "then"), [(_old, _new), (_new, _old)], ids=["old_then_new", "new_then_old"])
def test_old_and_new_robustmq_meet_at_the_same_key(meta: ServiceProcess, first: Any, then: Any) -> None:
    """Saved by one, superseded and read by the other, and deleted."""
    with meta_rpc(meta.address) as stub:
        assert stub.SaveOffsetData(first(7), timeout=PATIENCE_S).results[0].status == meta_pb.SaveOffsetResult.APPLIED
        row = stub.SaveOffsetData(then(5), timeout=PATIENCE_S).results[0]
        assert (row.status, row.epoch, row.offset) == (meta_pb.SaveOffsetResult.SUPERSEDED, 1, 7)
        assert stored_in(meta) == {key("s", "g", "n"): (1, 7)}
        by_namespace = meta_pb.GetOffsetDataRequest(cluster_name="default", namespace="n", group="g")
        by_tenant = meta_pb.GetOffsetDataRequest(tenant="n", group="g")
        for request in (by_namespace, by_tenant):
            assert [found.offset for found in stub.GetOffsetData(request, timeout=PATIENCE_S).offsets] == [7]
        stub.DeleteOffsetData(meta_pb.DeleteOffsetDataRequest(tenant="n", group="g"), timeout=PATIENCE_S)
        assert not stub.GetOffsetData(by_namespace, timeout=PATIENCE_S).offsets
