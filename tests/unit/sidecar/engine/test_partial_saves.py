"""Saves of which a part gets no reply: what is clean, what is set aside and retried, and what callers may not be told."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapter.client.broker_log import NoBrokerLog
from adapter.errors import MetaUnavailableError
from adapter.model.records import GroupKey, SaveEntry, SaveOutcome, Status
from adapter.runtime.clocks import Clocks
from adapter.sidecar.engine.core import running_core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import OffsetChange, Reset, To
from adapter.sidecar.ledger.operations import Standing
from adapter.sidecar.ledger.store import LocalStore
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.sidecars import adapter_config
from tests.model.disk import Platter, SimDisk
from tests.model.loop import VirtualLoop
from tests.unit.helpers import commit_of, core_over, crash, doom, key, record, send, watched
from tests.unit.parted import BOTH, GONE, GONE_GROUP, UP, WHY, PartedMeta, commit_both

DRAIN_S = 10.0  # virtual
LONGEST_PAUSE_S = 1.0  # of a drain


def sent(meta: FakeMeta) -> list[list[tuple[str, int]]]:
    """Group and offset of the entries of each save."""
    return [[(entry.key.group, entry.record.offset) for entry in save] for save in meta.saves]


async def test_what_is_answered_is_clean_and_the_rest_stays_dirty(tmp_path: Path) -> None:
    """One reply decides each entry; it counts as a failed flush, not as a refusal, and raises no error (3, 4)."""
    meta = PartedMeta("gone")
    async with core_over(tmp_path, meta) as core:
        await commit_both(core, 5)
        assert await core.flusher.flush_once() == 1
        assert [found in core.ledger.dirty for found in BOTH] == [False, True]
        assert (core.ledger.dirty.pending, core.ledger.dirty.aside, core.ledger.dirty.refused, len(core.ledger.dirty)) == (
            0,
            1,
            0,
            1,
        )
        assert core.flusher.last_error == f"default/gone/s: UNAVAILABLE {WHY}"


async def test_a_group_that_is_set_aside_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Its new commits are set aside too: a save with them would wait for the part that does not answer."""
    meta = PartedMeta("gone")
    async with core_over(tmp_path, meta) as core:
        for offset in (5, 6, 7):
            await commit_both(core, offset)
            assert await core.flusher.flush_once() == 1
        assert sent(meta) == [[("up", 5), ("gone", 5)], [("up", 6)], [("up", 7)]]
        assert core.flusher.last_error.endswith(WHY)  # the others' success does not hide it
        meta.gone.clear()
        assert await core.flusher.flush_once(aside_too=True) == 1
        assert meta.records[GONE] == record(7)
        assert (len(core.ledger.dirty), core.flusher.last_error) == (0, "")


async def test_an_entry_that_was_applied_without_an_answer_is_sent_again_and_harms_nothing(tmp_path: Path) -> None:
    """It stays dirty; another adapter's later commit is not set back (2, 4)."""
    meta = PartedMeta("gone", applies=True)
    async with core_over(tmp_path, meta) as core:
        await commit_both(core, 5)
        await core.flusher.flush_once()
        assert (GONE in core.ledger.dirty, meta.records[GONE]) == (True, record(5))
        meta.records[GONE] = record(9)
        meta.gone.clear()
        assert await core.flusher.flush_all() == 1
        assert (meta.records[GONE], core.ledger.store.get(GONE), len(core.ledger.dirty)) == (record(9), record(9), 0)


async def test_what_is_found_to_be_saved_all_the_same_is_clean(tmp_path: Path) -> None:
    """A load of the group shows that it was saved, so nothing is left to send (6)."""
    meta = PartedMeta("gone", applies=True)
    async with core_over(tmp_path, meta) as core:
        await commit_both(core, 5)
        await core.flusher.flush_once()
        await core.flusher.flush_once()
        assert core.ledger.dirty.keys() == {GONE}
        await core.loader.load(GONE_GROUP)
        assert (len(core.ledger.dirty), core.ledger.dirty.some_aside) == (0, False)
        assert await core.flusher.flush_all() == 0
        assert len(meta.saves) == 1


