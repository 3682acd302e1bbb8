"""Resets, deletes, clones and imports over a real store and a Meta Service in memory: their steps, and each failure (7)."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from adapter.errors import ContendedError, InvalidInputError, MetaUnavailableError, RefusedError
from adapter.meta.client import GroupsPage
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import (
    ERA_BITS,
    CommitMode,
    GroupKey,
    Member,
    OffsetKey,
    OffsetRecord,
    ReadMode,
    SaveEntry,
    Status,
    is_deleted,
)
from adapter.sidecar.engine import reset_writer
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.operations import Commit
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import applied_then, commit, commit_of, core_over, during, key, record, refusing, send

G = GroupKey("default", "g")
ALL = Wanted(G, ())
A, B = key("a"), key("b")
ERA = 1 << ERA_BITS
DOWN = MetaUnavailableError("down by the test")
TO_2 = Reset(To.OFFSET, 2)


async def _moved(core: Core, shard: str = "a") -> tuple[int, int] | None:
    """The stored record of the key."""
    standing = core.ledger.store.get(key(shard))
    return standing.position if standing else None


async def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """It returns the plan, and changes neither store."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        outcome = await core.resets.reset(ALL, TO_2, execute=False)
        assert not outcome.executed
        assert [(change.before, change.after and change.after.offset) for change in outcome.changes] == [(record(9), 2)]
        await core.resets.delete(ALL, execute=False)
        await core.resets.clone(ALL, GroupKey("default", "h"), execute=False)
        assert meta.records == {A: record(9)}
        assert not meta.saves
        assert await _moved(core) == (1, 9)


