"""Commits with the live lag compared to commits without it, what an evaluation costs, and what memory a shard takes.

    python -m benchmarks.lag_live 100000

Run as a process, this evaluates that many moving shards, and prints one line of JSON: CPU seconds and bytes.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.progress import Progress

from adapter.model.bounds import Bounds, ShardKey
from adapter.model.codec import pack_names
from adapter.rpc import offsets_pb
from adapter.sidecar.config import LagSection
from adapter.testing.processes import adapter_process, ended, meta_process
from benchmarks import h2load, noop
from benchmarks.fast_path import PATIENT, Target, Turn, adapter_target, in_turns, not_measured
from benchmarks.fast_path_floor import LONE, called
from benchmarks.fast_path_load import GROUP_SHARDS, commit_request
from benchmarks.processes import ROOT, Stack, scrape, with_metrics
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.scale import Scale

TITLE = "commits with the live lag"
LEAST = 0.98  # of the rate without it
ROUNDS = 2  # times the rounds of the fast path: the expected difference is small
SHARDS = 100_000
MESSAGES = 110_000  # of a turn: all keys, and some seconds, so that evaluations are in it
EVALUATIONS = 12  # enough to fill the window
PAGE_BYTES = 4_096

COLUMNS = ("one stream, one offset a message", "live lag", "commits/s", "adapter CPU us", "rate, of without", "CPU, of without")
COST_COLUMNS = ("evaluation of", "CPU s", "CPU s, nothing moved", "bytes a shard")
HELD_COLUMNS = ("adapter with the live lag, 100,000 keys", "value")


class Way(NamedTuple):
    """An adapter, and how many keys the commits go round."""

    keys: int
    target: Target

    def __str__(self) -> str:
        """The name in the progress display."""
        return f"{self.keys:,} keys, lag {self.target.name}"


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure each number of keys without and with the live lag, in turn; the ratio is the median of the pairs."""
    result = Result("lag_live", TITLE)
    if not h2load.installed():
        not_measured(result, TITLE)
        return result
    with ExitStack() as running:
        stacks = [
            running.enter_context(_measured_stack(directory / name, shards)) for name, shards in (("off", 0), ("on", SHARDS))
        ]
        targets = [adapter_target(stack, name) for name, (stack, _) in zip(("off", "on"), stacks, strict=True)]
        ways = [Way(keys, target) for keys in ((1_000,) if scale.short else (1_000, SHARDS)) for target in targets]
        messages = 3_000 if scale.short else MESSAGES
        body = directory / "stream"
        turns: dict[Way, list[Turn]] = {way: [] for way in ways}

        async def measure(way: Way, number: int) -> Turn:
            body.write_bytes(stream_body(way.keys, messages, (number + 1) * messages))
            turns[way].append(await called(way.target, noop.STREAM, body, 1, LONE, messages))
            return turns[way][-1]

        for way in () if scale.short else ways:  # an uncounted round, because it starts with empty stores
            await measure(way, -1)
            turns[way].clear()
        found = await in_turns(progress, "lag_live", scale.fast_rounds * (1 if scale.short else ROUNDS), ways, measure)
        memory = [rss(target) for target in targets]
        metrics = scrape(stacks[1][1])
    rows: list[list[Cell]] = []
    for off, on in zip(ways[::2], ways[1::2], strict=True):
        rate, cpu = (
            median(with_it[at] / max(without[at], 1e-9) for without, with_it in zip(turns[off], turns[on], strict=True))
            for at in (0, 3)
        )
        rows += [[f"{off.keys:,} keys", "off", found[off].per_s, found[off].cpu_us, 1.0, 1.0]]
        rows += [[f"{on.keys:,} keys", "on", found[on].per_s, found[on].cpu_us, rate, cpu]]
        result.bars.append(Bar(f"{on.keys:,} keys: commits/s with the live lag to those without", rate, LEAST, least=True))
    result.tables.append(Table("Commits with and without the live lag", COLUMNS, rows))
    result.tables.append(Table("In the adapter that was measured", HELD_COLUMNS, _held(metrics, memory)))
    result.tables.append(Table("An evaluation in which every shard and every end moved", COST_COLUMNS, await _costs(scale)))
    result.notes.append(
        "h2load, both adapters and their Meta Services share the cores; CPU is all of the adapter's process, for one commit. "
        "Ratios are medians of pairs of turns, one after the other. An evaluation is made in another thread, and at least 30 "
        "times as long as it took passes until the next one."
    )
    return result


