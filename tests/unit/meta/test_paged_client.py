"""The client follows pages, and requests smaller ones from a slow server without reading anything twice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from adapter.errors import MetaUnavailableError, TimedOutError
from adapter.meta import client as meta_client
from adapter.meta.client import LOAD_ROWS, MIN_ROWS, PAGE_ROWS, GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.metaservice import group_reads
from adapter.metaservice.engine import Engine
from adapter.model.codec import encode_key, encode_record
from adapter.model.names import METADATA_MAX_BYTES
from adapter.model.records import GroupKey, OffsetKey, SaveEntry
from adapter.rpc import meta_pb
from adapter.testing.processes import free_port
from tests.embedded_engine import opened as rocksdb
from tests.model.engine import MemoryEngine
from tests.unit.helpers import key, record

Request = meta_pb.BatchGetOffsetDataRequest
Reply = meta_pb.BatchGetOffsetDataReply
G = GroupKey("default", "g")


class SlowServer:
    """Never answers a page of more than `fast_rows` rows."""

    def __init__(self) -> None:
        self.engine: Engine = MemoryEngine(lambda: 1)
        self.fast_rows = PAGE_ROWS
        self.fast_once = 0  # rows of the first page that is answered all the same
        self.asked: list[int] = []
        self.rows: list[str] = []

    async def get(self, request: Request, _: Any) -> Reply:
        """BatchGetOffsetData."""
        reply = await group_reads.batch(self.engine, request.cluster_name, request)
        rows = [item.shard_name for group in reply.groups for item in group.offsets]
        if request.groups:
            self.asked.append(request.page_size)
        if len(rows) + len(request.known.key_sizes) // 2 > max(self.fast_rows, 0 if self.rows else self.fast_once):
            await asyncio.Event().wait()
        self.rows += rows
        return reply


@asynccontextmanager
async def served(shards: int, *, answers: bool = False) -> AsyncIterator[tuple[SlowServer, GrpcMetaClient]]:
    """A server with a group of this many shards, and a client with a short deadline, unless everything is answered."""
    timeout_ms, load_timeout_ms = (60_000, 60_000) if answers else (1_000, 500)
    slow = SlowServer()
    await slow.engine.save("default", [SaveEntry(key(f"s{at:06}"), record(at)) for at in range(shards)])
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(slow.get, Request.FromString, Reply.SerializeToString)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("meta.service.common.MetaServiceService", {"BatchGetOffsetData": method}),)
    )
    address = f"127.0.0.1:{free_port()}"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with GrpcMetaClient.open(
            MetaSection(endpoints=(address,), timeout_ms=timeout_ms, load_timeout_ms=load_timeout_ms)
        ) as client:
            yield slow, client
    finally:
        await server.stop(None)


ROWS = [(encode_key(key(f"s{at:06}")), encode_record(record(at))) for at in range(300)]


async def test_rows_are_compared_in_parts_as_large_as_a_slow_server_answers(tmp_path: Path) -> None:
    """A timeout halves the parts of the next call, and what differs is found in each of them."""
    async with served(0) as (slow, client), rocksdb(tmp_path) as engine:
        slow.engine, slow.fast_rows = engine, 120
        await engine.save("default", [SaveEntry(key(f"s{at:06}"), record(at)) for at in range(299)])
        client._patient_pages.rows = 200
        with pytest.raises(TimedOutError):
            await client.differing(ROWS)
        assert await client.differing(ROWS) == {key("s000299"): None}
        await engine.save("default", [SaveEntry(key("s000299"), record(300))])
        assert await client.differing(ROWS) == {key("s000299"): record(300)}


async def test_rows_that_were_not_compared_are_sent_again(tmp_path: Path) -> None:
    """A reply has no more than fits."""
    async with served(0, answers=True) as (slow, client), rocksdb(tmp_path) as engine:
        slow.engine = engine
        where = [key(f"s{at:04}") for at in range(1_500)]
        labels = "m" * METADATA_MAX_BYTES
        await engine.save("default", [SaveEntry(one, record(1, metadata=labels)) for one in where])
        found = await client.differing([(encode_key(one), encode_record(record(2))) for one in where])
        assert found == dict.fromkeys(where, record(1, metadata=labels))


async def test_a_server_that_does_not_compare_is_asked_once() -> None:
    """An older one, or one on etcd: the caller gets the records."""
    async with served(10, answers=True) as (_, client):
        assert await client.differing(ROWS) is None


@pytest.mark.parametrize(
    "bad",
    [
        Reply(compared=301),
        Reply(compared=300, differing=[300]),
        Reply(compared=300, differing=[5]),
        Reply(compared=300, differing=[5], packed=meta_pb.PackedRows(records=b"x", record_sizes=b"\1\0")),
        Reply(compared=300, differing=[5], packed=meta_pb.PackedRows(records=b"x", record_sizes=b"\2\0")),
    ],
)
async def test_a_comparison_that_cannot_be_right_is_no_answer(monkeypatch: pytest.MonkeyPatch, bad: Reply) -> None:
    """Nothing counts as compared by it."""
    async with served(0, answers=True) as (_, client):

        async def answered(*_: Any) -> Reply:
            return bad

        monkeypatch.setattr(group_reads, "batch", answered)
        with pytest.raises(MetaUnavailableError, match="answered"):
            await client.differing(ROWS)


async def test_pages_shrink_until_a_slow_server_answers_and_grow_again() -> None:
    """Each timeout halves the page; no row is read twice."""
    async with served(300) as (slow, client):
        slow.fast_rows = 120
        client._patient_pages.rows = 300
        found: list[OffsetKey] = []
        left, after, failures = [G], b"", 0
        while left:
            try:
                page = await client.groups_page(left, after)
            except TimedOutError:
                failures += 1
                assert failures < 5, slow.asked
                continue
            found += [where for where, _ in page.entries]
            left, after = list(page.left), page.after
        assert (failures, slow.asked[:3]) == (2, [300, 150, 75])
        assert slow.asked[3:] == sorted(slow.asked[3:])
        assert slow.asked[-1] > 75
        assert found == [key(f"s{at:06}") for at in range(300)]
        assert slow.rows == [where.shard for where in found]


async def test_named_shards_go_on_with_less_when_the_server_becomes_slow() -> None:
    """Only a failure of the first page is an error: then there may be no server."""
    async with served(400) as (slow, client):
        client._patient_pages.rows = 100
        keys = [key(f"s{at:06}") for at in range(400)]
        slow.fast_rows = 60
        slow.fast_once = 100
        assert list(await client.get(keys)) == keys
        assert slow.asked[:3] == [100, 104, 52]
        assert slow.rows == [where.shard for where in keys]
        client._patient_pages.rows = 100
        with pytest.raises(TimedOutError):
            await client.get(keys)


async def test_without_a_limit_a_page_is_no_larger_than_the_server_says() -> None:
    """A page that a commit waits for is smaller."""
    async with served(LOAD_ROWS + 1, answers=True) as (slow, client):
        page = await client.groups_page([G], patient=False)
        assert (len(page.entries), page.left, page.after) == (LOAD_ROWS, [G], f"s{LOAD_ROWS - 1:06}".encode())
        page = await client.groups_page(page.left, page.after, patient=False)
        assert (len(page.entries), list(page.left), page.after) == (1, [], b"")
        assert slow.asked == [LOAD_ROWS, LOAD_ROWS]


async def test_pages_do_not_shrink_below_the_floor() -> None:
    """After a stopped server, the client does not request single rows."""
    async with served(MIN_ROWS) as (slow, client):
        slow.fast_rows = 0
        client._patient_pages.rows = 2 * MIN_ROWS
        for _ in range(2):
            with pytest.raises(TimedOutError):
                await client.groups_page([G])
        assert client._patient_pages.rows == MIN_ROWS
        assert slow.asked == [2 * MIN_ROWS, MIN_ROWS]


async def test_many_groups_are_asked_for_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are complete and in order."""
    monkeypatch.setattr(meta_client, "GROUPS_AT_ONCE", 3)
    async with served(2, answers=True) as (slow, client):
        groups = [GroupKey("default", name) for name in "abcdefg"]
        left, after = groups, b""
        while left:
            page = await client.groups_page(left, after)
            assert list(page.left) == left[3:]
            assert [where for where, _ in page.entries] == [key("s000000"), key("s000001")] * (page.left == [])
            left, after = list(page.left), page.after
        assert len(slow.asked) == 3
