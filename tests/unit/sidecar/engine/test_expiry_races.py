"""Events while a group expires: commits here and elsewhere, lost replies, kills, and consumers that return."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import FencedError, MetaUnavailableError
from adapter.model.records import Member, OffsetKey
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.expiry import Expiry
from adapter.sidecar.engine.groups import PAGE_KEYS, GroupRow
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.ledger.write_batch import Stored
from adapter.testing.sidecars import adapter_config, running_sidecar
from adapter.testing.waiting import eventually
from tests.unit.expiring import (
    GROUP,
    NOW_MS,
    OLD_MS,
    ExpiringMeta,
    committed,
    expiry_of,
    flushed,
    local,
    shards,
)
from tests.unit.helpers import core_over, doom, key

A, B, C = key("a"), key("b"), key("c")
LOST = MetaUnavailableError("the answer was lost by the test")


def everywhere(core: Core, meta: ExpiringMeta) -> tuple[set[OffsetKey], set[OffsetKey]]:
    """The live offsets, here and in the Meta Service."""
    return {found for found, stands in local(core).items() if stands.live}, set(meta.live())


def before_removal(expiry: Expiry, work: Callable[[], Awaitable[None]]) -> None:
    """Let this happen when the Meta Service has expired a group, and before its first page is read to be removed."""
    forget = expiry._forget

    async def late(row: GroupRow, before_ms: int) -> None:
        await work()
        await forget(row, before_ms)

    expiry._forget = late  # type: ignore[method-assign]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("shard", ["a", "b", "new"])
async def test_a_commit_while_its_group_expires_brings_all_of_it_back(tmp_path: Path, moment: str, shard: str) -> None:
    """For a commit to any shard, before or after the Meta Service decides (linkedin/kafka #488: a rebalance then)."""
    meta = ExpiringMeta()

    async def come_back() -> None:
        await committed(core, {key(shard): 9}, NOW_MS, Member(8, "new"))

    setattr(meta, moment, come_back)
    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "b", "c"]), member=Member(7, "old"))
        await expiry_of(core).sweep_once()
        await core.flusher.flush_once()
        expected = {**shards(["a", "b", "c"]), key(shard): 9}
        assert {found: stands.offset for found, stands in local(core).items()} == expected
        assert meta.live() == {found: (1, offset) for found, offset in expected.items()}
        assert core.ledger.store.member(GROUP) == Member(8, "new")
        with pytest.raises(FencedError):
            await committed(core, {A: 10}, NOW_MS, Member(7, "old"))


async def test_a_commit_and_its_flush_wait_until_the_proposal_is_answered(tmp_path: Path) -> None:
    """Only the flush waits; it could make the key clean before the sweep checks it. The commit itself returns at once."""
    meta = ExpiringMeta()
    flush: list[asyncio.Task[int]] = []

    async def commit_and_flush() -> None:
        await committed(core, {A: 9}, OLD_MS + 1)
        flush.append(asyncio.create_task(core.flusher.flush_once()))
        for _ in range(50):  # turns of the loop; a flush to this Meta Service takes about five
            await asyncio.sleep(0)
        assert len(meta.saves) == 1

    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "b"]))
        meta.after = commit_and_flush
        await expiry_of(core).sweep_once()
        await flush[0]
        await core.flusher.flush_once()
        assert everywhere(core, meta) == ({A, B}, {A, B})


