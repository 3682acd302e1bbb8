"""A reset, delete or clone holds its shards: commits without an epoch change nothing until it is taken up (invariant 7)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import MetaUnavailableError, NotReadyError
from adapter.model.records import HOLD_MS, CommitMode, GroupKey, OffsetRecord, ReadMode, SaveEntry, next_era, taken_up
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import Clocks
from adapter.sidecar.api.replies import raised_rows, superseded_rows
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.operations import Columns, Commit, Standing
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, core_over, during, key, record, send

A, B = key("a"), key("b")
G = GroupKey("default", "g")
ERA = next_era(1)
TAKEN = taken_up(ERA)
NOW_MS = 1_000_000
STORE = ReadMode.STORE
INCREASE, OVERWRITE = CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE
POLICIES: list[dict[str, Any]] = [{}, {"mode": "write_through"}]


@pytest.fixture(params=POLICIES, ids=["write_back", "write_through"])
def policy(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Both commit policies."""
    found: dict[str, Any] = request.param
    return found


class Hands:
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.ms = NOW_MS

    def clocks(self) -> Clocks:
        """Clocks that show it."""
        return Clocks(monotonic=lambda: self.ms / 1000, now_ms=lambda: self.ms)


def at(offset: int, epoch: int = 0, at_ms: int = NOW_MS) -> OffsetRecord:
    """A record of this time."""
    return record(offset, epoch, committed_at_ms=at_ms)


def plain(offset: int, epoch: int = 0, mode: CommitMode = INCREASE, at_ms: int = NOW_MS) -> list[Commit]:
    """A commit of A in both forms: one entry, and a column."""
    epochs = [epoch] if epoch else []
    return [
        Commit([(A, at(offset, epoch, at_ms))], mode),
        Commit([], mode, columns=[Columns(G, ["a"], [offset], epochs, at_ms)]),
    ]


def request_of(offset: int, epoch: int = 0, mode: CommitMode = INCREASE) -> offsets_pb.CommitOffsetsRequest:
    """A commit of A as the fast path gets it."""
    shard = offsets_pb.ShardCommit(shard="a", offset=offset, epoch=epoch)
    group = offsets_pb.GroupCommits(group="g", shards=[shard])
    return offsets_pb.CommitOffsetsRequest(groups=[group], mode=offsets_pb.CommitMode.ValueType(mode.value))


async def reset(core: Core, offset: int) -> None:
    """An operator resets A here."""
    await core.resets.reset(Wanted(G, ["a"]), Reset(To.OFFSET, offset), execute=True)


async def change(core: Core, kind: str) -> OffsetRecord:
    """An operator resets, deletes or clones A; returns what stands then."""
    if kind == "reset":
        await reset(core, 100)
    elif kind == "delete":
        await core.resets.delete(Wanted(G, ["a"]), execute=True)
    else:
        await send(core, commit_of({key("a", "source"): 100}))
        await core.resets.clone(Wanted(GroupKey("default", "source"), ["a"]), G, execute=True)
    stands = core.ledger.store.get(A)
    assert stands is not None
    assert stands.epoch == ERA
    return stands


async def read(core: Core, mode: ReadMode, shards: Sequence[str] = ("a",)) -> None:
    """A consumer reads where to begin."""
    await core.reader.begin([Wanted(G, shards)], mode)


