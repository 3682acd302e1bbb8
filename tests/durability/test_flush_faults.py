"""A real sidecar whose saves meet faults at exact points: what was not acknowledged stays dirty, on disk as well (1, 2, 3, 4).

A "crash image" is a copy of the local store made at an exact point, which is what kill -9 would leave there. No save goes
out between a test's own flushes, unless the test sets a short interval.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import pytest

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.meta.packed import Chunk, merge_outcomes
from adapter.model.codec import encode_record
from adapter.model.records import OffsetRecord, ReadMode, Run, SaveEntry, SaveOutcome, Status
from adapter.rpc import meta_pb
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.durability.inprocess import (
    TICK_MS,
    UNREACHABLE,
    Reply,
    applying,
    crash_image,
    dirty,
    dirty_without_meta,
    expect,
    expect_nothing_to_send,
    key,
    large_commit,
    merged,
    over_grpc,
    positions_of,
    recovery,
    refusing,
    sent,
    serving,
    settings,
    settled,
    until,
)


async def test_a_commit_during_a_flush_stays_dirty(tmp_path: Path) -> None:
    """It is in the next save, alone, and a crash at this instant does not lose it (1, 3)."""
    config, meta, images = settings(tmp_path), FakeMeta(), []
    async with serving(config, meta) as client:

        async def commit_inside(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
            await client.commit("g", {"a": 2})
            images.append(crash_image(config, tmp_path))
            return meta.apply(entries)

        await client.commit("g", {"a": 1, "b": 1})
        meta.faults.append(commit_inside)
        assert await client.flush() == 2
        assert await dirty(client) == {"a": 2}
        assert await client.flush() == 1
        assert sent(meta) == [{"a": 1, "b": 1}, {"a": 2}]
        await expect_nothing_to_send(client, meta)
    remote = FakeMeta({key("a"): OffsetRecord(1, 1), key("b"): meta.records[key("b")]})
    assert (await recovery(images[0], remote)).pushed == 1
    assert remote.records == meta.records


async def test_a_commit_during_a_flush_that_learns_the_epoch_stays_dirty(tmp_path: Path) -> None:
    """Taking over the epoch that stands must not clean the newer offset (3)."""
    meta = FakeMeta()
    async with serving(settings(tmp_path), meta) as client:

        async def commit_inside(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
            await client.commit("g", {"a": 2})
            return meta.apply(entries)

        meta.down = UNREACHABLE  # so that the epoch is unknown
        await client.commit("g", {"a": 1})
        meta.down = None
        meta.records[key("a")] = OffsetRecord(7, 0)
        meta.faults.append(commit_inside)
        assert await client.flush() == 1
        assert await dirty(client) == {"a": 2}
        assert await client.flush() == 1
        assert meta.records[key("a")].position == (7, 2)
        await expect_nothing_to_send(client, meta)


async def test_the_flush_loop_sends_a_commit_that_came_during_a_flush_once(tmp_path: Path) -> None:
    """The next tick takes it, and what is clean goes out with no later save (3, 5, 6)."""
    meta = FakeMeta()
    async with serving(settings(tmp_path, interval_ms=TICK_MS), meta) as client:

        async def commit_inside(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
            await client.commit("g", {"a": 2})
            return meta.apply(entries)

        meta.faults.append(commit_inside)
        await client.commit("g", {"a": 1})
        await eventually(lambda: len(meta.saves) == 2)
        await client.commit("g", {"b": 1})
        await eventually(lambda: len(meta.saves) == 3)
        assert sent(meta) == [{"a": 1}, {"a": 2}, {"b": 1}]


async def test_a_commit_during_a_flush_that_fails_is_what_the_next_one_sends(tmp_path: Path) -> None:
    """What was sent in vain goes back under it: never an old value again (2, 3, 4)."""
    meta = FakeMeta()
    async with serving(settings(tmp_path), meta) as client:

        async def commit_and_fail(_: Sequence[SaveEntry]) -> list[SaveOutcome]:
            await client.commit("g", {"a": 2})
            raise UNREACHABLE

        await client.commit("g", {"a": 1, "b": 1})
        meta.faults.append(commit_and_fail)
        await expect(client.flush(), grpc.StatusCode.UNAVAILABLE)
        assert await dirty(client) == {"a": 2, "b": 1}
        assert await client.flush() == 2
        assert sent(meta)[1:] == [{"a": 2, "b": 1}]
        await expect_nothing_to_send(client, meta)


@pytest.mark.parametrize("applied", [True, False])
async def test_a_save_without_an_answer_leaves_everything_dirty(tmp_path: Path, applied: bool) -> None:
    """Applied or not, it is sent again; after a crash the recovery finds out which (1, 2, 3, 4)."""
    config, meta, images = settings(tmp_path), FakeMeta(), []
    async with serving(config, meta) as client:

        async def time_out(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
            if applied:
                meta.apply(entries)
            images.append((crash_image(config, tmp_path), FakeMeta(meta.records)))
            raise UNREACHABLE

        await client.commit("g", {"a": 1, "b": 1})
        meta.faults.append(time_out)
        await expect(client.flush(), grpc.StatusCode.UNAVAILABLE)
        assert await dirty(client) == {"a": 1, "b": 1}
        assert await client.flush() == 2
        await expect_nothing_to_send(client, meta)
    image, remote = images[0]
    report = await recovery(image, remote)
    assert (report.equal, report.pushed) == ((2, 0) if applied else (0, 2))
    assert remote.records == meta.records
    assert sent(remote) == ([] if applied else [{"a": 1, "b": 1}])


@pytest.mark.parametrize("status", [Status.INVALID, Status.CONFLICT])
async def test_a_save_that_refuses_half_leaves_that_half_dirty(tmp_path: Path, status: Status) -> None:
    """The others are clean and not slowed by it; a crash forgets neither half (1, 3, 4)."""
    config, meta = settings(tmp_path, interval_ms=TICK_MS), FakeMeta()
    offsets = {"a": 1, "b": 2, "c": 3, "d": 4}
    refused = {"b": 2, "d": 4}
    meta.faults.append(refusing(meta, refused, status))
    async with serving(config, meta) as client:
        await client.commit("g", offsets)
        await eventually(lambda: len(meta.saves) == 1)
        await client.commit("g", {"e": 5})
        await eventually(lambda: len(meta.saves) == 2)
        await settled(client, refused)
        assert sent(meta) == [offsets, {"e": 5}]
        await client.commit("g", {"f": 6})  # so that the flushed watermark is on disk
        image, remote = crash_image(config, tmp_path), FakeMeta(meta.records)
        await client.flush()
        assert refused.items() <= merged(sent(meta)[2:]).items()
        await settled(client, {})
        await expect_nothing_to_send(client, meta)
    assert await dirty_without_meta(image, tmp_path) >= refused.keys()
    assert (await recovery(image, remote)).pushed >= len(refused)
    assert positions_of(remote) == positions_of(meta)


async def test_a_flush_that_ends_while_refused_offsets_are_retried_does_not_count_them(tmp_path: Path) -> None:
    """They were not in it: after a crash, even without the Meta Service, they are dirty (3, 4, 8)."""
    config, meta = settings(tmp_path, interval_ms=TICK_MS), FakeMeta()
    async with serving(config, meta) as client:

        async def retry_inside(entries: Sequence[SaveEntry]) -> list[SaveOutcome]:
            flushes.append(asyncio.create_task(client.flush()))
            for _ in range(3):  # calls behind it on the same connection: it has begun, and waits for this flush
                await client.status()
            return meta.apply(entries)

        async def a_is_refused() -> bool:
            return (await client.status()).refused_keys == 1

        flushes: list[asyncio.Task[int]] = []
        meta.faults += [refusing(meta, {"a": 1}), retry_inside, refusing(meta, {"a": 1})]
        await client.commit("g", {"a": 1})
        await until(a_is_refused)
        await client.commit("g", {"b": 1})
        await eventually(lambda: bool(flushes))
        await expect(flushes[0], grpc.StatusCode.FAILED_PRECONDITION)
        assert sent(meta) == [{"a": 1}, {"b": 1}, {"a": 1}]
        await client.commit("g", {"c": 1})  # so that the flushed watermark is on disk
        image = crash_image(config, tmp_path)
    assert "a" in await dirty_without_meta(image, tmp_path)


async def test_a_refusal_of_the_whole_save_leaves_all_of_it_dirty(tmp_path: Path) -> None:
    """Nothing of it counts as saved (3, 4)."""
    meta = FakeMeta()
    async with serving(settings(tmp_path), meta) as client:
        await client.commit("g", {"a": 1, "b": 1})
        meta.faults.append(RefusedError("PERMISSION_DENIED"))
        await expect(client.flush(), grpc.StatusCode.FAILED_PRECONDITION)
        assert await dirty(client) == {"a": 1, "b": 1}
        assert await client.flush() == 2
        await expect_nothing_to_send(client, meta)


async def test_a_flush_call_that_is_cancelled_leaves_everything_dirty(tmp_path: Path) -> None:
    """A person's ^C in the middle of a save is a failed flush like any other (4)."""
    meta = FakeMeta()
    reached = asyncio.Event()

    async def hang(_: Sequence[SaveEntry]) -> list[SaveOutcome]:
        reached.set()
        await asyncio.Event().wait()
        return []

    async with serving(settings(tmp_path), meta) as client:
        await client.commit("g", {"a": 1})
        meta.faults.append(hang)
        flush = asyncio.create_task(client.flush())
        await reached.wait()
        flush.cancel()
        assert await client.flush() == 1  # waits for the end of the cancelled one
        assert sent(meta) == [{"a": 1}, {"a": 1}]
        await expect_nothing_to_send(client, meta)