async def test_a_reset_is_there_and_here_and_clean(tmp_path: Path) -> None:
    """Both stores have the reset, and nothing is left to flush, even if the former value was dirty."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        await commit(core, 12, "a")
        outcome = await core.resets.reset(ALL, TO_2, execute=True)
        assert outcome.executed
        assert meta.records[A].position == await _moved(core) == (ERA, 2)
        assert A not in core.ledger.dirty


async def test_a_reset_waits_for_the_flush_under_way(tmp_path: Path) -> None:
    """So that no flush of this adapter arrives after it (7)."""
    meta = FakeMeta()
    entered, gate = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        entered.set()
        await gate.wait()

    meta.faults.append(during(meta, hold))
    async with core_over(tmp_path, meta, knows=["g"]) as core:
        await commit(core, 12, "a")
        flush = asyncio.create_task(core.flusher.flush_once())
        await entered.wait()
        reset = asyncio.create_task(core.resets.reset(ALL, TO_2, execute=True))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(meta.saves) == 1  # the flush is held, the reset has sent nothing
        gate.set()
        await flush
        await reset
        assert [save[0].record.position for save in meta.saves] == [(1, 12), (ERA, 2)]


async def test_a_commit_during_the_reset_stays_below_it(tmp_path: Path) -> None:
    """Queued or in flight, it belongs to the former era (RocketMQ #4206, Pulsar #26304)."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        await commit(core, 10, "a")

        async def commits() -> None:
            await core.ledger.submit(commit_of({A: 20}))

        meta.faults.append(during(meta, commits))
        await core.resets.reset(ALL, TO_2, execute=True)
        assert await _moved(core) == (ERA, 2)
        await core.flusher.flush_once()
        assert meta.records[A].position == (ERA, 2)


async def test_a_late_flush_of_another_adapter_cannot_pass_a_reset(tmp_path: Path) -> None:
    """Not even with any number of rewinds that it acknowledged while it was disconnected (7)."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path / "a", meta) as cut_off, core_over(tmp_path / "b", meta) as core:
        await commit(cut_off, 12, "a")
        for offset in (8, 7, 6):
            await commit(cut_off, offset, "a", overwrite=True)
        assert await _moved(cut_off) == (4, 6)
        await core.resets.reset(ALL, TO_2, execute=True)
        await cut_off.flusher.flush_once()
        assert meta.records[A].position == await _moved(cut_off) == (ERA, 2)


async def test_an_unreachable_meta_service_refuses_the_reset_and_nothing_moves(tmp_path: Path) -> None:
    """A reset is stored in the Meta Service first."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        await core.reader.read([ALL], ReadMode.MEMORY)
        await commit(core, 12, "a")
        meta.down = DOWN
        with pytest.raises(MetaUnavailableError):
            await core.resets.reset(ALL, TO_2, execute=True)
        assert await _moved(core) == (1, 12)
        assert A in core.ledger.dirty


async def test_a_reset_whose_answer_was_lost_is_adopted_and_can_be_repeated(tmp_path: Path) -> None:
    """After a kill or a disconnect behind the save, the next load stores it here."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        await commit(core, 12, "a")
        meta.faults.append(applied_then(meta, DOWN))
        with pytest.raises(MetaUnavailableError):
            await core.resets.reset(ALL, TO_2, execute=True)
        assert await _moved(core) == (1, 12)
        await core.flusher.flush_once()
        assert await _moved(core) == (ERA, 2)
        await core.resets.reset(ALL, TO_2, execute=True)
        assert meta.records[A].position == await _moved(core) == (2 * ERA, 2)


async def test_a_reset_that_fails_half_way_says_how_far_it_got(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repetition completes it."""
    monkeypatch.setattr(reset_writer, "SAVE_ENTRIES", 2)
    keys = [key(shard) for shard in "abcde"]
    meta = FakeMeta(dict.fromkeys(keys, record(9)))
    async with core_over(tmp_path, meta) as core:
        meta.faults.extend([during(meta, _nothing), DOWN])
        with pytest.raises(MetaUnavailableError, match="2 of 5 offsets changed, of 2 it is unknown"):
            await core.resets.reset(ALL, TO_2, execute=True)
        assert [meta.records[found].offset for found in keys] == [2, 2, 9, 9, 9]
        await core.resets.reset(ALL, TO_2, execute=True)
        assert {meta.records[found].offset for found in keys} == {2}


async def test_success_is_not_said_when_somebody_else_moved_it(tmp_path: Path) -> None:
    """The result is read back and compared (Pulsar #18237)."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:

        async def another_reset() -> None:
            meta.apply([SaveEntry(A, record(5, ERA))])

        meta.faults.append(during(meta, another_reset))
        with pytest.raises(ContendedError, match="default/g/a: read back and found with another value"):
            await core.resets.reset(ALL, TO_2, execute=True)
        assert await _moved(core) == (ERA, 5)


async def test_a_refused_reset_names_the_shard(tmp_path: Path) -> None:
    """Nothing is changed here."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        meta.faults.append(refusing(meta, {"a"}, Status.INVALID))
        with pytest.raises(RefusedError, match="default/g/a: the Meta Service refused it: INVALID"):
            await core.resets.reset(ALL, TO_2, execute=True)
        assert await _moved(core) == (1, 9)


async def test_only_the_named_shards_are_reset(tmp_path: Path) -> None:
    """All of them, and no others (RocketMQ #2298)."""
    meta = FakeMeta({A: record(9), B: record(9), key("a", "h"): record(9)})
    async with core_over(tmp_path, meta) as core:
        await core.resets.reset(Wanted(G, ["a", "new"]), TO_2._replace(create=True), execute=True)
        assert {found: stands.offset for found, stands in meta.records.items()} == {A: 2, B: 9, key("a", "h"): 9, key("new"): 2}


async def test_a_reset_of_an_unknown_group_wants_shards(tmp_path: Path) -> None:
    """Without names it would do nothing and report success."""
    async with core_over(tmp_path, FakeMeta()) as core:
        with pytest.raises(InvalidInputError, match=r"default/g has no offsets; `groups list` .* name the shards"):
            await core.resets.reset(ALL, TO_2, execute=True)


async def test_a_deleted_group_is_gone_for_reads_and_for_late_flushes(tmp_path: Path) -> None:
    """In both stores; its generation is removed too, since a new group may begin at 1 again."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path / "a", meta) as late, core_over(tmp_path / "b", meta) as core:
        await commit(late, 12, "a")
        await send(core, commit_of({A: 10})._replace(members={G: Member(7, "m")}))
        await core.resets.delete(ALL, execute=True)
        assert await core.reader.read([ALL], ReadMode.MEMORY) == []
        assert core.ledger.store.member(G) is None
        await late.flusher.flush_once()
        assert is_deleted(meta.records[A])


async def test_deleted_shards_leave_the_generation(tmp_path: Path) -> None:
    """The group itself continues."""
    meta = FakeMeta({A: record(9), B: record(9)})
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({A: 10})._replace(members={G: Member(7, "m")}))
        await core.resets.delete(Wanted(G, ["a"]), execute=True)
        assert core.ledger.store.member(G) == Member(7, "m")
        assert meta.records[B] == record(9)


async def test_after_a_delete_commits_begin_in_its_epoch(tmp_path: Path) -> None:
    """At any offset, because the group starts anew."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        await core.resets.delete(ALL, execute=True)
        await core.reader.begin([ALL], ReadMode.STORE)
        await commit(core, 1, "a")
        await core.flusher.flush_once()
        assert meta.records[A].position == (ERA + 1, 1)


async def test_a_shard_made_anew_is_deleted_from_every_group(tmp_path: Path) -> None:
    """Also from groups that only this adapter knows so far (RocketMQ #4774)."""
    meta = FakeMeta({A: record(9), B: record(9), key("a", "h"): record(5)})
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({key("a", "only-here"): 3}))
        outcome = await core.resets.delete_everywhere("default", ["a"], execute=True)
        assert {change.key.group for change in outcome.changes} == {"g", "h", "only-here"}
        assert [found for found, stands in meta.records.items() if stands.live] == [B]


