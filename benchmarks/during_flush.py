"""The latency of commits during a flush of many dirty keys, compared to their latency without one."""

import array
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import grpc.aio
from rich.progress import Progress

from adapter.client.client import OffsetClient
from benchmarks import noop
from benchmarks.fast_path import PATIENT
from benchmarks.fast_path_load import GROUP_SHARDS, TIMEOUT_S, Batches, requests
from benchmarks.load import Load, percentile
from benchmarks.processes import Stack, found_by, loading, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "commits during a flush of many keys"
LIMIT = 2.0
RATES = (1_000, 0)  # commits per second of 64 consumers; 0: as fast as they are answered
QUIET_S = 2.0  # before each flush
# The pause between batches, as a multiple of a batch's duration: calls that queue up at the server end as CANCELLED.
BREATHS = 2.0
PAUSE_S = 0.5  # after the batches that make keys dirty, so that their load does not affect the flush

COLUMNS = ("64 consumers", "when", "commits", "p50 ms", "p99 ms", "worst ms", "p99, ratio")

Span = tuple[float, float]  # by time.perf_counter, which is the same clock in all processes


@dataclass
class Spans:
    """The time spans with a flush of many keys, and those without."""

    quiet: list[Span] = field(default_factory=list)
    flushing: list[Span] = field(default_factory=list)


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure one adapter: at each rate, consumers commit while all keys are repeatedly made dirty and flushed."""
    result = Result("during_flush", TITLE)
    rates = RATES[:1] if scale.short else RATES
    task = progress.add_task("commits during a flush", total=len(rates) * scale.dirty_flushes)
    rows: list[list[Cell]] = []
    with running_stack(directory, extra=PATIENT) as stack:
        batches = -(-scale.dirty_keys // GROUP_SHARDS)
        dirtying = _Dirtying(stack, batches)
        await dirtying.send()  # so that all keys are known to the adapter
        await dirtying.flush()
        for rate in rates:
            samples = directory / f"samples-{rate}"
            load = Load(stack.adapter.tcp_address, f"rate-{rate}", 0.0, rate, warm_up_s=scale.warm_up_s, samples=str(samples))
            spans = Spans()
            async with loading(load) as process:
                assert process.stdout is not None
                assert process.stdin is not None
                await process.stdout.readline()
                for _ in range(scale.dirty_flushes):
                    await _flush_once(dirtying, spans, min(scale.fast_s, QUIET_S))
                    progress.advance(task)
                process.stdin.close()
                await process.stdout.readline()
                await found_by(process, lambda: stack.adapter.log)
            _tell(result, rows, rate, samples.read_bytes(), spans)
    keys = batches * GROUP_SHARDS
    result.tables.append(Table(f"Flushes of {keys:,} dirty keys, one offset each commit, wal_sync = interval", COLUMNS, rows))
    result.notes.append(
        "Counted are commits whose life overlaps a flush of all keys, and commits that lived between these, with a flush of the "
        "consumers' own keys every 100 ms in both. The keys become dirty while the Meta Service is stopped, so that one flush "
        "takes them all. Consumers, adapter and Meta Service share the cores: the Meta Service's own work is in the ratio."
    )
    return result


class _Dirtying:
    """Makes all keys dirty and flushes them, repeatedly."""

    def __init__(self, stack: Stack, batches: int) -> None:
        self._stack = stack
        self._batches = batches
        self._first = 1

    async def send(self) -> None:
        """Commit a higher offset of every key."""
        batches = Batches(self._stack.adapter.tcp_address, self._batches * GROUP_SHARDS, GROUP_SHARDS, self._batches, self._first)
        self._first += self._batches
        async with grpc.aio.insecure_channel(batches.address) as channel:
            call: Any = channel.unary_unary(noop.UNARY)  # without a serializer: bytes
            for request in requests(batches):
                started = time.perf_counter()
                await call(request.SerializeToString(), timeout=TIMEOUT_S)
                await asyncio.sleep(BREATHS * (time.perf_counter() - started))

    async def flush(self) -> None:
        """Flush; returns when all keys that are dirty now are flushed."""
        async with OffsetClient.connect(self._stack.adapter.address, TIMEOUT_S) as client:
            await client.flush()

    async def send_while_no_flush_ends(self) -> None:
        """Commit a higher offset of every key while the Meta Service is stopped, so that none is flushed."""
        self._stack.meta.freeze()
        try:
            await self.send()
            await asyncio.sleep(PAUSE_S)
        finally:
            self._stack.meta.thaw()


async def _flush_once(dirtying: _Dirtying, spans: Spans, quiet_s: float) -> None:
    begin = time.perf_counter()
    await asyncio.sleep(quiet_s)
    spans.quiet.append((begin, time.perf_counter()))
    await dirtying.send_while_no_flush_ends()
    begin = time.perf_counter()
    await dirtying.flush()
    spans.flushing.append((begin, time.perf_counter()))


def told_apart(commits: Sequence[Span], spans: Spans) -> tuple[list[float], list[float]]:
    """The latencies of commits entirely outside of flushes, and of commits that overlap a flush.

    A commit is (time of sending, latency), in seconds.
    """
    quiet = [took for sent, took in commits if any(begin <= sent and sent + took <= end for begin, end in spans.quiet)]
    flushing = [took for sent, took in commits if any(sent < end and sent + took > begin for begin, end in spans.flushing)]
    return quiet, flushing


def _tell(result: Result, rows: list[list[Cell]], rate: int, samples: bytes, spans: Spans) -> None:
    numbers = array.array("d", samples)
    quiet, flushing = told_apart(list(zip(numbers[::2], numbers[1::2], strict=True)), spans)
    name = f"{rate:,} commits/s together" if rate else "each as fast as it is answered"
    ratio = percentile(flushing, 0.99) / max(percentile(quiet, 0.99), 1e-6)
    took_s = median(end - begin for begin, end in spans.flushing)
    for when, found, of in (("without", quiet, 1.0), (f"during flushes of {took_s:.2g} s", flushing, ratio)):
        middle, high, worst = (percentile(found, share) * 1e3 for share in (0.5, 0.99, 1.0))
        rows.append([name, when, len(found), middle, high, worst, of])
    result.bars.append(Bar(f"p99 of commits during a flush to that without, {name}", ratio, LIMIT))