async def test_a_failed_chunk_does_not_undo_the_chunks_before_it(tmp_path: Path) -> None:
    """The first chunk is clean and what it was answered with is adopted; the others stay dirty (2, 3, 4)."""
    meta = FakeMeta()
    async with serving(settings(tmp_path, max_batch_bytes=16_384), meta) as client:
        shards = [str(shard) for shard in range(9)]
        await client.store.CommitOffsets(large_commit(shards))
        meta.records[key("0")] = OffsetRecord(1, 50)
        meta.faults += [applying(meta), UNREACHABLE]
        await expect(client.flush(), grpc.StatusCode.UNAVAILABLE)
        first = sent(meta)[0]
        assert 0 < len(first) < len(shards)
        assert (await dirty(client)).keys() == set(shards) - first.keys()
        assert (await client.read("g", ["0"], mode=ReadMode.MEMORY))["0"].offset == 50
        await client.flush()
        assert merged(sent(meta)[2:]).keys() == set(shards) - first.keys()
        await expect_nothing_to_send(client, meta)


@pytest.mark.parametrize("change", [-1, +1])
async def test_a_save_answered_for_another_number_of_entries_leaves_everything_dirty(tmp_path: Path, change: int) -> None:
    """Nobody knows then which entry it is about (2, 3, 4)."""

    async def distort(reply: Reply) -> None:
        reply.applied += change

    await expect_everything_dirty(tmp_path, distort, f"answered {3 + change} results, 0 of them in rows, to 3 entries")