async def test_a_clone_gives_offsets_and_says_when_there_are_none(tmp_path: Path) -> None:
    """RocketMQ #11111: it copied nothing and reported success."""
    meta = FakeMeta({A: record(9), B: record(4), key("b", "h"): record(8)})
    async with core_over(tmp_path, meta) as core:
        await core.resets.clone(ALL, GroupKey("default", "h"), execute=True)
        assert [meta.records[key(shard, "h")].offset for shard in "ab"] == [9, 4]
        for wanted, to, why in (
            (Wanted(GroupKey("default", "none"), ()), "h", "default/none has no offsets; nothing was cloned"),
            (Wanted(G, ["a", "z"]), "h", "default/g has no offset of 'z'; nothing was cloned"),
            (ALL, "g", "is the group to clone from"),
        ):
            with pytest.raises(InvalidInputError, match=why):
                await core.resets.clone(wanted, GroupKey("default", to), execute=True)


@pytest.mark.parametrize("execute", [True, False])
async def test_an_import_only_raises(tmp_path: Path, execute: bool) -> None:
    """It merges, so a second import, or one over newer commits, does no harm."""
    meta = FakeMeta({A: record(9), B: record(1)})
    async with core_over(tmp_path, meta) as core:
        offered = commit_of({A: 5, B: 5, key("c"): 5})
        outcome = await core.resets.merge(offered, execute=execute)
        assert [change.changes for change in outcome.changes] == [False, True, True]
        assert outcome.changes[0].warning == "9 stands and is larger"
        offsets = {found.shard: stands.offset for found, stands in meta.records.items()}
        assert offsets == ({"a": 9, "b": 5, "c": 5} if execute else {"a": 9, "b": 1})
        if execute:
            again = await core.resets.merge(offered, execute=True)
            assert [change.after and change.after.offset for change in again.changes] == [9, 5, 5]


