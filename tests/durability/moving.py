"""Meta Services and rebalances over shared Raft groups, which die at a call of a test's choosing.

Nothing is patched: a client of etcd that stops in the middle of a call is what a killed process leaves behind.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from adapter.metaservice.config import EtcdSection, RaftGroupSection
from adapter.metaservice.etcd.client import Call, EtcdCluster, R
from adapter.metaservice.etcd.engine import EtcdEngine
from adapter.metaservice.etcd.fences import Fences
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.migration import Migration
from adapter.metaservice.etcd.rebalancing import Rebalancer, Watcher
from adapter.metaservice.etcd.sharding import Layout
from adapter.metaservice.etcd.txn_batcher import TxnBatcher
from adapter.model.codec import pack_names, prefix_end
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, Status
from adapter.rpc import etcd_pb
from tests.contract.etcd import shared_members, shared_section

CLUSTER = "cluster"
A, B, C = "contract-2", "contract-3", "contract-4"  # Raft groups, which other tests use as well
GROUPS = 60  # each with a key


def section_of(*names: str) -> EtcdSection:
    """Settings for these Raft groups, under a prefix of their own."""
    groups = tuple(RaftGroupSection(name=name, endpoints=shared_members(name).endpoints) for name in names)
    return shared_section().model_copy(update={"offsets": groups})


def settings(section: EtcdSection, port: int = 0) -> str:
    """The configuration file of a Meta Service, or of a command."""
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
async def clusters(section: EtcdSection, life: Life | None = None, only: str = "") -> AsyncIterator[tuple[Mortal, list[Mortal]]]:
    """Clients of the Raft groups: of the metadata's, and of the offsets'. `only`: the life counts in this one alone."""
    assert section.metadata
    async with AsyncExitStack() as stack:
        members = [("metadata", section.metadata), *((group.name, group) for group in section.offsets)]
        opened: list[Mortal] = []
        for name, where in members:
            cluster = await stack.enter_async_context(Mortal.open(name, where, section))
            assert isinstance(cluster, Mortal)
            cluster.life = life if only in {"", name} else None
            opened.append(cluster)
        yield opened[0], opened[1:]


class Silent:
    """A watcher of nothing."""

    def step(self, what: str, keys: int) -> None:
        pass

    def looked(self, keys: int) -> None:
        pass


@asynccontextmanager
async def meta(section: EtcdSection, life: Life | None = None, only: str = "") -> AsyncIterator[EtcdEngine]:
    """An engine as a Meta Service runs it. `only`: see `clusters`."""
    async with clusters(section, life, only) as (metadata, offsets):
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
            batchers = {cluster.name: TxnBatcher(cluster, keys, "rebalance", section.max_txn_ops) for cluster in offsets}
            fences = Fences(metadata, {cluster.name: cluster for cluster in offsets}, keys)
            async with _running(*(batcher.run() for batcher in batchers.values())):
                await fences.open()
                rebalancer = Rebalancer(metadata, batchers, fences, Migration(batchers, fences, keys), section)
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
            for where in await _keys_below(cluster, keys.stores):
                assert layout.home(keys.broker_of(where)) == cluster.name


async def _keys_below(cluster: EtcdCluster, prefix: bytes) -> list[bytes]:
    request = etcd_pb.RangeRequest(key=prefix, range_end=prefix_end(prefix), keys_only=True)
    return [kv.key for kv in (await cluster.range(request)).kvs]


class StoppedError(Exception):
    """Raised to stop a rebalance."""


class Until:
    """Stops a rebalance when it begins a step."""

    def __init__(self, what: str) -> None:
        self._what = what

    def step(self, what: str, keys: int) -> None:
        if what == self._what:
            raise StoppedError(keys)

    def looked(self, keys: int) -> None:
        pass


async def begun(*names: str, groups: int = GROUPS) -> EtcdSection:
    """Settings for some Raft groups; offsets are in all but the last one, one for each consumer group."""
    section = section_of(*names)
    async with meta(section.model_copy(update={"offsets": section.offsets[:-1]})) as each:
        await save(each, 7, groups=groups)
    return section


def key_of(number: int) -> OffsetKey:
    """A key in a consumer group of its own."""
    return OffsetKey("default", f"group-{number}", "s1")


def packed(number: int) -> bytes:
    """The consumer group of a key."""
    return pack_names(CLUSTER, *key_of(number)[:2])


async def save(each: EtcdEngine, offset: int, groups: int = GROUPS) -> list[Status]:
    """Save an offset of each consumer group, in one call."""
    entries = [SaveEntry(key_of(number), OffsetRecord(1, offset)) for number in range(groups)]
    return [outcome.status for outcome in await each.save(CLUSTER, entries)]


async def offsets_at(each: EtcdEngine, groups: int = GROUPS) -> list[int]:
    """The offsets of all consumer groups that have one."""
    found = await each.get(CLUSTER, [key_of(number) for number in range(groups)])
    return [record.offset for _, record in found]
