"""Kills a real RobustMQ broker with SIGKILL right after an acknowledged commit of a Kafka consumer.

    ROBUSTMQ_BROKER=PATH python -m tests.interop.robustmq_kills [bare bare-away front ...] [--rounds 20]

A consumer reads messages and commits after each of them; then the broker is killed, started again, and asked where the consumer
goes on. The ledger: what was acknowledged against what is read again. The broker is one node with all of RobustMQ's roles, so its
Meta Service ends and starts with it. `CASES` says what is killed besides.
"""

import argparse
import asyncio
import importlib
import logging
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from adapter.testing.processes import ServiceProcess, adapter_process, free_port
from adapter.testing.robustmq import BROKER, RobustNode, missing
from adapter.testing.waiting import PATIENCE_S

TOPIC, GROUP = "orders", "billing"
MESSAGES = 3_000
AWAY_S = 1.5
KAFKA = "aiokafka"


class Case(NamedTuple):
    """What is between the consumer and the disk, and what is killed.

    `adapter`: "" none; "front" answers the broker's calls; "client" is committed to by a broker whose group manager was changed,
    and finds its address in OFFSET_ADAPTER. `killed`: "broker"; "both"; "adapter", while commits go on, and the broker when it is
    back. `away`: nobody reaches RobustMQ's Meta Service for AWAY_S before.
    """

    adapter: str = ""
    killed: str = "broker"
    away: bool = False


CASES = {
    "bare": Case(),
    "bare-away": Case(away=True),
    "front": Case("front"),
    "front-adapter": Case("front", "adapter"),
    "front-both": Case("front", "both"),
    "front-away": Case("front", away=True),
    "front-away-both": Case("front", "both", away=True),
    "client": Case("client"),
    "client-both": Case("client", "both"),
    "client-away": Case("client", away=True),
}


def kafka() -> Any:
    """The Kafka client, which `make interop` installs when there is a broker."""
    logging.getLogger(KAFKA).setLevel(logging.CRITICAL)  # that a broker is dead is no news
    return importlib.import_module(KAFKA)


