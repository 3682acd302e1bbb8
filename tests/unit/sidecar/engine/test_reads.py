"""Reads: where each mode looks, what an absent offset means, and what a commit learns from the load of its group."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from adapter.errors import MetaUnavailableError, TimedOutError
from adapter.meta.client import GroupsPage
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import CommitMode, GroupKey, OffsetKey, OffsetRecord, ReadMode
from adapter.runtime.durable.watermark import Watermark
from adapter.sidecar.api.listing import listed_row
from adapter.sidecar.engine import group_loader, reads
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import LOAD_GROUPS, GroupLoader, Wanted
from adapter.sidecar.ledger.operations import Columns, Commit, Reconcile
from adapter.sidecar.ledger.recovered import Recovered
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.unit.helpers import commit, commit_of, core_over, crash, forget_loads, key, record, send, tombstone, watched

R = TypeVar("R")

A, B, C = key("a"), key("b"), key("c")
GROUP = A.group_key
FIRST, MEMORY, STORE = ReadMode.MEMORY_FIRST_THEN_STORE, ReadMode.MEMORY, ReadMode.STORE
DOWN = MetaUnavailableError("down by the test")


class AskedMeta(FakeMeta):
    """A FakeMeta that records the groups and keys of each call, and may time out."""

    def __init__(self, records: dict[OffsetKey, OffsetRecord] | None = None) -> None:
        super().__init__(records)
        self.asked: list[list[GroupKey] | list[OffsetKey]] = []
        self.slow: list[bool] = []  # whether the next calls time out
        self.gate: asyncio.Event | None = None

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """Record the keys, then return their records."""
        if keys:
            self.asked.append(list(keys))
        return await super().get(keys, patient=patient)

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """Record the groups, then time out or return a page once the gate is open."""
        self.asked.append(list(groups))
        if self.slow and self.slow.pop(0):
            raise TimedOutError("slow by the test")
        found = await super().groups_page(groups, after, patient=patient)
        if self.gate:
            await self.gate.wait()
        return found


async def read(core: Core, mode: ReadMode, *shards: str, group: GroupKey = GROUP) -> dict[str, int]:
    """The offsets that a read returns, by shard."""
    return {found.shard: standing.offset for found, standing in await core.reader.read([Wanted(group, shards)], mode)}


def loader_of(core: Core) -> GroupLoader:
    """The loader of the reader."""
    return core.reader._loader


class Late(FakeMeta):
    """A Meta Service without epochs. While its answers are on their way, something happens."""

    def __init__(self, records: dict[OffsetKey, OffsetRecord]) -> None:
        super().__init__(records)
        self.kind = OFFSETS_ONLY
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """What stands before."""
        return await self._late(await super().get(keys, patient=patient))

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """What stands before."""
        return await self._late(await super().groups_page(groups, after, patient=patient))

    async def _late(self, answer: R) -> R:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            await meanwhile()
            self.meanwhile = meanwhile
        return answer


async def recovered(core: Core) -> Core:
    """A core whose recovery is complete."""
    await core.recovery.run()
    return core


async def test_memory_looks_only_here(tmp_path: Path) -> None:
    """A key that is absent here is left out, whatever the Meta Service holds."""
    meta = AskedMeta({A: record(9), B: record(9)})
    async with core_over(tmp_path, meta, knows="g") as core:
        await core.ledger.submit(commit_of({A: 5}))
        assert await read(core, MEMORY, "a", "b") == {"a": 5}
        assert await read(core, MEMORY) == {"a": 5}
        assert meta.asked == []


async def test_store_asks_the_meta_service_and_gives_the_larger_value(tmp_path: Path) -> None:
    """A larger value there is adopted; a larger local value is returned (2)."""
    meta = AskedMeta({A: record(9), B: record(9), C: record(1, 2)})
    async with core_over(tmp_path, meta, knows="g") as core:
        await recovered(core)
        await core.ledger.submit(commit_of({A: 5, B: 11, C: 5}))
        assert await read(core, STORE, "a", "b", "c") == {"a": 9, "b": 11, "c": 1}
        assert [core.ledger.store.get(found) for found in (A, B, C)] == [record(9), record(11), record(1, 2)]
        assert [found in core.ledger.dirty for found in (A, B, C)] == [False, True, False]
        meta.records[A] = record(10)
        assert await read(core, STORE) == {"a": 10, "b": 11, "c": 1}
        assert meta.asked == [[A, B, C], [GROUP]]


async def test_memory_first_asks_only_for_what_is_not_here(tmp_path: Path) -> None:
    """No call if all is here; else the request names the missing shards only."""
    meta = AskedMeta({A: record(9), B: record(9)})
    async with core_over(tmp_path, meta, knows="g") as core:
        await recovered(core)
        await core.ledger.submit(commit_of({A: 5}))
        forget_loads(core)
        assert await read(core, FIRST, "a") == {"a": 5}
        assert meta.asked == []
        assert await read(core, FIRST, "a", "b") == {"a": 9, "b": 9}
        assert meta.asked == [[A, B]]


async def test_memory_first_of_a_whole_group_asks_once(tmp_path: Path) -> None:
    """The Meta Service may have shards that are not here."""
    meta = AskedMeta({A: record(9), B: record(9)})
    async with core_over(tmp_path, meta) as core:
        await recovered(core)
        assert await read(core, FIRST) == {"a": 9, "b": 9}
        assert await read(core, FIRST) == {"a": 9, "b": 9}
        assert meta.asked == [[GROUP]]


@pytest.mark.parametrize("mode", ReadMode)
async def test_absent_is_absent_and_never_0(tmp_path: Path, mode: ReadMode) -> None:
    """A consumer that reads 0 would start all over again; a stored 0 is returned."""
    async with core_over(tmp_path, AskedMeta({B: record(0)})) as core:
        await recovered(core)
        await commit(core, 0, "a")
        assert await read(core, mode, "a", "b", "nowhere") == {"a": 0, "b": 0}
        assert await read(core, mode, group=GroupKey("default", "nobody")) == {}


@pytest.mark.parametrize("mode", ReadMode)
async def test_a_tombstone_is_absent(tmp_path: Path, mode: ReadMode) -> None:
    """The key has a record, but no offset."""
    async with core_over(tmp_path, AskedMeta({A: tombstone(2)})) as core:
        await recovered(core)
        await core.ledger.submit(Reconcile([(B, tombstone(4))]))
        assert await read(core, mode, "a", "b") == {}
        assert await read(core, mode) == {}


async def test_offsets_come_in_the_order_asked_for(tmp_path: Path) -> None:
    """Group by group, shard by shard."""
    async with core_over(tmp_path, FakeMeta(), knows="gh") as core:
        await core.ledger.submit(commit_of({A: 1, B: 2, key("x", "h"): 3}))
        wanted = [Wanted(GroupKey("default", "h"), ()), Wanted(GROUP, ["b", "a"])]
        assert [found.shard for found, _ in await core.reader.read(wanted, MEMORY)] == ["x", "b", "a"]


@pytest.mark.parametrize("mode", [STORE, FIRST])
async def test_with_the_meta_service_down_unknown_is_an_error(tmp_path: Path, mode: ReadMode) -> None:
    """The reply is neither absent nor an old value."""
    meta = AskedMeta()
    async with core_over(tmp_path, meta) as core:
        await recovered(core)
        meta.down = DOWN
        with pytest.raises(MetaUnavailableError):
            await read(core, mode, "a")
        with pytest.raises(MetaUnavailableError):
            await read(core, mode)
        meta.down = None
        assert await read(core, mode, "a") == {}


async def test_before_the_recovery_a_read_has_its_own_group_compared(tmp_path: Path) -> None:
    """Not what is here, which may be less than another adapter has saved; and a read of MEMORY says so (9)."""
    meta = AskedMeta({A: record(9), B: record(9)})
    async with core_over(tmp_path, meta, recovered=False, knows="g") as core:
        await core.ledger.submit(commit_of({A: 5, B: 5, C: 5}))
        forget_loads(core)
        assert await read(core, MEMORY, "a", "b") == {"a": 5, "b": 5}
        assert listed_row(core, A, record(5)).uncompared
        assert await read(core, FIRST, "a") == {"a": 9}
        assert await read(core, STORE, "b", "c") == {"b": 9, "c": 5}
        assert await read(core, STORE) == {"a": 9, "b": 9, "c": 5}
        meta.asked.clear()
        assert await read(core, FIRST, "a", "c") == {"a": 9, "c": 5}
        assert not listed_row(core, A, record(9)).uncompared
        assert meta.asked == []


def test_a_group_is_compared_when_the_recovery_has_come_past_it() -> None:
    """Not while it is at one of its shards, and none behind it (9)."""
    groups = [GroupKey("default", name) for name in ("g", "h", "i")]
    compared = Recovered()
    assert not any(map(compared.has, groups))
    compared.advance(B)
    assert not any(map(compared.has, groups))
    compared.advance(key("a", group="h"))
    assert [compared.has(group) for group in groups] == [True, False, False]
    compared.finish()
    assert all(map(compared.has, groups))
    compared.begin_again()  # the Meta Service has lost something: what was compared before does not count
    assert not any(map(compared.has, groups))


async def test_a_group_that_cannot_be_compared_is_refused_alone(tmp_path: Path) -> None:
    """With what else may be done. Degraded, only what needs the Meta Service is refused (9)."""
    meta = AskedMeta({A: record(9)})
    async with core_over(tmp_path, meta, recovered=False, knows="g") as core:
        await core.ledger.submit(commit_of({B: 5}))
        forget_loads(core)
        meta.down = MetaUnavailableError("gone")
        refused = [(STORE, ["b"]), (FIRST, ["a"]), (FIRST, []), (FIRST, ["b"])]
        for mode, shards in refused:
            with pytest.raises(MetaUnavailableError, match=r"default/g: not compared .* MEMORY reads work .*: gone"):
                await read(core, mode, *shards)
        core.ledger.recovered.degrade()
        for mode, shards in refused[:-1]:
            with pytest.raises(MetaUnavailableError, match="MEMORY reads work"):
                await read(core, mode, *shards)
        assert await read(core, FIRST, "b") == {"b": 5}
        assert await read(core, MEMORY, "a", "b") == {"b": 5}
        core.ledger.recovered.finish()
        core.ledger.recovered.begin_again()  # what is compared once more was compared since the start
        with pytest.raises(MetaUnavailableError, match=r"^gone"):
            await read(core, STORE, "b")


async def test_after_a_loss_even_memory_asks_for_what_is_not_here(tmp_path: Path) -> None:
    """A key may be absent because it was lost (1)."""
    store = watched(tmp_path)
    store.write({A: record(5)})
    crash(store)
    mark = Watermark.open(tmp_path / "adapter" / "watermark")
    mark.advance(3)
    mark.close()
    meta = AskedMeta({A: record(5), B: record(7)})
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert core.ledger.store.loss is not None
        meta.down = MetaUnavailableError("gone")
        with pytest.raises(MetaUnavailableError):
            await read(core, MEMORY, "b")
        meta.down = None
        await recovered(core)
        meta.asked.clear()
        assert await read(core, MEMORY, "a") == {"a": 5}
        assert meta.asked == []
        assert await read(core, MEMORY, "b", "c") == {"b": 7}
        assert await read(core, MEMORY) == {"a": 5, "b": 7}


async def test_the_first_commit_of_a_key_learns_its_epoch(tmp_path: Path) -> None:
    """The group is loaded once: larger values there win; keys absent there begin in the first epoch."""
    meta = AskedMeta({A: record(5, 4), B: record(9, 4)})
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({A: 6, B: 6, C: 6}))
        await commit(core, 6, "d")
        assert [core.ledger.store.get(found) for found in (A, B, C, key("d"))] == [
            record(6, 4),
            record(9, 4),
            record(6),
            record(6),
        ]
        assert meta.asked == [[GROUP]]
        assert [found in core.ledger.dirty for found in (A, B, C)] == [True, False, True]


async def test_a_commit_of_a_local_key_asks_nobody(tmp_path: Path) -> None:
    """Its epoch is known."""
    meta = AskedMeta()
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(Reconcile([(A, record(5, 4))]))
        await commit(core, 6, "a")
        assert core.ledger.store.get(A) == record(6, 4)
        assert meta.asked == []


async def test_with_the_meta_service_down_a_new_key_goes_in_with_epoch_0_at_once(tmp_path: Path) -> None:
    """Only the first commit waits for the failure; the next ones do not wait until a call succeeds again (4)."""
    meta = AskedMeta({B: record(3, 7)})
    meta.down = DOWN
    async with core_over(tmp_path, meta) as core:
        for at in range(10):
            await send(core, commit_of({key("s", f"g{at}"): 5, key("t", f"h{at}"): 5}))
        assert len(meta.asked) == 1
        assert core.ledger.store.get(key("s", "g3")) == record(5, 0)
        meta.down = None
        await core.flusher.flush_once()
        assert core.ledger.store.get(key("s", "g3")) == record(5, 1)
        await commit(core, 5, "b")
        assert core.ledger.store.get(B) == record(5, 7)


async def test_concurrent_loads_share_calls(tmp_path: Path) -> None:
    """First commits after a restart need few calls, and a group that two callers want is asked for once."""
    meta = AskedMeta({key("s", f"g{at}"): record(at, 2) for at in range(100)})
    async with core_over(tmp_path, meta) as core:
        loader = loader_of(core)
        groups = [GroupKey("default", f"g{at % 100}") for at in range(200)]
        await asyncio.gather(*(loader.load(group) for group in groups))
        assert [len(call) for call in meta.asked] == [100]
        assert LOAD_GROUPS >= 200
        assert core.ledger.store.get(key("s", "g7")) == record(7, 2)
        assert all(loader.is_loaded(group) for group in groups)


async def test_a_load_that_fails_does_not_count(tmp_path: Path) -> None:
    """Which keys are absent is still unknown, so the next commit asks again."""
    meta = AskedMeta({A: record(5, 4)})
    async with core_over(tmp_path, meta) as core:
        meta.down = DOWN
        with pytest.raises(MetaUnavailableError):
            await loader_of(core).load(GROUP)
        assert not loader_of(core).is_loaded(GROUP)
        meta.down, meta.available = None, True
        await commit(core, 6, "a")
        assert core.ledger.store.get(A) == record(6, 4)


async def test_a_load_that_meets_a_removal_fetches_again(tmp_path: Path) -> None:
    """What was fetched before the removal may be older than what was flushed; it must not be stored again (2)."""
    meta = AskedMeta({A: record(5, 4)})
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(Reconcile([(A, record(5, 4))]))
        meta.gate = asyncio.Event()
        load = asyncio.create_task(loader_of(core).load(GROUP))
        await eventually(lambda: len(meta.asked) == 1)
        await commit(core, 8, "a")
        assert await core.handover.remove([Wanted(GROUP, ["a"])]) == 1
        meta.gate.set()
        await load
        assert len(meta.asked) == 2
        assert core.ledger.store.get(A) == record(8, 4)


def of_large(count: int = 7) -> dict[OffsetKey, OffsetRecord]:
    """A record of a large group, in epoch 4."""
    return {key(f"s{at}"): record(5, 4) for at in range(count)}


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make groups of more than three shards count as large."""
    monkeypatch.setattr(group_loader, "LOAD_ROWS", 3)


