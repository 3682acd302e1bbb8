"""The load: consumers that commit to an adapter, in a separate process, so that they do not share its GIL.

    python -m benchmarks.load '{"address": "127.0.0.1:9520", "group": "g", "seconds": 5}'

Prints `begin` and `end` at the edges of its window, when the parent reads counters, and then one line of JSON.
"""

import array
import asyncio
import json
import math
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from adapter.client.blocking import BlockingOffsetClient
from adapter.client.client import OffsetClient
from adapter.rpc import meta_grpc, meta_pb, offsets_grpc, offsets_pb

GROUPS = 8  # the consumers are spread over this many groups
TIMEOUT_S = 10.0
MAX_UNANSWERED = 512  # of an open loop; a gRPC server with 1,000 waiting calls cancels further ones


@dataclass(frozen=True)
class Load:
    """The parameters of a load. `rate`: commit requests per second; 0: each consumer commits again as soon as it is answered.

    `via` is the client: `store`, the plain gRPC stub; `client`, one OffsetClient for all; `blocking`, one BlockingOffsetClient
    with a thread for each consumer; `meta`, SaveOffsetData directly to a Meta Service at `address`. 0 `seconds` means until
    standard input ends. `samples` is a file for the time of sending and the latency of each commit.
    """

    address: str
    group: str
    seconds: float
    rate: float = 0.0
    consumers: int = 64
    batch: int = 1
    stream: bool = False
    warm_up_s: float = 1.0
    via: str = "store"
    samples: str = ""


@dataclass
class Window:
    """The answers between the begin and the end of the window."""

    begin: float
    end: float
    batch: int
    sent: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0  # of this process, in the window

    def answered(self, sent: float) -> None:
        """Count a request that was sent at `sent` and is answered now."""
        now = time.perf_counter()
        if self.begin <= now < self.end:
            self.sent.append(sent)
            self.seconds.append(now - sent)

    @property
    def over(self) -> bool:
        """True after the end of the window."""
        return time.perf_counter() >= self.end

    def summary(self) -> dict[str, Any]:
        """The results: rates per second, latencies in seconds, error -> number."""
        requests = len(self.seconds)
        return {
            "commits_per_s": requests * self.batch / (self.end - self.begin),
            "p50_s": percentile(self.seconds, 0.50),
            "p99_s": percentile(self.seconds, 0.99),
            "late_p99_s": percentile(self.late, 0.99),
            "cpu_share": self.cpu_s / (self.end - self.begin),
            "errors": self.errors,
        }


class Consumer:
    """A consumer of `batch` shards with rising offsets."""

    def __init__(self, load: Load, number: int) -> None:
        shards = [offsets_pb.ShardCommit(shard=f"queue-{number}-{at}", offset=0) for at in range(load.batch)]
        group = offsets_pb.GroupCommits(group=f"{load.group}-{number % GROUPS}", shards=shards)
        self.request = offsets_pb.CommitOffsetsRequest(groups=[group])
        self._offset = 0

    def advance(self) -> offsets_pb.CommitOffsetsRequest:
        """The next commit. The request object is reused: it must be sent before the next call."""
        self._offset += 1
        for shard in self.request.groups[0].shards:
            shard.offset = self._offset
        return self.request


def percentile(values: list[float], share: float) -> float:
    """The quantile `share` of the values; 0 if there are none."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


async def _commit(store: "offsets_grpc.OffsetStoreAsyncStub", request: offsets_pb.CommitOffsetsRequest, window: Window) -> None:
    sent = time.perf_counter()
    try:
        await store.CommitOffsets(request, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        window.errors[f"{error.code().name}: {error.details()}"] += 1
    else:
        window.answered(sent)


async def _closed_loop(store: "offsets_grpc.OffsetStoreAsyncStub", load: Load, window: Window) -> None:
    async def consume(consumer: Consumer) -> None:
        while not window.over:
            await _commit(store, consumer.advance(), window)

    await asyncio.gather(*(consume(Consumer(load, number)) for number in range(load.consumers)))


async def _open_loop(store: "offsets_grpc.OffsetStoreAsyncStub", load: Load, window: Window) -> None:
    """Send at fixed times, unless MAX_UNANSWERED commits are in flight: then a commit is late."""
    consumers = [Consumer(load, number) for number in range(load.consumers)]
    slots = asyncio.Semaphore(MAX_UNANSWERED)

    async def commit(request: offsets_pb.CommitOffsetsRequest) -> None:
        try:
            await _commit(store, request, window)
        finally:
            slots.release()

    started = time.perf_counter()
    sent = 0
    async with asyncio.TaskGroup() as tasks:
        while not window.over:
            due = started + sent / load.rate
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            await slots.acquire()
            window.late.append(time.perf_counter() - due)
            request = offsets_pb.CommitOffsetsRequest()
            request.CopyFrom(consumers[sent % load.consumers].advance())
            tasks.create_task(commit(request))
            sent += 1


async def _stream(store: "offsets_grpc.OffsetStoreAsyncStub", load: Load, window: Window) -> None:
    """Commit over one StreamCommits call, with one unanswered commit for each consumer."""
    slots = asyncio.Semaphore(load.consumers)
    unanswered: deque[float] = deque()  # when each was sent

    async def requests() -> AsyncIterator[offsets_pb.StreamCommitsRequest]:
        consumers = [Consumer(load, number) for number in range(load.consumers)]
        number = 0
        while not window.over:
            await slots.acquire()
            unanswered.append(time.perf_counter())
            yield offsets_pb.StreamCommitsRequest(id=number, commit=consumers[number % load.consumers].advance())
            number += 1

    async for reply in store.StreamCommits(requests()):
        for _ in range(max(reply.covers, 1)):
            slots.release()
            if reply.code:
                window.errors[f"{reply.code}: {reply.message}"] += 1
            window.answered(unanswered.popleft())


async def _client(load: Load, window: Window) -> None:
    """Commit through one client that all consumers share, as in a broker's process. An error ends the load."""
    async with OffsetClient.connect(load.address, TIMEOUT_S) as client:

        async def consume(number: int) -> None:
            group, shard, offset = f"{load.group}-{number % GROUPS}", f"queue-{number}", 0
            while not window.over:
                offset += 1
                sent = time.perf_counter()
                await client.commit(group, {shard: offset})
                window.answered(sent)

        await asyncio.gather(*map(consume, range(load.consumers)))


