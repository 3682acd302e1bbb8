"""Fencing: a member of a generation that a rebalance has ended cannot commit (Kafka's ILLEGAL_GENERATION)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import DiskFullError, FencedError, InvalidInputError, MetaUnavailableError, NotReadyError
from adapter.model.records import CommitMode, GroupKey, Member, OffsetKey
from adapter.rpc import offsets_pb
from adapter.sidecar.api.commit_requests import parse_commit
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.ledger.operations import Commit, Forget, Operation, Standing
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.unit.helpers import HeldMeta, commit_of, core_over, crash, key, record, send, watched

G, H = GroupKey("default", "g"), GroupKey("default", "h")
IN_H = key("s", "h")
POLICIES: list[dict[str, Any]] = [{}, {"mode": "write_through"}]
DOWN = MetaUnavailableError("down by the test")


def of(generation: int, offsets: dict[OffsetKey, int], member_id: str = "m", *, overwrite: bool = False) -> Commit:
    """A commit by a member of a generation of the group `g`."""
    return commit_of(offsets, overwrite=overwrite)._replace(members={G: Member(generation, member_id)})


async def outcomes(core: Core, *changes: Operation) -> list[list[Standing] | BaseException]:
    """Submit changes at the same moment, so that they share a batch."""
    return await asyncio.gather(*(core.ledger.submit(change) for change in changes), return_exceptions=True)


@pytest.fixture(params=POLICIES, ids=["write_back", "write_through"])
def policy(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Both commit policies."""
    found: dict[str, Any] = request.param
    return found


async def test_a_lower_generation_is_refused_and_told_what_to_do(tmp_path: Path, policy: dict[str, Any]) -> None:
    """The error has group, generation, member and what to do; nothing is stored (10)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **policy) as core:
        await send(core, of(5, {key(): 10}))
        before = dict(meta.records)
        says = "default/g: ILLEGAL_GENERATION: generation 4 of member 'zombie' has ended; 5 is the present one: rejoin the group"
        with pytest.raises(FencedError, match=f"^{says}$"):
            await send(core, of(4, {key(): 11, key("t"): 1}, "zombie"))
        assert (core.ledger.store.get(key()), core.ledger.store.get(key("t"))) == (record(10, committed_at_ms=0), None)
        assert meta.records == before
        assert core.ledger.store.member(G) == Member(5, "m")


async def test_nothing_of_a_fenced_request_is_stored_also_of_other_groups(tmp_path: Path, policy: dict[str, Any]) -> None:
    """Neither records nor the generation of another group in the request (10)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **policy) as core:
        await send(core, of(5, {key(): 10}))
        zombie = of(4, {IN_H: 1, key(): 11})
        for members in ({H: Member(9, "x"), **zombie.members}, {**zombie.members, H: Member(9, "x")}):
            with pytest.raises(FencedError):
                await send(core, zombie._replace(members=members))
        assert core.ledger.store.get(IN_H) is None
        assert IN_H not in meta.records
        assert core.ledger.store.member(H) is None


async def test_in_a_request_of_both_policies_nothing_is_stored_when_one_group_is_fenced(tmp_path: Path) -> None:
    """The written-through part is sent first, but not if a write-back group of the request is fenced (10)."""
    meta = FakeMeta()
    paid = key("s", "payments")
    async with core_over(tmp_path, meta, policy=[{"groups": "payments", "mode": "write_through"}]) as core:
        await send(core, of(5, {key(): 10}))
        with pytest.raises(FencedError):
            await send(core, of(4, {paid: 1, key(): 11}))
        assert meta.records == {}
        assert core.ledger.store.get(paid) is None


async def test_an_equal_generation_is_accepted_whoever_sends_it(tmp_path: Path, policy: dict[str, Any]) -> None:
    """A generation has many members; the first one that commits is stored with it."""
    async with core_over(tmp_path, FakeMeta(), **policy) as core:
        await send(core, of(5, {key(): 10}, "first"))
        await send(core, of(5, {key(): 11}, "second"))
        assert core.ledger.store.get(key()) == record(11)
        assert core.ledger.store.member(G) == Member(5, "first")