@pytest.mark.parametrize("mode", [STORE, FIRST])
@pytest.mark.parametrize("begins", [True, False])
async def test_what_is_removed_behind_the_load_of_a_read_is_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: ReadMode, begins: bool
) -> None:
    """A hand-over ends when the read has loaded the group, and has not answered yet: the Meta Service has the offset."""
    meta = AskedMeta({A: record(5), B: record(7)})
    async with core_over(tmp_path, meta) as core:
        load = loader_of(core).load_wanted
        loads = []

        async def removed(wanted: Sequence[Wanted]) -> None:
            await load(wanted)
            loads.append(wanted)
            if len(loads) == 1:
                await core.handover.remove([Wanted(GROUP, [])])

        monkeypatch.setattr(loader_of(core), "load_wanted", removed)
        if begins:
            await core.reader.begin([Wanted(GROUP, [])], mode)
            assert (core.ledger.store.get(A), core.ledger.store.get(B)) == (record(5), record(7))
        else:
            assert await read(core, mode) == {"a": 5, "b": 7}
        assert len(loads) == 2


@pytest.mark.usefixtures("small_pages")
async def test_of_a_large_group_a_commit_loads_only_its_keys(tmp_path: Path) -> None:
    """The epochs of these keys become known, also of absent ones; the group does not count as loaded."""
    meta = AskedMeta(of_large())
    meta.page_rows = 3
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({key("s6"): 6, key("new"): 1}))
        assert (core.ledger.store.get(key("s6")), core.ledger.store.get(key("new"))) == (record(6, 4), record(1, 1))
        assert meta.asked == [[GROUP], [key("s6"), key("new")]]
        assert not loader_of(core).is_loaded(GROUP)
        meta.asked.clear()
        await send(core, commit_of({key("s5"): 6, key("newer"): 1}))
        assert (core.ledger.store.get(key("s5")), core.ledger.store.get(key("newer"))) == (record(6, 4), record(1, 1))
        assert meta.asked == [[key("s5"), key("newer")]]
        await send(core, commit_of({key("newer"): 0}, overwrite=True))
        assert core.ledger.store.get(key("newer")) == record(0, 2)


