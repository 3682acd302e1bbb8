"""The local API as a broker uses it, over real gRPC, on a sidecar in this process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest

from adapter.cli.offsets.reading import exported_row, row_of_message
from adapter.client.client import OffsetClient
from adapter.errors import MetaUnavailableError
from adapter.meta.client import GroupsPage, Page
from adapter.meta.kinds import OFFSETS_ONLY, WITH_EPOCHS
from adapter.meta.packed import Known
from adapter.model.codec import encode_key, encode_record
from adapter.model.paging import DEFAULT_PAGE
from adapter.model.records import CommitMode, GroupKey, OffsetKey, ReadMode
from adapter.rpc import offsets_pb
from adapter.sidecar.engine.unexported import CANNOT_LIST
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually, positions
from tests.integration.helpers import PATIENCE_S, key, record, serving

SLOW_FLUSH = {"interval_ms": 60_000}  # nothing is flushed unless asked for
STATE = offsets_pb.StatusReply


async def test_a_commit_is_answered_with_nothing_when_it_stands(directory: Path) -> None:
    """Replies list only what was not plainly applied."""
    async with serving(directory) as (_, client):
        assert await client.commit("g", {"a": 7, "b": 0}) == []
        found = await client.read("g")
        assert {shard: (row.epoch, row.offset) for shard, row in found.items()} == {"a": (1, 7), "b": (1, 0)}
        assert await client.commit("g", {"a": 7}) == []


async def test_a_lower_offset_changes_nothing_and_the_reply_shows_what_stands(directory: Path) -> None:
    """INCREASE_ONLY (2)."""
    async with serving(directory) as (_, client):
        await client.commit("g", {"a": 7, "b": 1})
        rows = await client.commit("g", {"a": 6, "b": 2})
        assert [(row.namespace, row.group, row.shard, row.epoch, row.offset) for row in rows] == [("default", "g", "a", 1, 7)]
        assert (await client.read("g"))["a"].offset == 7


async def test_an_overwrite_rewinds_into_the_next_epoch(directory: Path) -> None:
    """In (epoch, offset) nothing goes backwards (2), here and in the Meta Service."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        await client.commit("g", {"s": 9})
        assert await client.commit("g", {"s": 4}, mode=CommitMode.OVERWRITE) == []
        row = (await client.read("g"))["s"]
        assert (row.epoch, row.offset) == (2, 4)
    assert meta.records[key()].position == (2, 4)


async def test_all_fields_of_a_commit_come_back_and_reach_the_meta_service(directory: Path) -> None:
    """Metadata, time and labels travel with the offset."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        shard = offsets_pb.ShardCommit(shard="s", offset=3, metadata="m", committed_at_ms=5, topic="t", partition=2)
        group = offsets_pb.GroupCommits(namespace="n", group="g", shards=[shard])
        await client.store.CommitOffsets(offsets_pb.CommitOffsetsRequest(groups=[group]))
        row = (await client.read("g", namespace="n"))["s"]
        assert (row.metadata, row.committed_at_ms, row.topic, row.partition) == ("m", 5, "t", 2)
    assert meta.records[key(namespace="n")] == record(3, committed_at_ms=5, metadata="m", topic="t", partition=2)


async def test_memory_reads_know_only_what_is_local(directory: Path) -> None:
    """Absent is absent, never 0."""
    meta = FakeMeta({key("remote"): record(5)})
    async with serving(directory, meta) as (_, client):
        assert await client.read("g", ["remote"], mode=ReadMode.MEMORY) == {}


async def test_memory_first_asks_the_meta_service_only_for_what_is_not_local(directory: Path) -> None:
    """A local value is not compared, though a larger one stands remotely."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client):
        await client.commit("g", {"local": 3})
        meta.records |= {key("local"): record(8), key("remote"): record(5)}
        assert (await client.read("g", ["local"]))["local"].offset == 3
        await client.commit("h", {"local": 3})
        meta.records |= {key("remote", "i"): record(5)}
        assert (await client.read("i", ["remote", "absent"])).keys() == {"remote"}


