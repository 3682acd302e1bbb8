"""StreamCommits: pipelined, answered in order, bounded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.model.records import SaveEntry
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.integration.helpers import PATIENCE_S, commits, each, key, record, serving

PIPELINED = 2_000


def _request(number: int, offset: int, shard: str = "s", *, overwrite: bool = False) -> offsets_pb.StreamCommitsRequest:
    return offsets_pb.StreamCommitsRequest(id=number, commit=commits({shard: offset}, overwrite=overwrite))


async def test_thousands_of_pipelined_commits_are_answered_in_order(directory: Path) -> None:
    """All are sent before the first answer is read; a half-close ends the stream when all are answered."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        call = client.store.StreamCommits(timeout=PATIENCE_S)

        async def send() -> None:
            for number in range(PIPELINED):
                await call.write(_request(number, number, f"s{number % 100}"))
            await call.done_writing()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            replies = [reply async for reply in call]
        assert [reply.id for reply in each(replies)] == list(range(PIPELINED))
        assert not any(reply.code or reply.superseded for reply in replies)
        assert await call.code() is grpc.StatusCode.OK
        found = await client.read("g")
        assert {shard: row.offset for shard, row in found.items()} == {f"s{at}": PIPELINED - 100 + at for at in range(100)}
    assert meta.records[key("s7")].offset == PIPELINED - 93


async def test_an_answer_does_not_wait_for_the_next_request(directory: Path) -> None:
    """One at a time works as well: nothing is held back to fill a batch."""
    async with serving(directory) as (_, client):
        call = client.store.StreamCommits(timeout=PATIENCE_S)
        for number in range(20):
            await call.write(_request(number, number))
            assert (await _read(call)).id == number
            assert (await client.read("g"))["s"].offset == number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_an_answered_overwrite_stands_in_its_place(directory: Path) -> None:
    """A rewind pipelined between commits: what came before it is below it, what follows is above (2)."""
    async with serving(directory) as (_, client):
        requests = [_request(0, 10), _request(1, 20), _request(2, 5, overwrite=True), _request(3, 6), _request(4, 4)]
        replies = [reply async for reply in client.store.StreamCommits(iter(requests), timeout=PATIENCE_S)]
        assert [(reply.id, reply.code) for reply in each(replies)] == [(number, 0) for number in range(5)]
        assert [len(reply.superseded) for reply in each(replies)] == [0, 0, 0, 0, 1]
        row = (await client.read("g"))["s"]
        assert (row.epoch, row.offset) == (2, 6)


async def test_a_rewind_waits_for_what_came_before_it_though_that_waits_for_the_meta_service(directory: Path) -> None:
    """A request with a write-through part is not through when the rewind behind it arrives (2)."""
    meta = FakeMeta()
    release = anyio.Event()

    async def held(entries: Sequence[SaveEntry]) -> Any:
        await release.wait()
        return meta.apply(entries)

    meta.faults.append(held)
    policy = [{"groups": "pay-*", "mode": "write_through"}]
    async with serving(directory, meta, policy=policy, flush={"interval_ms": 60_000}) as (_, client):
        both = commits({"s": 20})
        both.groups.extend(commits({"s": 10}, "pay-1").groups)
        call = client.store.StreamCommits(timeout=PATIENCE_S)
        await call.write(offsets_pb.StreamCommitsRequest(id=1, commit=both))
        await call.write(_request(2, 5, overwrite=True))
        await eventually(lambda: bool(meta.saves), PATIENCE_S)
        for _ in range(20):  # round trips on the same connection: the rewind has arrived when they are through
            await client.status()
        release.set()
        await call.done_writing()
        assert [(reply.id, reply.code) for reply in each([reply async for reply in call])] == [(1, 0), (2, 0)]
        row = (await client.read("g"))["s"]
        assert (row.epoch, row.offset) == (2, 5)


async def test_many_rewinds_in_a_row_each_count(directory: Path) -> None:
    """Every rewind raises the epoch, in the order in which they were sent (2)."""
    async with serving(directory) as (_, client):
        offsets = [100, 90, 95, 80, 85, 70]
        requests = [_request(at, offset, overwrite=True) for at, offset in enumerate(offsets)]
        replies = [reply async for reply in client.store.StreamCommits(iter(requests), timeout=PATIENCE_S)]
        assert [reply.id for reply in each(replies)] == list(range(6))
        row = (await client.read("g"))["s"]
        assert (row.epoch, row.offset) == (4, 70)


async def test_a_superseded_commit_on_a_stream_shows_what_stands(directory: Path) -> None:
    """In the reply of its own request."""
    async with serving(directory) as (_, client):
        requests = [_request(0, 9), _request(1, 3)]
        replies = [reply async for reply in client.store.StreamCommits(iter(requests), timeout=PATIENCE_S)]
        assert not replies[0].superseded
        assert [(row.shard, row.epoch, row.offset) for row in replies[1].superseded] == [("s", 1, 9)]


