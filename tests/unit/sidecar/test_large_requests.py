"""Whatever a caller names or has stored: the event loop is held for a slice, answers are bounded, nothing is done twice.

Counted are the records that the store gives in one iteration of the event loop: what a clock would measure on a quiet machine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path

import anyio
import pytest

from adapter.errors import ContendedError, InvalidInputError, OverloadedError, TooLargeError
from adapter.model.records import GroupKey, OffsetKey, OffsetRecord, ReadMode
from adapter.rpc import offsets_pb
from adapter.runtime.serving.large_calls import MAX_NAMED, SLICE_ROWS, LargeCalls, Room
from adapter.sidecar.api.commit_requests import MAX_GROUPS, MAX_OFFSETS, parse_commit, parse_in_slices, size_of
from adapter.sidecar.api.describing import MAX_DESCRIBED
from adapter.sidecar.api.requests import parse_wanted
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.operations import Load
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import PATIENCE_S, commit_of, core_over, key, record, send

GROUP = GroupKey("default", "g")
ALL = [Wanted(GROUP, ())]
KEYS = 2_000
NAMED = [f"{at:04}" for at in range(KEYS)]
Shards = offsets_pb.GroupShards


class Iterations:
    """The largest number of records that a store returned in one iteration of the event loop."""

    def __init__(self, store: LocalStore, patch: pytest.MonkeyPatch) -> None:
        self.most = self._now = 0
        disk = store._disk
        get, scan = disk.get, disk.scan

        def counted_get(found: bytes) -> bytes | None:
            self._now += 1
            return get(found)

        def counted_scan(start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
            for row in scan(start, end):
                self._now += 1
                yield row

        patch.setattr(disk, "get", counted_get)
        patch.setattr(disk, "scan", counted_scan)
        patch.setattr(store.states, "get", lambda _: None)

    async def watch(self) -> None:
        """Look once in each iteration."""
        while True:
            self.look()
            await asyncio.sleep(0)

    def look(self) -> None:
        """Note the end of an iteration."""
        self.most = max(self.most, self._now)
        self._now = 0


async def fill(core: Core, group: str = "g", count: int = KEYS) -> None:
    """Commit shards, and flush them."""
    for at in range(0, count, 500):
        await send(core, commit_of({key(shard, group): 5 for shard in NAMED[at : min(at + 500, count)]}))
    await core.flusher.flush_all()


async def read(core: Core) -> object:
    """Read the whole group."""
    return await core.reader.answer(ALL, lambda key, _: key, lambda _: 1)


async def read_named(core: Core) -> object:
    """Read all shards by name."""
    return await core.reader.answer([Wanted(GROUP, NAMED)], lambda key, _: key, lambda _: 1)


async def read_after_a_loss(core: Core) -> object:
    """Read all shards by name, when an absent key may be lost."""
    await core.reader.ask([Wanted(GROUP, NAMED)], ReadMode.MEMORY_FIRST_THEN_STORE)
    return None


async def remove(core: Core) -> object:
    """Remove the whole group."""
    return await core.handover.remove(ALL)


async def remove_named(core: Core) -> object:
    """Remove all shards by name."""
    return await core.handover.remove([Wanted(GROUP, NAMED)])


async def list_groups(core: Core) -> object:
    """Read one page of groups."""
    return await core.groups.page(b"", b"", 10)


async def reset(core: Core) -> object:
    """A dry run of a reset."""
    return await core.resets.reset(ALL[0], Reset(To.OFFSET, 3), execute=False)


async def delete(core: Core) -> object:
    """A dry run of a delete."""
    return await core.resets.delete(ALL[0], execute=False)


async def clone(core: Core) -> object:
    """A dry run of a clone."""
    return await core.resets.clone(ALL[0], GroupKey("default", "h"), execute=False)


CALLS: list[Callable[[Core], Awaitable[object]]] = [
    read,
    read_named,
    read_after_a_loss,
    remove,
    remove_named,
    list_groups,
    reset,
    delete,
    clone,
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
async def test_no_iteration_of_the_event_loop_reads_more_than_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Core], Awaitable[object]]
) -> None:
    """A removal reads each key three times: to find it, to remove it, and for the bookkeeping."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await fill(core)
        meta.records.clear()  # a load adopts nothing, and so reads nothing
        iterations = Iterations(core.ledger.store, monkeypatch)
        watching = asyncio.create_task(iterations.watch())
        await call(core)
        watching.cancel()
        iterations.look()
        assert SLICE_ROWS // 2 < iterations.most <= 4 * SLICE_ROWS


