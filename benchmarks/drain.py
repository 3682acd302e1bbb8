"""An outage of the Meta Service with many dirty keys: the drain rate, the commit latency meanwhile, and a start after a kill.

Real processes: the Meta Service, the adapter, and a client that commits single offsets continuously. CPU is given for each
process and offset, since the three share the machine's cores.
"""

import array
import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from rich.progress import Progress, TaskID

from adapter.client.client import OffsetClient
from adapter.rpc import offsets_pb
from benchmarks.during_flush import Span
from benchmarks.fast_path import PATIENT
from benchmarks.load import Load, percentile
from benchmarks.machine import cpu_s
from benchmarks.processes import Stack, found_by, loading, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "the drain behind an outage of the Meta Service"
LEAST_RATE = 30_000.0  # offsets per second
MOST_P99_MS = 250.0
RATE = 100  # commits per second of the background client
CONSUMERS = 8  # of the background client; their keys may be dirty at any time
POLL_S = 0.1
PATIENCE_S = 900.0
SHARDS = 16  # of each group
BATCH_GROUPS = 64  # of each call that makes keys dirty
AT_ONCE = 4  # of these calls

DRAINS = ("drain", "offsets", "seconds", "offsets/s", "adapter us/offset", "Meta Service us/offset")
COMMITS = ("commits", "number", "p50 ms", "p99 ms", "worst ms")
STARTS = ("start", "keys", "to SERVING s", "recovery s", "pushed", "equal", "adapter us/key", "Meta Service us/key")


@dataclass(frozen=True)
class Taken:
    """CPU seconds of both processes."""

    adapter: float
    meta: float

    def since(self, earlier: "Taken", offsets: int) -> tuple[float, float]:
        """The CPU used since an earlier instant, in microseconds per offset."""
        return (self.adapter - earlier.adapter) / offsets * 1e6, (self.meta - earlier.meta) / offsets * 1e6


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure two outages in which all keys are committed (new ones, then known ones), and two starts of a killed adapter."""
    result = Result("drain", TITLE)
    keys = scale.drain_keys // SHARDS * SHARDS
    drains: list[list[Cell]] = []
    commits: list[list[Cell]] = []
    starts: list[list[Cell]] = []
    with running_stack(directory, extra=PATIENT) as stack:
        for turn, name in enumerate(("new keys", "known keys"), start=1):
            task = progress.add_task(f"drain: {keys:,} {name}", total=keys)
            samples = directory / f"samples-{turn}"
            drained, spans = await _outage(stack, keys, turn, samples, progress, task)
            drains.append([name, keys, *drained])
            numbers = array.array("d", samples.read_bytes())
            _tell_commits(result, commits, name, list(zip(numbers[::2], numbers[1::2], strict=True)), spans)
            result.bars.append(Bar(f"drain of {name}, offsets/s", float(drained[1]), LEAST_RATE, least=True))
        stack.meta.stop()
        await _dirty(stack, keys, 3)
        stack.adapter.kill()
        stack.meta.start()
        for name in ("killed, all dirty", "killed, all flushed"):
            starts.append([name, keys, *await _start(stack, keys, progress)])
            stack.adapter.kill()
    result.tables += [
        Table("Drains", DRAINS, drains),
        Table("Commits meanwhile", COMMITS, commits),
        Table("Starts", STARTS, starts),
    ]
    result.notes += [
        f"{RATE} single commits a second come from a process of their own, which shares the cores as well.",
        "A drain's time begins when the Meta Service serves again, so the pause of the flusher's backoff is in it.",
        "New keys were committed while their epochs could not be known; in their drain these are stored here, too.",
    ]
    return result


async def _outage(
    stack: Stack, keys: int, turn: int, samples: Path, progress: Progress, task: TaskID
) -> tuple[list[float], tuple[Span, Span]]:
    """Seconds, offsets per second and CPU of a drain; and the time spans without and with a drain."""
    stack.meta.stop()
    await _dirty(stack, keys, turn)
    load = Load(stack.adapter.tcp_address, "honest", 0.0, RATE, CONSUMERS, samples=str(samples))
    async with loading(load) as process, OffsetClient.connect(stack.adapter.address, timeout_s=60.0) as client:
        assert process.stdout is not None
        assert process.stdin is not None
        await process.stdout.readline()
        quiet = time.perf_counter()
        await asyncio.sleep(1.0)
        stack.meta.launch()
        await asyncio.to_thread(stack.meta.wait_ready)
        before = _taken(stack)
        began = time.perf_counter()
        await _drained(client, keys, progress, task)
        ended = time.perf_counter()
        took = _taken(stack).since(before, keys)
        process.stdin.close()
        await process.stdout.readline()
        await found_by(process, lambda: stack.adapter.log)
    return [ended - began, keys / (ended - began), *took], ((quiet, began), (began, ended))


async def _dirty(stack: Stack, keys: int, offset: int) -> None:
    """Commit this offset of every key."""
    waiting = iter(range(0, keys // SHARDS, BATCH_GROUPS))
    shards, offsets = [f"queue-{at}" for at in range(SHARDS)], [offset] * SHARDS
    async with OffsetClient.connect(stack.adapter.tcp_address) as client:

        async def commit() -> None:
            for first in waiting:
                names = [f"group-{at}" for at in range(first, min(first + BATCH_GROUPS, keys // SHARDS))]
                groups = [offsets_pb.GroupCommits(group=name, shard_names=shards, offsets=offsets) for name in names]
                await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=groups), timeout=60.0)

        await asyncio.gather(*(commit() for _ in range(AT_ONCE)))


async def _drained(client: OffsetClient, keys: int, progress: Progress, task: TaskID) -> None:
    """Wait until only the background client's recent commits are dirty."""
    async with asyncio.timeout(PATIENCE_S):
        while (left := (await client.status()).dirty_keys) > CONSUMERS:
            progress.update(task, completed=keys - left)
            await asyncio.sleep(POLL_S)


