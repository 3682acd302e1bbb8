"""What a restart costs clients: with a socket that a service manager holds, with a port that closes, and in a pod.

    [BENCH_KEYS=1000000] python -m benchmarks restart

With so many keys in the store and in the Meta Service. Real processes, in turns within one run: the Meta Service, the
adapter, and as the broker 16 consumers in this process that commit one offset at a time. Half of them never retry, half send
again what was lost, as `OffsetClient` does by default. Others read where a group begins that nobody has read yet, and commit
what follows. In a pod the sockets go with the container, and broker and adapter stop together: at the same time, or the
adapter behind the broker, which is what a native sidecar is (an init container with restartPolicy Always).
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

import grpc.aio
from rich.progress import Progress

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import ReadMode
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from adapter.testing.service_manager import service_manager
from benchmarks.keyspace import fill_local, fill_meta, key_of, pairs, record_of
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "what a restart costs a client"
CONSUMERS = 8  # of each kind
STARTING = 2  # that read where they begin, and then commit
CALL_S = 20.0  # deadline of a commit, with its retries; gRPC gives up connecting after as long
READ_LIMIT_MS = 2_500.0  # of the longest wait of a read
PAUSE_S = 0.005  # of a consumer between two commits
QUIET_S = 0.5  # of load between two restarts
BROKER_STOPS_S = 1.0  # how long a broker in a pod still commits after its SIGTERM
HELD, CLOSED, TOGETHER, BEHIND = "socket held (systemd)", "port closed", "pod, stopped together", "pod, native sidecar"
COLUMNS = (
    "restart", "number", "commits", "failed without retries", "failed with OffsetClient's retries",
    "longest commit ms", "median s without a commit", "longest s without a commit", "reads", "failed reads", "longest read ms",
)  # fmt: skip


@dataclass
class Broker:
    """Consumers that commit while `running`, and what became of it."""

    address: str
    commits: int = 0
    failed: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})  # by: retries
    longest_s: float = 0.0
    reads: int = 0
    failed_reads: int = 0
    longest_read_s: float = 0.0
    gaps: list[float] = field(default_factory=list)  # the longest time without an acknowledged commit, in each restart
    running: asyncio.Event = field(default_factory=asyncio.Event)
    _last: float = 0.0
    _gap: float = 0.0
    _busy: int = 0

    async def consume(self, client: OffsetClient, shard: str, *, retries: bool) -> None:
        """Commit until cancelled."""
        offset = 0
        while True:
            await self.running.wait()
            offset += 1
            begun = time.monotonic()
            self._busy += 1
            try:
                await client.commit("g", {shard: offset})
            except grpc.aio.AioRpcError:
                self.failed[retries] += 1
            else:
                now = time.monotonic()
                self.commits += 1
                self.longest_s = max(self.longest_s, now - begun)
                self._gap, self._last = max(self._gap, now - self._last), now
            finally:
                self._busy -= 1
            await asyncio.sleep(PAUSE_S)

    async def begin(self, client: OffsetClient, numbers: Iterator[int], keys: int) -> None:
        """Read where a shard begins, and commit what follows, until cancelled; groups that were not read before, by the store."""
        while True:
            await self.running.wait()
            number = next(numbers) * 104_729 % keys
            key = key_of(number)
            begun = time.monotonic()
            self._busy += 1
            try:
                found = await client.read(key.group, [key.shard], mode=ReadMode.STORE)
                self.reads += 1
                self.longest_read_s = max(self.longest_read_s, time.monotonic() - begun)
                assert found[key.shard].offset >= record_of(number).offset
                await client.commit(key.group, {key.shard: found[key.shard].offset + 1})
            except grpc.aio.AioRpcError:
                self.failed_reads += 1
            finally:
                self._busy -= 1
            await asyncio.sleep(PAUSE_S)

    def start(self) -> None:
        """Begin to commit."""
        self._last = self._last or time.monotonic()
        self.running.set()

    async def stop(self) -> None:
        """Commit no more; return when nothing is in flight."""
        self.running.clear()
        while self._busy:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(PAUSE_S)

    async def during(self, restart: Callable[[], Awaitable[None]]) -> None:
        """Measure one restart, from one commit to another after it."""
        self._gap = 0.0
        await restart()
        before = self.commits
        while self.commits < before + CONSUMERS:  # noqa: ASYNC110 - as above
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(QUIET_S)
        self.gaps.append(self._gap)


@asynccontextmanager
async def broker_of(adapter: ServiceProcess, keys: int) -> AsyncIterator[Broker]:
    """A broker that commits to an adapter on TCP."""
    broker = Broker(adapter.tcp_address)
    async with AsyncExitStack() as stack:
        tasks = []
        for retries in (False, True):
            client = await stack.enter_async_context(OffsetClient.connect(broker.address, CALL_S, resend=retries))
            consumers = [broker.consume(client, f"{retries}-{at}", retries=retries) for at in range(CONSUMERS)]
            tasks += [asyncio.create_task(each, name="consumer") for each in consumers]
        client = await stack.enter_async_context(OffsetClient.connect(broker.address, CALL_S, resend=False))
        numbers = count(1)
        tasks += [asyncio.create_task(broker.begin(client, numbers, keys), name="starting") for _ in range(STARTING)]
        try:
            yield broker
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Restart in each way, as often as the scale says."""
    result = Result("restart", TITLE)
    keys = int(os.environ.get("BENCH_KEYS") or 1_000)
    task = progress.add_task("restart", total=4 * scale.restarts)
    rows: list[list[Cell]] = []
    for at, way in enumerate((HELD, CLOSED, TOGETHER, BEHIND)):
        broker = await _measured(way, directory / str(at), scale.restarts, keys, lambda: progress.advance(task))
        rows.append(
            [
                way, scale.restarts, broker.commits, broker.failed[False], broker.failed[True],
                broker.longest_s * 1e3, median(broker.gaps), max(broker.gaps),
                broker.reads, broker.failed_reads, broker.longest_read_s * 1e3,
            ]
        )  # fmt: skip
        if way == HELD:
            failed = float(sum(broker.failed.values()) + broker.failed_reads)
            result.bars.append(Bar("calls that failed in restarts with held sockets", failed, 0.0))
            result.bars.append(Bar("the longest wait of a read there, in ms", broker.longest_read_s * 1e3, READ_LIMIT_MS))
    title = f"{2 * CONSUMERS} consumers, one commit at a time, and {STARTING} that read where they begin; {keys:,} keys"
    result.tables.append(Table(title, COLUMNS, rows))
    result.notes.append(
        "a pod: the broker commits on for 1 s after its SIGTERM. Behind it, the adapter stops when the broker has ended, and "
        "starts before it: the time without a commit is then the time in which there is no broker either"
    )
    return result