@pytest.mark.usefixtures("small_pages")
async def test_a_key_that_was_removed_is_not_taken_for_absent(tmp_path: Path) -> None:
    """It was absent once, then committed, flushed and handed over: now it may be in any epoch (1)."""
    meta = AskedMeta(of_large())
    meta.page_rows = 3
    async with core_over(tmp_path, meta) as core:
        for _ in range(2):
            await loader_of(core).load_wanted([Wanted(GROUP, ["new"])])
            await commit(core, 1, "new")
            assert await core.handover.remove([Wanted(GROUP, ["new"])]) == 1
            meta.records[key("new")] = record(9, 7)
            await commit(core, 1, "new")
            assert core.ledger.store.get(key("new")) == record(9, 7)


async def test_a_key_that_took_the_fast_path_and_was_removed_is_not_taken_for_absent(tmp_path: Path) -> None:
    """As before, but it was committed in a column of a group that had been loaded since (1)."""
    meta = AskedMeta(of_large())
    async with core_over(tmp_path, meta) as core:
        await loader_of(core).load_wanted([Wanted(GROUP, ["new"])])
        await loader_of(core).load(GROUP)
        await send(core, Commit((), CommitMode.INCREASE_ONLY, columns=[Columns(GROUP, ["new"], [1], [], 1)]))
        assert core.ledger.store.get(key("new")) == record(1, committed_at_ms=1)
        assert await core.handover.remove([Wanted(GROUP, ["new"])]) == 1
        meta.records[key("new")] = record(9, 7)
        await commit(core, 1, "new")
        assert core.ledger.store.get(key("new")) == record(9, 7)