async def test_a_commit_that_is_flushed_before_its_group_is_forgotten_brings_it_back(tmp_path: Path) -> None:
    """The key is clean again when the sweep checks it, but young; the generation stays too."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "b"]), member=Member(7))
        expiry = expiry_of(core)
        before_removal(expiry, lambda: flushed(core, {key("new"): 9}, NOW_MS, Member(8)))
        await expiry.sweep_once()
        await core.flusher.flush_once()
        assert everywhere(core, meta) == ({A, B, key("new")}, {A, B, key("new")})
        assert core.ledger.store.member(GROUP) == Member(8)


async def test_a_commit_that_reaches_the_store_together_with_the_removal_keeps_its_generation(tmp_path: Path) -> None:
    """Both are in one batch; the commit is for a new shard, so it touches no key of the removal."""
    meta = ExpiringMeta()
    coming: list[asyncio.Task[None]] = []
    removing = asyncio.Event()

    async def begun() -> None:
        removing.set()

    class LateStore(LocalStore):
        async def page(self, *args: Any, **kwargs: Any) -> list[Stored]:
            page = await super().page(*args, **kwargs)
            if removing.is_set() and not coming:
                coming.append(asyncio.create_task(committed(core, {key("new"): 9}, NOW_MS, Member(8))))
                await asyncio.sleep(0)
            return page

    async with core_over(tmp_path, meta, store=LateStore.open(tmp_path / "adapter", "interval")) as core:
        await flushed(core, shards(["a", "b"]), member=Member(7))
        expiry = expiry_of(core)
        before_removal(expiry, begun)
        await expiry.sweep_once()
        await coming[0]
        await core.flusher.flush_once()
        assert everywhere(core, meta) == ({A, B, key("new")}, {A, B, key("new")})
        assert core.ledger.store.member(GROUP) == Member(8)


async def test_a_commit_in_the_middle_of_a_large_group_ends_its_removal(tmp_path: Path) -> None:
    """The commit came after the expiry: keys that were not removed yet are put back, so the group is whole."""
    meta = ExpiringMeta()
    many = shards([f"{at:05}" for at in range(3 * PAGE_KEYS)])
    last = key(f"{3 * PAGE_KEYS - 1:05}")

    class BusyCache(LocalStore):
        pages = 0

        async def page(self, *args: Any, **kwargs: Any) -> list[Stored]:
            page = await super().page(*args, **kwargs)
            if meta.proposed and page and page[0].key == key(f"{PAGE_KEYS:05}"):
                self.pages += 1
                if self.pages == 2:  # the first look was whether the group is still quiet
                    await committed(core, {last: 9}, NOW_MS)
            return page

    store = BusyCache.open(tmp_path / "adapter", "interval")
    async with core_over(tmp_path, meta, store=store) as core:
        await flushed(core, many)
        await expiry_of(core).sweep_once()
        await core.flusher.flush_once()
        here, there = everywhere(core, meta)
        assert last in here
        assert here == there
        assert len(here) == PAGE_KEYS


async def test_a_commit_that_another_adapter_acknowledged_before_comes_through(tmp_path: Path) -> None:
    """The tombstone keeps epoch and position, so the commit wins (1). The next load here shows it."""
    meta = ExpiringMeta()
    async with core_over(tmp_path / "1", meta) as one, core_over(tmp_path / "2", meta) as two:
        await flushed(one, {A: 5})
        await two.loader.load(GROUP)
        await committed(two, {A: 6}, NOW_MS - 1)
        await expiry_of(one).sweep_once()
        assert meta.live() == {}
        await two.flusher.flush_once()
        assert meta.live() == {A: (1, 6)}
        await one.loader.load(GROUP)
        assert local(one)[A].position == local(two)[A].position == (1, 6)


async def test_the_same_offset_committed_elsewhere_before_the_expiry_comes_through(tmp_path: Path) -> None:
    """An idle consumer that commits the same offset again counts as any other."""
    meta = ExpiringMeta()
    async with core_over(tmp_path / "1", meta) as one, core_over(tmp_path / "2", meta) as two:
        await flushed(one, {A: 5})
        await two.loader.load(GROUP)
        await committed(two, {A: 5}, NOW_MS - 1)
        await expiry_of(one).sweep_once()
        await two.flusher.flush_once()
        assert meta.live() == {A: (1, 5)}


async def test_what_another_adapter_holds_of_an_expired_group_goes_with_its_own_sweep(tmp_path: Path) -> None:
    """Its copies are clean, so they are never sent to the Meta Service."""
    meta = ExpiringMeta()
    async with core_over(tmp_path / "1", meta) as one, core_over(tmp_path / "2", meta) as two:
        await flushed(one, shards(["a", "b"]))
        await two.loader.load(GROUP)
        await expiry_of(one).sweep_once()
        await two.flusher.flush_once()
        assert everywhere(two, meta) == ({A, B}, set())
        await expiry_of(two).sweep_once()
        assert everywhere(two, meta) == (set(), set())


@pytest.mark.parametrize("offset", [0, 4, 5, 6])
async def test_a_consumer_that_comes_back_may_commit_any_offset(tmp_path: Path, offset: int) -> None:
    """A lower offset gets a higher epoch than the tombstone, here and in the Meta Service."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        await expiry_of(core).sweep_once()
        await flushed(core, {A: offset}, NOW_MS + 1)
        expected = (1 + (offset < 5), offset)
        assert local(core)[A].position == expected
        assert meta.live() == {A: expected}