async def test_the_flushed_watermark_does_not_pass_what_is_set_aside(tmp_path: Path) -> None:
    """Even if everything else is flushed: the next start finds it unflushed (1, 3)."""
    meta = PartedMeta()
    store = watched(tmp_path)
    async with core_over(tmp_path, meta, store=store) as core:
        await commit_both(core, 5)
        await core.flusher.flush_once()
        before = store.flushed_seq
        meta.gone.add("gone")
        for offset in (6, 7):
            await commit_both(core, offset)
            await core.flusher.flush_once()
        assert store.flushed_seq == before < store.seq_of(GONE)
        await send(core, commit_of({UP: 8}))  # with which the watermark rides to the disk
        doom(store)
    async with core_over(tmp_path, meta, recovered=False) as core:
        await core.flusher.mark_unflushed()
        assert GONE in core.ledger.dirty
        core.ledger.recovered.finish()
        meta.gone.clear()
        await core.flusher.flush_all()
        assert core.ledger.store.flushed_seq == core.ledger.store.seq
        assert meta.records[GONE] == record(7)


async def test_a_failed_flush_of_what_was_taken_up_loses_nothing(tmp_path: Path) -> None:
    """The whole Meta Service fails while groups that were set aside are retried (4)."""
    meta = PartedMeta("gone")
    async with core_over(tmp_path, meta) as core:
        await commit_both(core, 5)
        await core.flusher.flush_once()
        meta.faults.append(MetaUnavailableError("down by the test"))
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once(aside_too=True)
        assert GONE in core.ledger.dirty
        meta.gone.clear()
        assert await core.flusher.flush_once() == 1
        assert meta.records[GONE] == record(5)


async def test_flush_all_says_what_has_no_answer(tmp_path: Path) -> None:
    """An operator, or a delete from every group, must not take it for flushed (8)."""
    meta = PartedMeta("gone")
    async with core_over(tmp_path, meta) as core:
        await commit_both(core, 5)
        with pytest.raises(MetaUnavailableError, match=f"^1 offset without an answer: default/gone/s: UNAVAILABLE {WHY}$"):
            await core.flusher.flush_all()
        assert core.ledger.store.flushed_seq == 0


def test_a_drain_tries_until_its_deadline_and_says_what_is_left(tmp_path: Path) -> None:
    """Keys without a reply stay dirty (8). Virtual time makes the number of attempts the same on every machine."""
    loop = VirtualLoop()
    meta = PartedMeta("gone")
    config = adapter_config(tmp_path, flush={"interval_ms": 100})
    store = LocalStore.over(SimDisk(Platter(), lambda: None), "interval")

    async def main() -> float:
        async with running_core(config, store, meta, AdapterMetrics(), NoBrokerLog(), Clocks(loop.time)) as core:
            core.ledger.recovered.finish()
            await commit_both(core, 5)
            began = loop.time()
            assert await core.flusher.drain(DRAIN_S) == 1
            took_s = loop.time() - began
            assert core.ledger.store.flushed_seq == 0
            core.tasks.cancel_scope.cancel()
            return took_s

    task = loop.create_task(main())
    loop.run_for(10 * DRAIN_S)
    assert task.result() == pytest.approx(DRAIN_S)
    assert len(meta.saves) > DRAIN_S / LONGEST_PAUSE_S
    loop.close()


async def test_a_hand_over_fails_only_for_shards_without_an_answer(tmp_path: Path) -> None:
    """The next owner would read an older offset of them; nothing is removed here (1)."""
    meta = PartedMeta("gone")
    async with core_over(tmp_path, meta) as core:
        await commit_both(core, 5)
        with pytest.raises(MetaUnavailableError, match=WHY):
            await core.handover.remove([Wanted(GONE_GROUP, [])])
        assert core.ledger.store.get(GONE) == record(5)
        assert await core.handover.remove([Wanted(GroupKey("default", "up"), [])]) == 1
        meta.gone.clear()
        assert await core.handover.remove([Wanted(GONE_GROUP, [])]) == 1
        assert meta.records[GONE] == record(5)


async def test_a_written_through_commit_without_an_answer_is_unavailable_and_not_refused(tmp_path: Path) -> None:
    """It is not acknowledged, and may be sent again; a commit in the same save that got a reply is (1)."""
    meta = PartedMeta("gone")
    async with core_over(tmp_path, meta, mode="write_through") as core:
        answers = await asyncio.gather(*(send(core, commit_of({found: 5})) for found in BOTH), return_exceptions=True)
        assert answers[0] == [Standing(UP, record(5))]
        assert type(answers[1]) is MetaUnavailableError
        assert str(answers[1]) == f"default/gone/s: the Meta Service did not answer for it: {WHY}"
        assert (core.ledger.store.get(UP), core.ledger.store.get(GONE), len(core.ledger.dirty)) == (record(5), None, 0)


