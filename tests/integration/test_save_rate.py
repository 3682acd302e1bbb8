"""Invariant 5: save calls stay at one per flush interval, whatever the commit rate."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import grpc.aio
import pytest

from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.model.records import SaveEntry
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.integration.helpers import PATIENCE_S, commits, key, serving

LOAD_S = 3.0
COMMITTERS = 8
COMMITS = 200  # of each committer at least, however long that takes
INTERVAL_S = 0.1


def _most(seconds: float, interval_s: float) -> float:
    """How many saves there may be in a time: one in each interval, and at either end one that belongs to a tick beside it."""
    return seconds / interval_s + 2


async def _load(client: OffsetClient, seconds: float) -> int:
    """Commit as fast as a few callers can, for so long at least; returns how many offsets were acknowledged."""
    counts = [0] * COMMITTERS

    async def commit(at: int) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end or counts[at] < COMMITS:
            offsets = {f"s{at}-{shard}": counts[at] for shard in range(10)}
            await client.store.CommitOffsets(commits(offsets), timeout=PATIENCE_S)
            counts[at] += 1

    async with anyio.create_task_group() as tasks:
        for at in range(COMMITTERS):
            tasks.start_soon(commit, at)
    return sum(counts) * 10


async def test_save_calls_do_not_grow_with_the_commit_rate(directory: Path) -> None:
    """At most one in each interval of the time that really passed (5)."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        started = time.monotonic()
        acknowledged = await _load(client, LOAD_S)
        status = await client.status()
        elapsed = time.monotonic() - started
        assert 1 <= len(meta.saves) <= _most(elapsed, INTERVAL_S)
        assert status.save_calls <= _most(elapsed, INTERVAL_S)
        assert acknowledged > 20 * len(meta.saves)
        assert status.commits == acknowledged
        # Only what changed, each key once: never the journal of commits.
        assert all(len({entry.key for entry in save}) == len(save) <= COMMITTERS * 10 for save in meta.saves)


async def test_nothing_is_sent_when_nothing_changed(directory: Path) -> None:
    """Repeated and lower commits change nothing, so there is nothing to flush; a later change is (5, 6)."""
    meta = FakeMeta()
    async with serving(directory, meta, flush={"interval_ms": 10}) as (_, client):
        await client.store.CommitOffsets(_at(5, committed_at_ms=1))
        await eventually(lambda: len(meta.saves) == 1, PATIENCE_S)
        for offset in (5, 4, 5):
            await client.store.CommitOffsets(_at(offset, committed_at_ms=1))
        assert (await client.status()).dirty_keys == 0
        await client.store.CommitOffsets(_at(6, committed_at_ms=1))
        await eventually(lambda: len(meta.saves) == 2, PATIENCE_S)
    assert [[entry.record.offset for entry in save] for save in meta.saves] == [[5], [6]]


def _at(offset: int, **fields: Any) -> Any:
    request = commits({"s": offset})
    for name, value in fields.items():
        setattr(request.groups[0].shards[0], name, value)
    return request


async def test_a_failing_meta_service_is_not_called_more_often(directory: Path) -> None:
    """Failed attempts count, too, and back off (4, 5)."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        await client.commit("g", {"s": 1})
        meta.down = MetaUnavailableError("gone")
        before = len(meta.saves)
        started = time.monotonic()
        await _load(client, 1.5)
        assert len(meta.saves) - before <= _most(time.monotonic() - started, INTERVAL_S)
        meta.down = None


async def test_a_flush_slower_than_the_interval_skips_ticks_and_goes_on(directory: Path) -> None:
    """The next one begins after it, with the newest value; no tick is made up for in a burst (5)."""
    meta = FakeMeta()
    running = 0

    async def slow(entries: Sequence[SaveEntry]) -> Any:
        nonlocal running
        running += 1
        assert running == 1
        await anyio.sleep(4 * 0.02)
        running -= 1
        return meta.apply(entries)

    meta.faults.extend([slow] * 6)
    async with serving(directory, meta, flush={"interval_ms": 20}) as (_, client):
        started = time.monotonic()
        for offset in range(1, 10_000):
            await client.commit("g", {"s": offset})
            if not meta.faults:
                break
        await eventually(lambda: meta.records.get(key(), (0, 0))[1] == offset, PATIENCE_S)
        assert len(meta.saves) <= _most(time.monotonic() - started, 0.02)


async def test_a_batch_over_the_limit_goes_out_in_chunks(directory: Path) -> None:
    """One more call per `max_batch_bytes`, each below it (5)."""
    meta = FakeMeta()
    limits = {"interval_ms": 60_000, "max_batch_bytes": 65_536}
    async with serving(directory, meta, flush=limits) as (_, client):
        for at in range(10):
            await client.store.CommitOffsets(commits({f"s{at}-{shard}": 1 for shard in range(10)}, metadata="m" * 4000))
        assert await client.flush() == 100
    sizes = [sum(len(entry.record.metadata) for entry in save) for save in meta.saves]
    assert sum(sizes) == 400_000
    assert len(sizes) <= 400_000 // 65_536 + 3
    assert max(sizes) <= 65_536


async def test_concurrent_write_through_commits_share_save_calls(directory: Path) -> None:
    """While one call is under way, all who come wait for the next, together."""
    meta = FakeMeta()
    first = anyio.Event()

    async def held(entries: Sequence[SaveEntry]) -> Any:
        await first.wait()
        return meta.apply(entries)

    meta.faults.append(held)
    async with serving(directory, meta, mode="write_through") as (_, client), anyio.create_task_group() as tasks:
        tasks.start_soon(client.commit, "g", {"first": 1})
        await eventually(lambda: len(meta.saves) == 1, PATIENCE_S)
        for at in range(50):
            tasks.start_soon(client.commit, "g", {f"s{at}": 1})
        for _ in range(20):  # round trips on the same connection: the fifty have arrived when they are through
            await client.status()
        first.set()
    assert sum(len(save) for save in meta.saves) == 51
    assert len(meta.saves) < 51 / 2


async def test_a_write_through_commit_without_the_meta_service_is_unavailable(directory: Path) -> None:
    """And does not count: it is neither here nor there, then or later."""
    meta = FakeMeta()
    async with serving(directory, meta, mode="write_through") as (_, client):
        await client.commit("g", {"s": 1})
        meta.down = MetaUnavailableError("gone")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.store.CommitOffsets(commits({"s": 2}))  # `commit` would try for seconds
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "gone")
        meta.down = None
        assert (await client.read("g"))["s"].offset == 1
    assert meta.records[key()].offset == 1