@pytest.mark.parametrize("kind", ["reset", "delete", "clone"])
@pytest.mark.parametrize("mode", CommitMode)
async def test_a_commit_without_an_epoch_does_not_undo_what_an_operator_did(
    tmp_path: Path, policy: dict[str, Any], kind: str, mode: CommitMode
) -> None:
    """It changes nothing, and its reply says that the shard is held and with which epoch to go on."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks(), **policy) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, kind)
        for offset in (240, 90):
            for late in plain(offset, mode=mode):
                [row] = superseded_rows(late, await send(core, late), core.ledger.holds)
                assert (row.epoch, row.offset, row.deleted, row.held) == (ERA, stands.offset, not stands.live, True)
            assert core.ledger.commit_plain([[request_of(offset, mode=mode)]], NOW_MS).counts == [0]
        assert core.ledger.store.get(A) == meta.records[A] == stands


@pytest.mark.parametrize("kind", ["reset", "delete", "clone"])
async def test_a_read_of_the_store_ends_the_hold(tmp_path: Path, policy: dict[str, Any], kind: str) -> None:
    """Of what it reads, named or as the whole group; the next epoch goes to the Meta Service, so that every adapter knows."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks(), **policy) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, kind)
        await read(core, STORE, ())
        assert core.ledger.store.get(A) == stands._replace(epoch=TAKEN)
        await core.flusher.flush_all()
        assert meta.records[A] == stands._replace(epoch=TAKEN)
        assert await send(core, commit_of({A: 240})) == [Standing(A, record(240, TAKEN))]
        await core.flusher.flush_all()
        assert meta.records[A] == record(240, TAKEN)


@pytest.mark.parametrize("mode", [ReadMode.MEMORY, ReadMode.MEMORY_FIRST_THEN_STORE])
async def test_other_reads_leave_the_hold(tmp_path: Path, mode: ReadMode) -> None:
    """They are those of monitors and of consumers that run already; so are lists and descriptions."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, "reset")
        await read(core, mode)
        assert core.ledger.store.get(A) == stands


async def test_a_read_of_another_shard_leaves_the_hold(tmp_path: Path) -> None:
    """Its reader knows nothing of this one."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200, B: 200}))
        stands = await change(core, "reset")
        await read(core, STORE, ["b"])
        assert core.ledger.store.get(A) == stands


async def test_a_read_of_the_store_that_fails_leaves_the_hold(tmp_path: Path) -> None:
    """Its reader was told nothing."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, "reset")
        meta.down = MetaUnavailableError("down by the test")
        with pytest.raises(MetaUnavailableError):
            await read(core, STORE)
        assert core.ledger.store.get(A) == stands


@pytest.mark.parametrize("epoch", [ERA, TAKEN])
async def test_a_commit_with_the_epoch_takes_it_up(tmp_path: Path, policy: dict[str, Any], epoch: int) -> None:
    """Whether its consumer knows the epoch from before or from after that; later ones may carry either, or none."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks(), **policy) as core:
        await send(core, commit_of({A: 200}))
        await change(core, "reset")
        standing = await send(core, plain(110, epoch)[0])
        assert standing == [Standing(A, at(110, TAKEN), raised=True)]
        [row] = raised_rows(standing)
        assert (row.shard, row.epoch) == ("a", TAKEN)
        for offset, knows in ((111, ERA), (112, TAKEN), (113, 0)):
            await send(core, plain(offset, knows)[0])
            assert core.ledger.store.get(A) == at(offset, TAKEN)


async def test_a_lower_commit_with_the_epoch_takes_it_up_and_lowers_nothing(tmp_path: Path) -> None:
    """Its consumer knows of the reset. With OVERWRITE it is a rewind of it."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        await change(core, "reset")
        await send(core, plain(50, ERA)[0])
        assert core.ledger.store.get(A) == at(100, TAKEN)
        await send(core, plain(60, ERA, OVERWRITE)[0])
        assert core.ledger.store.get(A) == at(60, TAKEN + 1)


async def test_a_hold_ends_after_its_time(tmp_path: Path, policy: dict[str, Any]) -> None:
    """A consumer that never reads from the store and knows no epochs is not held off for ever."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks(), reset={"hold_seconds": 60}, **policy) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, "reset")
        hands.ms += 60_000
        await send(core, plain(240, at_ms=hands.ms)[0])
        assert core.ledger.store.get(A) == stands
        hands.ms += 1
        assert not core.ledger.holds.stops(stands)
        await send(core, plain(90, at_ms=hands.ms)[0])
        assert core.ledger.store.get(A) == stands
        await send(core, plain(240, at_ms=hands.ms)[0])
        assert core.ledger.store.get(A) == at(240, TAKEN, hands.ms)


