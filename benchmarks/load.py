"""The load: consumers that commit to an adapter, from a process of their own, so that they do not share its GIL.

    python -m benchmarks.load '{"address": "127.0.0.1:9520", "group": "g", "seconds": 5}'

Prints `begin` and `end` at the edges of its window, for whoever reads counters there, and then one line of JSON.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc.aio

from adapter.rpc import offsets_grpc, offsets_pb

GROUPS = 8  # the consumers are spread over this many groups
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Load:
    """What to offer. `rate` in commit requests per second; 0: each consumer sends its next as soon as it has its answer."""

    address: str
    group: str
    seconds: float
    rate: float = 0.0
    consumers: int = 64
    batch: int = 1
    stream: bool = False
    warm_up_s: float = 1.0


@dataclass
class Window:
    """What was answered between its begin and its end."""

    begin: float
    end: float
    batch: int
    seconds: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    errors: int = 0

    def answered(self, sent: float) -> None:
        """Count a request that was sent at `sent` and has its answer now."""
        now = time.perf_counter()
        if self.begin <= now < self.end:
            self.seconds.append(now - sent)

    @property
    def over(self) -> bool:
        """True once it has ended."""
        return time.perf_counter() >= self.end

    def summary(self) -> dict[str, float]:
        """Rates per second, latencies in seconds."""
        requests = len(self.seconds)
        return {
            "commits_per_s": requests * self.batch / (self.end - self.begin),
            "p50_s": percentile(self.seconds, 0.50),
            "p99_s": percentile(self.seconds, 0.99),
            "late_p99_s": percentile(self.late, 0.99),
            "errors": self.errors,
        }


class Consumer:
    """One consumer of `batch` shards: its commits rise."""

    def __init__(self, load: Load, number: int) -> None:
        shards = [offsets_pb.ShardCommit(shard=f"queue-{number}-{at}", offset=0) for at in range(load.batch)]
        group = offsets_pb.GroupCommits(group=f"{load.group}-{number % GROUPS}", shards=shards)
        self.request = offsets_pb.CommitOffsetsRequest(groups=[group])
        self._offset = 0

    def advance(self) -> offsets_pb.CommitOffsetsRequest:
        """The next commit. The request is the same object: it must have been sent before the next call."""
        self._offset += 1
        for shard in self.request.groups[0].shards:
            shard.offset = self._offset
        return self.request


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the values are; 0 without any."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


async def _commit(store: "offsets_grpc.OffsetStoreAsyncStub", request: offsets_pb.CommitOffsetsRequest, window: Window) -> None:
    sent = time.perf_counter()
    try:
        await store.CommitOffsets(request, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError:
        window.errors += 1
    else:
        window.answered(sent)


async def _closed_loop(store: "offsets_grpc.OffsetStoreAsyncStub", load: Load, window: Window) -> None:
    async def consume(consumer: Consumer) -> None:
        while not window.over:
            await _commit(store, consumer.advance(), window)

    await asyncio.gather(*(consume(Consumer(load, number)) for number in range(load.consumers)))


async def _open_loop(store: "offsets_grpc.OffsetStoreAsyncStub", load: Load, window: Window) -> None:
    """Send at the given times, whatever is still unanswered."""
    consumers = [Consumer(load, number) for number in range(load.consumers)]
    started = time.perf_counter()
    sent = 0
    async with asyncio.TaskGroup() as tasks:
        while not window.over:
            due = started + sent / load.rate
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            window.late.append(time.perf_counter() - due)
            request = offsets_pb.CommitOffsetsRequest()
            request.CopyFrom(consumers[sent % load.consumers].advance())
            tasks.create_task(_commit(store, request, window))
            sent += 1


async def _stream(store: "offsets_grpc.OffsetStoreAsyncStub", load: Load, window: Window) -> None:
    """One StreamCommits call with as many unanswered commits as there are consumers."""
    slots = asyncio.Semaphore(load.consumers)
    times: dict[int, float] = {}

    async def requests() -> AsyncIterator[offsets_pb.StreamCommitsRequest]:
        consumers = [Consumer(load, number) for number in range(load.consumers)]
        number = 0
        while not window.over:
            await slots.acquire()
            times[number] = time.perf_counter()
            yield offsets_pb.StreamCommitsRequest(id=number, commit=consumers[number % load.consumers].advance())
            number += 1

    async for reply in store.StreamCommits(requests()):
        slots.release()
        sent = times.pop(reply.id)
        if reply.code:
            window.errors += 1
        else:
            window.answered(sent)


async def _mark(window: Window) -> None:
    for at, name in ((window.begin, "begin"), (window.end, "end")):
        await asyncio.sleep(at - time.perf_counter())
        print(name, flush=True)


async def offer(load: Load) -> dict[str, float]:
    """Offer a load; returns what came of it."""
    async with grpc.aio.insecure_channel(load.address) as channel:
        await channel.channel_ready()
        store: offsets_grpc.OffsetStoreAsyncStub = offsets_grpc.OffsetStoreStub(channel)
        begin = time.perf_counter() + load.warm_up_s
        window = Window(begin, begin + load.seconds, load.batch)
        offering = _stream if load.stream else _open_loop if load.rate else _closed_loop
        await asyncio.gather(_mark(window), offering(store, load, window))
    return window.summary()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(offer(Load(**json.loads(sys.argv[1]))))))
