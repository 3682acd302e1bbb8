"""The most expensive requests of each method: the delay of another client that commits continuously, and the memory they take."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from rich.progress import Progress

from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import ServiceProcess
from benchmarks import worst_console, worst_peers
from benchmarks.machine import ROOT
from benchmarks.processes import running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.resident import memory, reset_peak
from benchmarks.scale import Scale
from benchmarks.worst_honest import Honest
from benchmarks.worst_load import ADAPTER, BIG, LEAVES, META_SERVICE, Worst, shard_of

TITLE = "the worst requests, beside an honest client"
LIMIT_MS = 250.0
SHORT = 1  # requests to each process in a short run
AT_ONCE = 4  # copies of each request
PATIENCE_S = 30.0  # seconds for the answers to all copies
MIB = 2**20
CHUNK = 5_000
COMMITTED_AT_MS = 1_700_000_000_000
COLUMNS = ("request", "slowest honest commit ms", "of the event loop's CPU ms", "all answered s", "memory MiB more", "answers")


def stored(keys: int) -> Iterator[tuple[OffsetKey, OffsetRecord]]:
    """The keys: a group with most of them, one that will be removed, and small ones."""
    record = OffsetRecord(1, 5, committed_at_ms=COMMITTED_AT_MS)
    small, leaves = keys // 10, keys // 10
    names = chain(
        ((BIG, shard_of(at)) for at in range(keys - small - leaves)),
        ((LEAVES, shard_of(at)) for at in range(leaves)),
        ((f"group-{at}", "s") for at in range(small)),
    )
    return ((OffsetKey("default", group, shard), record) for group, shard in names)


async def fill(directory: Path, keys: int) -> None:
    """Write the same keys to the stores of an adapter and its Meta Service before their start."""
    store = LocalStore.open(directory / "adapter", "never")
    engine = RocksDbEngine.open(directory / "meta")
    syncs = asyncio.create_task(engine.run())
    chunk: dict[OffsetKey, OffsetRecord] = {}

    async def write() -> None:
        store.write(chunk)
        await engine.merge("default", list(map(encode_key, chunk)), list(map(encode_record, chunk.values())))
        chunk.clear()

    for key, record in stored(keys):
        chunk[key] = record
        if len(chunk) == CHUNK:
            await write()
    await write()
    store.advance_flushed(store.seq)
    store.close()
    syncs.cancel()
    await asyncio.gather(syncs, return_exceptions=True)
    engine.close()


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure each request, sent several times at once by a separate process."""
    result = Result("worst_requests", TITLE)
    keys = scale.worst_keys
    some = SHORT if scale.short else max(len(ADAPTER), len(META_SERVICE))
    adapter, meta = (dict(islice(requests.items(), some)) for requests in (ADAPTER, META_SERVICE))
    task = progress.add_task("worst requests", total=len(adapter) + len(meta))
    await fill(directory, keys)
    with running_stack(directory) as stack:
        for process, method, requests, address in (
            (stack.adapter, "commit", adapter, stack.adapter.address),
            (stack.meta, "save", meta, stack.meta.address),
        ):
            rows, slowest = await _all(process, method, requests, address, lambda: progress.advance(task))
            result.tables.append(Table(f"{process.command}: {keys:,} offsets, {AT_ONCE} of each request at once", COLUMNS, rows))
            result.bars.append(Bar(f"slowest honest {method} beside the worst requests, ms", slowest, LIMIT_MS))
    if not scale.short:
        result.tables.append(await worst_peers.table(directory))
        result.tables.append(await worst_console.table(directory))
    return result


async def _all(
    process: ServiceProcess, method: str, requests: Mapping[str, Worst], address: str, advance: Callable[[], None]
) -> tuple[list[list[Cell]], float]:
    honest = Honest(process, method)
    honest.start()
    await asyncio.sleep(0.5)
    rows: list[list[Cell]] = [["nothing", *(seconds * 1e3 for seconds in honest.slowest()), 0.0, 0.0, ""]]
    prefix = "" if method == "commit" else "meta: "
    for name in requests:
        rows.append([name, *await _one(process, honest, f"{prefix}{name}", address)])
        advance()
    honest.stop()
    return rows, max(float(row[1]) for row in rows)


async def _one(process: ServiceProcess, honest: Honest, name: str, address: str) -> list[Cell]:
    reset_peak(process.pid)
    before = memory(process.pid, "VmRSS")
    honest.slowest()
    command = (sys.executable, "-m", "benchmarks.worst_load", address, name, str(AT_ONCE), str(PATIENCE_S))
    load = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    began = time.perf_counter()
    output, _ = await load.communicate()
    took = time.perf_counter() - began
    await asyncio.sleep(0.2)
    answers = ", ".join(f"{count} {code}" for code, count in json.loads(output).items())
    slowest_s, cpu_s = honest.slowest()
    return [slowest_s * 1e3, cpu_s * 1e3, took, (memory(process.pid, "VmHWM") - before) / MIB, answers]
