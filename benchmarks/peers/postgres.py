"""PostgreSQL: one row for each group and shard, in a cluster made for the run."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapter.testing.processes import free_port
from benchmarks.peers.peer import CONNECTIONS, PAGE_CACHE, SYNCED, Batch, Facts, absent, library, program
from benchmarks.peers.pool import Pool
from benchmarks.peers.server import Hosted, Server, own, run

USER = "postgres"  # made by Debian's package; the server refuses to run as root
PLACES = "/usr/lib/postgresql/*/bin"
# "Resource consumption" and "WAL" of its manual: shared buffers for the whole set, checkpoints rare. Room on each page makes
# updates that touch no index (HOT).
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "512MB",
    "max_connections": "100",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "lz4",
    "jit": "off",
}
TABLE = (
    'CREATE TABLE IF NOT EXISTS offsets (grp text COLLATE "C", shard text COLLATE "C", pos bigint NOT NULL,'
    " PRIMARY KEY (grp, shard)) WITH (fillfactor = 50)"
)
ONE = "INSERT INTO offsets VALUES ($1, $2, $3) ON CONFLICT (grp, shard) DO UPDATE SET pos = excluded.pos"
MANY = (
    "INSERT INTO offsets SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])"
    " ON CONFLICT (grp, shard) DO UPDATE SET pos = excluded.pos"
)
PROMISES = {
    "on": (SYNCED, "committed: its WAL is synced, together with that of other sessions"),
    "off": (PAGE_CACHE, "committed in memory: the WAL is written up to 0.6 s later, and even a killed server may lose it"),
}


class Postgres(Hosted):
    """`postgres` with `synchronous_commit` as given."""

    def __init__(self, synchronous_commit: str) -> None:
        super().__init__()
        self._synchronous_commit = synchronous_commit
        durability, promise = PROMISES[synchronous_commit]
        how = (
            "lone: a prepared INSERT .. ON CONFLICT on one of up to 64 connections; together: one statement over unnest (asyncpg)"
        )
        self.facts = Facts(f"PostgreSQL, sync commit {synchronous_commit}", durability, promise, how)

    def missing(self) -> list[str]:
        """The programs and libraries that are missing."""
        return absent({name: program(name, PLACES) for name in ("initdb", "postgres")}, "asyncpg")

    def start(self, directory: Path) -> str:
        """A cluster of its own, as the user `postgres` when we are root."""
        port, home = free_port(), directory / "postgres"
        own(home, USER)
        data = str(home / "data")
        # No need to sync an empty cluster: that is not what is measured.
        initdb = [program("initdb", PLACES) or "initdb", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8"]
        run(home, [*initdb, f"--username={USER}", f"--pgdata={data}"], user=USER)
        settings = {**SETTINGS, "port": str(port), "synchronous_commit": self._synchronous_commit}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [program("postgres", PLACES) or "postgres", "-D", data, *options]
        # SIGINT is its fast shutdown: it does not wait for clients.
        server = Server(home, command, user=USER, end=signal.SIGINT)
        self.servers.append(server)
        server.wait_listening(port)
        return str(port)

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "PostgresConnection":
        """As many connections as there are consumers, at most 64."""
        del groups
        connect = library("asyncpg").connect
        dsn = f"postgresql://{USER}@127.0.0.1:{address}/postgres"
        connections = [await connect(dsn) for _ in range(min(consumers, CONNECTIONS))]
        await connections[0].execute(TABLE)
        return PostgresConnection(Pool(connections))


class PostgresConnection:
    """A client of PostgreSQL. asyncpg prepares each statement once per connection."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Upsert one row."""
        connection = await self._pool.take()
        try:
            await connection.execute(ONE, group, shard, offset)
        finally:
            self._pool.give(connection)

    async def commit_many(self, batch: Batch) -> None:
        """Upsert all rows by one statement, with arrays as parameters."""
        groups = [group for group, offsets in batch.items() for _ in offsets]
        shards = [shard for offsets in batch.values() for shard in offsets]
        positions = [offset for offsets in batch.values() for offset in offsets.values()]
        connection = await self._pool.take()
        try:
            await connection.execute(MANY, groups, shards, positions)
        finally:
            self._pool.give(connection)

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._pool.connections:
            await connection.close()
