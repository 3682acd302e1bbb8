"""Recovery of a large local store: its time compared to the necessary reads alone, and its memory for growing numbers of keys.

The recovering process is a real adapter; progress, counts and time are those of its Status.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from rich.progress import Progress, TaskID
from rocksdict import Rdict

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.rpc import offsets_pb
from adapter.runtime.durable import rocks
from adapter.sidecar.config import RecoverySection
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from benchmarks.keyspace import Pair, fill_local, fill_meta, key_of, pairs, record_of
from benchmarks.plain import Plain
from benchmarks.processes import ROOT, scrape, with_metrics
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "time and memory of the recovery"
TIME_LIMIT = 3.0  # times the plain scan and the plain reads
GROWTH_LIMIT_MIB = 16.0  # allowed growth of memory outside RocksDB from the fewest keys to the most
POLL_S = 0.2
READY_TIMEOUT_S = 300.0
MIB = 2**20


@dataclass(frozen=True)
class Recovered:
    """The result of a recovery. `start_s`: seconds from the start of the process. Memory in MiB: the peak, and RocksDB's part."""

    status: offsets_pb.RecoveryStatus
    start_s: float
    peak: float
    block_cache: float
    memtables: float

    @property
    def other(self) -> float:
        """The peak without RocksDB's block cache and memtables, which are bounded."""
        return self.peak - self.block_cache - self.memtables


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure a recovery of each number of keys in a new process, and the plain reads before and after the largest one."""
    result = Result("recovery", TITLE)
    largest = scale.recovery_keys[-1]
    different = scale.recovery_different
    meta = meta_process(directory)
    found: dict[int, Recovered] = {}
    with ended(meta):
        meta.start()
        await _load_meta(scale, meta.address, progress)
        for number, keys in enumerate(scale.recovery_keys):
            path = directory / f"local-{keys}"
            _fill(keys, _local(keys, number, different), path, progress)
            before = await _plain(path, meta.address, keys, progress) if keys == largest else Plain()
            found[keys] = await _recover(directory / f"run-{keys}", path, meta.address, keys, progress)
            _check(found[keys].status, keys, different)
        after = await _plain(path, meta.address, largest, progress)
    _tell_time(result, found[largest], [before, after])
    _tell_counts(result, found)
    _tell_memory(result, found)
    result.notes.append(
        f"In each run {different:,} keys are missing in the Meta Service, {different:,} larger here, {different:,} larger there."
    )
    return result


def _check(status: offsets_pb.RecoveryStatus, keys: int, different: int) -> None:
    if (status.compared, status.pushed, status.adopted) != (keys, 2 * different, different):
        raise RuntimeError(f"the recovery of {keys} keys did something else than expected:\n{status}")


def _local(keys: int, number: int, different: int) -> Iterator[Pair]:
    """The local entries of a run. Its differences to the Meta Service concern keys that no other run uses."""
    step = keys // different
    for at in range(keys):
        match at % step:
            case 0:  # missing in the Meta Service
                yield key_of(at, f"-new-{number}"), record_of(at)
            case 1:  # larger in the local store
                yield key_of(at, f"-behind-{number}"), record_of(at, 1)
            case 2:  # larger in the Meta Service
                yield key_of(at), record_of(at, -1)
            case _:
                yield key_of(at), record_of(at)


def _remote(scale: Scale) -> Iterator[Pair]:
    """The entries of the Meta Service: all keys, with the differences for each run."""
    yield from pairs(scale.recovery_keys[-1])
    for number, keys in enumerate(scale.recovery_keys):
        step = keys // scale.recovery_different
        yield from ((key_of(at, f"-behind-{number}"), record_of(at)) for at in range(1, keys, step))


def _fill(keys: int, entries: Iterator[Pair], path: Path, progress: Progress) -> None:
    """Create a local store and compact it, so that no compaction runs during the recovery."""
    task = progress.add_task(f"recovery: write {keys:,} local keys", total=keys)
    store = LocalStore.open(path, "never")
    fill_local(entries, store, lambda done: progress.advance(task, done))
    store.close()
    database = Rdict(str(path / "db"), options=rocks.options())
    database.compact_range(None, None)
    database.close()


async def _load_meta(scale: Scale, endpoint: str, progress: Progress) -> None:
    total = scale.recovery_keys[-1] + len(scale.recovery_keys) * scale.recovery_different
    task = progress.add_task(f"recovery: load {total:,} keys into the Meta Service", total=total)
    async with GrpcMetaClient.open(MetaSection(endpoints=(endpoint,))) as client:
        await fill_meta(_remote(scale), client, lambda done: progress.advance(task, done))


async def _plain(path: Path, endpoint: str, keys: int, progress: Progress) -> Plain:
    """Run the plain scan and reads in a separate process."""
    task = progress.add_task(f"recovery: plain scan and reads of {keys:,} keys", total=keys)
    asked = {"path": str(path), "endpoint": endpoint, "batch_keys": RecoverySection().batch_keys}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.plain", json.dumps(asked), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    line = b""
    async for line in process.stdout:
        if line.strip().isdigit():
            progress.update(task, completed=int(line))
    if await process.wait():
        raise RuntimeError("the plain reads failed")
    return Plain(**json.loads(line))


async def _recover(directory: Path, path: Path, endpoint: str, keys: int, progress: Progress) -> Recovered:
    """Start an adapter with the store, follow its recovery, read its peak memory, stop it."""
    task = progress.add_task(f"recovery: {keys:,} keys", total=keys)
    adapter = adapter_process(directory, endpoint, store=path)
    metrics = with_metrics(adapter)
    with ended(adapter):
        launched = time.monotonic()
        adapter.launch()
        status = await _follow(adapter, progress, task)
        start_s = time.monotonic() - launched
        counts = scrape(metrics)
        recovered = Recovered(
            status.recovery,
            start_s,
            _peak_mib(adapter.pid),
            counts["offset_adapter_rocksdb_block_cache_bytes"] / MIB,
            counts["offset_adapter_rocksdb_memtable_bytes"] / MIB,
        )
        adapter.stop()
    return recovered


async def _follow(adapter: ServiceProcess, progress: Progress, task: TaskID) -> offsets_pb.StatusReply:
    """Display the recovery's progress until the adapter serves."""
    async with asyncio.timeout(READY_TIMEOUT_S), OffsetClient.connect(adapter.address) as client:
        while True:
            await asyncio.sleep(POLL_S)
            if adapter.process is None or adapter.process.poll() is not None:
                raise RuntimeError(f"the adapter ended:\n{adapter.log[-4000:]}")
            with suppress(grpc.aio.AioRpcError):
                status = await client.admin.Status(offsets_pb.StatusRequest(), wait_for_ready=True, timeout=5.0)
                progress.update(task, completed=status.recovery.compared)
                if status.recovery.done:
                    return status


