"""Meta Services with different ideas of where offsets are: etcd refuses the one that has not heard, whatever it wants to do."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from adapter.errors import ConfigError, ContendedError, MetaUnavailableError, StoreDamagedError
from adapter.metaservice.config import EtcdSection, MembersSection
from adapter.metaservice.etcd.client import Call, EtcdCluster, R
from adapter.metaservice.etcd.fences import Fences, LayoutChangedError, fence
from adapter.metaservice.etcd.keys import Keys
from adapter.metaservice.etcd.reads import read
from adapter.metaservice.etcd.sharding import Layout, first_layout
from adapter.metaservice.etcd.txn_batcher import Item, TxnBatcher
from adapter.model.records import OffsetKey, SaveEntry
from adapter.rpc import etcd_pb
from tests.contract.etcd import shared_members, shared_section
from tests.unit.helpers import record

A, B, C = "contract", "contract-2", "contract-3"  # Raft groups, which other tests use as well
KEY = OffsetKey("default", "group", "s1")


@dataclass
class Meta:
    """A Meta Service's view of the layout, and its ways to the Raft groups."""

    fences: Fences
    batchers: Mapping[str, TxnBatcher]
    metadata: EtcdCluster
    keys: Keys

    @property
    def where(self) -> bytes:
        """The etcd key of `KEY`."""
        return self.keys.offset("cluster", KEY)

    async def save(self, name: str, layout: Layout, offset: int) -> Item:
        """Save in a Raft group as under a layout; the outcome is None when it was refused."""
        item = Item(SaveEntry(KEY, record(offset)), self.where)
        await self.batchers[name].merge(self.fences.guard(layout, name), [item])
        return item

    async def read(self, name: str, layout: Layout) -> int:
        """Read in a Raft group as under a layout; how many rows there are."""
        (found,) = await read(self.batchers[name], layout, self.fences, [etcd_pb.RangeRequest(key=self.where)])
        return len(found.rows)

    async def put(self, cluster: EtcdCluster, key: bytes, value: bytes | None) -> None:
        """Put a key past everything, or delete it: as an old snapshot does."""
        request = etcd_pb.TxnRequest()
        if value is None:
            request.success.add().request_delete_range.key = key
        else:
            put = request.success.add().request_put
            put.key, put.value = key, value
        await cluster.txn(request)

    async def get(self, cluster: EtcdCluster, key: bytes) -> bytes | None:
        """What stands under a key."""
        reply = await cluster.range(etcd_pb.RangeRequest(key=key))
        return reply.kvs[0].value if reply.kvs else None

    async def fence_of(self, name: str) -> bytes | None:
        """What stands in a Raft group."""
        return await self.get(self.batchers[name].cluster, self.keys.fence)


@asynccontextmanager
async def meta(
    section: EtcdSection, *names: str, members: Mapping[str, MembersSection] | None = None, kind: type[EtcdCluster] = EtcdCluster
) -> AsyncIterator[Meta]:
    """A Meta Service that is configured for these Raft groups, and has not read the layout yet."""
    keys = Keys(section.prefix)
    async with AsyncExitStack() as stack:
        metadata = await stack.enter_async_context(EtcdCluster.open("metadata", shared_members(), section))
        batchers: dict[str, TxnBatcher] = {}
        for name in names:
            where = (members or {}).get(name) or shared_members(name)
            batchers[name] = TxnBatcher(await stack.enter_async_context(kind.open(name, where, section)), keys, "test", 128)
        running = asyncio.gather(*(batcher.run() for batcher in batchers.values()))
        try:
            yield Meta(
                Fences(metadata, {name: batcher.cluster for name, batcher in batchers.items()}, keys), batchers, metadata, keys
            )
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def settled(fences: Fences, groups: Iterable[str]) -> Layout:
    """Go through a whole change of the layout."""
    await fences.change(fences.layout, fences.layout.move_to(groups))
    await fences.change(fences.layout, fences.layout.moved())
    await fences.change(fences.layout, fences.layout.cleaned())
    return fences.layout