async def test_a_store_read_merges_both_ways(directory: Path) -> None:
    """The larger of both is answered and stands; a larger local value stays dirty (2, 3)."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client):
        await client.commit("g", {"a": 3, "b": 3})
        meta.records |= {key("a"): record(8), key("b"): record(1), key("c"): record(2)}
        found = await client.read("g", mode=ReadMode.STORE)
        assert {shard: (row.offset, row.dirty) for shard, row in found.items()} == {
            "a": (8, False),
            "b": (3, True),
            "c": (2, False),
        }
        assert (await client.read("g", mode=ReadMode.MEMORY)) == found


async def test_a_tombstone_reads_as_absent(directory: Path) -> None:
    """And a commit below it is not undone but superseded or placed above it (7)."""
    meta = FakeMeta({key(): record(0, 4, live=False)})
    async with serving(directory, meta) as (_, client):
        assert await client.read("g", ["s"], mode=ReadMode.STORE) == {}
        await client.commit("g", {"s": 2})
        row = (await client.read("g", ["s"]))["s"]
        assert (row.epoch, row.offset) == (4, 2)


async def test_a_read_of_the_store_without_the_meta_service_is_unavailable(directory: Path) -> None:
    """Absent and unknown are different things."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        meta.down = MetaUnavailableError("gone")
        for shards, mode in (([], ReadMode.STORE), (["x"], ReadMode.MEMORY_FIRST_THEN_STORE)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.read("g", shards, mode=mode, keep_hold=True)
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "gone")


async def test_persist_returns_when_the_meta_service_has_the_values(directory: Path) -> None:
    """No tick of the flusher is waited for."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client):
        await client.commit("g", {"a": 3})
        assert (await client.read("g"))["a"].dirty
        await client.persist("g", ["a"])
        assert meta.records[key("a")].position == (1, 3)
        assert not (await client.read("g"))["a"].dirty


async def test_persist_without_the_meta_service_is_unavailable_and_the_key_stays_dirty(directory: Path) -> None:
    """What was not acknowledged is dirty (4)."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client):
        await client.commit("g", {"a": 3})
        meta.down = MetaUnavailableError("gone")
        for call in (client.persist, client.remove):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call("g")
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAVAILABLE, "gone")
        assert (await client.read("g", mode=ReadMode.MEMORY))["a"].dirty
        meta.down = None


async def test_remove_persists_and_forgets_and_a_store_read_brings_it_back(directory: Path) -> None:
    """The hand-over of a shard: the Meta Service keeps it, this adapter does not."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client):
        await client.commit("g", {"a": 3, "b": 4, "kept": 5})
        await client.commit("g2", {"a": 1})
        assert await client.remove("g", ["a", "b", "absent"]) == 2
        assert (await client.read("g", mode=ReadMode.MEMORY)).keys() == {"kept"}
        assert (await client.read("g2", mode=ReadMode.MEMORY)).keys() == {"a"}
        meta.records[key("a")] = record(30)  # another broker went on with it
        found = await client.read("g", mode=ReadMode.STORE)
        assert {shard: row.offset for shard, row in found.items()} == {"a": 30, "b": 4, "kept": 5}


async def test_a_commit_after_a_remove_takes_the_epoch_that_stands_in_the_meta_service(directory: Path) -> None:
    """Else the Meta Service would undo an acknowledged commit (1)."""
    meta = FakeMeta()
    async with serving(directory, meta) as (_, client):
        await client.commit("g", {"s": 9, "t": 1})
        await client.remove("g", ["s"])
        meta.records[key()] = record(4, 3)  # rewound twice by another broker
        await client.commit("g", {"s": 5})
        await client.flush()
        row = (await client.read("g", ["s"], mode=ReadMode.STORE))["s"]
        assert (row.epoch, row.offset) == (3, 5)


async def test_removes_while_commits_keep_coming_lose_nothing(directory: Path) -> None:
    """Whatever the interleaving, an acknowledged commit is there in the end, in its epoch (1, 2)."""
    meta = FakeMeta({key(): record(0, 2), key("other"): record(0, 2)})
    last = 0
    refusals: set[grpc.StatusCode] = set()
    async with serving(directory, meta, flush={"interval_ms": 5}) as (_, client):

        async def commit(shard: str) -> None:
            nonlocal last
            for offset in range(1, 301):
                await client.commit("g", {shard: offset})
                last = max(last, offset)

        async def remove() -> None:
            while last < 300:
                try:
                    await client.remove("g", ["s", "other"])
                except grpc.aio.AioRpcError as error:
                    refusals.add(error.code())

        async with anyio.create_task_group() as tasks:
            for work in (lambda: commit("s"), lambda: commit("other"), remove):
                tasks.start_soon(work)
        assert refusals <= {grpc.StatusCode.ABORTED}
        found = await client.read("g", mode=ReadMode.STORE)
        assert {shard: (row.epoch, row.offset) for shard, row in found.items()} == {"s": (2, 300), "other": (2, 300)}
    assert {name: found.position for name, found in meta.records.items()} == {key(): (2, 300), key("other"): (2, 300)}


class GatedMeta(FakeMeta):
    """Its answers to group loads wait at a gate after they were made up."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.gate.set()
        self.waiting = 0

    async def groups_page(self, groups: Sequence[GroupKey], after: bytes = b"", *, patient: bool = True) -> GroupsPage:
        found = await super().groups_page(groups, after, patient=patient)
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return found