class Gate:
    """A TCP proxy before a port, on the loop of the tests. While it is shut, it has no connections and takes none."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def open(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)

    async def shut(self) -> None:
        """End them, and take no others."""
        if self._server:
            self._server.close()
        ended = [task for task in self._open.values() if task]
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*ended)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = asyncio.current_task()
        with suppress(OSError):
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
            self._open[forth] = None
            await asyncio.gather(_copied(reader, forth), _copied(back, writer))
            del self._open[forth]
        writer.transport.abort()
        del self._open[writer]


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@dataclass
class Stack:
    """A broker, with an adapter if the case has one."""

    case: Case
    node: RobustNode
    kafka_port: int
    gate: Gate
    adapter: ServiceProcess | None
    produced: int = 0

    async def start_broker(self) -> None:
        """Start it, and wait until it serves consumers. Raises RuntimeError with its output if it ends."""
        self.node.start()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.kafka_port)
                writer.close()
                return
            if (self.node.process and self.node.process.poll() is not None) or time.monotonic() > deadline:
                raise RuntimeError(f"RobustMQ's broker does not start:\n{(self.node.directory / 'output.log').read_text()}")
            await asyncio.sleep(0.05)

    def consumer(self, *topics: str) -> Any:
        """A consumer of the group."""
        return kafka().AIOKafkaConsumer(
            *topics,
            bootstrap_servers=f"127.0.0.1:{self.kafka_port}",
            group_id=GROUP,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )

    async def produce(self, begin: int) -> None:
        """Have MESSAGES behind a position."""
        missing_ = range(self.produced, begin + MESSAGES)
        self.produced = missing_.stop
        producer = kafka().AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{self.kafka_port}", acks=1)
        await producer.start()
        try:
            await asyncio.gather(*[await producer.send(TOPIC, b"message %d" % at, partition=0) for at in missing_])
        finally:
            await producer.stop()

    async def at_adapter(self) -> int:
        """The offset that the adapter has; 0 without one."""
        assert self.adapter
        async with OffsetClient.connect(self.adapter.address, PATIENCE_S) as client:
            rows = await client.read(GROUP, mode=ReadMode.MEMORY)
        return max((row.offset for row in rows.values()), default=0)


@asynccontextmanager
async def stack(directory: Path, case: Case) -> AsyncIterator[Stack]:
    """A broker that serves, with MESSAGES in its topic; all is killed at the end."""
    port, kafka_port, front = free_port(), free_port(), free_port()
    gate = Gate(port)
    settings = _settings(port, gate.port, kafka_port, front if case.adapter == "front" else 0)
    node = RobustNode(1, directory / "node", port, settings, BROKER, ("--conf", "server.toml"))
    adapter = None
    if case.adapter:
        extra = f"[robustmq]\nlisten = '127.0.0.1:{front}'\nbroker = '{node.address}'\n" if case.adapter == "front" else ""
        adapter = adapter_process(directory / "adapter", f"127.0.0.1:{gate.port}", extra=extra)
        if case.adapter == "client":
            node.environment = {"OFFSET_ADAPTER": adapter.address}
    made = Stack(case, node, kafka_port, gate, adapter)
    try:
        await gate.open()
        if adapter:
            adapter.launch()  # it is ready when the broker's Meta Service is
        await made.start_broker()
        if adapter:
            await asyncio.to_thread(adapter.wait_ready)
        yield made
    finally:
        node.kill()
        if adapter:
            adapter.kill()
        await gate.shut()


@dataclass
class Tally:
    """What was acknowledged in all rounds, and what came of it."""

    kills: int = 0
    commits: int = 0
    commit_s: float = 0.0  # of all of them
    refused: int = 0  # reads by a consumer that started, which it made again
    again: list[int] = field(default_factory=list)  # messages that were acknowledged and are read again, of each round
    lost: list[str] = field(default_factory=list)  # promises that were not kept
    skipped: list[str] = field(default_factory=list)

    def line(self, name: str) -> str:
        """The row of a table."""
        each_ms = self.commit_s / max(self.commits, 1) * 1_000
        rounds = sum(map(bool, self.again))
        return (
            f"{name:16} {self.kills} kills, {self.commits:,} commits ({each_ms:.1f} ms each); acknowledged and read again "
            f"{sum(self.again):,} in {rounds} rounds, at most {max(self.again, default=0):,}; lost {len(self.lost)}, "
            f"skipped {len(self.skipped)}; reads refused {self.refused}"
        )


@dataclass
class Life:
    """What a consumer did in one life of the broker."""

    consumer: Any
    begin: int
    acknowledged: int
    attempted: int
    seen: int = 0  # at the adapter
    commit_s: float = 0.0

    async def commit_for(self, seconds: float) -> None:
        """Read and commit messages, one after the other; the last one is acknowledged when this returns."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            message = await asyncio.wait_for(self.consumer.getone(), PATIENCE_S)
            assert message.offset == self.acknowledged, "the broker gives another message than the next one"
            self.attempted = message.offset + 1
            began = time.monotonic()
            await self.consumer.commit({partition(): self.attempted})
            self.commit_s += time.monotonic() - began
            self.acknowledged = self.attempted

    async def watch(self, made: Stack) -> None:
        """Note what the adapter has, until cancelled: what it showed before it was killed it has to have afterwards."""
        while True:
            with suppress(grpc.RpcError):
                self.seen = max(self.seen, await made.at_adapter())
            await asyncio.sleep(0.02)


