"""The comparison at start: what is pushed, adopted and counted, and what is left to do after a failure."""

import asyncio
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from adapter.errors import AdapterError, ContendedError, MetaUnavailableError, RefusedError
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.runtime.slices import SLICE
from adapter.sidecar.engine import flusher
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.ledger.operations import Forget, Load, Operation, Standing
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import applied_then, commit, commit_of, core_over, during, key, record, refusing, send, tombstone
from tests.unit.sidecar.engine.losses import Records, counts, left_behind, local, lost

A, B, C, D = (key(shard) for shard in "abcd")
YOUNG = tombstone(3)._replace(committed_at_ms=2**53)
DOWN = MetaUnavailableError("down by the test")


class ComparedMeta(FakeMeta):
    """A FakeMeta that records the number of keys in each comparison, and may fail the next ones."""

    def __init__(self, records: Records | None = None) -> None:
        super().__init__(records)
        self.compared: list[int] = []
        self.get_faults: list[AdapterError | None] = []

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> Records:
        """Raise the next fault, or record the number of keys. A request for no keys only checks the connection."""
        if not keys:
            return await super().get(keys, patient=patient)
        fault = self.get_faults.pop(0) if self.get_faults else None
        if fault:
            raise fault
        self.compared.append(len(keys))
        return await super().get(keys, patient=patient)


CASES = [
    ("larger here", record(7), record(5), record(7), "pushed"),
    ("larger there", record(5), record(7), record(7), "adopted"),
    ("higher epoch here", record(1, 3), record(9, 2), record(1, 3), "pushed"),
    ("higher epoch there", record(9, 2), record(1, 3), record(1, 3), "adopted"),
    ("equal", record(5), record(5), record(5), "equal"),
    ("absent there", record(5), None, record(5), "pushed"),
    ("epoch unknown, absent there", record(5, 0), None, record(5, 1), "pushed"),
    ("epoch unknown, larger here", record(7, 0), record(5, 4), record(7, 4), "pushed"),
    ("epoch unknown, larger there", record(5, 0), record(7, 4), record(7, 4), "adopted"),
    ("epoch unknown, equal", record(5, 0), record(5, 4), record(5, 4), "adopted"),
    ("deleted there", record(9), tombstone(2), tombstone(2), "adopted"),
    ("deleted there, then committed", record(9), record(1, 2), record(1, 2), "adopted"),
    ("young tombstone here, older there", YOUNG, record(9, 2), YOUNG, "pushed"),
    ("young tombstone here, absent there", YOUNG, None, YOUNG, "pushed"),
    ("old tombstone on both sides", tombstone(3), tombstone(3), tombstone(3), "equal"),
    ("newer metadata here", record(5, committed_at_ms=2), record(5, committed_at_ms=1), record(5, committed_at_ms=2), "pushed"),
]


