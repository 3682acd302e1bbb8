"""The contract of every engine of the Meta Service."""

import asyncio

import pytest

from adapter.errors import RefusedError
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, SaveOutcome, Status, next_era, taken_up
from tests.contract.cases import CLUSTER, save
from tests.contract.engines import TRICKY, Opened, everything, standing, whole_group
from tests.unit.helpers import key, record, tombstone

A, B, C = key("a"), key("b"), key("c")


async def test_what_was_saved_is_there_for_all_kinds_of_reads(opened: Opened) -> None:
    """With every field."""
    saved = OffsetRecord(3, 2**64 - 1, live=True, committed_at_ms=5, metadata="m" * 4096, topic="t" * 255, partition=2**32 - 1)
    async with opened() as engine:
        assert await save(engine, (A, saved)) == [SaveOutcome(Status.APPLIED, saved)]
        assert await engine.get(CLUSTER, [A, B]) == [(A, saved)]
        assert await whole_group(engine, CLUSTER, "default", "g") == [(A, saved)]
        assert await everything(engine) == [(A, saved)]


async def test_an_empty_store_has_nothing(opened: Opened) -> None:
    """Reads return no record, and an empty save changes nothing."""
    async with opened() as engine:
        assert await engine.save(CLUSTER, []) == []
        assert await standing(engine, A) == [None]
        assert await whole_group(engine, CLUSTER, "default", "g") == []
        assert await everything(engine) == []
        await engine.delete(CLUSTER, "default", "g", [])
        await engine.delete(CLUSTER, "default", "g", ["a"])
        assert await everything(engine) == []


async def test_the_order_in_which_saves_arrive_does_not_matter(opened: Opened) -> None:
    """The same records in any order leave the largest of them (2)."""
    records = [record(9), record(3, 2), record(5, 2), tombstone(2), record(5, 2, metadata="m")]
    async with opened() as engine:
        for turn in range(len(records)):
            where = key(str(turn))
            for found in records[turn:] + records[:turn]:
                await save(engine, (where, found))
            assert await standing(engine, where) == [record(5, 2, metadata="m")]


async def test_two_concurrent_saves_of_one_key_end_with_the_larger(opened: Opened) -> None:
    """Neither decides on a record that the other one is replacing (2)."""
    async with opened() as engine:
        for turn in range(10):
            where = key(str(turn))
            # A long save and short ones: the long one lets others run in its middle.
            long = [(where, record(500)), *((key(f"{turn}-{at}"), record(at)) for at in range(1100)), (where, record(600))]
            outcomes = await asyncio.gather(save(engine, *long), *(save(engine, (where, record(at))) for at in (700, 550, 650)))
            assert await standing(engine, where) == [record(700)]
            assert all(outcome.status.acknowledged for found in outcomes for outcome in found)


async def test_concurrent_saves_each_hear_what_stood_after_them(opened: Opened) -> None:
    """Each reply has at least the caller's own value (3)."""
    async with opened() as engine:
        offsets = [(at * 37) % 100 for at in range(100)]
        outcomes = await asyncio.gather(*(save(engine, (A, record(offset))) for offset in offsets))
        for offset, (outcome,) in zip(offsets, outcomes, strict=True):
            assert outcome.standing is not None
            assert outcome.standing.offset >= offset
            assert (outcome.status is Status.APPLIED) == (outcome.standing.offset == offset)
        assert await standing(engine, A) == [record(99)]


async def test_of_concurrent_compare_and_sets_one_wins(opened: Opened) -> None:
    """The others get the record that stands."""
    async with opened() as engine:
        await save(engine, (A, record(1)))
        saves = [engine.save(CLUSTER, [SaveEntry(A, record(10 + at), expected_offset=1)]) for at in range(5)]
        outcomes = [found for (found,) in await asyncio.gather(*saves)]
        won = [found for found in outcomes if found.status is Status.APPLIED]
        assert len(won) == 1
        assert [found for found in outcomes if found.status is not Status.APPLIED] == [
            SaveOutcome(Status.CONFLICT, won[0].standing)
        ] * 4
        assert await standing(engine, A) == [won[0].standing]


