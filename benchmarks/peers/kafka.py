"""Kafka: OffsetCommit to one KRaft broker, from the jars that install-peers.sh fetched."""

import asyncio
import base64
import contextlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adapter.testing.processes import free_port
from benchmarks.peers.peer import CONNECTIONS, PAGE_CACHE, Batch, Facts, absent, library, program
from benchmarks.peers.pool import Pool
from benchmarks.peers.server import READY_TIMEOUT_S, Hosted, Server, run

CACHE = Path.home() / ".cache" / "offset-adapter-bench"
TOPIC = "queue"
PARTITIONS = 1_040  # the shards of a group: as many as the load names at most
# "Java version" of its documentation: these flags, and a heap for a small broker.
JAVA = ["-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
REQUEST_TIMEOUT_MS = 60_000


class RefusedError(RuntimeError):
    """A commit got an error code for a partition."""


class Kafka(Hosted):
    """Broker and controller in one process. A shard of a group is a partition of one topic."""

    facts = Facts(
        "Kafka OffsetCommit",
        PAGE_CACHE,
        "in the page cache of the log of __consumer_offsets (one replica; flushed when the OS likes, its default)",
        "OffsetCommit requests on up to 64 connections: one partition, or many of one group (aiokafka's protocol)",
        warm_ups=10,  # for Java to compile the hot code
    )

    def missing(self) -> list[str]:
        """The programs and libraries that are missing."""
        jars = _jars()
        return absent({"java": program("java"), "the jars of Kafka": str(jars) if jars else None}, "aiokafka")

    def start(self, directory: Path) -> str:
        """Start it with its defaults, except for a single node."""
        port, controller = free_port(), free_port()
        settings = directory / "server.properties"
        settings.write_text(_settings(directory, port, controller), encoding="utf-8")
        classes = ["-cp", f"{_jars()}/*"]
        java = program("java") or "java"
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        run(directory, [java, *classes, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)])
        server = Server(directory, [java, *JAVA, *classes, "kafka.Kafka", str(settings)])
        self.servers.append(server)
        server.wait_listening(port)
        return str(port)

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "KafkaConnection":
        """As many connections as there are consumers, at most 64: the broker takes one request at a time from each."""
        await _prepare(f"127.0.0.1:{address}")
        connect = library("aiokafka.conn").create_conn
        count = min(consumers, CONNECTIONS)
        connections = [await connect("127.0.0.1", int(address), request_timeout_ms=REQUEST_TIMEOUT_MS) for _ in range(count)]
        connection = KafkaConnection(Pool(connections))
        for group in groups:
            await connection.wait_ready(group)
        return connection


class KafkaConnection:
    """A client of Kafka."""

    def __init__(self, pool: Pool[Any]) -> None:
        self._pool = pool
        self._request = library("aiokafka.protocol.commit").OffsetCommitRequest

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Commit one partition by one OffsetCommit."""
        await self._send(group, [(partition(shard), offset, "")])

    async def commit_many(self, batch: Batch) -> None:
        """A request for each group."""
        requests = (
            self._send(group, [(partition(shard), offset, "") for shard, offset in offsets.items()])
            for group, offsets in batch.items()
        )
        await asyncio.gather(*requests)

    async def wait_ready(self, group: str) -> None:
        """Wait until a commit of a group is taken: its coordinator has loaded, and the topic is there. Raises TimeoutError."""
        async with asyncio.timeout(READY_TIMEOUT_S):
            while True:
                with contextlib.suppress(RefusedError):
                    return await self._send(group, [(PARTITIONS - 1, 0, "")])
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._pool.connections:
            connection.close()

    async def _send(self, group: str, partitions: list[tuple[int, int, str]]) -> None:
        # A group without members, as tools and consumers that assign themselves have it: generation -1.
        request = self._request(group, -1, "", -1, [(TOPIC, partitions)])
        connection = await self._pool.take()
        try:
            reply = await connection.send(request)
        finally:
            self._pool.give(connection)
        if any(code for _, answers in reply.topics for _, code in answers):
            raise RefusedError(f"Kafka refused a commit: {reply.topics}")


def partition(shard: str) -> int:
    """The partition of `queue-<n>-<m>`: their sum, so that shards of one request, and lone ones, have each their own."""
    _, number, at = shard.split("-")
    return int(number) + int(at)


def _jars() -> Path | None:
    """Where the jars of the newest version are; None without any."""
    found = [path for path in CACHE.glob("kafka-*") if (path / "complete").exists()]
    return max(found, default=None, key=lambda path: [int(part) for part in path.name.removeprefix("kafka-").split(".")])


async def _prepare(address: str) -> None:
    """Make the topic, and the one of the offsets, which comes with the first question for a coordinator."""
    admin = library("aiokafka.admin")
    client = admin.AIOKafkaAdminClient(bootstrap_servers=address, request_timeout_ms=REQUEST_TIMEOUT_MS)
    await client.start()
    try:
        if TOPIC not in await client.list_topics():
            await client.create_topics([admin.NewTopic(TOPIC, PARTITIONS, 1)])
            with contextlib.suppress(library("aiokafka.errors").GroupCoordinatorNotAvailableError):
                await client.find_coordinator(TOPIC)
    finally:
        await client.close()


def _settings(directory: Path, port: int, controller: int) -> str:
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "kafka"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())
