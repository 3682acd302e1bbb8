"""etcd: a key for each group and shard, by its gRPC API."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import grpc.aio

from adapter.testing.processes import free_port
from benchmarks.peers.peer import SYNCED, Batch, Facts, absent, library, program
from benchmarks.peers.server import Hosted, Server

PROTO = "benchmarks/peers/etcd.proto"
TXN_OPS = 128  # etcd's limit of a transaction, as it is by default


class Etcd(Hosted):
    """A cluster of one."""

    facts = Facts(
        "etcd",
        SYNCED,
        "in the raft log and synced, together with other proposals of the moment",
        f"lone: Put; together: Txns of {TXN_OPS} puts, all at once (grpc.aio, one channel)",
    )

    def missing(self) -> list[str]:
        """The programs and libraries that are missing."""
        return absent({"etcd": program("etcd")}, "grpc_tools")

    def start(self, directory: Path) -> str:
        """History is compacted as its maintenance guide asks: otherwise every commit would be kept."""
        client, peer = f"http://127.0.0.1:{(port := free_port())}", f"http://127.0.0.1:{free_port()}"
        settings = {
            "name": "bench",
            "data-dir": str(directory / "etcd"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"bench={peer}",
            "auto-compaction-mode": "revision",
            "auto-compaction-retention": "100000",
            "quota-backend-bytes": str(8 * 2**30),
            "logger": "zap",
            "log-level": "error",
        }
        server = Server(directory, [program("etcd") or "etcd", *(f"--{name}={value}" for name, value in settings.items())])
        self.servers.append(server)
        server.wait_listening(port)
        return f"127.0.0.1:{port}"

    async def connect(self, address: str, groups: Sequence[str], consumers: int) -> "EtcdConnection":
        """One channel: HTTP/2 carries all calls."""
        del groups, consumers
        channel = grpc.aio.insecure_channel(address)
        await channel.channel_ready()
        return EtcdConnection(channel)


class EtcdConnection:
    """A client of etcd."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._pb: Any
        self._pb, services = library("grpc").protos_and_services(PROTO)
        self._kv: Any = services.KVStub(channel)

    async def commit(self, group: str, shard: str, offset: int) -> None:
        """Commit by one Put."""
        await self._kv.Put(self._put(group, shard, offset))

    async def commit_many(self, batch: Batch) -> None:
        """As few transactions as its limit allows."""
        puts = (self._put(group, shard, offset) for group, offsets in batch.items() for shard, offset in offsets.items())
        operations = (self._pb.RequestOp(request_put=put) for put in puts)
        calls = []
        while chunk := list(islice(operations, TXN_OPS)):
            calls.append(self._txn(chunk))
        await asyncio.gather(*calls)

    async def close(self) -> None:
        """Disconnect."""
        await self._channel.close()

    def _put(self, group: str, shard: str, offset: int) -> Any:  # noqa: ANN401
        return self._pb.PutRequest(key=f"{group}/{shard}".encode(), value=b"%d" % offset)

    async def _txn(self, operations: list[Any]) -> None:
        reply = await self._kv.Txn(self._pb.TxnRequest(success=operations))
        if not reply.succeeded:
            raise RuntimeError("etcd refused a transaction without conditions")
