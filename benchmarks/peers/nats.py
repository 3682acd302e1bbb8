"""NATS JetStream: a key-value bucket in files."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapter.testing.processes import free_port
from benchmarks.peers.peer import PAGE_CACHE, Batch, Facts, absent, library, program
from benchmarks.peers.server import Hosted, Server

BUCKET = "offsets"


class Nats(Hosted):
    """`nats-server` with JetStream; `sync_interval` is its default."""

    facts = Facts(
        "NATS JetStream KV",
        PAGE_CACHE,
        "in the stream's file; fsync every 2 minutes (sync_interval, its default)",
        "lone: KV put, pipelined over one connection; together: asynchronous publishes into the bucket (nats-py)",
    )

    def missing(self) -> list[str]:
        """The programs and libraries that are missing."""
        return absent({"nats-server": program("nats-server")}, "nats")

    def start(self, directory: Path) -> str:
        """Start the server; returns its address."""
        port = free_port()
        config = {"host": "127.0.0.1", "port": port, "jetstream": {"store_dir": str(directory)}}
        settings = directory / "nats.conf"  # its format reads JSON too
        settings.write_text(json.dumps(config), encoding="utf-8")
        server = Server(directory, [program("nats-server") or "nats-server", "--config", str(settings)])
        self.servers.append(server)
        server.wait_listening(port)
        return str(port)

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "NatsConnection":
        """One connection; the bucket keeps the newest value of a key."""
        del groups, consumers
        client = await library("nats").connect(f"nats://127.0.0.1:{address}")
        stream = client.jetstream(timeout=30)
        storage = library("nats.js.api").StorageType.FILE
        bucket = await stream.create_key_value(bucket=BUCKET, history=1, storage=storage)
        return NatsConnection(client, stream, bucket)


class NatsConnection:
    """A client of NATS."""

    def __init__(self, client: Any, stream: Any, bucket: Any) -> None:  # noqa: ANN401
        self._client = client
        self._stream = stream
        self._bucket = bucket

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """One put; it returns with the server's acknowledgement."""
        await self._bucket.put(f"{group}.{shard}", b"%d" % offset)

    async def commit_many(self, batch: Batch) -> None:
        """What a put sends, without waiting in between."""
        publish = self._stream.publish_async
        await asyncio.gather(
            *[
                await publish(f"$KV.{BUCKET}.{group}.{shard}", b"%d" % offset)
                for group, offsets in batch.items()
                for shard, offset in offsets.items()
            ]
        )

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()