@contextmanager
def _measured_stack(directory: Path, shards: int) -> Iterator[tuple[Stack, int]]:
    """An adapter that keeps the lag of so many shards, its Meta Service, and the port of the adapter's metrics."""
    meta = meta_process(directory)
    meta_metrics = with_metrics(meta)
    adapter = adapter_process(directory, meta.address, extra=f"{PATIENT}\n[lag]\nshards = {shards}")
    port = with_metrics(adapter)
    with ended(adapter, meta):
        meta.start()
        adapter.start()
        yield Stack(adapter, meta, meta_metrics), port


def stream_body(keys: int, messages: int, first: int) -> bytes:
    """The messages of one stream, in turn to each key, each with a larger offset."""
    return b"".join(
        h2load.frame(
            offsets_pb.StreamCommitsRequest(
                id=number,
                commit=commit_request(f"group-{number % keys // GROUP_SHARDS}", [f"queue-{number % keys}"], 1 + first + number),
            ).SerializeToString()
        )
        for number in range(messages)
    )


def rss(target: Target) -> float:
    """The resident memory of an adapter, in MB."""
    assert target.stack is not None
    return _resident(target.stack.adapter.pid) / 1e6


def _resident(pid: int | str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def _held(metrics: dict[str, float], memory: list[float]) -> list[list[Cell]]:
    count = metrics["offset_adapter_lag_evaluation_seconds_count"]
    return [
        ["shards kept", metrics["offset_adapter_lag_shards"]],
        ["evaluations", count],
        ["seconds of an evaluation, mean", metrics["offset_adapter_lag_evaluation_seconds_sum"] / max(count, 1)],
        ["CPU seconds of all", metrics["offset_adapter_lag_cpu_seconds_total"]],
        ["longest time that the event loop was held, ms", metrics["offset_adapter_lag_longest_hold_seconds"] * 1e3],
        ["resident memory without and with, MB", f"{memory[0]:.0f} and {memory[1]:.0f}"],
    ]


async def _costs(scale: Scale) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for shards in (1_000,) if scale.short else (1_000, 10_000, SHARDS):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.lag_live", str(shards), stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        output = (await process.communicate())[0]
        if process.returncode:
            raise RuntimeError("the evaluation failed: its error is above")
        found = json.loads(output.splitlines()[-1])
        rows.append([f"{shards:,} shards", found["moved_cpu_s"], found["idle_cpu_s"], round(found["bytes"])])
    return rows


def cost(shards: int) -> dict[str, float]:
    """Evaluate this many shards until their windows are full, each with a log of its own."""
    from adapter.sidecar.lag.feed import News  # noqa: PLC0415 - after the memory without it was measured
    from adapter.sidecar.lag.table import LagTable  # noqa: PLC0415

    logs = [ShardKey("default", f"orders-{at}/0") for at in range(shards)]
    keys = [pack_names("default", f"group-{at // 10}", log.shard) for at, log in enumerate(logs)]
    now_ms, moved, idle = 1_700_000_000_000, [], []
    gc.collect()
    before = _resident("self")
    table = LagTable(LagSection(shards=shards), lambda _: None)
    for number in range(EVALUATIONS):
        now_ms += 20_000  # a new point and a new head each
        records = [((1, number + at, True, now_ms, "", "", 0), 1 + number * shards + at, key) for at, key in enumerate(keys)]
        told = [(log, Bounds(0, 2 * number + shards, now_ms)) for log in logs]
        moved.append(table.evaluate(News(records=records), told, now_ms, ask=False).cpu_s)
        del records, told
    for _ in range(EVALUATIONS):
        now_ms += 1_000
        idle.append(table.evaluate(News(), (), now_ms, ask=False).cpu_s)
    gc.collect()
    return {"moved_cpu_s": median(moved[1:]), "idle_cpu_s": median(idle), "bytes": (_resident("self") - before) / shards}


if __name__ == "__main__":
    print(json.dumps(cost(int(sys.argv[1]))))