async def test_a_commit_without_a_generation_is_not_fenced(tmp_path: Path, policy: dict[str, Any]) -> None:
    """It does not change the stored generation."""
    async with core_over(tmp_path, FakeMeta(), **policy) as core:
        await send(core, of(5, {key(): 10}))
        await send(core, commit_of({key(): 11}))
        assert core.ledger.store.get(key()) == record(11)
        assert core.ledger.store.member(G) == Member(5, "m")


async def test_generation_0_is_a_generation(tmp_path: Path) -> None:
    """Many brokers begin with it; it is fenced by 1."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await send(core, of(0, {key(): 1}))
        assert core.ledger.store.member(G) == Member(0, "m")
        await send(core, of(1, {key(): 2}))
        with pytest.raises(FencedError):
            await send(core, of(0, {key(): 3}))


async def test_a_generation_counts_also_when_its_commit_changes_nothing(tmp_path: Path, policy: dict[str, Any]) -> None:
    """A fenced member may be ahead of the new one, and still has to stop."""
    async with core_over(tmp_path, FakeMeta(), **policy) as core:
        await send(core, of(4, {key(): 10}))
        await send(core, of(5, {key(): 3}))
        with pytest.raises(FencedError):
            await send(core, of(4, {key(): 11}))
        assert core.ledger.store.get(key()) == record(10)


async def test_a_zombie_cannot_rewind(tmp_path: Path, policy: dict[str, Any]) -> None:
    """It cannot raise the epoch either (2)."""
    async with core_over(tmp_path, FakeMeta(), **policy) as core:
        await send(core, of(5, {key(): 10}))
        with pytest.raises(FencedError):
            await send(core, of(4, {key(): 3}, overwrite=True))
        assert core.ledger.store.get(key()) == record(10)


async def test_each_group_has_generations_of_its_own(tmp_path: Path) -> None:
    """Also groups whose name begins with another's, and groups of another namespace."""
    longer, elsewhere = GroupKey("default", "gg"), GroupKey("g", "default")
    async with core_over(tmp_path, FakeMeta()) as core:
        await send(core, of(5, {key(): 1}))
        for group in (longer, elsewhere):
            await send(core, commit_of({OffsetKey(*group, "s"): 1})._replace(members={group: Member(1)}))
            assert core.ledger.store.member(group) == Member(1)
        assert core.ledger.store.member(G) == Member(5, "m")


async def test_changes_of_one_moment_fence_each_other_in_their_order(tmp_path: Path) -> None:
    """A later change in a batch sees the generation of an earlier one."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        answers = await outcomes(core, of(4, {key(): 1}), of(5, {key(): 2}), of(4, {key(): 9}), of(5, {key(): 3}))
        assert isinstance(answers[2], FencedError)
        assert [answer for answer in answers if isinstance(answer, list)] == [
            [Standing(key(), record(offset))] for offset in (1, 2, 3)
        ]
        assert store.get(key()) == record(3)
        assert store.member(G) == Member(5, "m")


async def test_a_commit_that_is_refused_for_another_reason_raises_no_generation(tmp_path: Path) -> None:
    """Here a rewind in an unknown epoch; a refused request has no effect (10)."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await core.ledger.submit(commit_of({key(): 10}))
        with pytest.raises(NotReadyError):
            await core.ledger.submit(of(5, {key(): 3}, overwrite=True))
        assert core.ledger.store.member(G) is None
        await core.ledger.submit(of(4, {key(): 11}))


