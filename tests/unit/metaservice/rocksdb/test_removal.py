"""The embedded engine deletes and expires a large group in slices, and saves, errors and kills may come between two of them."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import DiskFullError
from adapter.metaservice.engine import Expiry
from adapter.metaservice.rocksdb import engine as rocksdb_engine
from adapter.metaservice.rocksdb.engine import SLICE, RocksDbEngine
from adapter.model.codec import encode_key, encode_record, pack_names
from adapter.model.records import OffsetKey, OffsetRecord, SaveEntry, Status, deleted, expired, next_era
from adapter.runtime.slices import others
from tests.embedded_engine import opened
from tests.unit.helpers import key, record

CLUSTER = "c"
GROUP = ("default", "g")
SLICES = 3
KEYS = [key(f"{at:05}") for at in range(1, SLICES * SLICE)]  # the last slice is not full
PASSED, AHEAD, LAST = KEYS[0], KEYS[SLICE], KEYS[-1]  # in the first slice, the second and the third
BEFORE, NOW = 1_000, 5_000
OLD = record(5, 3, committed_at_ms=BEFORE - 1)
EXPIRED = expired(OLD, NOW)
FURTHER = OLD._replace(offset=6, committed_at_ms=NOW - 1)
NEW_BEHIND, NEW_AHEAD = key("00000"), key("99999")
LOOK = SLICES  # pauses of the first look at the group; the next one is behind the first slice that was written
MANY, MOST_BYTES = 20_000, 3 * 2**20  # shards; as Python objects all of them take 8 MB

Call = Callable[[RocksDbEngine], Awaitable[Any]]
Contents = dict[OffsetKey, OffsetRecord]
CALLS: dict[str, Call] = {
    "delete": lambda engine: engine.delete(CLUSTER, *GROUP, []),
    "expire": lambda engine: engine.expire(CLUSTER, *GROUP, BEFORE, NOW),
}


async def fill(engine: RocksDbEngine, keys: list[OffsetKey]) -> None:
    """Put the same old commit under each key."""
    await engine.merge(CLUSTER, [encode_key(where) for where in keys], [encode_record(OLD)] * len(keys))


def stands(engine: RocksDbEngine, where: OffsetKey) -> OffsetRecord | None:
    """What is stored now, synced or not."""
    return engine._standing(pack_names(CLUSTER, *where))


async def contents(engine: RocksDbEngine) -> Contents:
    """All records."""
    return dict((await engine.list_page(CLUSTER, (), 10 * len(KEYS), b"")).entries)


async def with_call_between(engine: RocksDbEngine, name: str, number: int, what: Callable[[], Awaitable[object]]) -> Any:
    """Run a removal; at its pause of this number (from 1) do something else to the end."""
    pauses = count(1)

    async def pause() -> None:
        if next(pauses) == number:
            await what()
        await others()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocksdb_engine, "others", pause)
        answer = await CALLS[name](engine)
    assert next(pauses) > number
    return answer


async def reopened(path: Path) -> Contents:
    """All records after another start, which refuses wrong counts of rows and wrong sums of write counters."""
    async with opened(path) as engine:
        return await contents(engine)


@pytest.mark.parametrize("number", range(1, LOOK + SLICES))
async def test_what_is_saved_while_a_group_expires_stands_over_the_expiry(tmp_path: Path, number: int) -> None:
    """As if all of it came after the expiry, also what has an old time: never a part of the group that was kept (1)."""
    late = OLD._replace(offset=7)
    saved = {PASSED: FURTHER, AHEAD: FURTHER, LAST: late, NEW_BEHIND: FURTHER, NEW_AHEAD: FURTHER}
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS)

        async def save() -> None:
            for where, offered in saved.items():
                (outcome,) = await engine.save(CLUSTER, [SaveEntry(where, offered)])
                assert outcome == (Status.APPLIED, offered, "")

        expiry = await with_call_between(engine, "expire", number, save)
        assert KEYS.index(LAST) - SLICE <= expiry.expired < len(KEYS)
        assert expiry.newest_ms == 0
        assert await contents(engine) == dict.fromkeys(KEYS, EXPIRED) | saved
    assert await reopened(tmp_path) == dict.fromkeys(KEYS, EXPIRED) | saved


async def test_a_young_commit_in_the_last_slice_keeps_a_group_that_an_old_one_follows(tmp_path: Path) -> None:
    """The newest commit of all slices decides, wherever it is; nothing is written."""
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS)
        for at, where in enumerate((KEYS[SLICE + 1], KEYS[1], KEYS[-2])):
            young = OLD._replace(offset=9, committed_at_ms=BEFORE + at)
            await engine.save(CLUSTER, [SaveEntry(where, young)])
            before = await contents(engine)
            assert await CALLS["expire"](engine) == Expiry(0, BEFORE + at)
            assert await contents(engine) == before


async def test_a_save_while_a_group_is_deleted_comes_before_or_after_in_each_shard(tmp_path: Path) -> None:
    """An old epoch does not pass a tombstone, nor what is deleted with it (7); a new shard behind the place stands."""
    saved = [PASSED, AHEAD, LAST, NEW_BEHIND, NEW_AHEAD]
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS)
        statuses: list[Status] = []

        async def save() -> None:
            outcomes = await engine.save(CLUSTER, [SaveEntry(where, FURTHER) for where in saved])
            statuses.extend(outcome.status for outcome in outcomes)

        await with_call_between(engine, "delete", LOOK + 1, save)
        assert statuses == [Status.SUPERSEDED, *[Status.APPLIED] * 4]
        found = await contents(engine)
    assert found.pop(NEW_BEHIND) == FURTHER
    assert {where: (at.position, at.live) for where, at in found.items()} == dict.fromkeys(
        [*KEYS, NEW_AHEAD], (deleted(OLD, NOW).position, False)
    )
    assert await reopened(tmp_path) == found | {NEW_BEHIND: FURTHER}


async def test_a_reset_into_the_last_era_while_a_group_is_deleted_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came after the delete, which has deleted others by then, and cannot refuse any more."""
    last_era = OLD._replace(epoch=next_era(OLD.epoch) + 1)
    monkeypatch.setattr("adapter.model.records.EPOCH_MAX", last_era.epoch)
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS)
        await with_call_between(engine, "delete", LOOK + 1, lambda: engine.save(CLUSTER, [SaveEntry(AHEAD, last_era)]))
        found = await contents(engine)
        assert found.pop(AHEAD) == last_era
        assert not any(each.live for each in found.values())