async def _blocking(load: Load, window: Window) -> None:
    """The same with threads."""
    with BlockingOffsetClient(load.address, TIMEOUT_S) as client:

        def consume(number: int) -> None:
            group, shard, offset = f"{load.group}-{number % GROUPS}", f"queue-{number}", 0
            while not window.over:
                offset += 1
                sent = time.perf_counter()
                client.commit(group, {shard: offset})
                window.answered(sent)

        with ThreadPoolExecutor(load.consumers) as threads:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(threads, consume, number) for number in range(load.consumers)))


async def _meta(load: Load, window: Window) -> None:
    """Commit without an adapter: each commit is a save call."""
    async with grpc.aio.insecure_channel(load.address) as channel:
        service: meta_grpc.MetaServiceServiceAsyncStub = meta_grpc.MetaServiceServiceStub(channel)

        async def save(number: int, offset: int) -> None:
            entry = meta_pb.SaveOffsetDataRequestOffset(
                namespace="default", shard_name=f"queue-{number}", topic="t", offset=offset, epoch=1
            )
            group = meta_pb.SaveOffsetData(group=f"{load.group}-{number % GROUPS}", tenant="default", offsets=[entry])
            sent = time.perf_counter()
            await service.SaveOffsetData(meta_pb.SaveOffsetDataRequest(cluster_name="bench", offsets=[group]), timeout=TIMEOUT_S)
            window.answered(sent)

        async def consume(number: int) -> None:
            offset = 0
            while not window.over:
                offset += 1
                await save(number, offset)

        async def send_on_time() -> None:
            started, sent = time.perf_counter(), 0
            async with asyncio.TaskGroup() as tasks:
                while not window.over:
                    await asyncio.sleep(max(started + sent / load.rate - time.perf_counter(), 0))
                    tasks.create_task(save(sent % load.consumers, 1 + sent // load.consumers))
                    sent += 1

        await (send_on_time() if load.rate else asyncio.gather(*map(consume, range(load.consumers))))


async def _store(load: Load, window: Window) -> None:
    async with grpc.aio.insecure_channel(load.address) as channel:
        await channel.channel_ready()
        store: offsets_grpc.OffsetStoreAsyncStub = offsets_grpc.OffsetStoreStub(channel)
        offering = _stream if load.stream else _open_loop if load.rate else _closed_loop
        await offering(store, load, window)


OFFERINGS = {"store": _store, "client": _client, "blocking": _blocking, "meta": _meta}


async def _mark(load: Load, window: Window) -> None:
    await asyncio.sleep(window.begin - time.perf_counter())
    print("begin", flush=True)
    cpu_s = time.process_time()
    if load.seconds:
        await asyncio.sleep(window.end - time.perf_counter())
    else:
        await asyncio.to_thread(sys.stdin.read)
        window.end = time.perf_counter()
    window.cpu_s = time.process_time() - cpu_s
    print("end", flush=True)


async def offer(load: Load) -> Window:
    """Run a load; returns the answers in its window."""
    begin = time.perf_counter() + load.warm_up_s
    window = Window(begin, begin + (load.seconds or math.inf), load.batch)
    await asyncio.gather(_mark(load, window), OFFERINGS[load.via](load, window))
    return window


def main(load: Load) -> None:
    """Run a load and print its results."""
    window = asyncio.run(offer(load))
    if load.samples:
        pairs = zip(window.sent, window.seconds, strict=True)
        Path(load.samples).write_bytes(array.array("d", [number for pair in pairs for number in pair]).tobytes())
    print(json.dumps(window.summary()))


if __name__ == "__main__":
    main(Load(**json.loads(sys.argv[1])))
