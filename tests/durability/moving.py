"""Fronts and rebalances over shared Raft groups, which die at a call of a test's choosing; a load that knows what must be there.

Nothing is patched: a client of etcd that stops in the middle of a call is what a killed process leaves behind.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from adapter.codec import prefix_end
from adapter.errors import MetaUnavailableError
from adapter.etcd.cluster import Call, EtcdCluster, R
from adapter.history import META, History
from adapter.metaservice.config import EtcdSection, RaftGroupSection
from adapter.metaservice.etcd_engine import EtcdEngine
from adapter.metaservice.etcd_lane import Lane
from adapter.metaservice.etcd_moves import Moves
from adapter.metaservice.etcd_values import Keys
from adapter.metaservice.fences import Fences
from adapter.metaservice.layout import Layout
from adapter.metaservice.rebalancing import Rebalancer, Watcher
from adapter.model import OffsetKey, OffsetRecord, SaveEntry, Status, next_era
from adapter.rpc import etcd_pb
from adapter.testing import eventually
from tests.contract.etcd import shared_members, shared_section

CLUSTER = "cluster"
A, B, C = "contract-2", "contract-3", "contract-4"  # Raft groups, which other tests use as well
PAUSE_S = 0.02  # of a writer or reader
OLD_MS = 1  # when tombstones are from: long ago


def section_of(*names: str) -> EtcdSection:
    """Settings for these Raft groups, under a prefix of their own."""
    groups = tuple(RaftGroupSection(name=name, endpoints=shared_members(name).endpoints) for name in names)
    return shared_section().model_copy(update={"offsets": groups})


def settings(section: EtcdSection, port: int = 0) -> str:
    """The configuration file of a front, or of a command."""
    assert section.metadata
    groups = "".join(f"[[etcd.offsets]]\nname = '{each.name}'\nendpoints = {list(each.endpoints)}\n" for each in section.offsets)
    return f"""engine = "etcd"
