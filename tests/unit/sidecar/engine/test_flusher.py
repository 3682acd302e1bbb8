"""The flush: what is sent, which keys are clean afterwards, and how far the flushed watermark advances."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.errors import MetaUnavailableError
from adapter.meta.packed import Chunk, entry_bytes, merge_request
from adapter.meta.wire import save_request
from adapter.model.codec import encode_key, pack_names
from adapter.model.records import OffsetKey, OffsetRecord, Run, SaveEntry
from adapter.sidecar.ledger.operations import Reconcile
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import (
    KEYS,
    PATIENCE_S,
    RECORDS,
    HeldMeta,
    commit,
    commit_of,
    core_over,
    doom,
    during,
    key,
    record,
    refusing,
    send,
    tombstone,
    watched,
)
from tests.unit.sidecar.engine.flushing import DOWN, A, B, C, D, commit_all, offsets_in, shards_of


async def test_a_flush_sends_the_newest_value_of_each_dirty_key_once(tmp_path: Path) -> None:
    """A thousand commits of two keys are two entries of one save (5)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        for offset in range(1, 501):
            await commit_all(core, offset, "ab")
        assert await core.flusher.flush_once() == 2
        assert shards_of(meta) == [["a", "b"]]
        assert offsets_in(meta) == {A: 500, B: 500}
        assert len(core.ledger.dirty) == 0


async def test_nothing_is_sent_when_nothing_changed(tmp_path: Path) -> None:
    """Neither without commits, nor after superseded or repeated ones (5)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        assert await core.flusher.flush_once() == 0
        await commit(core, 5)
        await core.flusher.flush_once()
        await commit(core, 4)
        await commit(core, 5)
        assert await core.flusher.flush_once() == 0
        assert await core.flusher.flush_all() == 0
        assert len(meta.saves) == 1


async def test_a_flush_sends_only_what_changed_however_much_is_stored(tmp_path: Path) -> None:
    """One dirty key among a thousand is one entry, without a scan or a batch of the store (6)."""
    meta = FakeMeta()
    store = watched(tmp_path)
    async with core_over(tmp_path, meta, store=store) as core:
        await send(core, commit_of({key(f"s{at}"): 1 for at in range(1000)}))
        await core.flusher.flush_once()
        await commit(core, 2, "s500")
        batches = store.batches
        store.scan = None  # type: ignore[assignment]
        await core.flusher.flush_once()
        assert shards_of(meta)[1:] == [["s500"]]
        assert store.batches == batches


async def test_a_commit_during_a_flush_stays_dirty(tmp_path: Path) -> None:
    """The acknowledgement is for the value that was sent; the next flush sends the newer one (3)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5)
        meta.faults.append(during(meta, lambda: commit(core, 6)))
        assert await core.flusher.flush_once() == 1
        assert key() in core.ledger.dirty
        assert offsets_in(meta) == {key(): 5}
        assert await core.flusher.flush_once() == 1
        assert offsets_in(meta) == {key(): 6}
        assert key() not in core.ledger.dirty


async def test_a_commit_during_a_flush_is_above_the_flushed_watermark(tmp_path: Path) -> None:
    """After a kill right behind the flush, the next start finds it unflushed (3)."""
    meta = FakeMeta()
    store = watched(tmp_path)
    async with core_over(tmp_path, meta, store=store) as core:
        await commit(core, 5)
        meta.faults.append(during(meta, lambda: commit(core, 6)))
        await core.flusher.flush_once()
        assert store.flushed_seq < store.seq_of(key())
        doom(store)
    async with core_over(tmp_path, meta, recovered=False) as core:
        await core.flusher.mark_unflushed()
        assert key() in core.ledger.dirty


async def test_commits_of_other_keys_during_a_flush_do_not_wait_for_it(tmp_path: Path) -> None:
    """A slow Meta Service never delays a commit (4)."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        flush = asyncio.create_task(core.flusher.flush_once())
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        for offset in range(100):
            await commit(core, offset, "b")
        assert not flush.done()
        meta.gate.set()
        assert await flush == 1
        assert A not in core.ledger.dirty
        assert B in core.ledger.dirty


async def test_a_superseded_key_takes_over_what_stands(tmp_path: Path) -> None:
    """After a commit through another broker or a reset, the larger value is stored here, clean (2)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 5)
        meta.records = {A: record(9), B: record(0, 2), C: tombstone(2), D: record(4)}
        assert await core.flusher.flush_once() == 4
        assert [core.ledger.store.get(found) for found in (A, B, C, D)] == [record(9), record(0, 2), tombstone(2), record(5)]
        assert len(core.ledger.dirty) == 0


async def test_an_unknown_epoch_becomes_the_one_that_stands(tmp_path: Path) -> None:
    """A key committed while the Meta Service was down learns its epoch from the flush."""
    meta = FakeMeta({A: record(3, 4), B: record(9, 4)})
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(commit_of({A: 5, B: 5, C: 5}))
        await core.flusher.flush_once()
        expected = {A: record(5, 4), B: record(9, 4), C: record(5, 1)}
        assert meta.records == expected
        assert {found: core.ledger.store.get(found) for found in (A, B, C)} == expected
        assert len(core.ledger.dirty) == 0


