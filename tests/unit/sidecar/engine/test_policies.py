"""The commit policies: what has happened when a commit is acknowledged, and what has not when it is refused."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import DiskFullError, MetaUnavailableError, NotReadyError, RefusedError
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import SaveEntry, SaveOutcome, Status
from adapter.sidecar.ledger.operations import Reconcile, Standing
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import (
    PATIENCE_S,
    HeldMeta,
    applied_then,
    commit,
    commit_of,
    core_over,
    during,
    key,
    record,
    refusing,
    send,
    tombstone,
    watched,
)

A, B, C = key("a"), key("b"), key("c")
THROUGH: dict[str, Any] = {"mode": "write_through"}
DOWN = MetaUnavailableError("down by the test")


async def test_a_cached_commit_is_local_and_dirty_when_it_is_acknowledged(tmp_path: Path) -> None:
    """The next flush sends it to the Meta Service (1)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        assert await send(core, commit_of({A: 5})) == [Standing(A, record(5))]
        assert core.ledger.store.get(A) == record(5)
        assert A in core.ledger.dirty
        assert meta.saves == []


async def test_a_cached_commit_is_acknowledged_with_the_meta_service_down(tmp_path: Path) -> None:
    """A write-back commit does not wait for the Meta Service, whichever way that fails (4)."""
    meta = FakeMeta()
    meta.down = DOWN
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        assert not meta.available
        await commit(core, 6, "b")
        assert [core.ledger.store.get(found) for found in (A, B)] == [record(5, 0), record(6, 0)]


async def test_a_written_through_commit_is_in_the_meta_service_when_it_is_acknowledged(tmp_path: Path) -> None:
    """It is stored here as clean, so no flush sends it again (3)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **THROUGH) as core:
        assert await send(core, commit_of({A: 5})) == [Standing(A, record(5))]
        assert meta.records == {A: record(5)}
        assert core.ledger.store.get(A) == record(5)
        assert len(core.ledger.dirty) == 0
        assert await core.flusher.flush_once() == 0


async def test_concurrent_written_through_commits_share_a_save(tmp_path: Path) -> None:
    """All that arrive during a save go with the next one."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, **THROUGH) as core:
        first = asyncio.create_task(commit(core, 1, "first"))
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        others = [asyncio.create_task(commit(core, at, f"s{at}")) for at in range(50)]
        await asyncio.sleep(0)
        meta.gate.set()
        await asyncio.gather(first, *others)
        assert [len(save) for save in meta.saves] == [1, 50]
        assert len(meta.records) == 51


async def test_a_failed_save_fails_every_commit_that_shared_it_and_none_of_them_counts(tmp_path: Path) -> None:
    """Callers get UNAVAILABLE; nothing is stored here, and nothing is dirty."""
    meta = HeldMeta()
    meta.faults.append(DOWN)
    async with core_over(tmp_path, meta, knows="g", **THROUGH) as core:
        await core.ledger.submit(Reconcile([(A, record(3, 1))]))
        callers = [asyncio.create_task(commit(core, 5, shard)) for shard in "ab"]
        meta.gate.set()
        assert await asyncio.gather(*callers, return_exceptions=True) == [DOWN, DOWN]
        assert [core.ledger.store.get(found) for found in (A, B)] == [record(3), None]
        assert len(core.ledger.dirty) == 0
        await commit(core, 5, "a")
        assert core.ledger.store.get(A) == record(5)