[server]
listen = "127.0.0.1:{port or 1}"
[metrics]
listen = ""
[etcd]
prefix = "{section.prefix}"
max_txn_ops = 512
[etcd.metadata]
endpoints = {list(section.metadata.endpoints)}
{groups}"""


@dataclass
class Life:
    """How many calls a process has before it dies, and whether the last one is done by then."""

    calls: int
    done: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Mortal(EtcdCluster):
    """A client of a process that may die: from then on it neither calls nor returns."""

    life: Life | None = None

    async def ask(self, endpoint: str, call: Call[R]) -> R:
        """Call the member, in this life."""
        if self.life:
            self.life.calls -= 1
            if self.life.calls < 0:
                if self.life.calls == -1 and self.life.done:
                    await super().ask(endpoint, call)
                self.life.over.set()
                await anyio.sleep_forever()
        return await super().ask(endpoint, call)


@asynccontextmanager
async def clusters(section: EtcdSection, life: Life | None = None) -> AsyncIterator[tuple[Mortal, list[Mortal]]]:
    """Clients of the Raft groups: of the metadata's, and of the offsets'."""
    assert section.metadata
    async with AsyncExitStack() as stack:
        members = [("metadata", section.metadata), *((group.name, group) for group in section.offsets)]
        opened: list[Mortal] = []
        for name, where in members:
            cluster = await stack.enter_async_context(Mortal.open(name, where, section))
            assert isinstance(cluster, Mortal)
            cluster.life = life
            opened.append(cluster)
        yield opened[0], opened[1:]


class Silent:
    """A watcher of nothing."""

    def step(self, what: str, keys: int) -> None:
        """See `Watcher`."""

    def looked(self, keys: int) -> None:
        """See `Watcher`."""


@asynccontextmanager
async def front(section: EtcdSection, life: Life | None = None) -> AsyncIterator[EtcdEngine]:
    """An engine as a front runs it."""
    async with clusters(section, life) as (metadata, offsets):
        engine = EtcdEngine(metadata, offsets, section)
        async with _running(engine.run()):
            await engine.open()
            yield engine


async def rebalance(
    section: EtcdSection,
    groups: Iterable[str],
    life: Life | None = None,
    watcher: Watcher = Silent(),  # noqa: B008 - has no state
) -> bool:
    """Rebalance, until the end or the death, whichever comes first; True at the end."""

    async def work() -> None:
        async with clusters(section, life) as (metadata, offsets):
            keys = Keys(section.prefix)
            lanes = {cluster.name: Lane(cluster, keys, "rebalance", section.max_txn_ops) for cluster in offsets}
            fences = Fences(metadata, {cluster.name: cluster for cluster in offsets}, keys)
            async with _running(*(lane.run() for lane in lanes.values())):
                await fences.open()
                rebalancer = Rebalancer(metadata, lanes, fences, Moves(lanes, fences, keys), section)
                await rebalancer.plan(groups)
                await rebalancer.run(groups, watcher)

    return await lived(work(), life)


async def lived(work: Coroutine[Any, Any, None], life: Life | None) -> bool:
    """Do it until it ends, or this life does."""
    task = asyncio.ensure_future(work)
    if life:
        dying = asyncio.ensure_future(life.over.wait())
        await asyncio.wait([task, dying], return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            return False
    await task
    return True


@asynccontextmanager
async def _running(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    running = asyncio.gather(*works)
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


class Load:
    """Saves, resets, deletes, compare-and-sets and reads of groups by several fronts, and what they were told."""

    def __init__(self, fronts: Sequence[EtcdEngine], *, groups: int = 12, shards: int = 4) -> None:
        self.history = History()
        self.compared = 0  # compare-and-sets that met what they expected
        self._fronts = fronts
        self._random = random.Random(6)
        self._keys = [[OffsetKey("default", f"group-{group}", f"s{shard}") for shard in range(shards)] for group in range(groups)]
        # The last one was begun; each is above all before it.
        self._last = {key: OffsetRecord(1, 0) for group in self._keys for key in group}

    @property
    def keys(self) -> list[OffsetKey]:
        """All keys."""
        return list(self._last)

    async def acknowledged_more(self, more: int = 50) -> None:
        """Wait until so many more writes are acknowledged."""
        self.history.check()
        enough = self.history.acknowledged + more

        def reached() -> bool:
            self.history.check()
            return self.history.acknowledged >= enough

        await eventually(reached, 30.0)

    async def fill(self) -> None:
        """Save every key once."""
        for number, group in enumerate(self._keys):
            await self._save(self._fronts[number % len(self._fronts)], group)

    async def run(self) -> None:
        """Write, read and drop tombstones until cancelled. A group has two writers, a key one, which knows its last write."""
        writers = [self._write(half) for group in self._keys for half in (group[::2], group[1::2])]
        await asyncio.gather(*writers, *(self._read_on(each) for each in self._fronts), *(map(self._drop, self._fronts)))

    async def check(self, *fronts: EtcdEngine) -> None:
        """Everything that was acknowledged is at these fronts, whichever way they are asked, and no read before was wrong."""
        for each in fronts:
            for way in (self._get, self._get_groups, self._list):
                await way(each)
        assert self.history.check() == []

    async def _write(self, keys: Sequence[OffsetKey]) -> None:
        while True:
            chosen = self._random.sample(keys, self._random.randint(1, len(keys)))
            with contextlib.suppress(MetaUnavailableError):
                await self._save(self._random.choice(self._fronts), chosen)
            await asyncio.sleep(PAUSE_S)

    async def _save(self, each: EtcdEngine, keys: Sequence[OffsetKey]) -> None:
        entries, writes = [], []
        for key in keys:
            before = self._last[key]
            record = self._last[key] = self._next(before)
            expected = before.offset if self._random.random() < 0.1 and before.live else None
            entries.append(SaveEntry(key, record, expected))
            writes.append(self.history.begin(key, _value(record), places=[META]))
        for entry, write, outcome in zip(entries, writes, await each.save(CLUSTER, entries), strict=True):
            if outcome.status is Status.APPLIED:
                write.acknowledged()
                self.compared += entry.expected_offset is not None
            elif outcome.status is Status.SUPERSEDED and outcome.standing:
                write.superseded(_value(outcome.standing))

    def _next(self, before: OffsetRecord) -> OffsetRecord:
        """A commit, a reset, or a delete."""
        dice = self._random.random()
        if dice < 0.1:
            return OffsetRecord(next_era(before.epoch), 0, live=False, committed_at_ms=OLD_MS)
        if dice < 0.2:
            return OffsetRecord(before.epoch + 1, self._random.randint(0, before.offset))
        return OffsetRecord(before.epoch, before.offset + 1)

    async def _read_on(self, each: EtcdEngine) -> None:
        while True:
            for way in (self._get, self._get_groups, self._list):
                with contextlib.suppress(MetaUnavailableError):
                    await way(each)
                await asyncio.sleep(PAUSE_S)

    async def _get(self, each: EtcdEngine) -> None:
        reading = self.history.reading(META, keys=self.keys)
        reading.found({key: _value(record) for key, record in await each.get(CLUSTER, self.keys)})

    async def _get_groups(self, each: EtcdEngine) -> None:
        group = self._random.choice(self._keys)
        reading = self.history.reading(META, keys=group)
        found = await each.get_group(CLUSTER, group[0].namespace, group[0].group)
        reading.found({key: _value(record) for key, record in found})

    async def _list(self, each: EtcdEngine) -> None:
        reading = self.history.reading(META, keys=self.keys)
        found, after = await each.list_page(CLUSTER, [], 10_000, b"")
        assert not after
        reading.found({key: _value(record) for key, record in found if key in self._last})

    async def _drop(self, each: EtcdEngine) -> None:
        while True:
            with contextlib.suppress(MetaUnavailableError):
                await each.drop_tombstones(OLD_MS + 1)
            await asyncio.sleep(PAUSE_S)


@asynccontextmanager
async def under(load: Load) -> AsyncIterator[None]:
    """Meanwhile the load goes on."""
    running = asyncio.ensure_future(load.run())
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def layout_of(section: EtcdSection) -> Layout:
    """The layout, as the metadata Raft group has it."""
    async with clusters(section) as (metadata, _):
        return Layout.decode((await metadata.range(etcd_pb.RangeRequest(key=Keys(section.prefix).layout))).kvs[0].value)


async def delete_below(cluster: EtcdCluster, prefix: bytes) -> None:
    """Delete all keys with a prefix, the fence included."""
    request = etcd_pb.TxnRequest()
    deletion = request.success.add().request_delete_range
    deletion.key, deletion.range_end = prefix, prefix_end(prefix)
    await cluster.txn(request)


async def check_clean(section: EtcdSection, *groups: str) -> None:
    """The layout is settled in these Raft groups, every key is at home, and nothing is anywhere else."""
    keys = Keys(section.prefix)
    async with clusters(section) as (metadata, offsets):
        layout = await layout_of(section)
        assert layout == Layout(layout.version, tuple(sorted(groups)))
        assert await _keys_below(metadata, keys.moving) == []
        for cluster in offsets:
            for where in await _keys_below(cluster, keys.offsets):
                assert layout.home(keys.group_of(where)) == cluster.name
            for entry in await _keys_below(cluster, keys.tombstones):
                assert layout.home(keys.group_of(keys.buried(entry))) == cluster.name


async def _keys_below(cluster: EtcdCluster, prefix: bytes) -> list[bytes]:
    request = etcd_pb.RangeRequest(key=prefix, range_end=prefix_end(prefix), keys_only=True)
    return [kv.key for kv in (await cluster.range(request)).kvs]


def _value(record: OffsetRecord) -> tuple[int, int, bool]:
    return record.epoch, record.offset, record.live
