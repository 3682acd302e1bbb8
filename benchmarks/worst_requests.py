"""The most expensive requests of each method: the delay of another client that commits continuously, and the memory they take."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import grpc
from rich.progress import Progress

from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.rpc import meta_grpc, meta_pb, offsets_grpc, offsets_pb
from adapter.sidecar.storage.store import LocalStore
from adapter.testing.processes import ServiceProcess
from benchmarks import worst_console
from benchmarks.machine import ROOT
from benchmarks.processes import running_stack
from benchmarks.report import Bar, Cell, Result, Table
from benchmarks.resident import memory, reset_peak
from benchmarks.scale import Scale
from benchmarks.worst_load import ADAPTER, BIG, LEAVES, META_SERVICE, Worst, shard_of

TITLE = "the worst requests, beside an honest client"
LIMIT_MS = 250.0
SHORT = 3  # requests to each process in a short run
AT_ONCE = 4  # copies of each request
PATIENCE_S = 30.0  # seconds for the answers to all copies
RETRY_S = 0.01
HONEST_S = 120.0  # seconds for one request of the other client
MIB = 2**20
CHUNK = 5_000
COMMITTED_AT_MS = 1_700_000_000_000
COLUMNS = ("request", "slowest honest commit ms", "all answered s", "memory MiB more", "answers")

Send = Callable[[int], Any]


class Honest(threading.Thread):
    """The other client: sends one small request after the other."""

    def __init__(self, address: str, method: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._method = method
        self._going = True
        self._slowest_s = 0.0
        self._sent_at = 0.0

    def run(self) -> None:
        """Start sending."""
        with grpc.insecure_channel(self._address) as channel:
            send = (_saving if self._method == "save" else _committing)(channel)
            number = 0
            began = time.perf_counter()
            while self._going:
                number += 1
                self._sent_at = began
                try:
                    send(number)
                except grpc.RpcError:  # not acknowledged: the time counts for the next one
                    time.sleep(RETRY_S)
                    continue
                acknowledged = time.perf_counter()
                self._slowest_s = max(self._slowest_s, acknowledged - began)
                began = acknowledged

    def slowest_s(self) -> float:
        """The slowest request since the last call, in seconds."""
        now = max(self._slowest_s, time.perf_counter() - self._sent_at)
        self._slowest_s = 0.0
        return now

    def stop(self) -> None:
        """Stop sending."""
        self._going = False
        self.join()


def _committing(channel: grpc.Channel) -> Send:
    stub = offsets_grpc.OffsetStoreStub(channel)

    def send(number: int) -> object:
        shards = [offsets_pb.ShardCommit(shard="s", offset=number)]
        request = offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="honest", shards=shards)])
        return stub.CommitOffsets(request, timeout=HONEST_S)

    return send


def _saving(channel: grpc.Channel) -> Send:
    stub = meta_grpc.MetaServiceServiceStub(channel)

    def send(number: int) -> object:
        rows = [meta_pb.SaveOffsetDataRequestOffset(shard_name="s", offset=number)]
        request = meta_pb.SaveOffsetDataRequest(offsets=[meta_pb.SaveOffsetData(group="honest", offsets=rows)])
        return stub.SaveOffsetData(request, timeout=HONEST_S)

    return send


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
        result.tables.append(await worst_console.table(directory))
    return result


async def _all(
    process: ServiceProcess, method: str, requests: Mapping[str, Worst], address: str, advance: Callable[[], None]
) -> tuple[list[list[Cell]], float]:
    honest = Honest(process.tcp_address, method)
    honest.start()
    await asyncio.sleep(0.5)
    rows: list[list[Cell]] = [["nothing", honest.slowest_s() * 1e3, 0.0, 0.0, ""]]
    prefix = "" if method == "commit" else "meta: "
    for name in requests:
        rows.append([name, *await _one(process, honest, f"{prefix}{name}", address)])
        advance()
    honest.stop()
    return rows, max(float(row[1]) for row in rows)


async def _one(process: ServiceProcess, honest: Honest, name: str, address: str) -> list[Cell]:
    reset_peak(process.pid)
    before = memory(process.pid, "VmRSS")
    honest.slowest_s()
    command = (sys.executable, "-m", "benchmarks.worst_load", address, name, str(AT_ONCE), str(PATIENCE_S))
    load = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    began = time.perf_counter()
    output, _ = await load.communicate()
    took = time.perf_counter() - began
    await asyncio.sleep(0.2)
    answers = ", ".join(f"{count} {code}" for code, count in json.loads(output).items())
    return [honest.slowest_s() * 1e3, took, (memory(process.pid, "VmHWM") - before) / MIB, answers]