@pytest.mark.parametrize(("mine", "theirs", "stands", "result"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_the_larger_value_wins_on_both_sides(
    tmp_path: Path, mine: OffsetRecord, theirs: OffsetRecord | None, stands: OffsetRecord, result: str
) -> None:
    """Also after a clean stop: the Meta Service may have been restored from a backup (2)."""
    left_behind(tmp_path, {A: mine}, flushed=1)
    meta = FakeMeta({A: theirs} if theirs else {})
    async with core_over(tmp_path, meta, recovered=False) as core:
        report = await core.recovery.run()
        assert vars(report)[result] == 1
        assert sum(counts(report)[1:]) == counts(report)[0] == 1
        assert meta.records == local(core) == {A: stands}
        assert len(core.ledger.dirty) == 0


async def test_what_a_killed_process_never_flushed_is_pushed(tmp_path: Path) -> None:
    """The dirty set is empty after a restart, so the comparison reads the store (1)."""
    meta = FakeMeta()
    left_behind(tmp_path, {A: record(5), B: record(6)})
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert len(core.ledger.dirty) == 0
        assert counts(await core.recovery.run()) == (2, 2, 0, 0, 0)
        assert meta.records == {A: record(5), B: record(6)}


async def test_all_keys_are_compared_a_batch_at_a_time(tmp_path: Path) -> None:
    """Each key once, over all groups, in calls of bounded size."""
    mine = {key(f"s{shard}", f"g{group}"): record(shard) for group in range(5) for shard in range(5)}
    left_behind(tmp_path, mine)
    meta = ComparedMeta({found: record(shard % 3) for shard, found in enumerate(mine)})
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": 7}) as core:
        expected = {found: max(mine[found], theirs) for found, theirs in meta.records.items()}
        report = await core.recovery.run()
        assert meta.compared == [7, 7, 7, 4]
        assert (report.compared, core.ledger.recovered.now) == (25, True)
        assert meta.records == local(core) == expected


async def test_an_empty_store_has_nothing_to_compare_but_needs_the_meta_service(tmp_path: Path) -> None:
    """Recovered means that the Meta Service was reached, so an absent key is really absent (9)."""
    meta = ComparedMeta({A: record(5)})
    meta.down = DOWN
    async with core_over(tmp_path, meta, recovered=False) as core:
        with pytest.raises(MetaUnavailableError):
            await core.recovery.run()
        assert not core.ledger.recovered.now
        meta.down = None
        assert counts(await core.recovery.run()) == (0, 0, 0, 0, 0)
        assert meta.compared == []
        assert core.ledger.recovered.now


async def test_only_after_the_recovery_does_the_flushed_watermark_move(tmp_path: Path) -> None:
    """From then on every dirty key is in the dirty set (3)."""
    left_behind(tmp_path, {A: record(5)})
    async with core_over(tmp_path, FakeMeta(), recovered=False) as core:
        await commit(core, 6, "b")
        await core.flusher.flush_once()
        assert core.ledger.store.flushed_seq == 0
        await core.recovery.run()
        await commit(core, 7, "b")
        await core.flusher.flush_once()
        assert core.ledger.store.flushed_seq == core.ledger.store.seq


async def test_a_recovery_that_fails_goes_on_where_it_was(tmp_path: Path) -> None:
    """Completed batches are not compared again, and the counts continue (9)."""
    left_behind(tmp_path, {key(f"s{at}"): record(at) for at in range(6)})
    meta = ComparedMeta()
    meta.get_faults = [None, DOWN, DOWN]
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": 2}) as core:
        for _ in range(2):
            with pytest.raises(MetaUnavailableError, match="down by the test"):
                await core.recovery.run()
            assert (core.recovery.report.compared, core.ledger.recovered.now) == (2, False)
        assert counts(await core.recovery.run()) == (6, 6, 0, 0, 0)
        assert meta.compared == [2, 2, 2]
        assert len(meta.records) == 6


async def test_a_recovery_that_is_refused_says_so_as_an_adapter_error(tmp_path: Path) -> None:
    """The Meta Service refuses (no such RPC, no permission): the adapter stays degraded and does not end (9)."""
    left_behind(tmp_path, {A: record(5)})
    meta = ComparedMeta()
    meta.get_faults = [RefusedError("PERMISSION_DENIED by the test")]
    async with core_over(tmp_path, meta, recovered=False) as core:
        with pytest.raises(RefusedError, match="PERMISSION_DENIED"):
            await core.recovery.run()
        assert counts(await core.recovery.run()) == (1, 1, 0, 0, 0)


async def test_a_push_that_fails_is_counted_and_stays_dirty(tmp_path: Path) -> None:
    """The comparison continues, and the flusher sends the key later (4)."""
    left_behind(tmp_path, {A: record(5), B: record(6)})
    meta = FakeMeta({B: record(6)})
    meta.faults.append(applied_then(meta, DOWN))
    async with core_over(tmp_path, meta, recovered=False) as core:
        assert counts(await core.recovery.run()) == (2, 0, 0, 1, 1)
        assert A in core.ledger.dirty
        await core.flusher.flush_once()
        assert meta.records == {A: record(5), B: record(6)}


async def test_a_push_that_is_refused_in_part_is_counted_as_failed_in_part(tmp_path: Path) -> None:
    """The report counts as pushed only what the Meta Service has (3)."""
    left_behind(tmp_path, {A: record(5), B: record(6), C: record(7)})
    meta = FakeMeta()
    meta.faults.append(refusing(meta, {"b"}))
    async with core_over(tmp_path, meta, recovered=False) as core:
        report = await core.recovery.run()
        assert B in core.ledger.dirty
        assert counts(report) == (3, 2, 0, 0, 1)


async def test_a_commit_during_the_recovery_is_not_lost(tmp_path: Path) -> None:
    """A degraded adapter accepts commits; one during the push stays dirty (3)."""
    left_behind(tmp_path, {A: record(5)})
    meta = FakeMeta()
    async with core_over(tmp_path, meta, recovered=False) as core:
        meta.faults.append(during(meta, lambda: commit(core, 9, "a")))
        await core.recovery.run()
        assert core.ledger.store.get(A) == record(9)
        assert A in core.ledger.dirty


async def test_what_is_removed_during_a_comparison_does_not_come_back(tmp_path: Path) -> None:
    """The shard went to another broker, so the fetched value may be older than the present one."""

    class HandingOver(ComparedMeta):
        async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> Records:
            found = await super().get(keys, patient=patient)
            if keys and not handed_over:
                handed_over.append(keys)
                await core.handover.remove([Wanted(A.group_key, ["a"])])
                self.records[A] = record(20)
            return found

    handed_over: list[Sequence[OffsetKey]] = []
    left_behind(tmp_path, {A: record(5)}, flushed=1)
    async with core_over(tmp_path, HandingOver({A: record(8)}), recovered=False) as core:
        with pytest.raises(ContendedError):
            await core.recovery.run()
        assert core.ledger.store.get(A) is None


async def test_mark_unflushed_marks_what_is_above_the_watermark(tmp_path: Path) -> None:
    """For a start without the Meta Service: exactly the keys that may be missing there (9)."""
    left_behind(tmp_path, {A: record(1), B: record(2), C: record(3)}, flushed=2)
    async with core_over(tmp_path, FakeMeta(), recovered=False) as core:
        await core.flusher.mark_unflushed()
        assert [found in core.ledger.dirty for found in (A, B, C)] == [False, False, True]
        assert await core.flusher.flush_once() == 1


async def test_an_old_tombstone_that_the_meta_service_has_forgotten_hides_nothing(tmp_path: Path) -> None:
    """An adapter that was away for longer than tombstones are kept does not delete what was committed since."""
    left_behind(tmp_path, {A: tombstone(3), B: tombstone(3), C: record(4)})
    meta = FakeMeta({A: record(7)})
    async with core_over(tmp_path, meta, recovered=False) as core:
        await core.flusher.mark_unflushed()
        assert [found in core.ledger.dirty for found in (A, B, C)] == [False, False, True]
        await core.flusher.flush_once()
        await core.recovery.run()
        assert local(core) == {C: record(4)}
        assert meta.records == {A: record(7), C: record(4)}
        await send(core, commit_of({A: 8}))
        await core.flusher.flush_once()
        assert meta.records[A].offset == 8


async def test_a_wrong_clock_makes_no_tombstone_old(tmp_path: Path) -> None:
    """What looks old to it may have been deleted a moment ago."""
    left_behind(tmp_path, {A: tombstone(3)})
    meta = FakeMeta({A: record(7)})
    async with core_over(tmp_path, meta, recovered=False) as core:
        meta.server_reports.skew.off = True
        await core.recovery.run()
        assert meta.records == local(core) == {A: tombstone(3)}


async def test_mark_unflushed_leaves_newer_commits_as_they_are(tmp_path: Path) -> None:
    """The newest value is sent next (2)."""
    meta = FakeMeta()
    left_behind(tmp_path, {A: record(1, 0), B: record(2, 0)})
    async with core_over(tmp_path, meta, recovered=False) as core:
        await send(core, commit_of({A: 9}))
        await core.flusher.mark_unflushed()
        assert len(core.ledger.dirty) == 2
        await core.flusher.flush_once()
        assert {found: standing.offset for found, standing in meta.records.items()} == {A: 9, B: 2}


async def test_mark_unflushed_after_a_clean_stop_marks_nothing(tmp_path: Path) -> None:
    """The stored flushed watermark says that the Meta Service has everything."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await send(core, commit_of({A: 1, B: 2}))
        assert await core.flusher.drain(30.0) == 0
    async with core_over(tmp_path, FakeMeta(), recovered=False) as core:
        await core.flusher.mark_unflushed()
        assert len(core.ledger.dirty) == 0


async def test_a_stop_during_the_comparison_reads_nothing_where_nothing_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million keys would hold up a restart for seconds; what was committed since the start is known as dirty (3)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({A: 1, B: 2}))
        assert await core.flusher.drain(30.0) == 0
    async with core_over(tmp_path, meta, recovered=False) as core:
        with monkeypatch.context() as patched:
            patched.setattr(core.ledger.store, "page", None)
            await send(core, commit_of({A: 3, C: 4}))
            await core.flusher.mark_unflushed()
            assert core.ledger.dirty.keys() == {A, C}
            assert await core.flusher.drain(30.0) == 0
        core.recovery.again()  # the Meta Service has lost all: nothing counts as flushed
        meta.records.clear()
        await core.flusher.mark_unflushed()
        assert core.ledger.dirty.keys() == {A, B, C}


async def test_after_a_loss_whole_groups_are_compared(tmp_path: Path) -> None:
    """A key that was lost here is stored again if the Meta Service has it (1)."""
    left_behind(tmp_path, {A: record(5), B: record(9)})
    lost(tmp_path, 2)
    meta = FakeMeta({A: record(5), B: record(7), C: record(3), D: tombstone(2), key("s", "other"): record(1)})
    async with core_over(tmp_path, meta, recovered=False) as core:
        report = await core.recovery.run()
        assert local(core) == {A: record(5), B: record(9), C: record(3), D: tombstone(2)}
        assert meta.records[B] == record(9)
        assert (report.pushed, report.adopted, report.failed) == (1, 2, 0)


async def test_after_a_loss_keys_of_other_batches_are_not_counted_as_adopted(tmp_path: Path) -> None:
    """Nothing of this group was lost, although its comparison takes several batches."""
    mine = {A: record(1), B: record(2), C: record(3)}
    left_behind(tmp_path, mine)
    lost(tmp_path, 1)
    async with core_over(tmp_path, FakeMeta(mine), recovered=False, recovery={"batch_keys": 1}) as core:
        assert counts(await core.recovery.run()) == (3, 0, 0, 3, 0)


async def test_all_that_is_unflushed_is_marked_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million keys are not read at once, since commits go on meanwhile; none is left out (3)."""
    left_behind(tmp_path, {A: record(1), B: record(2), C: record(3)}, flushed=1)
    monkeypatch.setattr(flusher, "PAGE_KEYS", 1)
    async with core_over(tmp_path, FakeMeta(), recovered=False) as core:
        await core.flusher.mark_unflushed()
        assert [found in core.ledger.dirty for found in (A, B, C)] == [False, True, True]


async def test_what_others_remove_meanwhile_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two slices of a piece a hand-over may go on; a number below 0 could not be told in a status."""
    many = {key(f"s{at:04}", "a"): record(5) for at in range(2 * SLICE)}
    gone = [key(f"s{at:04}", "z") for at in range(SLICE)]
    left_behind(tmp_path, many | dict.fromkeys(gone, record(5)))
    meta = FakeMeta(dict.fromkeys(gone, record(5)))
    async with core_over(tmp_path, meta, recovered=False) as core:
        apply, loads = core.ledger.apply, count()

        def loaded(operation: Operation) -> list[Standing]:
            standing = apply(operation)
            if isinstance(operation, Load) and not next(loads):
                asyncio.get_running_loop().call_soon(apply, Forget(gone))
            return standing

        monkeypatch.setattr(core.ledger, "apply", loaded)
        assert counts(await core.recovery.run()) == (len(many) + len(gone), len(many), 0, len(gone), 0)