async def test_a_reset_without_an_answer_is_no_success_and_is_made_by_the_next_try(tmp_path: Path) -> None:
    """A delete likewise. It may have been applied, so the next load asks what is stored (7)."""
    meta = PartedMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_both(core, 5)
        await core.flusher.flush_all()
        meta.gone.add("gone")
        wanted = Wanted(GONE_GROUP, ["s"])
        with pytest.raises(MetaUnavailableError, match=WHY) as caught:
            await core.resets.reset(wanted, Reset(To.OFFSET, 1), execute=True)
        assert [change.key for change in caught.value.attempted if isinstance(change, OffsetChange)] == [GONE]
        with pytest.raises(MetaUnavailableError, match=WHY):
            await core.resets.delete(wanted, execute=True)
        assert core.ledger.store.get(GONE) == record(5)
        meta.gone.clear()
        outcome = await core.resets.reset(wanted, Reset(To.OFFSET, 1), execute=True)
        assert outcome.executed
        assert meta.records[GONE] == core.ledger.store.get(GONE)
        assert meta.records[GONE].offset == 1


async def test_a_reset_of_which_a_part_was_made_is_known_here_and_not_undone_by_a_flush(tmp_path: Path) -> None:
    """The part with a reply is adopted before the error, or commits here would continue in the old epoch and lose (7)."""
    meta = FakeMeta()
    first, second = key("a"), key("b")
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({first: 5, second: 5}))
        await core.flusher.flush_all()

        async def half(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
            return [*meta.apply(entries[:1]), SaveOutcome(Status.UNAVAILABLE, None, WHY)]

        meta.faults.append(half)
        with pytest.raises(MetaUnavailableError, match="default/g/b"):
            await core.resets.reset(Wanted(first.group_key, []), Reset(To.OFFSET, 1), execute=True)
        assert core.ledger.store.get(first) == meta.records[first]
        assert meta.records[first].offset == 1
        await send(core, commit_of({first: 6, second: 6}))
        await core.flusher.flush_all()
        assert [meta.records[at].offset for at in (first, second)] == [1, 6]


async def test_a_push_of_the_recovery_without_an_answer_has_failed(tmp_path: Path) -> None:
    """The report counts it as failed; the key is dirty, and the flush loop sends it (9)."""
    store = LocalStore.open(tmp_path / "adapter", "interval")
    store.write(dict.fromkeys(BOTH, record(5)))
    crash(store)
    meta = PartedMeta("gone")
    async with core_over(tmp_path, meta, recovered=False) as core:
        report = await core.recovery.run()
        assert (report.pushed, report.failed) == (1, 1)
        assert core.ledger.dirty.keys() == {GONE}
        meta.gone.clear()
        await core.flusher.flush_all()
        assert meta.records[GONE] == record(5)


async def test_an_overloaded_meta_service_is_left_alone_by_the_recovery_for_as_long_as_it_asked(tmp_path: Path) -> None:
    """Otherwise each batch of the recovery would send all dirty keys again."""
    keys = [key(f"s{at}") for at in range(6)]
    store = LocalStore.open(tmp_path / "adapter", "interval")
    store.write(dict.fromkeys(keys, record(5)))
    crash(store)
    meta = FakeMeta()
    meta.faults.append(MetaUnavailableError("overloaded", retry_after_s=60.0))
    async with core_over(tmp_path, meta, recovered=False, recovery={"batch_keys": 1}) as core:
        report = await core.recovery.run()
        assert (report.pushed, report.failed, len(meta.saves)) == (0, 6, 1)
        assert core.ledger.dirty.keys() == set(keys)


async def test_a_key_that_was_refused_before_its_group_was_set_aside_is_not_lost(tmp_path: Path) -> None:
    """It waits for its own retry and for that of its group (4)."""
    meta = PartedMeta()
    other = GONE._replace(shard="t")
    async with core_over(tmp_path, meta) as core:

        async def refuse(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
            return [SaveOutcome(Status.INVALID, None, "by the test")] * len(entries)

        meta.faults.append(refuse)
        await send(core, commit_of({GONE: 5}))
        await core.flusher.flush_once()
        meta.gone.add("gone")
        await send(core, commit_of({other: 5}))
        await core.flusher.flush_once()
        await core.flusher.flush_once(refused_too=True)
        assert core.ledger.dirty.keys() == {GONE, other}
        assert (core.ledger.dirty.aside, core.ledger.dirty.refused, core.ledger.store.flushed_seq) == (2, 0, 0)
        meta.gone.clear()
        assert await core.flusher.flush_all() == 2
        assert core.ledger.store.flushed_seq == core.ledger.store.seq
