"""Flushes that fail: what stays dirty, what is sent again, when the drain gives up, and that the flush loop continues."""

import asyncio
from pathlib import Path

import pytest

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.meta.epochless import Saver
from adapter.model.records import Status
from adapter.runtime.clocks import Clocks
from adapter.sidecar.config import FlushSection
from adapter.sidecar.engine.flusher import Flusher
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
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
)
from tests.unit.sidecar.engine.flushing import DOWN, A, B, C, D, commit_all, offsets_in, shards_of


async def test_a_failed_flush_leaves_everything_dirty(tmp_path: Path) -> None:
    """Keys leave the dirty set only when they are acknowledged (4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5)
        meta.down = DOWN
        for _ in range(3):
            with pytest.raises(MetaUnavailableError, match="down by the test"):
                await core.flusher.flush_once()
            assert len(core.ledger.dirty) == core.ledger.dirty.pending == 4
        assert core.flusher.last_error == "down by the test"
        meta.down = None
        assert await core.flusher.flush_once() == 4
        assert offsets_in(meta) == dict.fromkeys((A, B, C, D), 5)
        assert core.flusher.last_error == ""


async def test_with_the_meta_service_down_the_dirty_set_grows_with_keys_and_the_newest_is_sent(tmp_path: Path) -> None:
    """Every commit is acknowledged, however many commits and failed flushes there are (4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 0)
        meta.down = DOWN
        for offset in range(1, 101):
            await commit_all(core, offset)
            with pytest.raises(MetaUnavailableError):
                await core.flusher.flush_once()
        assert len(core.ledger.dirty) == 4
        meta.down = None
        await core.flusher.flush_once()
        assert offsets_in(meta) == dict.fromkeys((A, B, C, D), 100)


async def test_a_commit_during_a_flush_that_fails_is_what_the_next_one_sends(tmp_path: Path) -> None:
    """The older value does not replace the newer one when it returns to the set (2, 4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5)

        async def commit_and_fail() -> None:
            await commit(core, 6)
            raise DOWN

        meta.faults.append(during(meta, commit_and_fail))
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        await core.flusher.flush_once()
        assert [save[0].record.offset for save in meta.saves] == [5, 6]
        assert len(core.ledger.dirty) == 0


async def test_a_save_that_applies_and_then_times_out_is_sent_again_and_harms_nothing(tmp_path: Path) -> None:
    """The key stays dirty; another adapter's later commit is not set back by the repetition (2, 4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5, "ab")
        meta.faults.append(applied_then(meta, DOWN))
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        assert offsets_in(meta) == {A: 5, B: 5}
        assert {A, B} == {found for found in (A, B) if found in core.ledger.dirty}
        meta.records[B] = record(9)
        await core.flusher.flush_once()
        assert offsets_in(meta) == {A: 5, B: 9}
        assert core.ledger.store.get(B) == record(9)
        assert len(core.ledger.dirty) == 0


@pytest.mark.parametrize("status", [Status.INVALID, Status.CONFLICT])
async def test_of_a_partly_refused_flush_only_the_refused_keys_stay_dirty(tmp_path: Path, status: Status) -> None:
    """They are logged by name and wait for their own retry (4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5)
        meta.faults.append(refusing(meta, {"b", "d"}, status))
        assert await core.flusher.flush_once() == 2
        assert offsets_in(meta) == {A: 5, C: 5}
        assert {found for found in (A, B, C, D) if found in core.ledger.dirty} == {B, D}
        assert core.flusher.last_error == f"default/g/d: {status.name} by the test"
        assert await core.flusher.flush_once() == 0
        await commit_all(core, 6, "ac")
        await core.flusher.flush_once()
        assert shards_of(meta)[1:] == [["a", "c"]]
        core.ledger.dirty.retry_refused()
        assert await core.flusher.flush_once() == 2
        assert offsets_in(meta) == {A: 6, B: 5, C: 6, D: 5}


async def test_flush_all_sends_what_was_refused_again_and_tells_when_it_still_is(tmp_path: Path) -> None:
    """An operator uses it when the reason for the refusal is gone."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5, "ab")
        meta.faults.extend([refusing(meta, {"b"}), refusing(meta, {"b"})])
        await core.flusher.flush_once()
        with pytest.raises(RefusedError, match=r"^1 offset refused: default/g/b: INVALID by the test$"):
            await core.flusher.flush_all()
        assert await core.flusher.flush_all() == 1
        assert len(core.ledger.dirty) == 0


async def test_a_request_that_is_refused_as_a_whole_leaves_its_keys_refused(tmp_path: Path) -> None:
    """Nothing is lost, and new commits are flushed (4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5, "ab")
        meta.faults.append(RefusedError("no such cluster"))
        assert await core.flusher.flush_once() == 0
        assert core.ledger.dirty.refused == 2
        assert core.flusher.last_error == "no such cluster"
        await commit_all(core, 5, "c")
        assert await core.flusher.flush_once() == 1
        assert await core.flusher.flush_all() == 2


async def test_what_stands_is_taken_over_even_when_a_later_chunk_fails(tmp_path: Path) -> None:
    """A key of the first chunk was superseded: it must not become clean with the lower value (2)."""
    meta = FakeMeta({A: record(9, 3)})
    async with core_over(tmp_path, meta, flush={"max_batch_bytes": 16_384}) as core:
        await core.ledger.submit(commit_of({key(shard): 5 for shard in "abcdefgh"}, metadata="m" * 4000))
        meta.faults.extend([during(meta, lambda: asyncio.sleep(0)), DOWN])
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        assert "a" in shards_of(meta)[0]
        assert len(meta.saves) == 2
        assert core.ledger.store.get(A) == record(9, 3)


async def test_what_was_acknowledged_before_a_chunk_failed_is_clean_and_the_rest_is_dirty(tmp_path: Path) -> None:
    """Only the rest is sent again (3, 4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, flush={"max_batch_bytes": 16_384}) as core:
        keys = {key(shard): 5 for shard in "abcdefghij"}
        await send(core, commit_of(keys, metadata="m" * 4000))
        meta.faults.extend([during(meta, lambda: asyncio.sleep(0)), DOWN])
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        sent = {entry.key for entry in meta.saves[0]}
        assert 0 < len(sent) < len(keys)
        assert {found for found in keys if found in core.ledger.dirty} == keys.keys() - sent
        assert core.ledger.store.flushed_seq == 0
        assert await core.flusher.flush_once() == len(keys) - len(sent)
        assert core.ledger.store.flushed_seq == core.ledger.store.seq