@pytest.mark.usefixtures("small_pages")
async def test_a_whole_large_group_is_read_in_pages_and_is_loaded_behind_the_last(tmp_path: Path) -> None:
    """Only then is it known which keys are absent."""
    meta = AskedMeta(of_large(10))
    meta.page_rows = 3
    async with core_over(tmp_path, meta) as core:
        await recovered(core)
        meta.gate = asyncio.Event()
        meta.gate.set()
        assert await read(core, STORE) == {f"s{at}": 5 for at in range(10)}
        assert loader_of(core).is_loaded(GROUP)
        meta.asked.clear()
        await commit(core, 1, "new")
        assert core.ledger.store.get(key("new")) == record(1, 1)
        assert meta.asked == []


async def test_a_group_is_not_loaded_before_its_last_page(tmp_path: Path) -> None:
    """A commit of a key on a later page must not begin in the first epoch (1)."""
    meta = AskedMeta(of_large(9))
    meta.page_rows = 3
    async with core_over(tmp_path, meta) as core:
        meta.slow = [False, False, True, True, True, True]
        with pytest.raises(TimedOutError):
            await loader_of(core).load_patiently(Wanted(GROUP, ()))
        assert not loader_of(core).is_loaded(GROUP)
        meta.slow = [True]
        await commit(core, 1, "s8")
        assert core.ledger.store.get(key("s8")) == record(1, 0)
        meta.asked.clear()
        # What took too long as a whole is asked for by its keys from now on.
        await commit(core, 6, "s7")
        assert core.ledger.store.get(key("s7")) == record(6, 4)
        assert meta.asked == [[key("s7")]]