async def test_a_save_that_applies_and_then_times_out_does_not_count(tmp_path: Path) -> None:
    """The caller may send it again, which is harmless (2)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **THROUGH) as core:
        await commit(core, 4)
        meta.faults.append(applied_then(meta, DOWN))
        with pytest.raises(MetaUnavailableError):
            await commit(core, 5)
        assert core.ledger.store.get(key()) == record(4)
        await commit(core, 5)
        assert core.ledger.store.get(key()) == meta.records[key()] == record(5)


@pytest.mark.parametrize("status", [Status.INVALID, Status.CONFLICT])
async def test_a_refused_entry_hits_its_caller_alone(tmp_path: Path, status: Status) -> None:
    """The other callers of the save are acknowledged (10)."""
    meta = HeldMeta()
    meta.faults.append(refusing(meta, {"b"}, status))
    async with core_over(tmp_path, meta, **THROUGH) as core:
        callers = [asyncio.create_task(send(core, commit_of({found: 5}))) for found in (A, B, C)]
        meta.gate.set()
        first, second, third = await asyncio.gather(*callers, return_exceptions=True)
        assert len(meta.saves) == 1
        assert (first, third) == ([Standing(A, record(5))], [Standing(C, record(5))])
        assert isinstance(second, RefusedError)
        assert str(second) == f"default/g/b: the Meta Service refused it: {status.name} by the test"
        assert [core.ledger.store.get(found) for found in (A, B, C)] == [record(5), None, record(5)]


async def test_callers_of_one_key_in_one_save_are_decided_in_their_order(tmp_path: Path) -> None:
    """One entry is sent; each caller gets the value that stood after its own commit."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, knows="g", **THROUGH) as core:
        commits = [commit_of({A: 5}), commit_of({A: 3}), commit_of({A: 2}, overwrite=True), commit_of({A: 4})]
        callers = [asyncio.create_task(send(core, found)) for found in commits]
        meta.gate.set()
        answers = await asyncio.gather(*callers)
        assert [len(save) for save in meta.saves] == [1]
        assert [found[0].record for found in answers] == [record(5), record(5), record(2, 2), record(4, 2)]
        assert core.ledger.store.get(A) == meta.records[A] == record(4, 2)


async def test_a_written_through_commit_hears_of_a_larger_value_that_stands(tmp_path: Path) -> None:
    """After another broker's commit or a delete, the larger value is returned, and stored here too (2)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", **THROUGH) as core:
        meta.records = {A: record(9), B: tombstone(3)}
        answers = await send(core, commit_of({A: 5, B: 5}))
        assert answers == [Standing(A, record(9)), Standing(B, tombstone(3))]
        assert [core.ledger.store.get(found) for found in (A, B)] == [record(9), tombstone(3)]
        assert len(core.ledger.dirty) == 0


async def test_a_written_through_commit_learns_the_epoch(tmp_path: Path) -> None:
    """If the load of its group failed, the reply to the save has the epoch."""
    meta = FakeMeta({A: record(5, 4)})
    async with core_over(tmp_path, meta, **THROUGH) as core:
        meta.available = False
        assert await send(core, commit_of({A: 6, B: 1})) == [Standing(A, record(6, 4)), Standing(B, record(1))]
        assert core.ledger.store.get(A) == meta.records[A] == record(6, 4)


async def test_a_written_through_commit_of_a_dirty_key_brings_the_larger_value(tmp_path: Path) -> None:
    """A value that was written back before the policy was changed is not lost (1, 3)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", **THROUGH) as core:
        await core.ledger.submit(commit_of({A: 8, B: 8}))
        assert await send(core, commit_of({A: 6, B: 9})) == [Standing(A, record(8)), Standing(B, record(9))]
        assert meta.records == {A: record(8), B: record(9)}
        assert len(core.ledger.dirty) == 0


async def test_a_commit_during_a_written_through_save_of_its_key_stays_dirty(tmp_path: Path) -> None:
    """The reply to the save is for the value that was sent (3)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", **THROUGH) as core:
        meta.faults.append(during(meta, lambda: core.ledger.submit(commit_of({A: 9}))))
        await send(core, commit_of({A: 5}))
        assert core.ledger.store.get(A) == record(9)
        assert A in core.ledger.dirty


async def test_a_rewind_in_an_unknown_epoch_is_refused_alone_and_sends_nothing(tmp_path: Path) -> None:
    """Its caller may try again; no empty save is sent."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **THROUGH) as core:
        await core.ledger.submit(commit_of({A: 8}))
        with pytest.raises(NotReadyError, match="default/g/a: cannot be rewound now"):
            await send(core, commit_of({A: 3}, overwrite=True))
        assert meta.saves == []


