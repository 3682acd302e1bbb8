"""Commits with the journal compared to commits without it: two adapters in turn, under the same loads."""

import asyncio
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.progress import Progress

from adapter.client.client import OffsetClient
from benchmarks.fast_path import PATIENT, Target, adapter_target, in_turns
from benchmarks.fast_path_client import CONSUMERS, under
from benchmarks.fast_path_load import Batches
from benchmarks.load import Load
from benchmarks.processes import ROOT, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "commits with the journal"
LEAST = 0.95  # of the rate without a journal
ROUNDS = 3  # times the rounds of the fast path, because the expected difference is small
BATCH = 128
PLANNED_OFFSET_S = 5e-6  # expected seconds per offset of a batch; determines how many are sent in a round

COLUMNS = ("commits", "journal", "commits/s", "p50 ms", "p99 ms", "adapter CPU us", "rate, of without", "CPU, of without")


@dataclass(frozen=True, eq=False)
class Way:
    """Consumers and their client (`via`); without it, concurrent calls with batches in columns."""

    text: str
    via: str
    consumers: int
    target: Target

    def __str__(self) -> str:
        """The name in the progress display."""
        return f"{self.text}, {self.target.name}"


class Found(NamedTuple):
    """CPU microseconds per commit, including its flush and journal."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure each load without and with a journal, in turn; the ratio is the median of the pairs."""
    result = Result("journal", TITLE)
    with ExitStack() as running:
        targets = [
            adapter_target(running.enter_context(running_stack(directory / name, extra=extra)), name)
            for name, extra in (("off", PATIENT), ("on", f"{PATIENT}\n[journal]\npath = '{directory / 'journal'}'"))
        ]
        loads = [("unary calls, 64 consumers", "store", 64), (f"OffsetClient, {CONSUMERS:,} consumers", "client", CONSUMERS)]
        loads.append((f"batches of {BATCH}", "", 0))
        ways = [Way(*load, target) for load in loads for target in targets]
        turns: dict[Way, list[Found]] = {way: [] for way in ways}

        async def measure(way: Way, number: int) -> Found:
            turns[way].append(await _turn(scale, way, number))
            return turns[way][-1]

        # An uncounted round first, because it starts with empty stores; not in a short run, whose numbers mean nothing.
        for way in () if scale.short else ways:
            await _turn(scale, way, -1)
        found = await in_turns(progress, "journal", scale.fast_rounds * (1 if scale.short else ROUNDS), ways, measure)
        await _tell(result, targets[1])
    rows: list[list[Cell]] = []
    for off, on in zip(ways[::2], ways[1::2], strict=True):
        rate, cpu = (
            median(with_it[at] / max(without[at], 1e-9) for without, with_it in zip(turns[off], turns[on], strict=True))
            for at in (0, 3)
        )
        rows += [[off.text, "off", *found[off], 1.0, 1.0], [on.text, "on", *found[on], rate, cpu]]
        result.bars.append(Bar(f"{on.text}: commits/s with the journal to those without", rate, LEAST, least=True))
    result.tables.append(Table("Commits with and without a journal, wal_sync = interval", COLUMNS, rows))
    return result


async def _turn(scale: Scale, way: Way, number: int) -> Found:
    if not way.via:
        return await _batches(scale, way.target, number)
    group = f"{way.via}-{way.consumers}-{number}"
    load = Load(way.target.address, group, scale.fast_s, consumers=way.consumers, warm_up_s=scale.warm_up_s, via=way.via)
    turn = await under(load, way.target)
    return Found(turn.per_s, turn.p50_ms, turn.p99_ms, turn.server_cpu_us)


async def _batches(scale: Scale, target: Target, number: int) -> Found:
    """Send batches for about the duration of the other loads, and flush."""
    messages = max(round(scale.fast_s / (BATCH * PLANNED_OFFSET_S)), 8)
    batches = Batches(target.address, 2**10, BATCH, messages, (number + 1) * messages + 1)
    command = [sys.executable, "-m", "benchmarks.fast_path_load", json.dumps(asdict(batches))]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        before = target.cpu_s()
        output = (await process.communicate())[0]
        if process.returncode:
            raise RuntimeError("a sender failed: its error is above")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert target.stack is not None
    async with OffsetClient.connect(target.stack.adapter.address) as client:
        await client.flush()
    found = json.loads(output.splitlines()[-1])
    cpu_us = (target.cpu_s() - before) / (messages * BATCH) * 1e6
    return Found(found["per_s"], found["p50_s"] * 1e3, found["p99_s"] * 1e3, cpu_us)


async def _tell(result: Result, target: Target) -> None:
    """Add a note with the journaled rows. Raises RuntimeError if rows are missing: the measurement is invalid then."""
    assert target.stack is not None
    async with OffsetClient.connect(target.stack.adapter.address) as client:
        journal = (await client.status()).journal
    if not journal.rows or journal.dropped_rows or journal.last_error:
        raise RuntimeError(f"the journal did not keep up:\n{journal}\n{target.log()[-4000:]}")
    result.notes.append(
        f"{journal.rows:,} rows were journaled, none was dropped. Loads, both adapters and their Meta Services share the cores; "
        "CPU is all of the adapter's process, for one commit. Ratios are medians of pairs of turns, one after the other."
    )
