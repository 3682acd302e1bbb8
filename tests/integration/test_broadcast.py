"""Broadcast offsets as clients use them, over real gRPC, on a sidecar in this process; and the command that shows them."""

import json
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import grpc
import grpc.aio
import pytest
import structlog
from click.testing import CliRunner, Result

from adapter.cli.groups.broadcast import broadcast
from adapter.client.blocking import BlockingOffsetClient
from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.rpc import offsets_pb
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import PATIENCE_S
from tests.integration.helpers import key, record, serving

SHARD = offsets_pb.ShardCommit


async def refused(client: OffsetClient, *shards: SHARD, **names: str) -> tuple[grpc.StatusCode, str | None]:
    """How a commit of these shards is refused."""
    request = offsets_pb.CommitBroadcastRequest(**{"group": "g", "client_id": "c", **names}, shards=shards)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.store.CommitBroadcast(request)
    return caught.value.code(), caught.value.details()


async def test_each_client_has_its_own_offsets_and_the_lowest_is_the_slowest_ones(directory: Path) -> None:
    """With both clients, in namespaces apart. Where nobody committed nothing is said, never 0."""
    async with serving(directory) as (sidecar, client):
        assert await client.commit_broadcast("g", "x", {"s": 5, "t": 1}) == []

        def blocking() -> dict[str, offsets_pb.BroadcastOffset]:
            with BlockingOffsetClient(sidecar.addresses[-1], PATIENCE_S) as other:
                assert other.commit_broadcast("g", "y", {"s": 9}) == []
                return other.read_broadcast("g", ["s", "none"], client_id="y")

        assert await anyio.to_thread.run_sync(blocking) == {
            "s": offsets_pb.BroadcastOffset(shard="s", own=9, lowest=5, clients=2, lowest_client="x"),
            "none": offsets_pb.BroadcastOffset(shard="none"),
        }
        assert await client.read_broadcast("g") == {
            "s": offsets_pb.BroadcastOffset(shard="s", lowest=5, clients=2, lowest_client="x"),
            "t": offsets_pb.BroadcastOffset(shard="t", lowest=1, clients=1, lowest_client="x"),
        }
        assert await client.read_broadcast("g", namespace="other", client_id="x") == {}


async def test_a_client_finds_its_offsets_where_they_were_never_committed(directory: Path) -> None:
    """In the Meta Service, after the shard moved here, in the epoch in which they stand; and the group's lowest."""
    now_ms = 2**62  # it has not expired
    meta = FakeMeta(
        {
            key("s", "g@broadcast@c"): record(7, 3, committed_at_ms=now_ms),
            key("s", "g@broadcast"): record(4, committed_at_ms=now_ms),
        }
    )
    async with serving(directory, meta) as (_, client):
        found = (await client.read_broadcast("g", ["s"]))["s"]
        assert (found.HasField("own"), found.lowest) == (False, 4)
        assert (await client.read_broadcast("g", client_id="c"))["s"].own == 7
        rows = await client.commit_broadcast("g", "c", {"s": 6})
        assert [(row.group, row.shard, row.epoch, row.offset) for row in rows] == [("g", "s", 3, 7)]


async def test_a_bad_entry_refuses_its_request_by_the_name_of_the_field(directory: Path) -> None:
    """And speaks of the caller's group, not of the one in which the offsets are kept (10)."""
    bad = grpc.StatusCode.INVALID_ARGUMENT
    good = SHARD(shard="s", offset=1)
    async with serving(directory) as (_, client):
        assert await refused(client) == (bad, "shards: is empty; at least one offset is needed")
        assert await refused(client, good, client_id="") == (bad, "client_id is empty")
        assert await refused(client, good, namespace="\t") == (bad, "namespace has the control character U+0009 at position 0")
        assert await refused(client, good, SHARD(shard="t")) == (bad, "shards[1].offset is missing; absent does not mean 0")
        assert await refused(client, good, good) == (bad, "shards[1].shard: default/g/s is in the request twice")
        with pytest.raises(grpc.aio.AioRpcError, match="shards: s is named twice"):
            await client.read_broadcast("g", ["s", "s"])
        with pytest.raises(grpc.aio.AioRpcError, match="group: g@broadcast is what"):
            await client.read_broadcast("g@broadcast")
        assert await client.read_broadcast("g", client_id="c") == {}


async def test_without_the_meta_service_commits_go_on_and_what_is_unknown_is_not_told(directory: Path) -> None:
    """Unknown is not absent: a client that was told so would begin where it likes."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        meta.down = MetaUnavailableError("gone")
        assert await client.commit_broadcast("g", "c", {"s": 5}) == []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.read_broadcast("g", client_id="c")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "gone")
        meta.down = None
        assert (await client.read_broadcast("g", client_id="c"))["s"].own == 5


async def test_clients_of_a_group_that_is_written_through_wait_for_the_meta_service(directory: Path) -> None:
    """The policy's pattern meets their groups."""
    meta = FakeMeta()
    slow = {"interval_ms": 60_000}
    async with serving(directory, meta, flush=slow, policy=[{"groups": "pay@*", "mode": "write_through"}]) as (_, client):
        request = offsets_pb.CommitBroadcastRequest(group="pay", client_id="c", shards=[SHARD(shard="s", offset=1)])
        reply = await client.store.CommitBroadcast(request)
        assert list(reply.written_through) == [0]
        assert meta.records[key("s", "pay@broadcast@c")].position == (1, 1)


async def test_the_command_shows_the_lowest_of_each_shard(directory: Path) -> None:
    """As a table and for a script; exit code 1 when there is nothing."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # not into the command's output
    async with serving(directory) as (sidecar, client):
        await client.commit_broadcast("g", "10.0.0.1@7", {"t/0": 5, "t/1": 6})
        await client.commit_broadcast("g", "fast", {"t/0": 9})

        def run(*arguments: str) -> Result:
            return CliRunner().invoke(broadcast, [*arguments, "--address", sidecar.addresses[-1]])

        shown = await anyio.to_thread.run_sync(run, "g")
        assert shown.exit_code == 0
        assert [line.split("\t") for line in shown.output.splitlines() if "10.0.0.1" in line] == [
            ["t/0", "5", "10.0.0.1@7", "2"],
            ["t/1", "6", "10.0.0.1@7", "1"],
        ]
        told = await anyio.to_thread.run_sync(run, "g", "t/0", "none", "--json")
        assert told.exit_code == 1
        assert json.loads(told.output) == [
            {"shard": "t/0", "lowest": 5, "lowest_client": "10.0.0.1@7", "clients": 2},
            {"shard": "none", "lowest": None, "lowest_client": "", "clients": 0},
        ]
        assert (await anyio.to_thread.run_sync(run, "nobody")).exit_code == 1