async def test_a_full_disk_raises_no_generation(tmp_path: Path, policy: dict[str, Any]) -> None:
    """The new member was refused, so the older one may continue."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), store=store, **policy) as core:
        store.refuses = DiskFullError("full by the test")
        with pytest.raises(DiskFullError):
            await send(core, of(5, {key(): 1}))
        store.refuses = None
        await send(core, of(4, {key(): 1}))
        assert store.member(G) == Member(4, "m")


async def test_a_generation_survives_a_kill(tmp_path: Path, policy: dict[str, Any]) -> None:
    """It is in the same WriteBatch as the offsets (1)."""
    async with core_over(tmp_path, meta := FakeMeta(), store=watched(tmp_path), **policy) as core:
        await send(core, of(5, {key(): 10}, "né"))
        core.ledger.store.failure = "killed by the test"
    async with core_over(tmp_path, meta, **policy) as core:
        assert core.ledger.store.member(G) == Member(5, "né")
        assert core.ledger.store.loss is None
        with pytest.raises(FencedError):
            await send(core, of(4, {key(): 11}))


async def test_with_always_a_generation_is_synced_before_its_answer(tmp_path: Path) -> None:
    """Even if the commit changed no offset."""
    store = watched(tmp_path, "always")
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store, flush={"interval_ms": 60_000}) as core:
        await core.ledger.submit(of(4, {key(): 10}))
        syncs = store.syncs
        await core.ledger.submit(of(5, {key(): 1}))
        assert store.syncs == syncs + 1


async def test_with_interval_a_generation_is_synced_at_the_next_tick(tmp_path: Path) -> None:
    """Also if no offset changed with it: at most one interval is at risk."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store, flush={"interval_ms": 10}) as core:
        await core.ledger.submit(of(4, {key(): 10}))
        await eventually(lambda: store.unsynced_writes == 0)
        syncs = store.syncs
        await core.ledger.submit(of(5, {key(): 1}))
        await eventually(lambda: store.syncs > syncs, 2.0)


async def test_a_removed_shard_leaves_the_generation(tmp_path: Path) -> None:
    """Also if the whole group is removed: fenced members appear during the hand-over of shards."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await send(core, of(5, {key(): 10}))
        assert await core.handover.remove([Wanted(G, [])]) == 1
        with pytest.raises(FencedError):
            await send(core, of(4, {key(): 11}))
        assert core.ledger.store.get(key()) == record(10)


async def test_a_forgotten_group_begins_anew(tmp_path: Path) -> None:
    """A group that was deleted as a whole may count from 1 again; others keep their generation."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await send(core, of(5, {key(): 10})._replace(members={G: Member(5), H: Member(7)}))
        await core.ledger.submit(Forget((), [G], gone=True))
        assert (core.ledger.store.member(G), core.ledger.store.member(H)) == (None, Member(7))
        await send(core, of(1, {key(): 11}))
        assert core.ledger.store.member(G) == Member(1, "m")


async def test_a_group_that_is_forgotten_in_the_batch_of_a_commit_begins_anew(tmp_path: Path) -> None:
    """Commit and removal have their effect in the order of their arrival."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        forget = Forget((), [G], gone=True)
        answers = await outcomes(core, of(5, {key(): 1}), forget, of(2, {key(): 2}), of(1, {key(): 3}))
        assert [isinstance(answer, FencedError) for answer in answers] == [False, False, False, True]
        assert core.ledger.store.member(G) == Member(2, "m")


async def test_an_older_generation_cannot_slip_in_behind_a_newer_one_in_one_save(tmp_path: Path) -> None:
    """Written through, both wait for the running call: the older one is fenced when the next save is composed."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, knows="g", mode="write_through") as core:
        first = asyncio.create_task(send(core, commit_of({key("other"): 1})))
        await meta.entered.wait()
        racing = [asyncio.create_task(send(core, of(generation, {key(): 10 - generation}))) for generation in (4, 5)]
        await eventually(lambda: core.ledger.store.member(G) == Member(5, "m"))
        meta.gate.set()
        older, newer = await asyncio.gather(*racing, return_exceptions=True)
        await first
        assert isinstance(older, FencedError)
        assert newer == [Standing(key(), record(5))]
        assert meta.records[key()] == record(5)
        assert [len(save) for save in meta.saves] == [1, 1]