async def test_a_page_in_the_middle_that_takes_too_long_is_asked_for_again(tmp_path: Path) -> None:
    """Earlier pages are not read again. A first page that takes too long is an error: there may be no server."""
    meta = AskedMeta(of_large(8))
    meta.page_rows = 3
    async with core_over(tmp_path, meta) as core:
        meta.slow = [False, True, True, False, False, False]
        await loader_of(core).load_patiently(Wanted(GROUP, ()))
        assert loader_of(core).is_loaded(GROUP)
        assert len(meta.asked) == 5
        meta.slow = [True]
        with pytest.raises(TimedOutError):
            await loader_of(core).load_patiently(Wanted(GROUP, ()))


async def test_a_removal_between_two_pages_lets_the_group_be_loaded_again(tmp_path: Path) -> None:
    """The whole group is read again, so nothing of it is missing; removals in other groups have no effect."""
    meta = AskedMeta(of_large(5))
    meta.page_rows = 3
    async with core_over(tmp_path, meta, knows="h") as core:
        await core.ledger.submit(Reconcile([(key("s0"), record(5, 4)), (key("x", "h"), record(1))]))
        meta.records[key("x", "h")] = record(1)
        for wanted, calls in ((Wanted(GROUP, ["s0"]), 3), (Wanted(GroupKey("default", "h"), ["x"]), 2)):
            meta.asked.clear()
            meta.gate = asyncio.Event()
            load = asyncio.create_task(loader_of(core).load_patiently(Wanted(GROUP, ())))
            await eventually(lambda: len(meta.asked) == 1)
            await core.handover.remove([wanted])
            meta.gate.set()
            await load
            assert len(meta.asked) == calls
            assert loader_of(core).is_loaded(GROUP)
            assert len(await read(core, MEMORY)) == 5