async def test_a_remove_during_a_load_is_not_forgotten(directory: Path) -> None:
    """What the load brings is older than the remove: a commit after both takes the epoch that stands remotely (1)."""
    meta = GatedMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client), anyio.create_task_group() as tasks:
        await client.commit("g", {"s": 20})
        await client.commit("g", {"s": 10}, mode=CommitMode.OVERWRITE)
        meta.gate = anyio.Event()

        async def read() -> None:
            await client.read("g", mode=ReadMode.STORE)

        tasks.start_soon(read)
        await eventually(lambda: meta.waiting == 1, PATIENCE_S)
        assert await client.remove("g", ["s"]) == 1
        meta.gate.set()
        await eventually(lambda: not meta.waiting, PATIENCE_S)
        assert await client.commit("g", {"s": 11}) == []
        await client.flush()
        row = (await client.read("g", ["s"], mode=ReadMode.STORE))["s"]
        assert (row.epoch, row.offset) == (2, 11)


async def test_flush_tells_how_many_offsets_were_acknowledged(directory: Path) -> None:
    """And nothing is sent when nothing changed."""
    meta = FakeMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client):
        await client.commit("g", {"a": 3, "b": 4})
        assert await client.flush() == 2
        assert await client.flush() == 0
        assert len(meta.saves) == 1


async def test_a_list_comes_in_pages_in_key_order(directory: Path) -> None:
    """Every key once, tombstones not, prefixes not confused with each other."""
    async with serving(directory, FakeMeta({key("dead", "ab"): record(0, 2, live=False)})) as (_, client):
        committed: dict[OffsetKey, tuple[int, int]] = {}
        for group in ("a", "ab", "b"):
            offsets = {f"s{at:02d}": at for at in range(25)}
            await client.commit(group, offsets, namespace="n" if group == "b" else "default")
            for shard, offset in offsets.items():
                committed[key(shard, group, "n" if group == "b" else "default")] = (1, offset)
        await client.read("ab", mode=ReadMode.STORE)
        for namespace, group, size in (("", "", 75), ("default", "", 50), ("default", "a", 25), ("n", "b", 25), ("x", "", 0)):
            rows: list[offsets_pb.ShardOffset] = []
            request = offsets_pb.ListOffsetsRequest(namespace=namespace, group=group, page_size=7)
            while True:
                reply = await client.store.ListOffsets(request)
                assert len(reply.offsets) <= 7
                rows += reply.offsets
                if not reply.next_page_token:
                    break
                request.page_token = reply.next_page_token
            assert len(rows) == len(positions(rows)) == size
            assert positions(rows).items() <= committed.items()
        assert [row.shard for row in rows] == sorted(row.shard for row in rows)


async def test_status_tells_what_is_the_case(directory: Path) -> None:
    """Counts, the mode, what is at risk, and the recovery."""
    meta = FakeMeta()
    policy = [{"groups": "pay-*", "mode": "write_through"}]
    async with serving(directory, meta, flush=SLOW_FLUSH, policy=policy, store={"wal_sync": "never"}) as (_, client):
        await client.commit("g", {"a": 1, "b": 1})
        await client.commit("pay-1", {"a": 1})
        status = await client.status()
        assert (status.state, status.mode, list(status.policies)) == (STATE.SERVING, "write_back", ["*/pay-*: write_through"])
        assert (status.dirty_keys, status.commits, status.save_calls, status.unsynced_writes > 0) == (2, 3, 1, True)
        assert (status.wal_sync, status.meta_available, status.recovery.done) == ("never", True, True)
        assert status.oldest_dirty_seconds > 0
        assert "power cut" in status.at_risk
        await client.flush()
        status = await client.status()
        assert (status.dirty_keys, status.oldest_dirty_seconds, status.last_flush_error) == (0, 0.0, "")
        assert status.last_flush_at_ms > 0