@pytest.mark.parametrize("offset", [0, 4, 5, 6])
async def test_a_consumer_may_come_back_while_the_meta_service_is_away(tmp_path: Path, offset: int) -> None:
    """Its epoch is unknown until the flush; the acknowledged offset wins (1)."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        await expiry_of(core).sweep_once()
        meta.down, meta.available = LOST, False
        await committed(core, {A: offset}, NOW_MS + 1)
        assert local(core)[A].position == (0, offset)
        meta.down = None
        await core.flusher.flush_once()
        expected = (1 + (offset < 5), offset)
        assert local(core)[A].position == expected
        assert meta.live() == {A: expected}


async def test_a_lost_answer_leaves_nothing_half(tmp_path: Path) -> None:
    """The expiry may have been done: the local offsets are put back, and the next sweep asks again."""
    meta = ExpiringMeta()

    async def lose() -> None:
        raise LOST

    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "b"]))
        meta.after = lose
        with pytest.raises(MetaUnavailableError):
            await expiry_of(core).sweep_once()
        assert everywhere(core, meta) == ({A, B}, set())
        meta.after = None
        await expiry_of(core).sweep_once()
        assert everywhere(core, meta) == ({A, B}, set())
        await core.flusher.flush_once()
        assert everywhere(core, meta) == ({A, B}, {A, B})
        await expiry_of(core).sweep_once()
        assert everywhere(core, meta) == (set(), set())


async def test_a_kill_between_both_stores_leaves_nothing_half(tmp_path: Path) -> None:
    """The recovery restores the whole group with its old time; the next sweep removes it (1)."""
    meta = ExpiringMeta()
    entered = asyncio.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "b", "c"]), member=Member(7))
        meta.after = hang
        sweep = asyncio.create_task(expiry_of(core).sweep_once())
        await entered.wait()
        sweep.cancel()
        with suppress(asyncio.CancelledError):
            await sweep
        doom(core.ledger.store)
    assert meta.live() == {}
    meta.after = None
    async with core_over(tmp_path, meta, recovered=False) as core:
        await core.recovery.run()
        assert everywhere(core, meta) == ({A, B, C}, {A, B, C})
        assert {stands.committed_at_ms for stands in meta.records.values()} == {OLD_MS}
        await expiry_of(core).sweep_once()
        assert everywhere(core, meta) == (set(), set())
        assert core.ledger.store.member(GROUP) is None


async def test_a_stop_leaves_a_sweep_where_it_is(tmp_path: Path) -> None:
    """The stop does not wait for the sweep; the state is that after a kill."""
    meta = ExpiringMeta()
    entered = asyncio.Event()

    async def hang() -> None:
        entered.set()
        await asyncio.Event().wait()

    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        meta.after = hang
        core.tasks.start_soon(expiry_of(core).sweep_once)
        await entered.wait()
    assert meta.live() == {}
    meta.after = None
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert {found: stands.position for found, stands in local(core).items()} == {A: (1, 5)}
        await core.recovery.run()
        assert everywhere(core, meta) == ({A}, {A})


async def test_a_degraded_adapter_expires_nothing_until_it_has_recovered(tmp_path: Path) -> None:
    """Before the recovery it does not know which keys are dirty, here a commit that a former process did not flush."""
    config = adapter_config(
        tmp_path, recovery={"timeout_ms": 0}, expiry={"interval_ms": 10}, flush={"interval_ms": 10, "backoff_max_ms": 20}
    )
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
    attempts: list[int] = []

    async def get(_: object) -> object:
        attempts.append(len(meta.proposed))
        raise LOST

    meta.get = get  # type: ignore[method-assign,assignment]
    async with running_sidecar(config, meta):
        await eventually(lambda: len(attempts) >= 5)
        assert set(attempts) == {0}
        assert set(meta.live()) == {A}
        del meta.get
        await eventually(lambda: meta.live() == {})


async def test_a_stale_adapter_may_take_a_consumer_back_after_the_expiry(tmp_path: Path) -> None:
    """It knew nothing of the expiry: what it acknowledged wins over the tombstone (1)."""
    meta = ExpiringMeta()
    async with core_over(tmp_path / "1", meta) as one, core_over(tmp_path / "2", meta) as two:
        await flushed(two, {A: 40})
        await one.loader.load(GROUP)
        await flushed(one, {A: 100})
        await expiry_of(one).sweep_once()
        await committed(two, {A: 50}, NOW_MS + 1)
        await two.flusher.flush_once()
        assert local(two)[A].position == (2, 50)
        assert meta.live() == {A: (2, 50)}