async def test_a_cancelled_flush_leaves_its_keys_dirty(tmp_path: Path) -> None:
    """When the drain's deadline cancels a call, it is unknown whether it was applied (4)."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5)
        flush = asyncio.create_task(core.flusher.flush_once())
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
        assert core.ledger.dirty.pending == 1
        meta.gate.set()
        assert await core.flusher.flush_once() == 1


async def test_a_drain_goes_on_until_nothing_is_dirty(tmp_path: Path) -> None:
    """Through failures, new commits, and keys that were refused before (8)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, flush={"interval_ms": 1}) as core:
        await commit_all(core, 5, "ab")
        meta.faults.append(refusing(meta, {"b"}))
        await core.flusher.flush_once()
        await commit_all(core, 6, "a")
        meta.faults.extend([DOWN, applied_then(meta, DOWN), during(meta, lambda: commit(core, 7, "c"))])
        assert await core.flusher.drain(PATIENCE_S) == 0
        assert offsets_in(meta) == {A: 6, B: 5, C: 7}
        assert core.ledger.store.flushed_seq == core.ledger.store.seq


async def test_a_drain_ends_at_its_deadline_and_says_how_many_keys_are_left(tmp_path: Path) -> None:
    """They are dirty again after the next start (8)."""
    meta = FakeMeta()
    meta.down = DOWN
    async with core_over(tmp_path, meta, flush={"interval_ms": 1}) as core:
        await commit_all(core, 5)
        assert await core.flusher.drain(0.05) == 4
        assert core.flusher.last_error == "down by the test"
        assert core.ledger.store.flushed_seq == 0


async def test_a_drain_does_not_wait_for_a_call_that_hangs(tmp_path: Path) -> None:
    """The deadline cancels the call (8)."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5, "ab")
        assert await core.flusher.drain(0.05) == 2
        assert core.ledger.dirty.pending == 2


async def test_a_drain_does_not_wait_for_what_is_refused(tmp_path: Path) -> None:
    """An immediate repetition cannot help; all other keys are flushed (8)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5, "ab")
        meta.faults.append(refusing(meta, {"b"}))
        assert await core.flusher.drain(PATIENCE_S) == 1
        assert offsets_in(meta) == {A: 5}


async def test_the_loop_flushes_what_is_committed_and_survives_an_outage(tmp_path: Path) -> None:
    """It continues after every kind of failure, with the newest values (4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, flush={"interval_ms": 1, "backoff_max_ms": 5, "refused_retry_ms": 1}) as core:
        core.tasks.start_soon(core.flusher.run)
        await commit_all(core, 5)
        await eventually(lambda: offsets_in(meta) == dict.fromkeys((A, B, C, D), 5), PATIENCE_S)
        meta.down = DOWN
        saves = len(meta.saves)
        await commit_all(core, 6)
        await eventually(lambda: len(meta.saves) > saves + 3, PATIENCE_S)
        await commit_all(core, 7)
        meta.faults.extend([applied_then(meta, DOWN), refusing(meta, {"a", "b"})])
        meta.down = None
        await eventually(lambda: len(core.ledger.dirty) == 0, PATIENCE_S)
        assert offsets_in(meta) == dict.fromkeys((A, B, C, D), 7)


async def test_a_flush_slower_than_the_interval_does_not_end_the_loop(tmp_path: Path) -> None:
    """The clock is past the next tick when the save returns, so ticks are skipped."""
    meta = FakeMeta()
    now = [0.0]

    async def slow() -> None:
        now[0] += 60.0

    async with core_over(tmp_path, meta, clocks=Clocks(lambda: now[0])) as core:
        flusher = Flusher(core.ledger, FlushSection(interval_ms=1), Saver(meta), AdapterMetrics(), core.expiry._tombstones)
        meta.faults.append(during(meta, slow))
        await commit(core, 5)
        core.tasks.start_soon(flusher.run)
        await eventually(lambda: offsets_in(meta) == {key(): 5}, PATIENCE_S)
        await commit(core, 6)
        await eventually(lambda: offsets_in(meta) == {key(): 6}, PATIENCE_S)


async def test_a_retry_of_what_was_refused_does_not_replace_a_newer_value_in_flight(tmp_path: Path) -> None:
    """The retry waits for the running flush; if that fails, its newer value is sent next (1, 3)."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, knows="g") as core:
        meta.gate.set()
        meta.faults.append(refusing(meta, {"a"}))
        await commit(core, 5, "a")
        await core.flusher.flush_once()
        meta.gate.clear()
        meta.entered.clear()
        meta.faults.append(DOWN)
        await commit(core, 6, "a")
        first = asyncio.create_task(core.flusher.flush_once())
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        second = asyncio.create_task(core.flusher.flush_all())
        await asyncio.sleep(0)
        meta.gate.set()
        with pytest.raises(MetaUnavailableError):
            await first
        assert await second == 1
        assert offsets_in(meta) == {A: 6}
        assert len(core.ledger.dirty) == 0