async def _start(stack: Stack, keys: int, progress: Progress) -> list[Cell]:
    """Start the killed adapter; returns the duration, and the counts of its recovery."""
    task = progress.add_task(f"start with {keys:,} keys", total=keys)
    meta_before = cpu_s(stack.meta.pid)
    launched = time.perf_counter()
    stack.adapter.launch()
    status = await _serving(stack, progress, task)
    seconds = time.perf_counter() - launched
    if status.recovery.compared != keys + CONSUMERS:
        raise RuntimeError(f"compared {status.recovery.compared} keys of {keys + CONSUMERS}:\n{stack.adapter.log[-4000:]}")
    took = Taken(cpu_s(stack.adapter.pid), cpu_s(stack.meta.pid)).since(Taken(0.0, meta_before), keys)
    return [seconds, status.recovery.seconds, status.recovery.pushed, status.recovery.equal, *took]


async def _serving(stack: Stack, progress: Progress, task: TaskID) -> offsets_pb.StatusReply:
    async with asyncio.timeout(PATIENCE_S), OffsetClient.connect(stack.adapter.address) as client:
        while True:
            await asyncio.sleep(POLL_S)
            if stack.adapter.process is None or stack.adapter.process.poll() is not None:
                raise RuntimeError(f"the adapter ended:\n{stack.adapter.log[-4000:]}")
            with suppress(grpc.aio.AioRpcError):
                status = await client.admin.Status(offsets_pb.StatusRequest(), wait_for_ready=True, timeout=5.0)
                progress.update(task, completed=status.recovery.compared)
                if status.recovery.done:
                    return status


def _taken(stack: Stack) -> Taken:
    return Taken(cpu_s(stack.adapter.pid), cpu_s(stack.meta.pid))


def _tell_commits(result: Result, rows: list[list[Cell]], name: str, commits: Sequence[Span], spans: Sequence[Span]) -> None:
    for when, (begin, end) in zip(("before", "during"), spans, strict=True):
        found = [took * 1e3 for sent, took in commits if sent < end and sent + took > begin]
        rows.append([f"{when} the drain of {name}", len(found), *(percentile(found, share) for share in (0.5, 0.99, 1.0))])
    result.bars.append(Bar(f"p99 of commits during the drain of {name}, ms", float(rows[-1][3]), MOST_P99_MS))