@pytest.mark.parametrize("name", CALLS)
async def test_tombstones_that_are_dropped_during_a_removal_are_counted(tmp_path: Path, name: str) -> None:
    """The removal goes on behind them, and a start finds the rows that it expects."""
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS)
        await with_call_between(engine, name, LOOK + 1, lambda: engine.drop_tombstones(2**63))
        found = await contents(engine)
        assert list(found) == KEYS[SLICE:]
        assert not any(each.live for each in found.values())
    assert await reopened(tmp_path) == found


@pytest.mark.parametrize("name", CALLS)
async def test_a_removal_is_finished_by_a_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """After a full disk, and after a kill: the slices that were written stay, and nothing was acknowledged."""
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS)
        write, writes = engine._write_batch, count(1)

        def fails_late(*batch: Any) -> None:
            if next(writes) == SLICES - 1:
                raise DiskFullError("full by the test")
            write(*batch)

        with monkeypatch.context() as patch:
            patch.setattr(engine, "_write_batch", fails_late)
            with pytest.raises(DiskFullError):
                await CALLS[name](engine)
        assert [each.live for each in (await contents(engine)).values()] == [False] * SLICE + [True] * (len(KEYS) - SLICE)

        async def kill() -> None:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await with_call_between(engine, name, LOOK + 2, kill)
    async with opened(tmp_path) as engine:
        found = await contents(engine)
        assert [each.live for each in found.values()] == [False] * 2 * SLICE + [True] * (len(KEYS) - 2 * SLICE)
        await CALLS[name](engine)
        finished = await contents(engine)
        assert {where: finished[where] for where in KEYS[: 2 * SLICE]} == {where: found[where] for where in KEYS[: 2 * SLICE]}
        assert not any(each.live for each in finished.values())


@pytest.mark.parametrize("name", CALLS)
async def test_a_save_passes_a_long_removal(tmp_path: Path, name: str) -> None:
    """It is written before the removal ends: the lock is held for a slice."""
    async with opened(tmp_path) as engine:
        await fill(engine, KEYS)
        removal = asyncio.ensure_future(CALLS[name](engine))
        while stands(engine, PASSED) == OLD:  # noqa: ASYNC110 - every turn of the loop counts
            await asyncio.sleep(0)
        save = asyncio.create_task(engine.save(CLUSTER, [SaveEntry(key("save", "other"), OLD)]))
        while not stands(engine, key("save", "other")):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert stands(engine, LAST) == OLD
        await asyncio.gather(removal, save)


@pytest.mark.parametrize("name", CALLS)
async def test_a_removal_holds_a_slice_and_not_the_group(tmp_path: Path, name: str) -> None:
    """No more than some hundreds of its shards are Python objects at the same time."""
    async with opened(tmp_path) as engine:
        await fill(engine, [key(f"{at:05}") for at in range(MANY)])
        encode_key.cache_clear()
        tracemalloc.start()
        try:
            await CALLS[name](engine)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < MOST_BYTES