async def test_a_delete_leaves_a_tombstone_that_late_saves_cannot_pass(opened: Opened) -> None:
    """Any offset, however large, in the epoch before the delete is superseded (7)."""
    async with opened() as engine:
        await save(engine, (A, record(5, 3)), (B, record(6)))
        await engine.delete(CLUSTER, "default", "g", ["a", "nowhere"])
        (dead,) = await standing(engine, A)
        assert dead is not None
        assert (dead.position, dead.live) == ((taken_up(next_era(3)), 0), False)
        assert dead.committed_at_ms > 0
        assert await save(engine, (A, record(2**64 - 1, 3))) == [SaveOutcome(Status.SUPERSEDED, dead)]
        assert await standing(engine, A, B, key("nowhere")) == [dead, record(6), None]


async def test_a_deleted_key_comes_back_in_the_epoch_of_its_tombstone(opened: Opened) -> None:
    """By a commit with the tombstone's epoch or an unknown one; also at offset 0."""
    async with opened() as engine:
        await save(engine, (A, record(5)), (B, record(5)))
        await engine.delete(CLUSTER, "default", "g", [])
        epoch = taken_up(next_era(1))
        await save(engine, (A, record(0, epoch)), (B, record(0, 0)))
        assert await standing(engine, A, B) == [record(0, epoch), record(0, epoch)]


async def test_a_second_delete_changes_nothing(opened: Opened) -> None:
    """A retry does not raise the epoch again."""
    async with opened() as engine:
        await save(engine, (A, record(5)))
        await engine.delete(CLUSTER, "default", "g", ["a"])
        before = await standing(engine, A)
        await engine.delete(CLUSTER, "default", "g", ["a"])
        await engine.delete(CLUSTER, "default", "g", [])
        assert await standing(engine, A) == before


async def test_a_delete_of_a_group_takes_all_of_it_and_nothing_else(opened: Opened) -> None:
    """Groups whose names begin alike, other namespaces and other clusters are not affected."""
    others = [key("a", "g/a"), key("a", "gg"), key("a", "g", "other")]
    async with opened() as engine:
        await save(engine, *((where, record(1)) for where in [A, B, *others]))
        await engine.save("other", [SaveEntry(A, record(1))])
        await engine.delete(CLUSTER, "default", "g", [])
        assert [found and found.live for found in await standing(engine, A, B, *others)] == [False, False, True, True, True]
        assert await engine.get("other", [A]) == [(A, record(1))]


async def test_a_delete_and_a_save_at_the_same_time_leave_one_of_both_whole(opened: Opened) -> None:
    """A save before the delete is covered by it, a later one is superseded; the delete is never undone (7)."""
    async with opened() as engine:
        for turn in range(20):
            where = key(str(turn))
            await save(engine, (where, record(5)))
            await asyncio.gather(save(engine, (where, record(6))), engine.delete(CLUSTER, "default", "g", [str(turn)]))
            (found,) = await standing(engine, where)
            assert found is not None
            assert (found.position, found.live) == ((taken_up(next_era(1)), 0), False)


async def test_a_delete_of_a_large_group_and_saves_at_the_same_time_leave_nothing_of_before(opened: Opened) -> None:
    """Each shard is deleted with what a save brought, or has its tombstone already (7)."""
    keys = [key(f"{at:04}") for at in range(1_200)]
    async with opened() as engine:
        await save(engine, *((where, record(5)) for where in keys))
        pieces = [keys[at : at + 100] for at in range(0, len(keys), 150)]
        saves = [save(engine, *((where, record(6)) for where in piece)) for piece in pieces]
        await asyncio.gather(*saves[::2], engine.delete(CLUSTER, "default", "g", []), *saves[1::2])
        found = await whole_group(engine, CLUSTER, "default", "g")
        assert [where for where, _ in found] == keys
        assert {(each.position, each.live) for _, each in found} == {((taken_up(next_era(1)), 0), False)}


