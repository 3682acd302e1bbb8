"""A flush of the same number of dirty keys from a small and from a large store: it must take the same time (invariant 6).

The adapter's store, committer, flusher and client run in this process, with real Meta Services, and then with one in memory to
get the adapter's own share.
"""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles

from rich.progress import Progress

from adapter.client.broker_log import NoBrokerLog
from adapter.meta.client import GrpcMetaClient, MetaClient
from adapter.model.records import CommitMode, SaveEntry, SaveOutcome
from adapter.sidecar.engine.core import Core, running_core
from adapter.sidecar.ledger.operations import Commit
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.processes import ended, meta_process
from adapter.testing.sidecars import adapter_config
from adapter.testing.waiting import eventually
from benchmarks.keyspace import SHARDS, fill_local, fill_meta, key_of, pairs, record_of
from benchmarks.processes import scrape, with_metrics
from benchmarks.report import Bar, Result, Table
from benchmarks.scale import Scale

TITLE = "a flush among few and among many stored keys"
RATIO_LIMIT = 1.3
WARM_UP = 3  # uncounted flushes of each kind
SEED = 2
BUSY = ("running_compactions", "running_flushes", "pending_compaction_bytes")

Cores = dict[int, tuple[Core, MetaClient]]
Dirtied = Callable[[], Sequence[int]]


class TimedMeta(FakeMeta):
    """A Meta Service in memory that measures its own time, so that it can be subtracted."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Save, and measure the time."""
        started = time.perf_counter()
        outcomes = self.apply(entries)
        self.seconds += time.perf_counter() - started
        return outcomes


@dataclass
class Kind:
    """One kind of flush: a store, and the choice of its dirty keys."""

    stored: int
    dirty: str
    core: Core
    meta: MetaClient
    dirtied: Dirtied
    seconds: list[float] = field(default_factory=list)

    async def flush(self, more: int) -> float:
        """Commit the keys with offsets raised by `more`, and flush them; returns the seconds of the flush."""
        entries = [(key_of(number), record_of(number, more)) for number in self.dirtied()]
        await self.core.ledger.submit(Commit(entries, CommitMode.INCREASE_ONLY))
        elsewhere = _seconds_of(self.meta)
        started = time.perf_counter()
        flushed = await self.core.flusher.flush_once()
        took = time.perf_counter() - started
        assert flushed == len(entries)
        return took - (_seconds_of(self.meta) - elsewhere)


def _seconds_of(meta: MetaClient) -> float:
    return meta.seconds if isinstance(meta, TimedMeta) else 0.0


async def run(scale: Scale, directory: Path, progress: Progress) -> Result:
    """Load the stores, then time alternating flushes: with real Meta Services, then with one in memory."""
    result = Result("flush", TITLE)
    rising = count(1)  # each commit must raise the offset, or its key stays clean
    stores = {keys: directory / str(keys) for keys in (scale.flush_few, scale.flush_many)}
    metas = {keys: meta_process(path) for keys, path in stores.items()}
    ports = {keys: with_metrics(service) for keys, service in metas.items()}
    with ended(*metas.values()):
        async with AsyncExitStack() as running:
            cores: Cores = {}
            for keys, service in metas.items():
                service.start()
                core, client = await running.enter_async_context(_core(stores[keys], service.address))
                cores[keys] = core, client
                await _load(keys, core, client, progress)
                await eventually(partial(_quiet, core, ports[keys]), timeout_s=60.0)
            kinds = await _timed(scale, cores, rising, progress, "flush: real Meta Services")
    _tell(result, "Meta Service as a process, its sync included", kinds)
    async with AsyncExitStack() as running:
        cores = {}
        for keys, path in stores.items():
            memory = TimedMeta()
            cores[keys] = (await running.enter_async_context(_core_over(path, memory))), memory
        kinds = await _timed(scale, cores, rising, progress, "flush: Meta Service in memory")
    _tell(result, "the adapter's own share (Meta Service in memory, its time left out)", kinds)
    result.notes.append(
        f"{scale.flush_rounds} flushes of each kind, taking turns in random order. The ratio is that of the medians."
    )
    return result


@asynccontextmanager
async def _core(directory: Path, endpoint: str) -> AsyncIterator[tuple[Core, MetaClient]]:
    config = adapter_config(directory, meta={"endpoints": [endpoint]})
    async with GrpcMetaClient.open(config.meta) as client, _core_over(directory, client) as core:
        yield core, client


@asynccontextmanager
async def _core_over(directory: Path, meta: MetaClient) -> AsyncIterator[Core]:
    """A core without its flush loop, so that every flush is timed."""
    config = adapter_config(directory)
    store = LocalStore.open(config.store.path, config.store.wal_sync)
    async with running_core(config, store, meta, AdapterMetrics(), NoBrokerLog()) as core:
        yield core


async def _load(keys: int, core: Core, client: MetaClient, progress: Progress) -> None:
    task = progress.add_task(f"flush: load {keys:,} keys into both stores", total=2 * keys)
    fill_local(pairs(keys), core.ledger.store, lambda done: progress.advance(task, done))
    await fill_meta(pairs(keys), client, lambda done: progress.advance(task, done))


def _quiet(core: Core, meta_metrics: int) -> bool:
    """True if neither RocksDB has background work left from the load."""
    there = scrape(meta_metrics)
    here = core.ledger.store.rocksdb_properties()
    return not any(here[name] or there[f"offset_meta_rocksdb_{name}"] for name in BUSY)


async def _timed(scale: Scale, cores: Cores, rising: Iterator[int], progress: Progress, description: str) -> list[Kind]:
    kinds = _kinds(scale, cores)
    rounds = scale.flush_rounds + WARM_UP
    task = progress.add_task(description, total=rounds)
    for number in range(rounds):
        for kind in random.sample(kinds, len(kinds)):
            took = await kind.flush(next(rising))
            if number >= WARM_UP:
                kind.seconds.append(took)
        progress.advance(task)
    return kinds


def _kinds(scale: Scale, cores: Cores) -> list[Kind]:
    """The dirty keys: whole groups in each kind, so that all requests have the same shape."""
    few, many = scale.flush_few, scale.flush_many
    draw = random.Random(SEED)

    def some() -> list[int]:
        groups = draw.sample(range(many // SHARDS), few // SHARDS)
        return [group * SHARDS + shard for group in groups for shard in range(SHARDS)]

    same = some()
    return [
        Kind(few, "all", *cores[few], lambda: range(few)),
        Kind(many, "the same each time", *cores[many], lambda: same),
        Kind(many, "others each time", *cores[many], some),
    ]


def _tell(result: Result, title: str, kinds: Sequence[Kind]) -> None:
    base = median(kinds[0].seconds)
    rows: list[list[str | float]] = []
    for kind in kinds:
        middle = median(kind.seconds)
        tenths = quantiles(kind.seconds, n=10)
        dirty = len(kind.dirtied())
        rows.append(
            [f"{kind.stored:,} stored", dirty, kind.dirty, tenths[0] * 1e3, middle * 1e3, tenths[-1] * 1e3, middle / base]
        )
    columns = ("store", "dirty keys", "which", "10 % ms", "median ms", "90 % ms", "ratio")
    result.tables.append(Table(f"A flush; {title}", columns, rows))
    worst = max(kinds[1:], key=lambda kind: median(kind.seconds))
    text = f"flush time, {worst.stored:,} stored ({worst.dirty}) to {kinds[0].stored:,}; {title.partition(' (')[0]}"
    result.bars.append(Bar(text, median(worst.seconds) / base, RATIO_LIMIT))
