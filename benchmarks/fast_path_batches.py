"""Batches of offsets over a stream and as calls, in columns and in rows, compared to the store alone with the same bytes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from adapter.client.client import OffsetClient
from adapter.model.records import ReadMode
from benchmarks import h2load, noop
from benchmarks.bare import Loop
from benchmarks.fast_path import PATIENT, SAVES_LIMIT, adapter_target, in_turns, not_measured
from benchmarks.fast_path_floor import LONE, called
from benchmarks.fast_path_load import GROUP_SHARDS, IN_FLIGHT, Batches, last_of, stream_body
from benchmarks.processes import ROOT, Stack, running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "batches of offsets against the bare store"
BARE_LIMIT = 0.6
CORE_TARGET = 300_000.0  # acknowledged offsets for a CPU second of the adapter
FLUSH_TIMEOUT_S = 300.0
# The expected rate, which determines how much a round sends.
PLANNED_MESSAGE_S = 150e-6
PLANNED_OFFSET_S = 3e-6

COLUMNS = (
    "sent as",
    "offsets/s",
    "of the bare store",
    "adapter CPU us/offset",
    "with the flush behind it",
    "Meta CPU us/offset",
    "offsets per CPU s of the adapter",
)


NOTES = (
    (
        "A stream is sent by h2load, calls by a Python process; all are serialized before the clock starts. Offsets rise; the "
        "adapter's counter and a read of the last one tell that all were taken."
    ),
    (
        "The bare store is a loop in one process that does nothing else: ready-made keys and values of the adapter's form, one "
        "WriteBatch a batch. The adapter syncs ten times a second, and flushes meanwhile to a Meta Service that shares the cores."
    ),
)


@dataclass(frozen=True)
class Form:
    """A way to send batches: stream or calls, columns or rows."""

    text: str
    stream: bool
    columns: bool

    def __str__(self) -> str:
        """Its name, for the progress."""
        return self.text


BARE = Form("bare store, nothing synced", stream=False, columns=False)
STREAM = Form("a stream, columns", stream=True, columns=True)
CALLS = Form(f"{IN_FLIGHT} calls in flight, columns", stream=False, columns=True)
FORMS = (
    STREAM,
    CALLS,
    Form("a stream, rows", stream=True, columns=False),
    Form(f"{IN_FLIGHT} calls in flight, rows", stream=False, columns=False),
)


class Found(NamedTuple):
    """CPU microseconds per offset, of the adapter or of the store's loop."""

    per_s: float
    cpu_us: float
    flushed_cpu_us: float
    meta_cpu_us: float
    packed_per_s: float