async def test_a_server_that_reads_no_columns_leaves_everything_dirty_and_is_named(tmp_path: Path) -> None:
    """One of 0.1.0 answers that it took nothing (2, 3, 4)."""

    async def distort(reply: Reply) -> None:
        reply.Clear()

    await expect_everything_dirty(tmp_path, distort, "took no entry of a save in columns: it is older than 0.2.0")


APPLIED, SUPERSEDED = meta_pb.SaveOffsetResult.APPLIED, meta_pb.SaveOffsetResult.SUPERSEDED
STANDS = encode_record(OffsetRecord(1, 7))
ROW = Reply.Standing(index=1, status=SUPERSEDED, record=STANDS)
DISTORTED = {
    "a row for an entry that was not sent": Reply(
        applied=2, superseded=1, standing=[Reply.Standing(index=3, status=SUPERSEDED, record=STANDS)]
    ),
    "two rows for one entry": Reply(applied=1, superseded=2, standing=[ROW, ROW]),
    "a refusal and a row for one entry": Reply(applied=1, superseded=1, standing=[ROW], rejected=[Reply.Rejected(index=1)]),
    "superseded without a row": Reply(applied=2, superseded=1),
    "a row that is not counted": Reply(applied=3, standing=[ROW]),
    "no status": Reply(applied=3, standing=[Reply.Standing(index=1, record=STANDS)]),
    "a status of no merge": Reply(
        applied=2, standing=[Reply.Standing(index=1, status=meta_pb.SaveOffsetResult.CONFLICT, record=STANDS)]
    ),
    "no record": Reply(applied=2, superseded=1, standing=[Reply.Standing(index=1, status=SUPERSEDED)]),
    "a record that is cut off": Reply(applied=3, standing=[Reply.Standing(index=1, status=APPLIED, record=STANDS[:-1])]),
    "a record longer than it says": Reply(applied=3, standing=[Reply.Standing(index=1, status=APPLIED, record=STANDS + b"x")]),
    "a record of unknown epoch": Reply(
        applied=3, standing=[Reply.Standing(index=1, status=APPLIED, record=encode_record(OffsetRecord(0, 7)))]
    ),
}


@pytest.mark.parametrize("answer", DISTORTED.values(), ids=DISTORTED)
async def test_an_answer_that_cannot_be_about_the_save_leaves_everything_dirty(answer: Reply) -> None:
    """No part of it is trusted: what it says nothing about counts as applied (2, 3, 4)."""
    chunk = Chunk([Run(key("a").group_key, ["a", "b", "c"], [(OffsetRecord(1, 5), 1, b"")] * 3)])
    with pytest.raises(MetaUnavailableError, match="answered"):
        await merge_outcomes(chunk, answer)


async def test_a_save_answered_after_the_deadline_leaves_everything_dirty(tmp_path: Path) -> None:
    """The Meta Service has it all, but the adapter does not know (3, 4)."""

    async def hang(_: Reply) -> None:
        await asyncio.Event().wait()

    await expect_everything_dirty(tmp_path, hang, "no answer within 1 s")


async def expect_everything_dirty(tmp_path: Path, distort: Callable[[Reply], Awaitable[None]], why: str) -> None:
    """Through a real gRPC server, whose answer to the first save is distorted after the save was applied."""
    config, meta, offsets = settings(tmp_path), FakeMeta(), {"a": 1, "b": 2, "c": 3}
    async with over_grpc(meta, distort) as remote:
        async with serving(config, remote) as client:
            await client.commit("g", offsets)
            failure = await expect(client.flush(), grpc.StatusCode.UNAVAILABLE)
            assert why in (failure.details() or "")
            assert await dirty(client) == offsets
            image = crash_image(config, tmp_path)
            await client.commit("g", {"a": 9})
            assert await client.flush() == len(offsets)
            assert sent(meta) == [offsets, offsets | {"a": 9}]
            await expect_nothing_to_send(client, meta)
        assert (await recovery(image, remote)).adopted == 1  # the 9, which was committed after the image
    assert await dirty_without_meta(image, tmp_path) == offsets.keys()