async def test_a_second_reset_holds_again(tmp_path: Path) -> None:
    """Whether the first one was taken up or not."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        for era in (1, 2, 3):
            await reset(core, 100 - era)
            stands = core.ledger.store.get(A)
            assert stands == at(100 - era, era * ERA)
            await send(core, commit_of({A: 240}))
            assert core.ledger.store.get(A) == stands
            if era == 2:
                await read(core, STORE)


async def test_without_a_hold_a_commit_without_an_epoch_counts_at_once(tmp_path: Path, policy: dict[str, Any]) -> None:
    """As configured: what was reset is born taken up, also for adapters that hold."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks(), reset={"hold_seconds": 0}, **policy) as core:
        await send(core, commit_of({A: 200}))
        await reset(core, 100)
        assert meta.records[A] == at(100, TAKEN)
        await send(core, commit_of({A: 240}))
        assert core.ledger.store.get(A) == record(240, TAKEN)


async def test_a_reset_by_another_adapter_is_held_here(tmp_path: Path, policy: dict[str, Any]) -> None:
    """Once this one knows of it: by a flush, a load, or the recovery. No consumer here has read it."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks(), **policy) as core:
        await send(core, commit_of({A: 200}))
        await core.flusher.flush_all()
        stands = at(100, ERA)
        meta.apply([SaveEntry(A, stands)])
        await send(core, commit_of({A: 240}))
        await core.flusher.flush_all()
        assert core.ledger.store.get(A) == stands
        await send(core, commit_of({A: 241}))
        await core.flusher.flush_all()
        assert core.ledger.store.get(A) == meta.records[A] == stands


async def test_a_shard_that_comes_from_another_broker_is_held_here(tmp_path: Path) -> None:
    """A consumer goes on at the next broker without a read: the commit loads the shard, and the epoch says that it is held."""
    hands, meta = Hands(), FakeMeta({A: at(100, ERA)})
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 240}))
        assert core.ledger.store.get(A) == at(100, ERA)
        await read(core, STORE)
        await send(core, commit_of({A: 240}))
        assert core.ledger.store.get(A) == record(240, TAKEN)


async def test_the_reader_of_another_adapter_ends_the_hold_here(tmp_path: Path) -> None:
    """Its epoch comes with the next thing that this one learns; a commit that carries it is taken before that."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        await change(core, "reset")
        meta.available, meta.down = False, MetaUnavailableError("down by the test")
        await send(core, plain(110, TAKEN)[0])
        assert core.ledger.store.get(A) == at(110, TAKEN)


async def test_a_commit_of_unknown_epoch_does_not_pass_a_reset_that_is_held(tmp_path: Path) -> None:
    """An adapter that met the key without its Meta Service cannot know of the reset; it is decided when both meet."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        meta.available, meta.down = False, MetaUnavailableError("down by the test")
        await send(core, plain(240, at_ms=NOW_MS + HOLD_MS)[0])
        assert core.ledger.store.get(A) == at(240, 0, NOW_MS + HOLD_MS)
        meta.available, meta.down = True, None
        meta.records[A] = at(100, ERA)
        await core.flusher.flush_all()
        assert core.ledger.store.get(A) == meta.records[A] == at(100, ERA)


async def test_a_degraded_adapter_holds_and_refuses_only_epochs_that_it_cannot_know(tmp_path: Path) -> None:
    """The hold is in the record: it needs no Meta Service, neither to stop a commit nor to take one with its epoch."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, "reset")
        meta.available, meta.down = False, MetaUnavailableError("down by the test")
        await send(core, commit_of({A: 240}))
        assert core.ledger.store.get(A) == stands
        with pytest.raises(NotReadyError):
            await send(core, plain(110, TAKEN + 1)[0])
        await send(core, plain(110, ERA)[0])
        assert core.ledger.store.get(A) == at(110, TAKEN)