async def test_a_group_that_is_named_often_is_answered_once(tmp_path: Path) -> None:
    """A request of 5,002 bytes used to return 1,000,000 rows."""
    groups = [Shards(group="g")] * 1_000
    assert await parse_wanted(groups) == [Wanted(GROUP, [])]
    named = [Shards(group="g", shards=["a", "b", "a"]), Shards(group="h"), Shards(group="g", shards=["c", "a"])]
    assert await parse_wanted(named) == [Wanted(GROUP, ["a", "b", "c"]), Wanted(GroupKey("default", "h"), [])]
    assert await parse_wanted([*named, Shards(group="g")]) == [Wanted(GROUP, []), Wanted(GroupKey("default", "h"), [])]
    async with core_over(tmp_path, FakeMeta()) as core:
        await fill(core, count=20)
        found = await core.reader.answer(await parse_wanted(groups), lambda key, _: key, lambda _: 1)
        assert [each.shard for each in found] == NAMED[:20]


@pytest.mark.parametrize(
    "groups",
    [[Shards(group="g")] * (MAX_NAMED + 1), [Shards(group="g", shards=["s"] * (MAX_NAMED // 2))] * 3],
    ids=["groups", "shards"],
)
async def test_more_names_than_one_request_may_have_are_refused(groups: Sequence[Shards]) -> None:
    """The error has their number, and what to do."""
    with pytest.raises(InvalidInputError, match=r"^groups.*over 50000.*; ask in several calls$"):
        await parse_wanted(groups)


@pytest.mark.parametrize(("rows", "size"), [(400, 1), (5_000, 10_000)], ids=["rows", "bytes"])
async def test_an_answer_that_would_be_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, size: int
) -> None:
    """By rows and by bytes; a request for half of the shards by name succeeds."""
    monkeypatch.setattr("adapter.sidecar.engine.reads.MAX_ROWS", rows)
    async with core_over(tmp_path, FakeMeta()) as core:
        await fill(core, count=500)
        with pytest.raises(TooLargeError, match="name some of the shards in each of several calls, or use ListOffsets"):
            await core.reader.answer(ALL, lambda key, _: key, lambda _: size)
        assert len(await core.reader.answer([Wanted(GROUP, NAMED[:300])], lambda key, _: key, lambda _: size)) == 300


async def test_a_page_of_groups_ends_within_a_group_and_the_next_one_counts_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even with tiny pages each group is listed once, with all shards, tombstones and dirty keys."""
    monkeypatch.setattr("adapter.sidecar.engine.groups.MAX_VISITED", SLICE_ROWS)
    async with core_over(tmp_path, FakeMeta()) as core:
        for group, count in (("a", 1), ("b", 700), ("c", 2), ("d", SLICE_ROWS), ("e", 3)):
            await fill(core, group, count)
        await core.resets.delete(Wanted(GroupKey("default", "b"), NAMED[:10]), execute=True)
        await send(core, commit_of({key(NAMED[at], "b"): 6 for at in range(200, 600)}))
        for size in (1, 2, 100):
            pages, token = [], b""
            while True:
                page = await core.groups.page(b"", token, size)
                assert len(page.rows) <= size
                pages += page.rows
                token = page.after
                if not token:
                    break
            assert [(row.group.group, row.shards, row.dirty, row.tombstones) for row in pages] == [
                ("a", 1, 0, 0),
                ("b", 690, 400, 10),
                ("c", 2, 0, 0),
                ("d", SLICE_ROWS, 0, 0),
                ("e", 3, 0, 0),
            ]


NEVER_GIVEN = [
    b"\0",
    b"\0" + bytes(40),
    b"\0" * 34 + b"\1n\1g\1s\1x",
    b"\0" * 33 + b"\1n\1g\1s",
    *(b"\0" + bytes(8 * at) + b"\x80" + bytes(31 - 8 * at) + b"\7default\1g\1s" for at in (0, 1, 3)),
]


@pytest.mark.parametrize("token", NEVER_GIVEN)
async def test_a_token_of_a_half_group_that_was_never_given_out_is_refused(tmp_path: Path, token: bytes) -> None:
    """As any other; also one of a list of another namespace, and one whose counts no reply could hold."""
    async with core_over(tmp_path, FakeMeta()) as core:
        with pytest.raises(InvalidInputError, match="page_token: is not the next_page_token of a page of this list"):
            await core.groups.page(b"\7default", token, 10)


async def test_a_removal_in_slices_removes_all_and_leaves_what_is_committed_behind_it(tmp_path: Path) -> None:
    """A commit after its slice was removed stays; the Meta Service has everything (3)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await fill(core)
        await send(core, commit_of({key(NAMED[-1]): 6}))
        removing = asyncio.create_task(core.handover.remove(ALL))
        with anyio.fail_after(PATIENCE_S):
            while core.ledger.store.get(key(NAMED[0])):  # noqa: ASYNC110 - one iteration after the other
                await asyncio.sleep(0)
        await core.ledger.submit(commit_of({key(NAMED[0]): 7}))  # without the load of the group, which brings all back
        assert await removing == KEYS
        assert core.ledger.store.keys == 1
        assert meta.records[key(NAMED[-1])] == record(6, committed_at_ms=meta.records[key(NAMED[-1])].committed_at_ms)
        await core.flusher.flush_all()
        assert meta.records[key(NAMED[0])].offset == 7


async def test_a_long_removal_does_not_hold_up_loads_of_other_groups(tmp_path: Path) -> None:
    """Only a load of the same group has to be repeated, as it may be older."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await fill(core, count=3)
        forgets = core.ledger.store.states.removals
        await core.handover.remove(ALL)
        await core.ledger.submit(Load([GroupKey("default", "other")], [], forgets))
        with pytest.raises(ContendedError):
            await core.ledger.submit(Load([GROUP], [], forgets))
        with pytest.raises(ContendedError):
            await core.ledger.submit(Load([], [(key(NAMED[0]), record(9))], forgets))


async def test_of_groups_that_were_forgotten_long_ago_nobody_is_sure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Removals are remembered by group up to a limit; beyond it, an older load of any group is refused."""
    monkeypatch.setattr("adapter.sidecar.ledger.group_state.MAX_REMOVED", 2)
    async with core_over(tmp_path, FakeMeta()) as core:
        states = core.ledger.store.states
        removals = states.removals
        for group in ("a", "b", "c", "d"):
            states.note_removal([GroupKey("default", group)])
        assert states.removed_since([GROUP], removals)
        assert not states.removed_since([GROUP], states.removals)


def commits(groups: Iterable[tuple[str, int]]) -> offsets_pb.CommitOffsetsRequest:
    """A commit of this many shards for each group; half of them as columns."""
    return offsets_pb.CommitOffsetsRequest(
        groups=[
            offsets_pb.GroupCommits(
                group=group,
                shards=[offsets_pb.ShardCommit(shard=f"s{at}", offset=at, metadata="m") for at in range(count // 2)],
                shard_names=[f"c{at}" for at in range(count - count // 2)],
                offsets=range(count - count // 2),
            )
            for group, count in groups
        ]
    )


async def test_a_commit_is_the_same_in_slices() -> None:
    """With the same errors, too."""
    request = commits([("a", 1_000), ("b", 3), ("c", 500)])
    assert await parse_in_slices(request.groups, request.mode, 7) == parse_commit(request, 7)
    request.groups[2].shards[240].ClearField("offset")
    with pytest.raises(InvalidInputError) as at_once:
        parse_commit(request, 7)
    with pytest.raises(InvalidInputError, match=str(at_once.value).replace("[", r"\[")):
        await parse_in_slices(request.groups, request.mode, 7)
    with pytest.raises(InvalidInputError, match="mode: 9 is unknown"):
        await parse_in_slices(commits([("a", 1)]).groups, 9)
    with pytest.raises(InvalidInputError, match="mode: 9 is unknown"):  # of several errors the one that a small commit is told
        await parse_in_slices(request.groups, 9, 7)


def test_a_commit_has_a_bounded_number_of_offsets_and_groups() -> None:
    """It is decided and written in one iteration of the event loop."""
    assert size_of(commits([("a", MAX_OFFSETS - 1), ("b", 1)]).groups) == MAX_OFFSETS + 2
    with pytest.raises(InvalidInputError, match="groups: have 5001 offsets, over 5000; send several requests"):
        size_of(commits([("a", MAX_OFFSETS - 1), ("b", 2)]).groups)
    with pytest.raises(InvalidInputError, match="groups: are 2501, over 2500; send several requests"):
        size_of([offsets_pb.GroupCommits(group="g")] * (MAX_GROUPS + 1))
    with pytest.raises(InvalidInputError, match="have 5001 offsets"):
        size_of([offsets_pb.GroupCommits(group="g", epochs=[0] * 5_001)])


async def test_large_calls_go_a_few_at_a_time_and_in_their_order() -> None:
    """The number of waiting calls is bounded, except for those that are told to wait (`patient`)."""
    calls = LargeCalls("calls", at_once=2, max_waiting=3)
    gate, began = asyncio.Event(), list[int]()

    async def one(number: int, *, patient: bool = False) -> None:
        async with calls.one(patient=patient):
            began.append(number)
            await gate.wait()

    tasks = [asyncio.create_task(one(number)) for number in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="too many calls wait already; nothing was done") as caught:
        await one(5)
    assert caught.value.retry_after_s > 0
    tasks.append(asyncio.create_task(one(6, patient=True)))
    with anyio.fail_after(PATIENCE_S):
        while len(began) < 2:  # noqa: ASYNC110 - one iteration after the other
            await asyncio.sleep(0)
    tasks[3].cancel()
    gate.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert began == [0, 1, 2, 4, 6]
    await one(7)


async def test_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    """A call larger than the whole limit runs alone; a cancelled one leaves the queue."""
    room = Room("things", 10)
    room.take(25)
    with pytest.raises(OverloadedError, match="25 bytes of things wait already"):
        room.take(1)
    got: list[int] = []

    async def wait(number: int) -> None:
        await room.wait(6)
        got.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    room.give_back(25)
    with anyio.fail_after(PATIENCE_S):
        while len(got) < 2:  # noqa: ASYNC110 - one iteration after the other
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert got == [0, 2]
    room.give_back(6)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert got == [0, 2, 3]


async def test_a_change_of_more_than_one_call_may_change_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole group is refused; its shards by name succeed in several calls. Tombstones do not count."""
    monkeypatch.setattr("adapter.sidecar.engine.resets.MAX_CHANGES", 300)
    async with core_over(tmp_path, FakeMeta()) as core:
        await fill(core, count=500)
        for change in (reset, delete, clone):
            with pytest.raises(TooLargeError, match=r"default/g has more than 300 offsets.*name the shards in several calls"):
                await change(core)
        named = Wanted(GROUP, NAMED[:300])
        assert len((await core.resets.delete(named, execute=True)).changes) == 300
        assert len((await core.resets.delete(ALL[0], execute=True)).changes) == 200
        assert not any(stored.record.live for stored in core.ledger.store.scan())


async def test_a_group_too_large_for_a_change_is_not_brought_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted in the Meta Service; loading it could mean a million offsets for a refusal."""
    monkeypatch.setattr("adapter.sidecar.engine.resets.MAX_CHANGES", 300)
    async with core_over(tmp_path, FakeMeta({OffsetKey(*GROUP, shard): record(1) for shard in NAMED[:400]})) as core:
        for change in (reset, delete, clone):
            with pytest.raises(TooLargeError, match=r"default/g has more than 300 offsets"):
                await change(core)
        assert core.ledger.store.keys == 0


def test_the_bounds_of_an_answer_fit_into_a_message() -> None:
    """A row of a description takes 100 to 200 bytes."""
    assert MAX_DESCRIBED * 200 <= 4 * 2**20


def test_a_slice_is_read_by_names_and_by_groups(tmp_path: Path) -> None:
    """Each group costs a look-up, so small groups count for more than their rows."""

    async def look() -> None:
        async with core_over(tmp_path, FakeMeta()) as core:
            for group in range(100):
                await send(core, commit_of({OffsetKey("default", f"g{group:03}", "s"): 1}))
            wanted = [Wanted(GroupKey("default", f"g{group:03}"), ()) for group in range(100)]
            slices = [len(rows) for rows in core.reader.slices(wanted)]
            assert sum(slices) == 100
            assert max(slices) <= SLICE_ROWS // 5
            found: list[tuple[OffsetKey, OffsetRecord]] = [row for rows in core.reader.slices(wanted) for row in rows]
            assert [each.group for each, _ in found] == [f"g{group:03}" for group in range(100)]

    asyncio.run(look())