async def test_a_commit_during_a_flush_that_is_superseded_merges_with_what_stands(tmp_path: Path) -> None:
    """It was committed in the older epoch, and is stored in the new one (2, 3)."""
    meta = FakeMeta({key(): record(3, 4)})
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(commit_of({key(): 2}))
        meta.faults.append(during(meta, lambda: commit(core, 8)))
        await core.flusher.flush_once()
        assert core.ledger.store.get(key()) == record(8, 4)
        assert key() in core.ledger.dirty
        await core.flusher.flush_once()
        assert meta.records[key()] == record(8, 4)


async def test_saves_stay_under_the_batch_limit_and_carry_everything_once(tmp_path: Path) -> None:
    """A new save begins when the batch limit, in bytes on the wire, would be exceeded (5)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, flush={"max_batch_bytes": 16_384}) as core:
        keys = {key("\U0001f600" * (at % 60) + str(at), f"ä{at % 3}"): at for at in range(60)}
        await send(core, commit_of(keys, metadata="ö" * 900, topic="t" * 200))
        assert await core.flusher.flush_once() == 60
        sizes = [(await save_request("default", save)).ByteSize() for save in meta.saves]
        assert max(sizes) <= 16_384
        assert len(sizes) <= sum(sizes) // 12_000 + 1
        assert sorted(entry.key for save in meta.saves for entry in save) == sorted(keys)
        assert len(core.ledger.dirty) == 0


async def test_the_flushed_watermark_follows_what_was_acknowledged(tmp_path: Path) -> None:
    """It stays below failed and refused records, and advances when they are acknowledged (3, 4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        await core.flusher.flush_once()
        assert core.ledger.store.flushed_seq == 1
        await commit(core, 5, "b")
        meta.faults.append(DOWN)
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        assert core.ledger.store.flushed_seq == 1
        meta.faults.append(refusing(meta, {"b"}))
        await core.flusher.flush_once()
        await commit(core, 6, "a")
        await core.flusher.flush_once()
        assert (core.ledger.store.flushed_seq, core.ledger.store.seq_of(B)) == (1, 2)
        await core.flusher.flush_all()
        assert core.ledger.store.flushed_seq == core.ledger.store.seq == 3


async def test_the_flushed_watermark_does_not_pass_a_stored_key_that_became_dirty_during_the_flush(tmp_path: Path) -> None:
    """As by a comparison, or an expiry that is taken back: the flush did not have it. After a kill it would be clean (3)."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta) as core:
        meta.gate.set()
        await commit(core, 5, "a")
        await core.flusher.flush_once()
        meta.gate.clear()
        meta.entered.clear()
        await commit(core, 5, "b")
        flush = asyncio.create_task(core.flusher.flush_once())
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        await core.ledger.submit(Reconcile([(A, None)]))
        assert core.meta_watch.local().flushed_seq == 1
        meta.gate.set()
        await flush
        assert (A in core.ledger.dirty, core.ledger.store.flushed_seq) == (True, 1)
        await core.flusher.flush_once()
        assert core.ledger.store.flushed_seq == core.ledger.store.seq == 2


async def test_before_the_recovery_the_flushed_watermark_does_not_move(tmp_path: Path) -> None:
    """Until then the store may hold dirty keys that are not in the dirty set (3)."""
    async with core_over(tmp_path, FakeMeta(), recovered=False) as core:
        await commit(core, 5)
        assert await core.flusher.flush_once() == 1
        assert core.ledger.store.flushed_seq == 0


async def test_one_flush_runs_at_a_time(tmp_path: Path) -> None:
    """A second one waits, and sends only what was committed since (5)."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        first = asyncio.create_task(core.flusher.flush_once())
        await asyncio.wait_for(meta.entered.wait(), PATIENCE_S)
        meta.entered.clear()
        second = asyncio.create_task(core.flusher.flush_once())
        await commit(core, 5, "b")
        assert not meta.entered.is_set()
        meta.gate.set()
        assert (await first, await second) == (1, 1)
        assert shards_of(meta) == [["a"], ["b"]]


LARGEST = OffsetRecord(2**64 - 1, 2**64 - 1, live=False, committed_at_ms=2**64 - 1, metadata="m" * 4096, topic="t" * 255)


@given(KEYS, RECORDS, st.integers(1, 3))
@example(key("s" * 255, "g" * 255, "n" * 255), LARGEST._replace(partition=2**32 - 1), 1)
def test_the_size_that_is_reckoned_for_an_entry_is_enough_on_the_wire(where: OffsetKey, sent: OffsetRecord, times: int) -> None:
    """Even alone in its group, the largest form; a chunk above the message limit could never be sent (4)."""
    entries = [SaveEntry(where._replace(group=f"{where.group[:80]}{at}"), sent, 2**64 - 1) for at in range(times)]
    chunk = Chunk([Run(key.group_key, [key.shard], [(record, 2**64 - 1, encode_key(key))]) for key, record, _ in entries])
    most = sum(entry_bytes(record, encode_key(key)) for key, record, _ in entries)
    assert asyncio.run(save_request("", entries)).ByteSize() <= most
    assert asyncio.run(merge_request("", chunk)).ByteSize() <= most
    cluster = "c" * 255
    assert asyncio.run(merge_request(cluster, chunk)).ByteSize() <= most + len(pack_names(cluster)) * (times + 1)
