"""Which groups were changed other than by commits, in every engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from adapter.metaservice import engine as rules
from adapter.metaservice.engine import Engine
from adapter.metaservice.etcd import change_notes as etcd_notes
from adapter.metaservice.rocksdb import change_notes as rocksdb_notes
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import GroupKey, OffsetKey, SaveEntry, StoreMark, next_era
from adapter.runtime.durable import rocks
from tests.contract.cases import CLUSTER
from tests.contract.engines import Opened, etcd
from tests.embedded_engine import opened as rocksdb
from tests.unit.helpers import record, tombstone

GROUPS = [GroupKey("default", f"g{number}") for number in range(4)]
ERA = next_era(1)


def of(group: GroupKey, shard: str = "a") -> OffsetKey:
    """A key of a group."""
    return OffsetKey(*group, shard)


async def place(engine: Engine) -> Sequence[StoreMark]:
    """The place behind all that was noted so far."""
    found = await engine.changed_groups(CLUSTER, ())
    assert found.gap  # what was before is not known
    assert not found.groups
    return found.places


async def told(engine: Engine, after: Sequence[StoreMark]) -> set[GroupKey]:
    """The groups that were noted behind a place."""
    found = await engine.changed_groups(CLUSTER, after)
    assert not found.gap
    assert not found.unanswered
    assert len(set(found.groups)) == len(found.groups)
    return set(found.groups)


async def save(engine: Engine, *entries: SaveEntry, tell: bool = False) -> None:
    """Save entries."""
    outcomes = await engine.save(CLUSTER, entries, tell=tell)
    assert all(outcome.status.acknowledged for outcome in outcomes)


async def stands(engine: Engine) -> Sequence[StoreMark]:
    """Every group has an offset; the place behind that."""
    await save(engine, *(SaveEntry(of(group), record(5, committed_at_ms=5)) for group in GROUPS))
    return await place(engine)


async def test_commits_and_rewinds_of_consumers_are_not_told(opened: Opened) -> None:
    """Whatever the rate of commits, nobody is asked to look at their groups."""
    async with opened() as engine:
        before = await stands(engine)
        await save(engine, SaveEntry(of(GROUPS[0]), record(9)), SaveEntry(of(GROUPS[1]), record(1, 2)))
        await engine.save_packed(CLUSTER, [encode_key(of(GROUPS[2]))], [encode_record(record(7))])
        await save(engine, SaveEntry(of(GROUPS[3], "new"), record(1)))
        assert await told(engine, before) == set()


async def test_a_delete_an_expiry_a_reset_and_what_is_saved_to_be_told_are(opened: Opened) -> None:
    """By whichever call. A later commit does not hide them, and from the new place on nothing is told again."""
    async with opened() as engine:
        before = await stands(engine)
        await engine.delete(CLUSTER, *GROUPS[0], [])
        assert await told(engine, before) == {GROUPS[0]}
        assert (await engine.expire(CLUSTER, *GROUPS[1], 10, 20)).expired
        assert await told(engine, before) == {*GROUPS[:2]}
        await save(engine, SaveEntry(of(GROUPS[2]), record(3, ERA)))
        await save(engine, SaveEntry(of(GROUPS[2]), record(4, ERA + 1)))
        after = await engine.changed_groups(CLUSTER, before)
        assert set(after.groups) == {*GROUPS[:3]}
        await save(engine, SaveEntry(of(GROUPS[3]), record(9)), tell=True)
        assert await told(engine, after.places) == {GROUPS[3]}
        assert await told(engine, before) == {*GROUPS}


async def test_packed_saves_tell_as_others_do(opened: Opened) -> None:
    """Of tombstones, of what is held, and of what a bulk writer imports."""
    async with opened() as engine:
        before = await stands(engine)
        rows = {of(GROUPS[0]): tombstone(ERA), of(GROUPS[1]): record(2, ERA), of(GROUPS[2]): record(8)}
        keys, records = [*map(encode_key, rows)], [*map(encode_record, rows.values())]
        await engine.save_packed(CLUSTER, keys, records)
        assert await told(engine, before) == {*GROUPS[:2]}
        await engine.merge(CLUSTER, [encode_key(of(GROUPS[3]))], [encode_record(record(9))], tell=True)
        assert await told(engine, before) == {*GROUPS[:2], GROUPS[3]}


async def test_a_group_that_is_changed_again_is_told_again(opened: Opened) -> None:
    """Once for each place."""
    async with opened() as engine:
        places = await stands(engine)
        for offset in range(3):
            await save(engine, SaveEntry(of(GROUPS[0]), record(offset, ERA + (offset << 32))))
            found = await engine.changed_groups(CLUSTER, places)
            assert list(found.groups) == [GROUPS[0]]
            places = found.places


async def test_many_groups_at_once_are_all_told(opened: Opened) -> None:
    """More than fit into a transaction of etcd."""
    async with opened() as engine:
        groups = [GroupKey("default", f"many{number}") for number in range(300)]
        await save(engine, *(SaveEntry(of(group, str(at)), record(5)) for group in groups for at in range(2)))
        before = await place(engine)
        await save(engine, *(SaveEntry(of(group, str(at)), record(1, ERA)) for group in groups for at in range(2)))
        assert await told(engine, before) == set(groups)


async def test_another_cluster_is_not_told(opened: Opened) -> None:
    """Names are those of a cluster."""
    async with opened() as engine:
        before = await stands(engine)
        await engine.save("other", [SaveEntry(of(GROUPS[0]), record(5))])
        await engine.delete("other", *GROUPS[0], [])
        assert await told(engine, before) == set()
        found = await engine.changed_groups("other", before)
        assert list(found.groups) == [GROUPS[0]]


async def test_a_place_outlives_a_restart(opened: Opened) -> None:
    """What was changed before and after it is told: there is no gap."""
    async with opened() as engine:
        before = await stands(engine)
        await engine.delete(CLUSTER, *GROUPS[0], [])
    async with opened() as engine:
        assert await told(engine, before) == {GROUPS[0]}
        await engine.delete(CLUSTER, *GROUPS[1], [])
    async with opened() as engine:
        assert await told(engine, before) == {*GROUPS[:2]}


async def test_a_place_of_another_store_is_a_gap(opened: Opened) -> None:
    """Also one that this store has not come to yet: it was restored from a copy."""
    async with opened() as engine:
        places = await stands(engine)
        await engine.delete(CLUSTER, *GROUPS[0], [])
        for other in (
            [mark._replace(store_id=b"another") for mark in places],
            [mark._replace(revision=mark.revision + 10**6) for mark in places],
            [mark._replace(name=f"{mark.name} of another") for mark in places],
        ):
            found = await engine.changed_groups(CLUSTER, other)
            assert found.gap
            assert await told(engine, found.places) == set()


class Bound(NamedTuple):
    """A few notes at most."""

    notes: int


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Bound:
    """A store keeps two notes."""
    for module in (rules, rocksdb_notes, etcd_notes):
        monkeypatch.setattr(module, "MAX_NOTES", 2)
    return Bound(2)


async def test_the_embedded_store_drops_the_oldest_notes(tmp_path: Path, bound: Bound) -> None:
    """Who is behind them learns of the gap; who is not, misses nothing. The same after a restart."""
    async with rocksdb(tmp_path) as engine:
        first = await stands(engine)
        await engine.delete(CLUSTER, *GROUPS[0], [])
        second = (await engine.changed_groups(CLUSTER, first)).places
        await engine.delete(CLUSTER, *GROUPS[1], [])
        third = (await engine.changed_groups(CLUSTER, second)).places
        await engine.delete(CLUSTER, *GROUPS[2], [])
        assert await told(engine, second) == {*GROUPS[1:3]}
        assert (await engine.changed_groups(CLUSTER, first)).gap
    async with rocksdb(tmp_path) as engine:
        assert await told(engine, third) == {GROUPS[2]}
        assert (await engine.changed_groups(CLUSTER, first)).gap
        rows = rocks.scan(engine._meta, rocksdb_notes.PREFIX, b"c0")
        assert len([*rows]) == bound.notes


async def test_a_save_with_more_groups_than_are_noted_is_told_all_the_same(tmp_path: Path, bound: Bound) -> None:
    """The next one makes room."""
    async with rocksdb(tmp_path) as engine:
        before = await stands(engine)
        await save(engine, *(SaveEntry(of(group), record(1, ERA)) for group in GROUPS))
        assert await told(engine, before) == {*GROUPS}
        await engine.delete(CLUSTER, *GROUPS[0], [])
        assert (await engine.changed_groups(CLUSTER, before)).gap
        assert len([*rocks.scan(engine._meta, rocksdb_notes.PREFIX, b"c0")]) == bound.notes


async def test_what_an_older_program_changed_in_between_is_a_gap(tmp_path: Path) -> None:
    """It notes nothing: it was started last, as the list of starts shows."""
    async with rocksdb(tmp_path) as engine:
        before = await stands(engine)
    async with rocksdb(tmp_path) as engine:
        former = engine._meta.get(b"\0notes")
    async with rocksdb(tmp_path) as engine:
        await save(engine, SaveEntry(of(GROUPS[0]), record(9)))
        engine._meta.put(b"\0notes", former)
    async with rocksdb(tmp_path) as engine:
        assert (await engine.changed_groups(CLUSTER, before)).gap
        after = await place(engine)
    async with rocksdb(tmp_path) as engine:
        assert await told(engine, after) == set()


async def test_etcd_drops_all_notes_when_there_are_too_many(tmp_path: Path, bound: Bound) -> None:
    """Nobody reads more of a Raft group than there may be; whoever is behind learns of the gap, once."""
    async with etcd(tmp_path) as engine:
        before = await stands(engine)
        groups = [GroupKey("default", f"many{number}") for number in range(6 * bound.notes)]  # in both Raft groups
        await save(engine, *(SaveEntry(of(group), record(1, ERA)) for group in groups))
        for kept in (2 * bound.notes, 0):
            found = await engine.changed_groups(CLUSTER, before)
            assert (found.gap, len(found.groups)) == (True, kept)
        await engine.delete(CLUSTER, *GROUPS[0], [])
        assert await told(engine, found.places) == {GROUPS[0]}


async def test_a_change_through_another_process_on_etcd_is_told(tmp_path: Path) -> None:
    """Processes have no state of their own, and places are those of the Raft groups."""
    async with etcd(tmp_path) as one, etcd(tmp_path) as other:
        before = await stands(one)
        await other.delete(CLUSTER, *GROUPS[0], [])
        assert await told(one, before) == {GROUPS[0]}
        assert await told(other, before) == {GROUPS[0]}