async def _measured(way: str, directory: Path, restarts: int, keys: int, done: Callable[[], None]) -> Broker:
    meta = meta_process(directory)
    adapter = adapter_process(directory, meta.tcp_address, store=directory / "filled")
    with ended(meta), service_manager(adapter) as manager:
        await asyncio.to_thread(meta.start)
        await _fill(keys, directory / "filled", meta.tcp_address)
        if way == HELD:
            manager.hold_tcp()
        await asyncio.to_thread(manager.start)
        async with broker_of(adapter, keys) as broker:

            async def in_place() -> None:
                await asyncio.to_thread(manager.restart)

            async def together() -> None:
                stopping = asyncio.create_task(asyncio.to_thread(adapter.stop))
                await asyncio.sleep(BROKER_STOPS_S)
                await broker.stop()
                await stopping
                starting = asyncio.create_task(asyncio.to_thread(manager.start))
                broker.start()
                await starting

            async def behind() -> None:
                await asyncio.sleep(BROKER_STOPS_S)
                await broker.stop()
                await asyncio.to_thread(manager.restart)
                broker.start()

            broker.start()
            await asyncio.sleep(QUIET_S)
            for _ in range(restarts):
                await broker.during({HELD: in_place, CLOSED: in_place, TOGETHER: together, BEHIND: behind}[way])
                done()
            await broker.stop()
    return broker


async def _fill(keys: int, path: Path, endpoint: str) -> None:
    """The same keys in the store and in the Meta Service, all flushed."""
    store = LocalStore.open(path, "never")
    fill_local(pairs(keys), store, lambda _: None)
    store.advance_flushed(store.seq)
    store.close()
    async with GrpcMetaClient.open(MetaSection(endpoints=(endpoint,))) as client:
        await fill_meta(pairs(keys), client, lambda _: None)