async def test_a_delete_of_a_group_in_which_one_shard_has_no_epoch_left_changes_nothing(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is in the group: all are looked at first."""
    last = record(5, next_era(1))
    monkeypatch.setattr("adapter.model.records.EPOCH_MAX", last.epoch)
    keys = [key(f"{at:04}") for at in range(1_200)]
    async with opened() as engine:
        before = [*((where, record(5)) for where in keys[:-1]), (keys[-1], last)]
        await save(engine, *before)
        with pytest.raises(RefusedError, match=f"g/{keys[-1].shard}: stands in epoch {last.epoch}.*nothing was deleted"):
            await engine.delete(CLUSTER, "default", "g", [])
        assert await whole_group(engine, CLUSTER, "default", "g") == before


async def test_groups_with_tricky_names_are_kept_apart(opened: Opened) -> None:
    """Keys have no separator, so no name is a prefix of another."""
    keys = [OffsetKey(namespace, group, shard) for namespace in TRICKY[:6] for group in TRICKY for shard in ("a", "/a")]
    async with opened() as engine:
        await save(engine, *((where, record(at)) for at, where in enumerate(keys)))
        assert len(await everything(engine)) == len(keys)
        for namespace in TRICKY[:6]:
            assert [where.namespace for where, _ in await everything(engine, namespace)] == [namespace] * len(TRICKY) * 2
            for group in TRICKY:
                expected = {found: record(at) for at, found in enumerate(keys) if found[:2] == (namespace, group)}
                assert dict(await whole_group(engine, CLUSTER, namespace, group)) == expected
                assert dict(await everything(engine, namespace, group, size=1)) == expected


async def test_clusters_with_tricky_names_are_kept_apart(opened: Opened) -> None:
    """Two clusters may use one Meta Service."""
    async with opened() as engine:
        for at, cluster in enumerate(TRICKY):
            await engine.save(cluster, [SaveEntry(A, record(at))])
        for at, cluster in enumerate(TRICKY):
            assert await engine.get(cluster, [A]) == [(A, record(at))]
            assert (await engine.list_page(cluster, [], 10, b"")).entries == [(A, record(at))]


async def test_pages_cover_everything_once_in_key_order(opened: Opened) -> None:
    """With tombstones, whether or not the page size divides the number of rows."""
    keys = [key(f"s{shard}", f"g{group}", namespace) for namespace in ("m", "n") for group in range(3) for shard in range(4)]
    async with opened() as engine:
        await save(engine, *((where, record(at)) for at, where in enumerate(keys)))
        await engine.delete(CLUSTER, "m", "g1", ["s2"])
        for size in (1, 2, 3, 7, 24, 25, 1000):
            assert [where for where, _ in await everything(engine, size=size)] == keys
            assert [where for where, _ in await everything(engine, "n", size=size)] == keys[12:]
            assert [where for where, _ in await everything(engine, "m", "g1", size=size)] == keys[4:8]
            dead = [where for where, found in await everything(engine, size=size) if not found.live]
            assert dead == [key("s2", "g1", "m")]


async def test_a_hundred_lists_of_little_are_as_good_as_one(opened: Opened) -> None:
    """A listing keeps nothing in memory that grows with the number of listings."""
    async with opened() as engine:
        await save(engine, (A, record(1)), (B, record(2)))
        for _ in range(100):
            assert await everything(engine, size=10_000) == [(A, record(1)), (B, record(2))]


async def test_a_list_that_is_changed_while_it_is_paged_misses_nothing_that_stood(opened: Opened) -> None:
    """A key that exists before the first page and after the last is in exactly one of them."""
    keys = [key(f"s{at:02}") for at in range(10)]
    async with opened() as engine:
        await save(engine, *((where, record(1)) for where in keys[::2]))
        rows, after = [], b""
        for where in keys[1::2]:
            page = await engine.list_page(CLUSTER, [], 1, after)
            rows += [found for found, _ in page.entries]
            after = page.after
            await save(engine, (where, record(2)), (keys[0], record(3)))
        while after:
            page = await engine.list_page(CLUSTER, [], 1, after)
            rows += [found for found, _ in page.entries]
            after = page.after
        assert set(rows) >= set(keys[::2])
        assert len(rows) == len(set(rows))


async def test_what_was_acknowledged_is_there_after_an_open(opened: Opened) -> None:
    """Records and tombstones are unchanged."""
    async with opened() as engine:
        await save(engine, (A, record(5, 3, metadata="m")), (B, record(6)))
        await engine.delete(CLUSTER, "default", "g", ["b"])
        before = await everything(engine)
    async with opened() as engine:
        assert await everything(engine) == before
        assert (await save(engine, (A, record(9, 2))))[0].status is Status.SUPERSEDED
        await save(engine, (A, record(6, 3)))
    async with opened() as engine:
        assert await standing(engine, A) == [record(6, 3)]
