"""Shared by the unit tests: short names for values, a core over a real store, stores and faults that a test controls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from adapter.client.broker_log import BrokerLog, NoBrokerLog
from adapter.errors import AdapterError
from adapter.meta.client import MetaClient
from adapter.metaservice.engine import Columns
from adapter.model.codec import pack_names
from adapter.model.records import U64_MAX, CommitMode, GroupKey, OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status
from adapter.rpc import meta_pb
from adapter.runtime.clocks import REAL, Clocks
from adapter.sidecar.config import WalSync
from adapter.sidecar.engine.core import Core, running_core
from adapter.sidecar.engine.flush_spans import FlushSpans
from adapter.sidecar.journal.journal import NO_JOURNAL, Journal
from adapter.sidecar.ledger.disk import RocksDisk
from adapter.sidecar.ledger.group_state import MAX_GROUPS
from adapter.sidecar.ledger.operations import Commit, Standing
from adapter.sidecar.ledger.resting import RestingGroups
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config


async def whole_groups(meta: MetaClient, *groups: GroupKey) -> list[dict[OffsetKey, OffsetRecord]]:
    """All pages of these groups, joined."""
    found: dict[GroupKey, dict[OffsetKey, OffsetRecord]] = {group: {} for group in groups}
    left: Sequence[GroupKey] = groups
    after = b""
    while left:
        page = await meta.groups_page(left, after)
        for key, record in page.entries:
            found[key.group_key][key] = record
        left, after = page.left, page.after
    return list(found.values())


PATIENCE_S = 60.0  # for what takes milliseconds on an idle machine

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=63)  # at most 4 bytes each: 252
KEYS = st.builds(OffsetKey, NAMES, NAMES, NAMES)
U64 = st.one_of(st.integers(0, 5), st.integers(0, U64_MAX))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
RECORDS = st.builds(
    OffsetRecord,
    epoch=U64,
    offset=U64,
    live=st.booleans(),
    committed_at_ms=U64,
    metadata=TEXTS,
    topic=TEXTS,
    partition=st.integers(0, 2**32 - 1),
)


def key(shard: str = "s", group: str = "g", namespace: str = "default") -> OffsetKey:
    """A key of which usually only the shard matters."""
    return OffsetKey(namespace, group, shard)


def record(offset: int, epoch: int = 1, **fields: Any) -> OffsetRecord:
    """A live record."""
    return OffsetRecord(epoch, offset, **fields)


def tombstone(epoch: int) -> OffsetRecord:
    """The tombstone that a delete leaves in the Meta Service."""
    return OffsetRecord(epoch, 0, live=False)


def commit_of(offsets: dict[OffsetKey, int], *, overwrite: bool = False, **fields: Any) -> Commit:
    """A commit of these offsets."""
    entries = [(where, record(offset, **{"epoch": 0, **fields})) for where, offset in offsets.items()]
    return Commit(entries, CommitMode.OVERWRITE if overwrite else CommitMode.INCREASE_ONLY)


@asynccontextmanager
async def core_over(
    directory: Path,
    meta: FakeMeta,
    *,
    store: LocalStore | None = None,
    recovered: bool = True,
    knows: Sequence[str] = (),
    broker_log: BrokerLog | None = None,
    journal: Journal = NO_JOURNAL,
    clocks: Clocks = REAL,
    spans: FlushSpans | None = None,
    **sections: Any,
) -> AsyncIterator[Core]:
    """Everything that works on a store, without gRPC and without the flush loop: a test flushes when it wants to.

    `knows` are groups that count as loaded, so that new keys begin in epoch 1 even where the Meta Service is not asked.
    """
    config = adapter_config(directory, **sections)
    opened = store or LocalStore.open(config.store.path, config.store.wal_sync)
    parts = (config, opened, meta, AdapterMetrics(), broker_log or NoBrokerLog(), clocks, journal, spans)
    async with running_core(*parts) as core:
        if recovered:
            core.ledger.recovered.finish()
        core.ledger.store.states.note_loaded(GroupKey("default", group) for group in knows)
        yield core


async def recover(core: Core) -> None:
    """Do what a start does, once."""
    await core.meta_watch.begin()
    await core.recovery.run()


def forget_loads(core: Core) -> None:
    """Let no group count as loaded."""
    states = core.ledger.store.states
    states._resting = RestingGroups(MAX_GROUPS)
    for state in states._states.values():
        state.loaded = False


def serving(core: Core) -> Callable[[], Awaitable[Core]]:
    """The core for each call of a service, as `SidecarState.serving` gives it."""

    async def give() -> Core:
        return core

    return give


async def send(core: Core, change: Commit) -> list[Standing]:
    """Commit as the server does."""
    return await core.router.commit(await core.router.prepare(change))


async def commit(core: Core, offset: int, shard: str = "s", *, overwrite: bool = False, **fields: Any) -> None:
    """Commit one offset of the group `g` as the server does."""
    await send(core, commit_of({key(shard): offset}, overwrite=overwrite, **fields))


def rocks_of(store: LocalStore) -> RocksDisk:
    """The RocksDB below a store, to make it fail."""
    assert isinstance(store._disk, RocksDisk)
    return store._disk


def doom(store: LocalStore) -> None:
    """Make the close of this store like a kill: no bookkeeping and no sync; what was written is in the page cache."""
    store.failure = "killed by the test"


def crash(store: LocalStore) -> None:
    """End a store as a killed process does."""
    doom(store)
    store.close()


class WatchedStore(LocalStore):
    """A store that counts batches and syncs, and in which a test may refuse a write or delay a sync."""

    batches: int = 0
    syncs: int = 0
    refuses: AdapterError | None = None
    gate: asyncio.Event | None = None

    def write(self, *args: Any, **kwargs: Any) -> Any:
        """Count, then write."""
        if self.refuses:
            raise self.refuses
        self.batches += 1
        return super().write(*args, **kwargs)

    async def sync(self) -> None:
        """Count, wait for the gate if there is one, then sync."""
        self.syncs += 1
        if self.gate:
            await self.gate.wait()
        await super().sync()


def watched(directory: Path, wal_sync: WalSync = "interval") -> WatchedStore:
    """A watched store in the directory that `core_over` uses."""
    return WatchedStore.open(directory / "adapter", wal_sync)


Fault = Callable[[Sequence[SaveEntry]], Awaitable[list[SaveOutcome]]]


class HeldMeta(FakeMeta):
    """A FakeMeta that holds every save back until the test opens its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Wait for the gate, then save."""
        self.entered.set()
        await self.gate.wait()
        return await super().save(entries)


def applied_then(meta: FakeMeta, error: AdapterError) -> Fault:
    """A save that is applied and whose reply is lost (invariant 4)."""

    async def fault(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        meta.apply(entries)
        raise error

    return fault


def during(meta: FakeMeta, action: Callable[[], Awaitable[Any]]) -> Fault:
    """A save in the middle of which a test does something else."""

    async def fault(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        await action()
        return meta.apply(entries)

    return fault


def refusing(meta: FakeMeta, shards: set[str], status: Status = Status.INVALID) -> Fault:
    """A save that refuses the entries of some shards and applies the others."""

    async def fault(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        return [
            SaveOutcome(status, meta.records.get(entry.key), "by the test")
            if entry.key.shard in shards
            else meta.apply([entry])[0]
            for entry in entries
        ]

    return fault


def packed_rows(cluster: str, keys: Sequence[bytes], records: Sequence[bytes]) -> meta_pb.PackedRows:
    """Keys of `encode_key` and records as columns, with the cluster in front of each key."""
    columns = Columns()
    if keys:
        columns.add([pack_names(cluster) + data for data in keys], records)
    return columns.page().packed