async def test_an_import_does_not_send_what_stands(tmp_path: Path) -> None:
    """A repeated import sends only what changed since. Other metadata counts as a change, another time does not."""
    meta = FakeMeta({A: record(9), B: record(1)})
    async with core_over(tmp_path, meta) as core:
        await core.resets.merge(commit_of({A: 5, B: 5}), execute=True)
        assert [[entry.key for entry in save] for save in meta.saves] == [[B]]
        late = record(5).committed_at_ms + 1
        for metadata, sent in (("", 1), ("m", 2)):
            outcome = await core.resets.merge(commit_of({B: 5}, committed_at_ms=late, metadata=metadata), execute=True)
            assert outcome.executed
            assert len(meta.saves) == sent
        assert meta.records[B].metadata == "m"


async def test_a_server_without_epochs_is_never_sent_a_tombstone(tmp_path: Path) -> None:
    """It would store the offset 0."""
    meta = FakeMeta({A: record(9)})
    meta.kind = OFFSETS_ONLY
    async with core_over(tmp_path, meta) as core:
        await commit(core, 12, "a")
        await core.resets.delete(ALL, execute=True)
        assert all(entry.record.live for save in meta.saves for entry in save)
        assert core.ledger.store.get(A) is None
        assert A not in core.ledger.dirty


async def test_a_reset_is_not_a_rewind_by_its_consumer(tmp_path: Path) -> None:
    """A consumer's rewind stays in the era, so a commit from before a reset can be recognized."""
    meta = FakeMeta({A: record(9)})
    async with core_over(tmp_path, meta) as core:
        await core.resets.reset(ALL, Reset(To.OFFSET, 5), execute=True)
        await send(core, Commit([(A, record(3, ERA))], CommitMode.OVERWRITE))
        assert await _moved(core) == (ERA + 2, 3)


async def _nothing() -> None:
    """Do nothing during a save."""


class CountedMeta(FakeMeta):
    """Records the reads."""

    reads: tuple[str, ...] = ()

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """Record the read."""
        self.reads += ("get",)
        return await super().get(keys, patient=patient)

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        """Record the read."""
        self.reads += ("groups_page",)
        return await super().groups_page(groups, after, patient=patient)


@pytest.mark.parametrize(
    ("wanted", "reads"),
    [(ALL, ("groups_page",)), (Wanted(G, ("a", "b")), ("get",)), (Wanted(G, ("b",), ("t",)), ("groups_page",))],
)
async def test_a_dry_run_loads_its_group_once(tmp_path: Path, wanted: Wanted, reads: tuple[str, ...]) -> None:
    """The whole group, its named shards, or the shards of topics."""
    meta = CountedMeta({A: record(9, topic="t"), B: record(8)})
    async with core_over(tmp_path, meta) as core:
        for change in (partial(core.resets.reset, wanted, TO_2), partial(core.resets.delete, wanted)):
            meta.reads = ()
            outcome = await change(execute=False)
            assert {each.key for each in outcome.changes} == {A, B}
            assert meta.reads == reads


async def test_a_dry_run_of_topics_shows_the_era_that_the_reset_will_have(tmp_path: Path) -> None:
    """Also for a named shard that was deleted: the epoch of its tombstone counts."""
    meta = FakeMeta({A: record(9, topic="t"), B: record(8)})
    async with core_over(tmp_path, meta) as core:
        await core.resets.delete(Wanted(G, ("b",)), execute=True)
        wanted, anew = Wanted(G, ("b",), ("t",)), Reset(To.OFFSET, 2, create=True)
        shown = await core.resets.reset(wanted, anew, execute=False)
        done = await core.resets.reset(wanted, anew, execute=True)
        positions = [
            {change.key: change.after and change.after.position for change in outcome.changes} for outcome in (shown, done)
        ]
        assert positions[0] == positions[1] == {A: (ERA, 2), B: (2 * ERA, 2)}