class ColumnsMeta(FakeMeta):
    """Sends only what is not known, as a server with columns; `sent` are the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[OffsetKey] = []

    async def news_page(self, groups: Sequence[GroupKey], after: bytes, known: Known) -> GroupsPage:
        page = await self.groups_page(groups, after)
        same = known([encode_key(where) for where, _ in page.entries], [encode_record(found) for _, found in page.entries])
        entries = [entry for entry, left_out in zip(page.entries, same, strict=True) if not left_out]
        self.sent += [where for where, _ in entries]
        return page._replace(entries=entries)


async def test_an_export_in_packed_form_has_the_same_offsets(directory: Path) -> None:
    """Of all groups of a namespace, and of named ones: the larger of both sides. What stands here the same is not loaded."""
    meta = ColumnsMeta()
    async with serving(directory, meta, flush=SLOW_FLUSH) as (_, client):
        for group in ("g", "h", "long-name"):
            await client.commit(group, {f"t/{at}": at + 1 for at in range(600 if group == "h" else 3)})
        await client.commit("g", {"t/0": 5}, namespace="other")
        await client.flush()
        await client.commit("g", {"t/1": 50})  # dirty here
        meta.records[key("t/2")] = record(90)  # larger there
        meta.records[key("t/3")] = record(4)  # only there
        meta.records[key("t/0", "h")] = record(9, 4, live=False)
        meta.records[key("a", "unknown")] = record(1)
        groups = [offsets_pb.GroupShards(namespace="default", group=group) for group in ("g", "h", "long-name")]
        answers: list[dict[tuple[str, str], int]] = []
        named = [offsets_pb.GroupShards(namespace="default", group="g", shards=["t/1", "t/3", "no"])]
        for first, second in (
            (offsets_pb.ExportOffsetsRequest(namespace="default"), offsets_pb.ExportOffsetsRequest(groups=groups)),
            (offsets_pb.ExportOffsetsRequest(), offsets_pb.ExportOffsetsRequest()),
            (offsets_pb.ExportOffsetsRequest(groups=named), offsets_pb.ExportOffsetsRequest(groups=named)),
        ):
            first.as_packed = True
            packed = [
                row async for rows in client.admin.ExportOffsets(first) for row in map(exported_row, rows.keys, rows.records)
            ]
            rows = [row_of_message(row) async for reply in client.admin.ExportOffsets(second) for row in reply.offsets]
            assert sorted(packed) == sorted(rows)
            answers.append({(row.group, row.shard): row.offset for row in packed if row.namespace == "default"})
        of_group = {shard: offset for (group, shard), offset in answers[0].items() if group == "g"}
        assert of_group == {"t/0": 1, "t/1": 50, "t/2": 90, "t/3": 4}
        assert ("h", "t/0") not in answers[0]
        assert len(answers[0]) == len(answers[1]) == 4 + 599 + 3
        assert answers[2] == {("g", "t/1"): 50, ("g", "t/3"): 4}
        meta.sent.clear()
        _ = [reply async for reply in client.admin.ExportOffsets(offsets_pb.ExportOffsetsRequest(as_packed=True))]
        assert meta.sent == [key("t/1")]
        assert (await client.status()).dirty_keys == 1


async def test_an_export_of_all_tells_what_stands_elsewhere_alone(directory: Path) -> None:
    """Groups with no live offset here, page by page; why it is not known, where the Meta Service does not list or answer."""

    async def told(client: OffsetClient, **request: Any) -> list[tuple[int, int, str]]:
        replies = client.admin.ExportOffsets(offsets_pb.ExportOffsetsRequest(tell_missing=True, **request))
        found = [reply.missing async for reply in replies if reply.HasField("missing")]
        return [(count.groups, count.offsets, count.unknown) for count in found]

    meta = PagedMeta()
    async with serving(directory, meta) as (_, client):
        await client.commit("here", {"a": 1, "b": 2})
        await client.commit("deleted-here", {"a": 1})
        await client.flush()
        await client.admin.DeleteOffsets(offsets_pb.DeleteOffsetsRequest(namespace="default", group="deleted-here", execute=True))
        assert await told(client) == [(0, 0, "")]
        meta.records[key("c", "here")] = record(1)
        meta.records.update({key(f"{number:04}", "there"): record(1) for number in range(DEFAULT_PAGE)})
        meta.records[key("z", "there")] = record(9, 4, live=False)
        meta.records[key("a", "there")._replace(namespace="other")] = record(1)
        assert (await told(client))[-1] == (2, DEFAULT_PAGE + 1, "")
        in_namespace = await told(client, namespace="default")
        assert (len(in_namespace), in_namespace[-1]) == (4, (1, DEFAULT_PAGE, ""))
        assert await told(client, groups=[offsets_pb.GroupShards(group="here")]) == []
        meta.kind = OFFSETS_ONLY
        assert await told(client) == [(0, 0, CANNOT_LIST)]
        meta.kind = WITH_EPOCHS
        meta.list_page = _no_answer  # type: ignore[assignment]
        assert await told(client) == [(0, 0, "memory: is away")]


class PagedMeta(FakeMeta):
    """One whose pages end in the midst of a group."""

    async def list_page(self, namespace: str, group: str, size: int, token: bytes) -> Page:
        """From the row of this number on."""
        rows, _ = await super().list_page(namespace, group, size, b"")
        end = int(token or 0) + 300
        return rows[int(token or 0) : end], str(end).encode() if end < len(rows) else b""


async def _no_answer(*_: object) -> Page:
    raise MetaUnavailableError("memory: is away")