class Batching:
    """An adapter and its keys. Offsets rise over all rounds."""

    def __init__(self, stack: Stack, directory: Path, keys: int, seconds: float) -> None:
        self._stack = stack
        self._target = adapter_target(stack, "adapter")
        self._directory = directory
        self._keys = keys
        self._seconds = seconds
        self._first = 1
        self.saves = 0.0  # save calls that the Meta Service received during batches
        self.busy_s = 0.0

    async def warm_up(self) -> None:
        """Commit every key once, so that all groups are known to the adapter."""
        await self._calls(self._batches(GROUP_SHARDS, self._keys // GROUP_SHARDS, CALLS))
        await self._flush()

    async def turn(self, form: Form, size: int) -> Found:
        """Send batches in one form, then flush."""
        messages = max(int(self._seconds / (PLANNED_MESSAGE_S + size * PLANNED_OFFSET_S)), 1)
        if form is BARE:
            return await self._bare(Loop(str(self._directory / "bare"), self._keys, size, messages, self._rise(2 * messages)))
        batches = self._batches(size, messages, form)
        before = await self._stack.counters()
        per_s, cpu_us = await (self._stream(batches) if form.stream else self._calls(batches))
        sent = (await self._stack.counters()).since(before)
        self.saves, self.busy_s = self.saves + sent.saves_seen, self.busy_s + sent.at
        await self._check_last(batches)
        await self._flush()
        passed = (await self._stack.counters()).since(before)
        offsets = messages * size / 1e6
        return Found(per_s, cpu_us, passed.adapter_cpu_s / offsets, passed.meta_cpu_s / offsets, 0.0)

    def _batches(self, size: int, messages: int, form: Form) -> Batches:
        return Batches(self._stack.adapter.tcp_address, self._keys, size, messages, self._rise(messages), form.columns)

    def _rise(self, by: int) -> int:
        first, self._first = self._first, self._first + by
        return first

    async def _stream(self, batches: Batches) -> tuple[float, float]:
        body = self._directory / "body"
        body.write_bytes(stream_body(batches))
        turn = await called(self._target, noop.STREAM, body, 1, LONE, batches.messages * batches.size)
        return turn.per_s, turn.cpu_us

    async def _calls(self, batches: Batches) -> tuple[float, float]:
        """Offsets per second, and the adapter's CPU microseconds for each."""
        commits = await self._stack.commits()
        async with _process("benchmarks.fast_path_load", batches) as process:
            assert process.stdout is not None
            edges = [self._target.cpu_s() for _ in range(2) if await process.stdout.readline()]
            found = await _printed(process)
        offsets = batches.messages * batches.size
        await self._target.check(commits + offsets)
        return found["per_s"], (edges[1] - edges[0]) / offsets * 1e6

    async def _bare(self, loop: Loop) -> Found:
        async with _process("benchmarks.bare", loop) as process:
            found = await _printed(process)
        return Found(found["per_s"], found["cpu_us"], 0.0, 0.0, found["packed_per_s"])

    async def _check_last(self, batches: Batches) -> None:
        """Raise RuntimeError unless the last offset is stored: otherwise commits were refused as too old."""
        group, shard, offset = last_of(batches)
        async with OffsetClient.connect(self._stack.adapter.address) as client:
            found = await client.read(group, [shard], mode=ReadMode.MEMORY)
        if shard not in found or found[shard].offset != offset:
            raise RuntimeError(f"{group}/{shard}: {offset} was committed, but it stands at {found.get(shard)}")

    async def _flush(self) -> None:
        async with OffsetClient.connect(self._stack.adapter.address, FLUSH_TIMEOUT_S) as client:
            await client.flush()


@asynccontextmanager
async def _process(module: str, what: Batches | Loop) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", module, json.dumps(asdict(what))]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _printed(process: asyncio.subprocess.Process) -> dict[str, float]:
    """Parse the last line of its output. Raises RuntimeError if it failed."""
    output = (await process.communicate())[0]
    if process.returncode:
        raise RuntimeError("a sender failed: its error is above")
    found: dict[str, float] = json.loads(output)
    return found


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure, for each number of keys with its own adapter and for each batch size, the store alone and all forms."""
    result = Result("batches", TITLE)
    if not h2load.installed():
        not_measured(result, "Streams")
    for keys in scale.batch_keys:
        below = directory / str(keys)
        with running_stack(below, extra=PATIENT) as stack:
            batching = Batching(stack, below, keys, scale.fast_s / 2)
            task = progress.add_task(f"batches: {keys:,} keys, each for the first time", total=1)
            await batching.warm_up()
            progress.advance(task)
            for size in _sizes(scale, keys):
                await _measure(result, scale, batching, keys, size, progress)
        per_s = batching.saves / batching.busy_s
        if keys == scale.batch_keys[0]:
            result.bars.append(Bar(f"save calls/s while batches came in, {keys:,} keys", per_s, SAVES_LIMIT))
        else:
            result.notes.append(
                f"With {keys:,} keys there were {per_s:.1f} save calls/s: so many dirty keys take several of 3 MiB."
            )
    result.notes += NOTES
    return result


def _sizes(scale: Scale, keys: int) -> Sequence[int]:
    """The batch sizes: all for the fewest keys, two for more keys, where the flush after each round takes seconds."""
    all_sizes = scale.full or keys == scale.batch_keys[0]
    return scale.batch_sizes if all_sizes else (min(scale.batch_sizes), max(scale.batch_sizes))


async def _measure(result: Result, scale: Scale, batching: Batching, keys: int, size: int, progress: Progress) -> None:
    few = keys == scale.batch_keys[0]
    forms = [form for form in FORMS if (few or form.columns) and (h2load.installed() or not form.stream)]

    async def measure(form: Form, _: int) -> Found:
        return await batching.turn(form, size)

    title = f"batches of {size:,}, {keys:,} keys"
    found = await in_turns(progress, title, scale.fast_rounds if few or scale.full else 1, [BARE, *forms], measure)
    bare = found.pop(BARE)
    rows: list[list[Cell]] = [
        [BARE.text, bare.per_s, 1.0, "-", "-", "-", 1e6 / bare.cpu_us],
        ["the same, values packed in the loop", bare.packed_per_s, bare.packed_per_s / bare.per_s, *"----"],
    ]
    for form, turn in found.items():
        core = 1e6 / turn.cpu_us if turn.cpu_us else 0.0
        rows.append([form.text, turn.per_s, turn.per_s / bare.per_s, turn.cpu_us, turn.flushed_cpu_us, turn.meta_cpu_us, core])
    result.tables.append(Table(f"{title[0].upper()}{title[1:]}, wal_sync = interval", COLUMNS, rows))
    best = found.get(STREAM) or found[CALLS]
    result.rates[title] = best.per_s
    result.rates[f"bare store, {title}"] = bare.per_s
    if size == max(scale.batch_sizes):
        result.bars.append(Bar(f"{title}, to the bare store", best.per_s / bare.per_s, BARE_LIMIT, least=True))
        core = 1e6 / max(best.cpu_us, 1e-3)
        result.bars.append(Bar(f"{title}: offsets for a CPU second of the adapter", core, CORE_TARGET, least=True))