@pytest.mark.parametrize("form", [0, 1], ids=["entry", "column"])
@pytest.mark.parametrize("mode", [INCREASE, OVERWRITE])
@pytest.mark.parametrize("live", [True, False], ids=["reset", "delete"])
async def test_a_commit_that_waited_does_not_undo_what_was_done_and_taken_up_meanwhile(
    tmp_path: Path, policy: dict[str, Any], live: bool, mode: CommitMode, form: int
) -> None:
    """Its consumer did not know of it; what is committed later counts."""
    meta = FakeMeta()
    meta.records[A] = done = at(100, TAKEN, NOW_MS + 5)._replace(live=live)
    async with core_over(tmp_path, meta, **policy) as core:
        standing = await send(core, plain(240, mode=mode, at_ms=NOW_MS)[form])
        assert [one.record for one in standing] == [done]
        await send(core, plain(241, mode=mode, at_ms=NOW_MS + 6)[form])
        stands = core.ledger.store.get(A)
        assert stands is not None
        assert (stands.offset, stands.epoch, stands.live) == (241, TAKEN, True)


@pytest.mark.parametrize("form", [0, 1], ids=["entry", "column"])
async def test_a_commit_that_waited_for_its_turn_does_not_undo_what_was_read_meanwhile(tmp_path: Path, form: int) -> None:
    """Written through, behind another save, while the offset is reset elsewhere and a reader here takes that up."""
    meta = FakeMeta({A: at(200, 1, NOW_MS - 1)})
    async with core_over(tmp_path, meta, mode="write_through") as core:
        await core.loader.load(G)
        late: list[asyncio.Task[list[Standing]]] = []

        async def is_reset_and_read() -> None:
            late.append(asyncio.create_task(send(core, plain(240)[form])))
            await asyncio.sleep(0)  # it waits for its turn
            meta.records[A] = at(100, ERA, NOW_MS + 5)
            await core.reader.begin([Wanted(G, ())], STORE)

        meta.faults.append(during(meta, is_reset_and_read))
        await send(core, commit_of({B: 1}))
        await late[0]
        assert core.ledger.store.get(A) == at(100, TAKEN, NOW_MS + 5)
        assert meta.records[A].offset == 100


async def test_a_commit_that_waited_counts_when_it_was_made_after_the_reset(tmp_path: Path, policy: dict[str, Any]) -> None:
    """Only the time of the reset tells that it was known."""
    meta = FakeMeta()
    meta.records[A] = at(100, TAKEN, NOW_MS - 1)
    async with core_over(tmp_path, meta, **policy) as core:
        await send(core, plain(240)[0])
        assert core.ledger.store.get(A) == at(240, TAKEN)


async def test_an_import_is_the_operators_and_is_not_held_off(tmp_path: Path) -> None:
    """A larger offset counts, as it says; a lower one changes nothing, and does not end the hold either."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, "reset")
        await core.resets.merge(Commit([(A, at(90))], INCREASE), execute=True)
        assert core.ledger.store.get(A) == meta.records[A] == stands
        await core.resets.merge(Commit([(A, at(150))], INCREASE), execute=True)
        assert core.ledger.store.get(A) == meta.records[A] == at(150, TAKEN)


async def test_a_rewind_is_not_held(tmp_path: Path) -> None:
    """It is a consumer's own."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        await send(core, plain(100, mode=OVERWRITE)[0])
        await send(core, commit_of({A: 101}))
        assert core.ledger.store.get(A) == record(101, 2)


async def test_a_fast_commit_goes_on_behind_a_reset_that_is_taken_up(tmp_path: Path) -> None:
    """And leaves one that is held to the rules, whatever epoch it carries."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        await change(core, "reset")
        assert core.ledger.commit_plain([[request_of(110, ERA)]], NOW_MS).counts == [0]
        await read(core, STORE)
        assert core.ledger.commit_plain([[request_of(110), request_of(111, TAKEN)]], NOW_MS).counts == [2]
        assert core.ledger.store.get(A) == at(111, TAKEN)


async def test_a_hold_survives_a_restart(tmp_path: Path) -> None:
    """It is in the record, so it is durable when the reset is, and is there again without the Meta Service."""
    hands, meta = Hands(), FakeMeta()
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 200}))
        stands = await change(core, "reset")
    meta.available, meta.down = False, MetaUnavailableError("down by the test")
    async with core_over(tmp_path, meta, clocks=hands.clocks()) as core:
        await send(core, commit_of({A: 240}))
        assert core.ledger.store.get(A) == stands
