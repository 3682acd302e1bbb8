"""ListOffsets and WatchOffsets of OffsetStore, and the new epoch in replies, over real gRPC with each server."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import grpc
import grpc.aio
import pytest

from adapter.client.blocking import BlockingOffsetClient
from adapter.client.client import OffsetClient
from adapter.model.records import CommitMode, ReadMode
from adapter.rpc import offsets_pb
from adapter.sidecar.ledger import watching
from adapter.testing.fake_meta import FakeMeta
from tests.integration.helpers import PATIENCE_S, commits, each, key, record, serving

SLOW_FLUSH = {"interval_ms": 60_000}  # nothing is flushed unless asked for
ERA = 1 << 32
OVERWRITE = CommitMode.OVERWRITE


class Seen(NamedTuple):
    """A shard as a watcher was told of it."""

    group: str
    shard: str
    epoch: int
    offset: int
    deleted: bool = False


class Watching:
    """A watch, and what it was told."""

    def __init__(self, client: OffsetClient, namespace: str = "", group: str = "") -> None:
        self._replies = client.watch(namespace, group)

    async def next(self) -> offsets_pb.WatchOffsetsReply:
        """The next reply."""
        with anyio.fail_after(PATIENCE_S):
            return await anext(self._replies)

    async def changed(self) -> list[Seen]:
        """The changes of the next reply, which has nothing else."""
        reply = await self.next()
        assert not reply.resync
        assert not reply.removed
        return [Seen(row.group, row.shard, row.epoch, row.offset, row.deleted) for row in reply.changed]


@asynccontextmanager
async def watched(client: OffsetClient, namespace: str = "", group: str = "") -> AsyncIterator[Watching]:
    """A watch that has begun."""
    watch = Watching(client, namespace, group)
    assert (await watch.next()).resync
    yield watch


async def reset(client: OffsetClient, offset: int, *shards: str, group: str = "g") -> None:
    """Reset shards of a group."""
    await client.admin.ResetOffsets(
        offsets_pb.ResetOffsetsRequest(group=group, shards=shards, to_offset=offset, execute=True), timeout=PATIENCE_S
    )


async def test_a_rewind_is_answered_with_its_new_epoch(directory: Path) -> None:
    """Only what was raised is in the reply: a commit that moves forward keeps its epoch."""
    async with serving(directory) as (_, client):
        assert (await client.commit("g", {"a": 7, "b": 7})).raised == {}
        answer = await client.commit("g", {"a": 3, "b": 9}, mode=OVERWRITE)
        assert (answer, answer.raised) == ([], {"a": 2})
        assert (await client.commit("g", {"a": 4}, epochs=answer.raised)).raised == {}


async def test_a_rewind_that_is_written_through_is_answered_with_its_new_epoch(directory: Path) -> None:
    """The Meta Service has it then."""
    meta = FakeMeta()
    async with serving(directory, meta, mode="write_through") as (_, client):
        await client.commit("g", {"a": 7})
        assert (await client.commit("g", {"a": 3}, mode=OVERWRITE)).raised == {"a": 2}
        assert meta.records[key("a")].position == (2, 3)


async def test_a_stream_answers_a_rewind_with_its_new_epoch(directory: Path) -> None:
    """In a reply of its own: one that covers many has no rows."""
    async with serving(directory) as (_, client):

        async def requests() -> AsyncIterator[offsets_pb.StreamCommitsRequest]:
            for number, (offset, overwrite) in enumerate([(5, False), (6, False), (2, True), (3, True)]):
                yield offsets_pb.StreamCommitsRequest(id=number, commit=commits({"a": offset}, overwrite=overwrite))

        replies = [reply async for reply in client.store.StreamCommits(requests())]
        assert [[row.epoch for row in reply.raised] for reply in replies if reply.raised] == [[2]]
        assert [reply.id for reply in each(replies)] == [0, 1, 2, 3]


async def test_a_list_has_all_offsets_in_pages(directory: Path) -> None:
    """A broker at its start needs no token for it; tombstones come only if they are asked for."""
    async with serving(directory) as (_, client):
        await client.commit("g", {f"s{number:03}": number for number in range(60)})
        await client.commit("h", {"a": 1})
        await client.admin.DeleteOffsets(
            offsets_pb.DeleteOffsetsRequest(group="h", shards=["a"], execute=True), timeout=PATIENCE_S
        )
        request = offsets_pb.ListOffsetsRequest(page_size=25)
        sizes = []
        while True:
            page = await client.store.ListOffsets(request, timeout=PATIENCE_S)
            sizes.append(len(page.offsets))
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        assert sum(sizes) == 60
        assert max(sizes) <= 25
        assert [row.deleted async for row in client.list("default", "h")] == []
        assert [(row.deleted, row.epoch) async for row in client.list("default", "h", deleted=True)] == [(True, ERA)]


async def test_a_watcher_is_told_of_resets_and_deletes_and_rewinds_at_once(directory: Path) -> None:
    """Though no commit and no flush follows. Commits that move an offset forward are not told."""
    async with serving(directory, flush=SLOW_FLUSH) as (_, client), watched(client) as watch:
        await client.commit("g", {"a": 200, "b": 5})
        await client.commit("g", {"a": 201})
        await reset(client, 100, "a")
        assert await watch.changed() == [Seen("g", "a", ERA, 100)]
        await client.admin.DeleteOffsets(
            offsets_pb.DeleteOffsetsRequest(group="g", shards=["b"], execute=True), timeout=PATIENCE_S
        )
        assert await watch.changed() == [Seen("g", "b", ERA, 0, deleted=True)]
        await client.commit("h", {"a": 9})
        await client.commit("h", {"a": 3}, mode=OVERWRITE)
        assert await watch.changed() == [Seen("h", "a", 2, 3)]


async def test_a_watcher_is_told_of_what_a_flush_adopts(directory: Path) -> None:
    """Another adapter reset the shard: the flush of a commit from before finds it."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client), watched(client) as watch:
        await client.commit("g", {"a": 200})
        meta.records[key("a")] = record(100, ERA, committed_at_ms=1)
        await client.flush()
        assert await watch.changed() == [Seen("g", "a", ERA, 100)]