async def test_a_client_that_does_not_read_is_made_to_wait(directory: Path) -> None:
    """Answers that are not taken keep their slots, so the server buffers a bounded number, whatever is sent to it."""
    shards = [f"{'x' * 240}{at}" for at in range(10)]
    total = 40_000
    async with serving(directory, FakeMeta()) as (_, client):
        await client.commit("g", dict.fromkeys(shards, 9))
        call = client.store.StreamCommits()
        sent = 0

        async def send() -> None:
            nonlocal sent
            # Each answer has ten superseded rows: about 2.6 kB, so that flow control is felt soon.
            request = offsets_pb.StreamCommitsRequest(commit=commits(dict.fromkeys(shards, 1)))
            while sent < total:
                request.id = sent
                await call.write(request)
                sent += 1
            await call.done_writing()

        sender = asyncio.create_task(send())
        taken = await _until_stalled(client, total * len(shards))
        assert taken < total * len(shards) / 2
        # Then it reads, and gets every answer that it has a right to, in order.
        for number in range(sent):
            reply = await _read(call)
            assert (reply.id, len(reply.superseded)) == (number, len(shards))
        sender.cancel()
        call.cancel()


async def _until_stalled(client: OffsetClient, limit: int) -> int:
    """How many offsets the adapter has taken when it takes no more, for 20 rounds of other requests."""
    rounds = taken = 0
    while rounds < 20 and taken < limit:
        await anyio.sleep(0.02)  # between the rounds, so that a busy machine is not taken for a stalled stream
        before, taken = taken, (await client.status()).commits
        rounds = rounds + 1 if before == taken else 0
    return taken


async def test_a_cancelled_stream_keeps_what_was_answered_and_disturbs_nobody(directory: Path) -> None:
    """What was answered is committed (1); other streams go on (10)."""
    async with serving(directory) as (_, client):
        other = client.store.StreamCommits(timeout=PATIENCE_S)
        await other.write(_request(1, 1, "other"))
        call = client.store.StreamCommits(timeout=PATIENCE_S)
        for number in range(500):
            await call.write(_request(number, number))
        answered = [(await _read(call)).id for _ in range(10)]
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()
        assert (await client.read("g"))["s"].offset >= answered[-1]
        await other.write(_request(2, 2, "other"))
        await other.done_writing()
        assert [reply.id for reply in each([reply async for reply in other])] == [1, 2]


async def test_a_stream_with_no_requests_ends_well(directory: Path) -> None:
    """A half-close at once is no error."""
    async with serving(directory) as (_, client):
        call = client.store.StreamCommits(timeout=PATIENCE_S)
        await call.done_writing()
        assert [reply async for reply in call] == []
        assert await call.code() is grpc.StatusCode.OK


async def test_streams_share_the_committer_fairly(directory: Path) -> None:
    """Twenty at once, each in its own order, each with its own ids."""
    async with serving(directory) as (_, client):
        ids: dict[int, list[int]] = {}

        async def stream(at: int) -> None:
            async def requests() -> AsyncIterator[offsets_pb.StreamCommitsRequest]:
                for number in range(200):
                    yield _request(at * 1000 + number, number, f"s{at}")

            replies = [reply async for reply in client.store.StreamCommits(requests(), timeout=PATIENCE_S)]
            ids[at] = [reply.id for reply in each(replies)]

        async with anyio.create_task_group() as tasks:
            for at in range(20):
                tasks.start_soon(stream, at)
        assert all(ids[at] == [at * 1000 + number for number in range(200)] for at in range(20))
        assert {row.offset for row in (await client.read("g")).values()} == {199}


async def test_a_stream_on_a_group_of_the_meta_service_takes_its_epoch(directory: Path) -> None:
    """The first commit loads the group; those pipelined behind it are placed in the same epoch, in order (1, 2)."""
    meta = FakeMeta({key(): record(50, 3)})
    async with serving(directory, meta) as (_, client):
        requests = [_request(at, 51 + at) for at in range(100)]
        replies = [reply async for reply in client.store.StreamCommits(iter(requests), timeout=PATIENCE_S)]
        assert [reply.id for reply in each(replies)] == list(range(100))
        await eventually(lambda: meta.records[key()].position == (3, 150), PATIENCE_S)


async def _read(
    call: grpc.aio.StreamStreamCall[offsets_pb.StreamCommitsRequest, offsets_pb.StreamCommitsReply],
) -> offsets_pb.StreamCommitsReply:
    reply = await call.read()
    assert isinstance(reply, offsets_pb.StreamCommitsReply)
    return reply