@pytest.mark.parametrize("came_in", [None, Member(4, "zombie")])
async def test_a_generation_stands_though_an_expiry_forgot_it_during_the_save(tmp_path: Path, came_in: Member | None) -> None:
    """The group is there again with the commit, and a zombie is refused, also one that had come in meanwhile."""
    meta = HeldMeta()
    async with core_over(tmp_path, meta, knows="g", mode="write_through") as core:
        saving = asyncio.create_task(send(core, of(5, {key(): 10})))
        await meta.entered.wait()
        await core.ledger.submit(Forget([key()], [G]))
        if came_in:
            await core.ledger.submit(Commit((), CommitMode.INCREASE_ONLY, {G: came_in}))
        assert core.ledger.store.member(G) == came_in
        meta.gate.set()
        await saving
        assert core.ledger.store.member(G) == Member(5, "m")
        with pytest.raises(FencedError):
            await send(core, of(4, {key(): 11}))


async def test_behind_a_save_that_failed_the_generation_stands(tmp_path: Path) -> None:
    """It is unknown whether the Meta Service applied the save, so the older member has to stop."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, knows="g", mode="write_through") as core:
        meta.faults.append(DOWN)
        with pytest.raises(MetaUnavailableError):
            await send(core, of(5, {key(): 10}))
        with pytest.raises(FencedError):
            await send(core, of(4, {key(): 11}))
        assert len(meta.saves) == 1


def test_a_generation_is_kept_beside_the_offsets_and_is_not_one(tmp_path: Path) -> None:
    """Scans, counts and the digest ignore it, and the next open finds no loss."""
    store = LocalStore.open(tmp_path, "interval")
    store.write({key(): record(1)}, members={G: Member(2**64 - 1, "x" * 255), H: Member(0)})
    assert [stored.key for stored in store.scan()] == [key()]
    crash(store)
    store = LocalStore.open(tmp_path, "interval")
    assert (store.keys, store.loss) == (1, None)
    assert (store.member(G), store.member(H)) == (Member(2**64 - 1, "x" * 255), Member(0))
    store.write({}, members={G: None})
    assert store.member(G) is None
    store.close()


def _request(*groups: dict[str, Any]) -> offsets_pb.CommitOffsetsRequest:
    shards = [[offsets_pb.ShardCommit(shard=f"s{at}", offset=1)] for at in range(len(groups))]
    return offsets_pb.CommitOffsetsRequest(
        groups=[offsets_pb.GroupCommits(**{"group": "g", "shards": shards[at], **fields}) for at, fields in enumerate(groups)]
    )


def test_who_commits_is_read_group_by_group() -> None:
    """An absent generation is not 0: such a commit has no member."""
    commit = parse_commit(_request({"generation": 0, "member_id": "m"}, {"group": "h", "member_id": "n"})).commit
    assert commit.members == {G: Member(0, "m")}
    assert commit.mode is CommitMode.INCREASE_ONLY


def test_a_group_may_be_twice_in_a_request_of_one_member() -> None:
    """A large group may be sent in parts; a part without a generation belongs to the same request."""
    for parts in (
        ({"generation": 3, "member_id": "m"}, {"generation": 3, "member_id": "m"}),
        ({"generation": 3, "member_id": "m"}, {}),
        ({}, {"generation": 3, "member_id": "m"}),
    ):
        assert parse_commit(_request(*parts)).commit.members == {G: Member(3, "m")}


@pytest.mark.parametrize("second", [{"generation": 4, "member_id": "m"}, {"generation": 3, "member_id": "other"}])
def test_a_group_in_two_generations_is_refused(second: dict[str, Any]) -> None:
    """One request cannot be from two generations (10)."""
    with pytest.raises(
        InvalidInputError,
        match=r"^groups\[1\]\.generation: default/g is in the request with another member or generation$",
    ):
        parse_commit(_request({"generation": 3, "member_id": "m"}, {"namespace": "default", **second}))
