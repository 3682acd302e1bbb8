"""Broadcast offsets with real processes: kills under load, and clients that expire while they commit (invariant 1)."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import grpc.aio

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.rpc import offsets_pb
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.waiting import eventually
from tests.integration.helpers import PATIENCE_S, key, stored_in, until_clean

KILLS = 2
CLIENTS = [f"10.0.0.{at}@{100 + at}" for at in range(6)]
SHARDS = [f"orders/{at}" for at in range(3)]
TURNS = 200  # acknowledged commits between two kills


class Ledger:
    """What each client sent and what was acknowledged to it: client -> shard -> offset."""

    def __init__(self) -> None:
        self.sent: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.acknowledged: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.superseded: list[offsets_pb.Superseded] = []
        self.count = 0

    async def commit_on(self, client: OffsetClient, name: str) -> None:
        """Commit ever higher offsets, each client at its own pace, until cancelled. What gets no answer is left behind."""
        sent = self.sent[name]
        for turn in count():
            offsets = {shard: sent[shard] + 1 + CLIENTS.index(name) for shard in SHARDS[turn % 2 :]}
            sent |= offsets
            try:
                self.superseded += await client.commit_broadcast("g", name, offsets)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)  # a client that is refused does not spin
            else:
                self.acknowledged[name] |= offsets
                self.count += 1

    async def compare(self, client: OffsetClient) -> None:
        """Each client finds at least what was acknowledged to it and nothing that it did not send; the lowest is their lowest."""
        found: dict[str, dict[str, int]] = {}
        for name in CLIENTS:
            rows = await client.read_broadcast("g", client_id=name)
            found[name] = {shard: row.own for shard, row in rows.items() if row.HasField("own")}
        for name in CLIENTS:
            for shard in SHARDS:
                assert self.acknowledged[name][shard] <= found[name][shard] <= self.sent[name][shard]
        assert self.superseded == []
        lowest = {shard: row.lowest for shard, row in (await client.read_broadcast("g")).items()}
        assert lowest == {shard: min(offsets[shard] for offsets in found.values()) for shard in SHARDS}


@asynccontextmanager
async def under_load(adapter: ServiceProcess, ledger: Ledger) -> AsyncIterator[None]:
    """Meanwhile all clients commit."""
    async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
        tasks = [asyncio.create_task(ledger.commit_on(client, name)) for name in CLIENTS]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_acknowledged_broadcast_commits_survive_kills(tmp_path: Path) -> None:
    """Of every client, with the lowest; and a stop brings them and what was kept to the Meta Service."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address)
    ledger = Ledger()
    with ended(meta, adapter):
        meta.start()
        for _ in range(KILLS):
            adapter.start()
            async with under_load(adapter, ledger):
                enough = ledger.count + TURNS
                await eventually(lambda: ledger.count >= enough, PATIENCE_S)  # noqa: B023 - waited for here
                adapter.kill()
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await ledger.compare(client)
            await client.commit_broadcast("g", CLIENTS[0], {shard: ledger.sent[CLIENTS[0]][shard] + 1 for shard in SHARDS})
            lowest = {shard: row.lowest for shard, row in (await client.read_broadcast("g")).items()}
            async with asyncio.timeout(PATIENCE_S):
                while await kept(client) != lowest:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.1)
        assert adapter.stop() == 0
        found = stored_in(meta)
        assert {where.group for where in found} == {"g@broadcast", *(f"g@broadcast@{name}" for name in CLIENTS)}
        assert {shard: found[key(shard, "g@broadcast")] for shard in SHARDS} == {shard: (1, lowest[shard]) for shard in SHARDS}


async def kept(client: OffsetClient) -> dict[str, int]:
    """What an adapter has stored as the lowest."""
    return {shard: row.offset for shard, row in (await client.read("g@broadcast", mode=ReadMode.MEMORY)).items()}


async def test_clients_that_expire_while_they_commit_lose_nothing_that_is_young(tmp_path: Path) -> None:
    """What has expired leaves both stores, again and again; what is committed meanwhile is there, and is the lowest."""
    meta = meta_process(tmp_path)
    adapter = adapter_process(tmp_path, meta.address, extra="[expiry]\nbroadcast_seconds = 60\ninterval_ms = 10")
    with ended(meta, adapter):
        meta.start()
        adapter.start()
        async with OffsetClient.connect(adapter.address, PATIENCE_S) as client:
            await commit(client, "gone", 7, ago_ms=61_000)
            for offset in range(1, 100):
                await commit(client, "late", offset, ago_ms=60_000 + offset % 3 * 10)  # it expires as it comes
                if offset % 10 == 0:
                    await until_clean(client)  # now a sweep may take it away
            await commit(client, "late", 100)
            await eventually(lambda: "group=g@broadcast@gone" in adapter.log, PATIENCE_S)
            found = (await client.read_broadcast("g", client_id="late"))["s"]
            assert (found.own, found.lowest, found.clients) == (100, 100, 1)
            await until_clean(client)
        assert "group=g@broadcast@late" in adapter.log
        assert set(stored_in(meta)) >= {key("s", "g@broadcast@late"), key("s", "g@broadcast")}


async def commit(client: OffsetClient, name: str, offset: int, ago_ms: int = 0) -> None:
    """Commit for a client that says when it was. Nothing stands above it."""
    at_ms = time.time_ns() // 1_000_000 - ago_ms
    shards = [offsets_pb.ShardCommit(shard="s", offset=offset, committed_at_ms=at_ms)]
    request = offsets_pb.CommitBroadcastRequest(group="g", client_id=name, shards=shards)
    assert not (await client.store.CommitBroadcast(request)).superseded