def _peak_mib(pid: int) -> float:
    """The peak memory of a process, from /proc: `getrusage` includes that of the parent before exec."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc")


def _tell_time(result: Result, recovered: Recovered, plains: list[Plain]) -> None:
    status = recovered.status
    rows: list[list[str | float]] = [
        [f"plain scan and reads, {when} it", plain.keys, plain.scan_s, plain.reads_s, plain.scan_s + plain.reads_s]
        for when, plain in zip(("before", "after"), plains, strict=True)
    ]
    base = sum(plain.scan_s + plain.reads_s for plain in plains) / len(plains)
    rows.append(["recovery", status.compared, "", "", status.seconds])
    result.tables.append(Table("Time", ("", "keys", "scan s", "reads s", "together s"), rows))
    result.bars.append(Bar("recovery time to the plain scan and reads", status.seconds / base, TIME_LIMIT))


def _tell_counts(result: Result, found: dict[int, Recovered]) -> None:
    rows: list[list[str | float]] = []
    for keys, one in found.items():
        status = one.status
        rows.append([f"{keys:,}", status.pushed, status.adopted, status.equal, status.seconds, one.start_s])
    columns = ("local keys", "pushed", "adopted", "equal", "recovery s", "start to recovered s")
    result.tables.append(Table("Recoveries", columns, rows))


def _tell_memory(result: Result, found: dict[int, Recovered]) -> None:
    rows: list[list[str | float]] = [
        [f"{keys:,}", one.peak, one.block_cache, one.memtables, one.other] for keys, one in found.items()
    ]
    columns = ("local keys", "peak MiB", "block cache MiB", "memtables MiB", "other MiB")
    result.tables.append(Table("Memory of the recovering process", columns, rows))
    first, *_, last = found.values()
    fewest, *_, most = found
    text = f"memory outside RocksDB's caches, growth in MiB from {fewest:,} to {most:,} keys"
    result.bars.append(Bar(text, last.other - first.other, GROWTH_LIMIT_MIB))
    result.notes.append(
        "RocksDB's block cache fills with the first keys and then stays at 64 MiB; a memtable takes up to 16 MiB."
    )
