"""Redis: a hash for each group, a field for each shard, and an append-only file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapter.testing.processes import free_port
from benchmarks.peers.peer import CONNECTIONS, PAGE_CACHE, SYNCED, Batch, Facts, absent, library, program
from benchmarks.peers.pool import Pool
from benchmarks.peers.server import Hosted, Server

PROMISES = {
    "everysec": (PAGE_CACHE, "written to the append-only file; fsync once a second"),
    "always": (SYNCED, "written to the append-only file and synced, together with what other clients sent meanwhile"),
}


class Redis(Hosted):
    """`redis-server` with `appendfsync` as given."""

    def __init__(self, appendfsync: str) -> None:
        super().__init__()
        self._appendfsync = appendfsync
        durability, promise = PROMISES[appendfsync]
        how = "lone: HSET on one of up to 64 connections; together: an HSET of many fields for each group, pipelined (redis-py)"
        self.facts = Facts(f"Redis, AOF {appendfsync}", durability, promise, how)

    def missing(self) -> list[str]:
        """The programs and libraries that are missing."""
        return absent({"redis-server": program("redis-server")}, "redis", "hiredis")

    def start(self, directory: Path) -> str:
        """No snapshots: the append-only file is the store. The rest is Redis's own default."""
        port = free_port()
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
        }
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        server = Server(directory, [program("redis-server") or "redis-server", *options])
        self.servers.append(server)
        server.wait_listening(port)
        return str(port)

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "RedisConnection":
        """As many connections as there are consumers, at most 64."""
        del groups
        client = library("redis.asyncio").Redis
        clients = [
            client(host="127.0.0.1", port=int(address), single_connection_client=True) for _ in range(min(consumers, CONNECTIONS))
        ]
        for one in clients:
            await one.initialize()
        return RedisConnection(Pool(clients))


class RedisConnection:
    """A client of Redis."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Commit by one HSET."""
        redis = await self._pool.take()
        try:
            await redis.hset(group, shard, offset)
        finally:
            self._pool.give(redis)

    async def commit_many(self, batch: Batch) -> None:
        """One HSET for each group."""
        redis = await self._pool.take()
        try:
            pipeline = redis.pipeline(transaction=False)
            for group, offsets in batch.items():
                pipeline.hset(group, mapping=offsets)
            await pipeline.execute()
        finally:
            self._pool.give(redis)

    async def close(self) -> None:
        """Disconnect."""
        for redis in self._pool.connections:
            await redis.aclose()
