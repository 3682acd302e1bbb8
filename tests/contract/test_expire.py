"""Expiry of groups in every engine and the FakeMeta, and when an engine removes a tombstone."""

import asyncio
from pathlib import Path

import pytest

from adapter.errors import NotReadyError
from adapter.metaservice.engine import Engine, Expiry
from adapter.metaservice.rocksdb.engine import RocksDbEngine
from adapter.model.records import (
    FIRST_EPOCH,
    GroupKey,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    Status,
    deleted,
    expired,
    next_era,
    taken_up,
)
from adapter.testing.fake_meta import FakeMeta
from tests.contract.cases import CLUSTER, save
from tests.contract.engines import ENGINES, Opened, standing, whole_group
from tests.embedded_engine import opened as rocksdb
from tests.unit.helpers import key, record

A, B, C = key("a"), key("b"), key("c")
GROUP = GroupKey("default", "g")
BEFORE, NOW = 1_000, 5_000
OLD = record(5, 3, committed_at_ms=BEFORE - 1, metadata="m", topic="t", partition=2)
YOUNG = record(7, 2, committed_at_ms=BEFORE)
DEAD = OffsetRecord(3, 5, live=False, committed_at_ms=NOW, topic="t", partition=2)


@pytest.fixture(params=ENGINES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens the engine, as often as a test wants, over the same data."""
    return lambda: ENGINES[request.param](tmp_path)


async def expire(engine: Engine, before_ms: int = BEFORE, now_ms: int = NOW) -> Expiry:
    """Expire the group."""
    return await engine.expire(CLUSTER, *GROUP, before_ms, now_ms)


async def test_a_group_whose_commits_are_all_old_becomes_tombstones_where_it_stood(opened: Opened) -> None:
    """Epoch and offset stay; the time is the proposer's; metadata and labels are removed."""
    async with opened() as engine:
        await save(engine, (A, OLD), (B, record(0, committed_at_ms=0)))
        assert await expire(engine) == Expiry(2)
        assert await standing(engine, A, B, C) == [DEAD, OffsetRecord(1, 0, live=False, committed_at_ms=NOW), None]


async def test_one_young_commit_keeps_the_whole_group(opened: Opened) -> None:
    """The reply has the time of that commit. One at exactly `before_ms` is young enough."""
    async with opened() as engine:
        await save(engine, (A, OLD), (B, YOUNG))
        assert await expire(engine) == Expiry(0, BEFORE)
        assert await standing(engine, A, B) == [OLD, YOUNG]


async def test_an_unknown_group_expires_to_nothing(opened: Opened) -> None:
    """It gets no tombstone."""
    async with opened() as engine:
        assert await expire(engine) == Expiry(0)
        assert await whole_group(engine, CLUSTER, *GROUP) == []


async def test_tombstones_stay_as_they_are_and_keep_nothing_alive(opened: Opened) -> None:
    """Of a delete or an expiry, however young: a retry changes nothing."""
    gone, young = deleted(OLD, BEFORE - 1), expired(OLD, BEFORE + 1)
    async with opened() as engine:
        await save(engine, (A, gone), (B, young), (C, OLD))
        assert await expire(engine) == Expiry(1)
        assert await expire(engine, NOW, NOW + 1) == Expiry(0)
        assert await standing(engine, A, B, C) == [gone, young, DEAD]


async def test_an_expiry_takes_one_group_of_one_cluster(opened: Opened) -> None:
    """Groups whose names begin alike, other namespaces and other clusters are not affected."""
    others = [key("a", "g/a"), key("a", "gg"), key("a", "g", "other")]
    async with opened() as engine:
        await save(engine, *((where, OLD) for where in [A, *others]))
        await engine.save("other", [SaveEntry(A, OLD)])
        assert await expire(engine) == Expiry(1)
        assert await standing(engine, *others) == [OLD] * 3
        assert await engine.get("other", [A]) == [(A, OLD)]


LATE = [
    ("further, from before the expiry", record(6, 3, committed_at_ms=NOW - 1), Status.APPLIED, (3, 6)),
    ("where it stood, from before the expiry", record(5, 3, committed_at_ms=NOW - 1), Status.APPLIED, (3, 5)),
    ("less, from before the expiry", record(4, 3, committed_at_ms=NOW - 1), Status.SUPERSEDED, (3, 5)),
    ("more in an older epoch", record(9, 2, committed_at_ms=NOW + 1), Status.SUPERSEDED, (3, 5)),
    ("unknown epoch, further, from after the expiry", record(6, 0, committed_at_ms=NOW + 1), Status.APPLIED, (3, 6)),
    ("unknown epoch, less, from after the expiry", record(4, 0, committed_at_ms=NOW + 1), Status.APPLIED, (4, 4)),
    ("unknown epoch, less, from before the expiry", record(4, 0, committed_at_ms=NOW - 1), Status.SUPERSEDED, (3, 5)),
]


async def test_a_late_save_passes_an_expiry_where_it_would_have_passed_the_offset(opened: Opened) -> None:
    """Unlike a delete, an expiry never cancels a commit that was acknowledged before it (1, 2)."""
    keys = [key(name) for name, *_ in LATE]
    async with opened() as engine:
        await save(engine, *((where, OLD) for where in keys))
        await expire(engine)
        for where, (name, offered, status, stands) in zip(keys, LATE, strict=True):
            (outcome,) = await save(engine, (where, offered))
            assert outcome.standing is not None, name
            assert (outcome.status, outcome.standing.position) == (status, stands), name
            assert outcome.standing.live == (status is Status.APPLIED), name


async def test_a_delete_of_an_expired_group_holds_back_what_the_expiry_would_have_let_through(opened: Opened) -> None:
    """A delete covers everything that was committed before it (7)."""
    async with opened() as engine:
        await save(engine, (A, OLD))
        await expire(engine)
        await engine.delete(CLUSTER, *GROUP, [])
        (found,) = await standing(engine, A)
        assert found is not None
        assert (found.position, found.live) == ((taken_up(next_era(3)), 0), False)
        assert (await save(engine, (A, record(9, 3))))[0].status is Status.SUPERSEDED


@pytest.mark.parametrize("size", [1, 1_200])
async def test_an_expiry_and_saves_at_the_same_time_leave_the_group_whole_or_the_saves_above_it(
    opened: Opened, size: int
) -> None:
    """An earlier save prevents the expiry, a later one wins over the tombstones: it is never lost (1)."""
    names = [f"s{at}" for at in range(size)]
    async with opened() as engine:
        for turn in range(10):
            group = f"g{turn}"
            keys = [key(name, group) for name in names]
            await save(engine, *((where, OLD) for where in keys))
            young = record(6, 3, committed_at_ms=NOW - 1)
            saving = save(engine, (keys[0], young), *((key(f"n{at}", group), young) for at in range(600)))
            expiring = engine.expire(CLUSTER, "default", group, BEFORE, NOW)
            first, second = (saving, expiring) if turn % 2 else (expiring, saving)
            await asyncio.gather(first, second)
            found = dict(await whole_group(engine, CLUSTER, "default", group))
            assert len(found) == size + 600
            assert found[keys[0]] == young
            assert {found[where].live for where in keys[1:]} in (set(), {True}, {False})


async def test_an_expiry_that_was_acknowledged_is_there_after_an_open(opened: Opened) -> None:
    """It is synced like a save."""
    async with opened() as engine:
        await save(engine, (A, OLD))
        await expire(engine)
    async with opened() as engine:
        assert await standing(engine, A) == [DEAD]


async def test_old_tombstones_are_forgotten_and_young_ones_and_live_offsets_are_not(opened: Opened) -> None:
    """In every cluster, of a delete or an expiry; one at exactly `before_ms` is young."""
    async with opened() as engine:
        old, young = deleted(OLD, BEFORE - 1), expired(OLD, BEFORE)
        for cluster in (CLUSTER, "other"):
            await engine.save(cluster, [SaveEntry(A, old), SaveEntry(B, young), SaveEntry(C, OLD)])
        assert await engine.drop_tombstones(0) == 0
        assert await engine.drop_tombstones(BEFORE) == 2
        for cluster in (CLUSTER, "other"):
            assert dict(await engine.get(cluster, [A, B, C])) == {B: young, C: OLD}
        assert await engine.drop_tombstones(BEFORE) == 0


async def test_a_forgotten_key_begins_anew(opened: Opened) -> None:
    """In the first epoch, like a key that never existed."""
    async with opened() as engine:
        await save(engine, (A, deleted(OLD, 1)))
        await engine.drop_tombstones(BEFORE)
        (outcome,) = await save(engine, (A, record(2, 0)))
        assert outcome.standing == record(2, FIRST_EPOCH)


@pytest.mark.parametrize("count", [499, 500, 501, 1_250])
async def test_tombstones_are_forgotten_slice_by_slice(opened: Opened, count: int) -> None:
    """Also with live offsets between them, and if the last slice is full."""
    dead = [key(f"{at:05}d") for at in range(count)]
    live = [key(f"{at:05}l") for at in range(0, count, 7)]
    async with opened() as engine:
        await save(engine, *((where, deleted(OLD, 1)) for where in dead), *((where, OLD) for where in live))
        assert await engine.drop_tombstones(BEFORE) == count
        assert [where for where, _ in await whole_group(engine, CLUSTER, *GROUP)] == sorted(live)


async def test_a_save_over_a_tombstone_that_is_being_forgotten_stands(opened: Opened) -> None:
    """Each slice is checked again before it is written (1)."""
    keys = [key(f"{at:04}") for at in range(1_100)]
    async with opened() as engine:
        for offset in range(5):
            await save(engine, *((where, deleted(record(1, committed_at_ms=1), 1)) for where in keys))
            live = record(offset, taken_up(next_era(1)), committed_at_ms=NOW)
            saved = [(where, live) for where in keys[offset::5]]
            halves = saved[: len(saved) // 2], saved[len(saved) // 2 :]
            # The first save holds the lock when the tombstones are looked for.
            await asyncio.gather(save(engine, *halves[0]), engine.drop_tombstones(BEFORE), save(engine, *halves[1]))
            found = await standing(engine, *(where for where, _ in saved))
            assert found == [live] * len(saved)
            await engine.delete(CLUSTER, *GROUP, [])
            await engine.drop_tombstones(2**63)


async def test_what_was_forgotten_stays_so_after_an_open(opened: Opened) -> None:
    """The removal is synced."""
    async with opened() as engine:
        await save(engine, (A, deleted(OLD, 1)))
        await engine.drop_tombstones(BEFORE)
    async with opened() as engine:
        assert await standing(engine, A) == [None]


async def test_what_is_acknowledged_was_synced(tmp_path: Path) -> None:
    """In the embedded engine there is no reply before the sync, so no power cut can take it back."""
    async with rocksdb(tmp_path) as engine:
        await save(engine, (A, OLD), (B, deleted(OLD, 1)))
    engine = RocksDbEngine.open(tmp_path / "meta")
    try:
        syncing = asyncio.create_task(engine.run())
        await asyncio.sleep(0)
        syncing.cancel()
        await asyncio.wait([syncing])
        with pytest.raises(NotReadyError):
            await expire(engine)
        with pytest.raises(NotReadyError):
            await engine.drop_tombstones(BEFORE)
        with pytest.raises(NotReadyError):
            await engine.delete(CLUSTER, *GROUP, [])
    finally:
        engine.close()


@pytest.mark.parametrize("records", [{A: OLD}, {A: OLD, B: YOUNG}, {A: DEAD}, {A: OLD, B: DEAD}, {}, {key("a", "gg"): OLD}])
async def test_the_fake_expires_as_the_engine_does(opened: Opened, records: dict[OffsetKey, OffsetRecord]) -> None:
    """So the unit tests may rely on the fake."""
    meta = FakeMeta(records)
    async with opened() as engine:
        await save(engine, *records.items())
        assert (await expire(engine)).newest_ms == await meta.expire(GROUP, BEFORE, NOW)
        assert dict((await engine.list_page(CLUSTER, [], 100, b"")).entries) == meta.records