async def test_a_full_disk_refuses_a_written_through_commit(tmp_path: Path) -> None:
    """The Meta Service has it, the local store does not: it is neither acknowledged nor dirty."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store, **THROUGH) as core:
        store.refuses = DiskFullError("full by the test")
        with pytest.raises(DiskFullError):
            await commit(core, 5)
        store.refuses = None
        await commit(core, 5)
        assert core.ledger.store.get(key()) == record(5)


class NumbersMeta(FakeMeta):
    """A server without epochs: it overwrites where the expected number stands, and an absent key counts as 0."""

    async def save(self, entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
        """Compare and set, each entry."""
        outcomes = []
        for found, offered, expected in entries:
            held = self.records.get(found)
            if expected is None or expected == (held.offset if held else 0):
                self.records[found] = record(offered.offset, 0)
                outcomes.append(SaveOutcome(Status.APPLIED, record(offered.offset)))
            else:
                outcomes.append(SaveOutcome(Status.CONFLICT, None))
        return outcomes


async def test_what_was_saved_and_not_stored_is_not_lowered(tmp_path: Path) -> None:
    """What stands on a server without epochs behind a full disk counts as another writer's (2)."""
    meta, store = NumbersMeta(), watched(tmp_path)
    meta.kind = OFFSETS_ONLY
    async with core_over(tmp_path, meta, knows="g", store=store, **THROUGH) as core:
        store.refuses = DiskFullError("full by the test")
        with pytest.raises(DiskFullError):
            await commit(core, 7)
        store.refuses = None
        assert meta.records[key()].offset == 7
        (standing,) = await send(core, commit_of({key(): 5}))
        assert standing.record is not None
        assert (standing.record.offset, meta.records[key()].offset) == (7, 7)


PAYMENTS: dict[str, Any] = {"policy": [{"groups": "payments-*", "mode": "write_through"}]}


async def test_each_group_has_the_policy_of_its_pattern(tmp_path: Path) -> None:
    """One request may have groups of both policies."""
    meta = FakeMeta()
    paid, other = key("s", "payments-1"), key("s", "payment")
    async with core_over(tmp_path, meta, **PAYMENTS) as core:
        standing = await send(core, commit_of({other: 1, paid: 2}))
        assert {one.key: one.record for one in standing} == {paid: record(2), other: record(1)}
        assert meta.records == {paid: record(2)}
        assert (paid in core.ledger.dirty, other in core.ledger.dirty) == (False, True)


async def test_when_the_written_through_part_fails_nothing_of_the_request_is_stored(tmp_path: Path) -> None:
    """That part goes first because it may fail; an error means that nothing is stored here."""
    meta = FakeMeta()
    paid, other = key("s", "payments-1"), key("s", "other")
    async with core_over(tmp_path, meta, **PAYMENTS) as core:
        meta.faults.append(DOWN)
        with pytest.raises(MetaUnavailableError):
            await send(core, commit_of({other: 1, paid: 2}))
        assert [core.ledger.store.get(found) for found in (paid, other)] == [None, None]
        assert len(core.ledger.dirty) == 0


async def test_cached_groups_go_on_while_the_written_through_ones_are_refused(tmp_path: Path) -> None:
    """An outage of the Meta Service affects written-through groups only (4)."""
    meta = FakeMeta()
    meta.down = DOWN
    async with core_over(tmp_path, meta, **PAYMENTS) as core:
        with pytest.raises(MetaUnavailableError):
            await send(core, commit_of({key("s", "payments-1"): 2}))
        await commit(core, 5)
        assert key() in core.ledger.dirty


@pytest.mark.parametrize("recovered", [False, True])
async def test_a_written_through_commit_lowers_nothing_that_was_not_compared(tmp_path: Path, recovered: bool) -> None:
    """A server without epochs overwrites. Behind a former rewind here, another broker may have gone further there (2).

    So it is until the recovery has ended, and of what was dirty then until it is known what stands there.
    """
    meta = FakeMeta({A: record(100, 0)})
    meta.kind = OFFSETS_ONLY
    async with core_over(tmp_path, meta, recovered=False, **THROUGH) as core:
        core.ledger.store.write({A: record(50, 2)})
        core.ledger.store.left_seq = core.ledger.store.seq  # by a former process
        if recovered:
            await core.flusher.mark_unflushed()
            await core.ledger.dirty.note_uncompared()
            core.ledger.recovered.finish()
        (standing,) = await send(core, commit_of({A: 60}))
        assert standing.record is not None
        assert (standing.record.offset, meta.records[A].offset) == (100, 100)