async def play(made: Stack, tally: Tally, rng: random.Random) -> None:
    """Commit, kill, start again, and compare what a consumer is told with the ledger."""
    consumer, begin = await _begun(made, tally)
    await made.produce(begin)
    life = Life(consumer, begin, begin, begin)
    watching = asyncio.create_task(life.watch(made)) if made.adapter else None
    seconds = rng.uniform(0.2, 0.6)
    await life.commit_for(seconds)
    if made.case.away:
        await made.gate.shut()
        await life.commit_for(AWAY_S)
    if made.case.killed == "adapter" and made.adapter:
        made.adapter.kill()
        await life.commit_for(seconds)
        await asyncio.to_thread(made.adapter.start)
        await life.commit_for(seconds)
    made.node.kill()
    if made.adapter and made.case.killed == "both":
        made.adapter.kill()
    elif made.adapter:
        life.seen = max(life.seen, await made.at_adapter())
    if watching:
        watching.cancel()
    with suppress(Exception):  # its broker is dead
        await asyncio.wait_for(consumer.stop(), PATIENCE_S)
    if made.adapter and made.case.killed == "both":
        made.adapter.launch()
    if made.case.away:
        await made.gate.open()
    await made.start_broker()
    consumer, found = await _begun(made, tally)
    await consumer.stop()
    promised = life.acknowledged if made.case.adapter == "client" else life.seen
    tally.kills += 1
    tally.commits += life.acknowledged - begin
    tally.commit_s += life.commit_s
    tally.again.append(max(life.acknowledged - found, 0))
    if found < promised:
        tally.lost.append(f"{found} is read, {promised} was promised, {life.acknowledged} acknowledged")
    if found > life.attempted:
        tally.skipped.append(f"{found} is read, {life.attempted} was committed")


async def _begun(made: Stack, tally: Tally) -> tuple[Any, int]:
    """A consumer, and where it goes on: it asks again while it is refused."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        consumer = made.consumer()
        try:
            await consumer.start()
            consumer.assign([partition()])
            found = await consumer.committed(partition()) or 0
            consumer.seek(partition(), found)
        except kafka().errors.KafkaError:
            tally.refused += 1
            await consumer.stop()
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return consumer, found


def partition() -> Any:
    """The one of the topic."""
    return kafka().TopicPartition(TOPIC, 0)


def _settings(port: int, meta_port: int, kafka_port: int, front: int) -> str:
    entry = f'-sidecar = "127.0.0.1:{front}", ' if front else ""
    return f"""cluster_name = "test"
broker_id = 1
broker_ip = "127.0.0.1"
roles = ["meta", "broker", "engine"]
grpc_port = {port}
http_port = {free_port()}
meta_addrs = {{ {entry}1 = "127.0.0.1:{meta_port}" }}
data_path = "data"
[log]
log_config = "logger.toml"
log_path = "logs"
[meta_runtime]
meta_worker_threads = 2
[runtime]
server_worker_threads = 2
default_topic_replica_num = 1
default_topic_partition_num = 1
[storage_runtime]
tcp_port = {free_port()}
data_path = ["engine"]
[kafka_runtime]
tcp_port = {kafka_port}
[mqtt_runtime.server]
tcp_port = {free_port()}
tls_port = {free_port()}
websocket_port = {free_port()}
websockets_port = {free_port()}
quic_port = {free_port()}
[amqp_runtime]
tcp_port = {free_port()}
[nats_runtime]
tcp_port = {free_port()}
tls_port = {free_port()}
ws_port = {free_port()}
wss_port = {free_port()}
"""


async def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all but those of a changed broker, if none is named")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if reason := missing(BROKER):
        sys.exit(reason)
    broken = False
    for name in given.cases or [name for name, case in CASES.items() if case.adapter != "client"]:
        tally, rng = Tally(), random.Random(given.seed)
        with tempfile.TemporaryDirectory() as directory:
            async with stack(Path(directory), CASES[name]) as made:
                for _ in range(given.rounds):
                    await play(made, tally, rng)
        sys.stdout.write("\n".join([tally.line(name), *tally.lost, *tally.skipped, ""]))
        sys.stdout.flush()
        broken |= bool(tally.lost or tally.skipped)
    return int(broken)


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
