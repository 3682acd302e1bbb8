"""Recovery after a loss, which compares whole groups: its time and the Meta Service's CPU, compared to an ordinary start.

    [BENCH_BEFORE=/path/of/another/checkout] python -m benchmarks recovery_loss

The local stores are in the state after a power cut: an acknowledged write is missing. The Meta Service has all keys and more.
With BENCH_BEFORE the other checkout recovers from the loss of many groups as well, in turns with this one.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from rich.progress import Progress

from adapter.client.client import OffsetClient
from adapter.meta.client import GrpcMetaClient
from adapter.meta.config import MetaSection
from adapter.model.records import OffsetKey, ReadMode
from adapter.rpc import offsets_pb
from adapter.runtime.durable.watermark import Watermark
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.processes import ServiceProcess, adapter_process, ended, meta_process
from benchmarks.keyspace import Pair, fill_local, fill_meta, record_of
from benchmarks.machine import cpu_s
from benchmarks.processes import THIS, of_tree, trees
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "recovery after a loss"
FIRST_READ_LIMIT_S = 2.5
ADOPTED_LIMIT_US = 30.0  # for a row that comes back
CPU_LIMIT_US = 25.0  # of the Meta Service per row of the compared groups
BEFORE_LIMIT = 0.4
ROUNDS = 3
PATIENCE_S = 900.0
POLL_S = 0.05


@dataclass(frozen=True)
class Recovered:
    """The result of a start. In seconds from the launch of the process: `first_read_s`, of the last group; `start_s`, the end.

    CPU of the whole start.
    """

    status: offsets_pb.RecoveryStatus
    first_read_s: float
    start_s: float
    adapter_cpu_s: float
    meta_cpu_s: float


RATIOS: dict[str, Callable[[Recovered], float]] = {
    "the end": lambda one: one.start_s,
    "CPU of both processes": lambda one: one.adapter_cpu_s + one.meta_cpu_s,
}


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Measure one group of many keys, and many groups of which one shard is local; each without and after a loss."""
    result = Result("recovery_loss", TITLE)
    keys, groups, shards = scale.loss_keys, scale.loss_groups, scale.loss_shards
    one = list(_rows("one", 1, keys))
    many = list(_rows("many", groups, shards))
    rows: list[list[str | float]] = []
    meta = meta_process(directory)
    with ended(meta):
        meta.start()
        task = progress.add_task(f"recovery_loss: load {len(one) + len(many):,} keys", total=len(one) + len(many))
        async with GrpcMetaClient.open(MetaSection(endpoints=(meta.address,))) as client:
            await fill_meta([*one, *many], client, lambda done: progress.advance(task, done))
        sides = trees()
        starts = [("one group", is_lost, THIS) for is_lost in (False, True)]
        starts += [
            ("many groups", False, THIS),
            *(("many groups", True, side) for side in [*sides] * (3 if len(sides) > 1 else 1)),
        ]
        found: dict[tuple[str, bool, str], list[Recovered]] = {}
        for number, (name, is_lost, side) in enumerate(starts):
            local, there = (one, len(one)) if name == "one group" else (many[::shards], len(many))
            path = directory / str(number)
            _fill(local, path / "adapter", is_lost=is_lost)
            recovered = await _recover(path, meta, local[-1][0].group, sides[side])
            found.setdefault((name, is_lost, side), []).append(recovered)
            what = f"{name}, {'after a loss' if is_lost else 'ordinary'}, {side}"
            status = recovered.status
            costs = (recovered.first_read_s, status.seconds, recovered.start_s, recovered.adapter_cpu_s, recovered.meta_cpu_s)
            rows.append([what, len(local), there, status.adopted, *costs])
    columns = (
        "",
        "local keys",
        "rows there",
        "adopted",
        "first read s",
        "recovery s",
        "start s",
        "adapter CPU s",
        "Meta Service CPU s",
    )
    result.tables.append(Table("Starts", columns, rows))
    lost = found["many groups", True, THIS]
    first_s = _median(lost, lambda one: one.first_read_s)
    result.bars.append(Bar("the first read of the last of many groups after a loss, in s", first_s, FIRST_READ_LIMIT_S))
    each = _median(lost, lambda one: one.status.seconds) / len(many) * 1e6
    result.bars.append(Bar("a row that comes back after a loss, us", each, ADOPTED_LIMIT_US))
    cost = _median(lost, lambda one: one.meta_cpu_s) / len(many) * 1e6
    result.bars.append(Bar("CPU of the Meta Service for each row that is read after a loss, us", cost, CPU_LIMIT_US))
    if "before" in sides:
        for what, of in RATIOS.items():
            ratio = _median(lost, of) / _median(found["many groups", True, "before"], of)
            result.bars.append(Bar(f"many groups after a loss: {what}, this tree / before", ratio, BEFORE_LIMIT))
    return result


def _median(found: list[Recovered], of: Callable[[Recovered], float]) -> float:
    return statistics.median(of(one) for one in found)


def _rows(name: str, groups: int, shards: int) -> Iterator[Pair]:
    for group in range(groups):
        for shard in range(shards):
            yield OffsetKey("default", f"{name}-{group:05}", f"queue-{shard:05}"), record_of(shard)


def _fill(local: list[Pair], path: Path, *, is_lost: bool) -> None:
    store = LocalStore.open(path, "never")
    fill_local(local, store, lambda _: None)
    store.close()
    if is_lost:
        mark = Watermark.open(path / "watermark")
        mark.advance(mark.value + 1)
        mark.close()


async def _recover(directory: Path, meta: ServiceProcess, group: str, tree: Path) -> Recovered:
    adapter = of_tree(adapter_process(directory, meta.address), tree)
    with ended(adapter):
        meta_cpu_s = cpu_s(meta.pid)
        launched = time.monotonic()
        adapter.launch()
        async with asyncio.timeout(PATIENCE_S), OffsetClient.connect(adapter.address) as client:
            first_read_s = 0.0
            while not first_read_s:
                with suppress(grpc.aio.AioRpcError):  # its socket is not there yet
                    await client.read(group, mode=ReadMode.STORE)
                    first_read_s = time.monotonic() - launched
                await asyncio.sleep(POLL_S)
            while True:
                await asyncio.sleep(POLL_S)
                with suppress(grpc.aio.AioRpcError):
                    status = await client.admin.Status(offsets_pb.StatusRequest(), wait_for_ready=True, timeout=5.0)
                    if status.recovery.done:
                        break
        start_s = time.monotonic() - launched
        found = Recovered(status.recovery, first_read_s, start_s, cpu_s(adapter.pid), cpu_s(meta.pid) - meta_cpu_s)
        adapter.stop()
    return found