async def test_reads_of_many_named_shards_share_a_call(tmp_path: Path) -> None:
    """As when consumers start at the same time, each with its own shards."""
    meta = AskedMeta(of_large(30))
    async with core_over(tmp_path, meta) as core:
        await recovered(core)
        found = await asyncio.gather(*(read(core, STORE, f"s{at}", f"none{at}") for at in range(30)))
        assert found == [{f"s{at}": 5} for at in range(30)]
        assert len(meta.asked) <= 2
        assert sorted(name.shard for call in meta.asked for name in call if isinstance(name, OffsetKey)) == sorted(
            [f"s{at}" for at in range(30)] + [f"none{at}" for at in range(30)]
        )


async def test_a_commit_of_many_new_groups_asks_for_them_together(tmp_path: Path) -> None:
    """A call for each would take longer than its consumer waits."""
    meta = AskedMeta()
    async with core_over(tmp_path, meta) as core:
        many = [OffsetKey("default", f"g{number}", "s") for number in range(LOAD_GROUPS)]
        await loader_of(core).load_for(commit_of(dict.fromkeys(many, 1)))
        assert len(meta.asked) <= 3
        assert all(loader_of(core).is_loaded(one.group_key) for one in many)


async def test_after_a_load_that_failed_no_other_is_begun_for_a_commit(tmp_path: Path) -> None:
    """Its keys go in with an unknown epoch; the consumer does not wait for one failure after the other."""
    meta = AskedMeta()
    meta.down = DOWN
    async with core_over(tmp_path, meta) as core:
        many = [OffsetKey("default", f"g{number}", "s") for number in range(10 * LOAD_GROUPS)]
        await loader_of(core).load_for(commit_of(dict.fromkeys(many, 1)))
        assert len(meta.asked) < 10
        assert not any(loader_of(core).is_loaded(one.group_key) for one in many)


@pytest.mark.parametrize("shards", [("a", "b"), ("b",), ()])
async def test_a_group_whose_consumer_goes_back_all_the_time_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: tuple[str, ...]
) -> None:
    """Before a server without epochs each answer is of before a rewind: it stands, and the other shards are loaded."""
    monkeypatch.setattr(group_loader, "LARGE_LIMIT_S", 0.1)
    monkeypatch.setattr(reads, "LARGE_LIMIT_S", 0.1)
    meta = Late({A: record(100, 0), B: record(7, 0)})
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(Reconcile([(A, record(100))]))
        below = count(99, -1)

        async def goes_back() -> None:
            await send(core, commit_of({A: next(below)}, overwrite=True))

        meta.meanwhile = goes_back
        found = await read(core, STORE, *shards)
        assert found == {shard: {"a": next(below) + 1, "b": 7}[shard] for shard in shards or ("a", "b")}


async def test_a_rewind_stands_that_is_flushed_while_what_stood_before_is_on_its_way(tmp_path: Path) -> None:
    """Before a server without epochs the late answer, of before the flush, looks like progress behind the rewind (8)."""
    meta = Late({A: record(100, 0), B: record(7, 0)})
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(Reconcile([(A, record(100))]))
        await core.flusher.flush_once()
        await send(core, commit_of({A: 50}, overwrite=True))
        meta.meanwhile = core.flusher.flush_once
        assert await read(core, STORE, "a", "b") == {"a": 50, "b": 7}
        assert (core.ledger.store.get(A), meta.records[A].offset) == (record(50, 2), 50)