async def test_a_meta_that_has_not_heard_of_a_change_can_neither_write_nor_read() -> None:
    """Nothing is done for it in a Raft group that knows better; it reads the layout again, and goes on."""
    section = shared_section()
    async with meta(section, A, B) as one, meta(section, A, B, C) as other, meta(section, A, B, C) as late:
        old = await one.fences.open()
        assert await other.fences.open() == old == await late.fences.open() == first_layout([A, B])
        assert (await one.save(A, old, 5)).outcome is not None
        await other.fences.change(other.fences.layout, other.fences.layout.move_to([A, B, C]))
        late_old = late.fences.layout
        for name in (A, B):
            assert (await late.save(name, late_old, 9)).outcome is None
            with pytest.raises(LayoutChangedError):
                await late.read(name, late_old)
        new = await late.fences.reload(late_old)
        assert new == other.fences.layout
        assert await late.read(A, new) == 1
        assert await other.get(other.batchers[A].cluster, other.where) == await late.get(late.batchers[A].cluster, late.where)
        with pytest.raises(LayoutChangedError):
            late.fences.guard(late_old, A)
        # Not configured for C: its calls fail as if nobody answered, so that adapters ask another Meta Service.
        with pytest.raises(MetaUnavailableError, match=f"offsets are also in {C}, which is not configured here"):
            await one.fences.reload(old)
        with pytest.raises(ConfigError, match=f"offsets are also in {C}, which is not configured here"):
            await one.fences.open()
        assert (await one.save(A, old, 9)).outcome is None


async def test_a_fence_that_was_not_raised_is_raised_by_who_is_refused_there() -> None:
    """Who changed the layout died between two fences; or a Raft group was restored from before it had one."""
    section = shared_section()
    async with meta(section, A, B) as one, meta(section, A, B) as other:
        old = await one.fences.open()
        after = old.move_to([A])
        await one.put(one.metadata, one.keys.layout, after.encode())
        await one.put(one.batchers[A].cluster, one.keys.fence, fence(after, A))
        assert await other.fences.open() == after
        assert await other.fence_of(B) == fence(after, B)
        assert (await one.save(B, old, 1)).outcome is None
        layout = await one.fences.reload(old)
        await one.put(one.batchers[B].cluster, one.keys.fence, None)
        assert (await one.save(B, layout, 1)).outcome is None
        assert await one.fences.reload(layout) is layout
        assert (await one.save(B, layout, 1)).outcome is not None


@pytest.mark.parametrize("gone", [A, B, C])
async def test_exchanged_endpoints_are_a_mistake_in_the_configuration(gone: str) -> None:
    """Whatever layout the Meta Service knows, and whichever it asks first: no fence of another Raft group is ever raised."""
    section = shared_section()
    async with meta(section, A, B, C) as right:
        layout = await right.fences.open()
        raised = layout.move_to({A, B, C} - {gone})
        await right.put(right.metadata, right.keys.layout, raised.encode())
        members = {A: shared_members(B), B: shared_members(A)}
        async with meta(section, A, B, C, members=members) as wrong:
            with pytest.raises(ConfigError, match=r"the endpoints of contract(-2)? are those of the Raft group contract"):
                await wrong.fences.open()
        for name in (A, B):
            assert await right.fence_of(name) == fence(layout, name)


async def test_a_new_raft_group_with_the_endpoints_of_another_is_refused_before_the_change() -> None:
    """The layout stays as it was."""
    section = shared_section()
    async with meta(section, A, B) as right, meta(section, A, C, members={C: shared_members(B)}) as wrong:
        layout = await right.fences.open()
        await settled(right.fences, [A])
        await wrong.fences.open()
        with pytest.raises(ConfigError, match=f"the endpoints of {C} are those of the Raft group {B}"):
            await wrong.fences.change(wrong.fences.layout, wrong.fences.layout.move_to([A, C]))
        assert Layout.decode(await right.get(right.metadata, right.keys.layout) or b"").groups == (A,) != layout.groups