async def test_a_watcher_is_told_of_what_another_reader_adopts(directory: Path) -> None:
    """A STORE read brings the value of another adapter here."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client), watched(client) as watch:
        meta.records[key("a")] = record(7)
        await client.read("g", mode=ReadMode.STORE)
        assert await watch.changed() == [Seen("g", "a", 1, 7)]


async def test_a_watcher_is_told_of_what_is_handed_over(directory: Path) -> None:
    """By name: nothing is stored here any more."""
    async with serving(directory) as (_, client), watched(client) as watch:
        await client.commit("g", {"a": 7})
        await client.remove("g")
        reply = await watch.next()
        assert [(part.namespace, part.group, list(part.shards)) for part in reply.removed] == [("default", "g", ["a"])]
        assert not reply.changed


async def test_a_watch_of_a_group_is_told_of_that_group_alone(directory: Path) -> None:
    """What else changes takes no memory of it either."""
    async with serving(directory) as (_, client), watched(client, "default", "g") as watch:
        for group in ("other", "g"):
            await client.commit(group, {"a": 7})
            await reset(client, 3, "a", group=group)
        assert await watch.changed() == [Seen("g", "a", ERA, 3)]


async def test_a_list_behind_the_first_reply_has_no_gap_before_the_changes(directory: Path) -> None:
    """What changes between the first reply and the list is in both, or in one of them."""
    async with serving(directory) as (_, client):
        await client.commit("g", {"a": 200})
        async with watched(client) as watch:
            await reset(client, 100, "a")
            listed = {row.shard: (row.epoch, row.offset) async for row in client.list()}
            assert listed == {"a": (ERA, 100)}
            await reset(client, 50, "a")
            seen: list[Seen] = []
            while not seen or seen[-1].offset != 50:
                seen += await watch.changed()
            assert seen[-1] == Seen("g", "a", 2 * ERA, 50)


async def test_a_watcher_that_falls_behind_has_to_list_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory is bounded: what it has not taken is dropped, and it is told so."""
    monkeypatch.setattr(watching, "MAX_BEHIND", 10)
    async with serving(directory) as (sidecar, client):
        with sidecar.core().ledger.watches.watcher(()) as watcher:
            assert (await watcher.next()).resync
            shards = {f"s{number}": 9 for number in range(11)}
            await client.commit("g", shards)
            await reset(client, 3)
            with anyio.fail_after(PATIENCE_S):
                assert await watcher.next() == (True, [])
                await reset(client, 2, "s0")
                assert await watcher.next() == (False, [key("s0")])


async def test_too_many_watchers_are_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And there is room again when one goes."""
    monkeypatch.setattr(watching, "MAX_WATCHERS", 1)
    async with serving(directory) as (sidecar, client):
        with sidecar.core().ledger.watches.watcher(()), sidecar.core().ledger.watches.own(()):
            assert sidecar.gauges.gauges()["watchers"][1] == 1
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await Watching(client).next()
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        async with watched(client):
            pass


async def test_a_watcher_that_goes_leaves_nothing_behind(directory: Path) -> None:
    """The adapter forgets it with its call."""
    async with serving(directory) as (sidecar, client):
        call = client.store.WatchOffsets(offsets_pb.WatchOffsetsRequest())
        async for reply in call:
            assert reply.resync
            break
        assert sidecar.core().ledger.watches.any
        call.cancel()
        with anyio.fail_after(PATIENCE_S):
            while sidecar.core().ledger.watches.any:  # noqa: ASYNC110 - a cancelled call has no event here
                await anyio.sleep(0.01)


async def test_a_thread_watches_and_lists(directory: Path) -> None:
    """With the blocking client: it lists behind the first reply, and is told what comes then."""
    async with serving(directory) as (sidecar, client):
        await client.commit("g", {"a": 200})

        def watch() -> list[tuple[int, int]]:
            with BlockingOffsetClient(sidecar.addresses[-1]) as blocking:
                seen = []
                for reply in blocking.watch("default", "g"):
                    if reply.resync:
                        seen += [(row.epoch, row.offset) for row in blocking.list("default", "g", deleted=True)]
                        began.set()
                    elif reply.changed:
                        return [*seen, *((row.epoch, row.offset) for row in reply.changed)]
                return seen

        began = threading.Event()
        watching = asyncio.create_task(asyncio.to_thread(watch))
        assert await asyncio.to_thread(began.wait, PATIENCE_S)
        await reset(client, 100, "a")
        with anyio.fail_after(PATIENCE_S):
            assert await watching == [(1, 200), (ERA, 100)]


async def test_a_stop_ends_a_watch(directory: Path) -> None:
    """It does not hold up the stop, and its caller learns that there will be no more."""
    async with serving(directory) as (sidecar, client), watched(client) as watch:
        sidecar.stop()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await watch.next()
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "the watch has ended" in str(ended.value.details())  # by itself, not by the end of the grace time


async def test_a_watch_of_a_group_needs_its_namespace(directory: Path) -> None:
    """As a list does (10)."""
    async with serving(directory) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Watching(client, "", "g").next()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "namespace" in str(refused.value.details())