async def test_a_first_layout_that_was_lost_is_not_made_anew() -> None:
    """A Meta Service that starts then is configured for more Raft groups: they are not in use."""
    section = shared_section()
    async with meta(section, A, B) as one, meta(section, A, B, C) as new:
        layout = await one.fences.open()
        await one.put(one.metadata, one.keys.layout, None)
        assert await new.fences.open() == layout


@pytest.mark.parametrize("lost", ["all of it", "the last changes"])
async def test_a_lost_layout_is_restored_from_the_fences(lost: str) -> None:
    """By a Meta Service that starts, whatever it is configured for; and by one that runs and has heard nothing."""
    section = shared_section()
    async with meta(section, A, B, C) as one, meta(section, A, B, C) as running, meta(section, A, B, C) as new:
        first = first_layout([A, B])
        await one.put(one.metadata, one.keys.layout, first.encode())
        old = await running.fences.open()
        await one.fences.open()
        newest = await settled(one.fences, [A, B, C])
        await one.put(one.metadata, one.keys.layout, None if lost == "all of it" else first.encode())
        assert await new.fences.open() == newest
        assert await new.get(new.metadata, new.keys.layout) == newest.encode()
        await one.put(one.metadata, one.keys.layout, None if lost == "all of it" else first.encode())
        assert await running.fences.reload(old) == newest
        assert await one.fences.reload(newest) is one.fences.layout


class Half(EtcdCluster):
    """B does not answer."""

    async def call(self, call: Call[R], *, resend: bool = True) -> R:
        """Call the others."""
        if self.name == B:
            raise MetaUnavailableError(f"{B} is down")
        return await super().call(call, resend=resend)


async def test_the_first_layout_is_made_only_when_every_raft_group_answers() -> None:
    """One that does not may know another one; and a change is begun only then, so that it does not stop half way."""
    section = shared_section()
    async with meta(section, A, B, kind=Half) as one, meta(section, A) as other:
        with pytest.raises(MetaUnavailableError):
            await one.fences.open()
        assert await one.get(one.metadata, one.keys.layout) is None
        layout = await other.fences.open()
        assert await one.fences.open() == layout
        with pytest.raises(MetaUnavailableError):
            await one.fences.change(one.fences.layout, layout.move_to([A, B]))
        assert await one.get(one.metadata, one.keys.layout) == layout.encode()


async def test_of_two_changes_one_wins() -> None:
    """The other one is told, and changes nothing; but the same change twice is one."""
    section = shared_section()
    async with meta(section, A, B, C) as one, meta(section, A, B, C) as other:
        layout = await one.fences.open()
        await other.fences.open()
        await one.fences.change(layout, layout.move_to([A, B]))
        with pytest.raises(ContendedError):
            await other.fences.change(layout, layout.move_to([A, C]))
        await other.fences.change(layout, layout.move_to([A, B]))
        assert other.fences.layout == one.fences.layout


async def test_two_layouts_of_one_version_are_not_taken_for_each_other() -> None:
    """Two fleets with the same prefix: neither raises the other one's fences."""
    section = shared_section()
    async with meta(section, A, B) as one, meta(section, A) as other:
        layout = await one.fences.open()
        await other.put(other.metadata, other.keys.layout, first_layout([A]).encode())
        with pytest.raises(StoreDamagedError, match="are two fleets using the same"):
            await other.fences.open()
        assert await one.fence_of(A) == fence(layout, A)


class Counting(EtcdCluster):
    """Counts transactions."""

    txns = 0

    async def txn(self, request: etcd_pb.TxnRequest, *, resend: bool = True) -> etcd_pb.TxnResponse:
        """As it is."""
        self.txns += 1
        return await super().txn(request, resend=resend)


async def test_of_many_that_are_refused_together_one_reads_the_layout() -> None:
    """A change of the layout under load must not become a load of its own."""
    section = shared_section()
    async with meta(section, A, kind=Counting) as one:
        layout = await one.fences.open()
        counting = one.batchers[A].cluster
        assert isinstance(counting, Counting)
        counting.txns = 0
        await asyncio.gather(*(one.fences.reload(layout) for _ in range(100)))
        assert counting.txns == 1
        await one.fences.reload(layout)
        assert counting.txns == 2
