"""Commits with the epoch that was read, adapters that know no epoch, and resets by others (invariant 7)."""

from pathlib import Path
from typing import Any

import pytest

from adapter.errors import DiskFullError, MetaUnavailableError, NotReadyError
from adapter.model.records import HOLD_MS, CommitMode, GroupKey, OffsetRecord, SaveEntry, deleted, expired, next_era, taken_up
from adapter.rpc import offsets_pb
from adapter.sidecar.api.commit_requests import parse_commit
from adapter.sidecar.api.replies import superseded_rows
from adapter.sidecar.engine.core import Core
from adapter.sidecar.ledger.operations import Commit, Load, Standing
from adapter.sidecar.ledger.rules import Holds
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit_of, core_over, forget_loads, key, record, send, watched

A, B = key("a"), key("b")
G = GroupKey("default", "g")
ERA = next_era(1)
TAKEN = taken_up(ERA)
DOWN = MetaUnavailableError("down by the test")
INCREASE, OVERWRITE = CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE
POLICIES: list[dict[str, Any]] = [{}, {"mode": "write_through"}]


@pytest.fixture(params=POLICIES, ids=["write_back", "write_through"])
def policy(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Both commit policies."""
    found: dict[str, Any] = request.param
    return found


def read_in(epoch: int, offset: int, mode: CommitMode = INCREASE, **fields: Any) -> Commit:
    """A commit of the key A by a consumer that read it in this epoch."""
    return Commit([(A, record(offset, epoch, **fields))], mode)


def reset(meta: FakeMeta, offset: int, at_ms: int = 0) -> OffsetRecord:
    """Another adapter resets the key A in the Meta Service."""
    standing = meta.records.get(A, record(0))
    wanted = record(offset, next_era(standing.epoch), committed_at_ms=at_ms)
    meta.apply([SaveEntry(A, wanted)])
    return wanted


async def everything_flushed(core: Core, meta: FakeMeta) -> OffsetRecord | None:
    """Flush until nothing is dirty, and check that both sides hold the same."""
    while core.ledger.dirty.pending:
        await core.flusher.flush_once()
    assert core.ledger.store.get(A) == meta.records.get(A)
    return core.ledger.store.get(A)


async def test_a_reset_that_cannot_be_adopted_now_is_adopted_by_the_next_flush(tmp_path: Path) -> None:
    """The disk is full when the reply comes: the key stays dirty, so the flush asks again (3)."""
    meta = FakeMeta()
    store = watched(tmp_path)
    async with core_over(tmp_path, meta, store=store) as core:
        await send(core, commit_of({A: 10}))
        wanted = reset(meta, 3)
        store.refuses = DiskFullError("full by the test")
        with pytest.raises(DiskFullError):
            await core.flusher.flush_once()
        assert A in core.ledger.dirty
        store.refuses = None
        assert await everything_flushed(core, meta) == wanted


@pytest.mark.parametrize("mode", CommitMode)
async def test_a_commit_of_the_epoch_before_a_reset_is_superseded(tmp_path: Path, mode: CommitMode) -> None:
    """The next flush adopts the reset; then a commit that was in flight arrives (apache/rocketmq #4206)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({A: 10}))
        await core.flusher.flush_once()
        wanted = reset(meta, 3)
        await send(core, read_in(1, 11, mode))
        assert await everything_flushed(core, meta) == wanted
        for offset in (12, 2):
            late = read_in(1, offset, mode)
            standing = await send(core, late)
            assert standing == [Standing(A, wanted)]
            [row] = superseded_rows(late, standing, Holds())
            assert (row.group, row.shard, row.epoch, row.offset, row.deleted) == ("g", "a", ERA, 3, False)
        assert await everything_flushed(core, meta) == wanted


async def test_a_commit_of_the_epoch_of_a_reset_counts(tmp_path: Path, policy: dict[str, Any]) -> None:
    """The consumer has read the reset, and continues from there."""
    meta = FakeMeta({A: record(10)})
    async with core_over(tmp_path, meta, **policy) as core:
        reset(meta, 3)
        assert await send(core, read_in(ERA, 4)) == [Standing(A, record(4, TAKEN), raised=True)]
        assert await everything_flushed(core, meta) == record(4, TAKEN)


async def test_written_through_the_meta_service_itself_supersedes_it(tmp_path: Path) -> None:
    """The reset is not known here yet; the reply has the stored record, which is adopted."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, mode="write_through") as core:
        await send(core, commit_of({A: 10}))
        wanted = reset(meta, 3)
        assert await send(core, read_in(1, 12)) == [Standing(A, wanted)]
        assert core.ledger.store.get(A) == meta.records[A] == wanted


async def test_a_newer_epoch_than_is_known_here_is_loaded_first(tmp_path: Path, policy: dict[str, Any]) -> None:
    """Even if the group counts as loaded, with or without the key."""
    meta = FakeMeta({B: record(1)})
    async with core_over(tmp_path, meta, **policy) as core:
        await send(core, commit_of({A: 10}))
        await core.flusher.flush_once()
        reset(meta, 3)
        meta.records[B] = record(5, ERA)
        both = Commit([(A, record(4, ERA)), (B, record(6, ERA))], INCREASE)
        assert await send(core, both) == [
            Standing(A, record(4, TAKEN), raised=True),
            Standing(B, record(6, TAKEN), raised=True),
        ]


async def test_an_epoch_that_nobody_knows_is_unavailable_and_nothing_is_stored(tmp_path: Path, policy: dict[str, Any]) -> None:
    """Neither the key nor others of the request, neither here nor in the Meta Service (10)."""
    meta = FakeMeta({A: record(10)})
    async with core_over(tmp_path, meta, **policy) as core:
        with pytest.raises(NotReadyError, match=r"^default/g/a: epoch 9 is not known here"):
            await send(core, Commit([(B, record(1, 0)), (A, record(12, 9))], INCREASE))
        assert (core.ledger.store.get(A), core.ledger.store.get(B), meta.records) == (record(10), None, {A: record(10)})
        assert len(core.ledger.dirty) == 0


@pytest.mark.parametrize("local", [None, record(10), record(10, 0)], ids=["absent", "known", "unknown epoch"])
@pytest.mark.parametrize("loaded", [False, True], ids=["not loaded", "loaded"])
async def test_without_the_meta_service_an_unknown_epoch_is_unavailable(
    tmp_path: Path, policy: dict[str, Any], local: OffsetRecord | None, loaded: bool
) -> None:
    """Stored without its epoch, the commit could undo a reset, or be undone by one (1, 7)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **policy) as core:
        if local:
            await core.ledger.submit(Load([G] if local.epoch else [], [], 0))
            await core.ledger.submit(commit_of({A: local.offset}))
        if loaded:
            core.ledger.store.states.note_loaded([G])
        else:
            forget_loads(core)
        dirty = len(core.ledger.dirty)
        meta.down, meta.available = DOWN, False
        with pytest.raises(NotReadyError, match=f"^default/g/a: epoch {ERA} is not known here"):
            await send(core, read_in(ERA, 12))
        assert (core.ledger.store.get(A), len(core.ledger.dirty)) == (local, dirty)


async def test_a_rewind_of_the_epoch_that_was_read_stays_one(tmp_path: Path, policy: dict[str, Any]) -> None:
    """In the stored epoch it raises that by one; in an older epoch it is superseded."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta, **policy) as core:
        await send(core, commit_of({A: 10}))
        assert await send(core, read_in(1, 4, OVERWRITE)) == [Standing(A, record(4, 2), raised=True)]
        assert await send(core, read_in(1, 3, OVERWRITE)) == [Standing(A, record(4, 2))]
        assert await send(core, read_in(2, 3, OVERWRITE)) == [Standing(A, record(3, 3), raised=True)]


async def test_a_commit_of_an_older_epoch_than_a_delete_is_superseded_by_its_tombstone(tmp_path: Path) -> None:
    """The superseded row says that there is no offset any more."""
    meta = FakeMeta({A: record(10)})
    async with core_over(tmp_path, meta) as core:
        await core.reader._loader.load(G)
        meta.records[A] = deleted(meta.records[A], 5, held=True)
        await core.reader._loader.load(G)
        late = read_in(1, 11)
        [row] = superseded_rows(late, await send(core, late), Holds())
        assert (row.epoch, row.offset, row.deleted) == (ERA, 0, True)
        assert await send(core, commit_of({A: 0})) == [Standing(A, record(0, TAKEN), raised=True)]


def test_a_commit_of_an_older_epoch_is_told_also_at_the_same_offset() -> None:
    """Its metadata is not stored. A rewind of the caller's own is not reported."""
    late = read_in(1, 3, committed_at_ms=5)
    [row] = superseded_rows(late, [Standing(A, record(3, ERA, committed_at_ms=9))], Holds())
    assert (row.epoch, row.offset) == (ERA, 3)
    assert superseded_rows(late, [Standing(A, record(3, 2, committed_at_ms=5))], Holds()) == []
    assert superseded_rows(late, [Standing(A, record(3, 1, committed_at_ms=5))], Holds()) == []


def test_the_epoch_of_a_request_reaches_the_commit() -> None:
    """0 and absent both mean unknown."""
    shards = [offsets_pb.ShardCommit(shard="a", offset=1, epoch=7), offsets_pb.ShardCommit(shard="b", offset=1)]
    commit = parse_commit(offsets_pb.CommitOffsetsRequest(groups=[offsets_pb.GroupCommits(group="g", shards=shards)])).commit
    assert {where.shard: found.epoch for where, found in commit.offered()} == {"a": 7, "b": 0}


# While the Meta Service was away for this adapter, something happened there; then the first flush of a key of unknown epoch.
COMMITTED_MS = HOLD_MS + 1_000
LONG_BEFORE, EARLIER, SAME, LATER = COMMITTED_MS - HOLD_MS - 1, COMMITTED_MS - 1, COMMITTED_MS, COMMITTED_MS + 1
BEFORE = record(4, committed_at_ms=1)
FIRST = record(9, 0, committed_at_ms=COMMITTED_MS)


def _reset_at(at_ms: int) -> OffsetRecord:
    return record(2, ERA, committed_at_ms=at_ms)


@pytest.mark.parametrize(
    ("there", "stands"),
    [
        (None, FIRST._replace(epoch=1)),
        (BEFORE, FIRST._replace(epoch=1)),
        (record(12, committed_at_ms=1), record(12, committed_at_ms=1)),
        (_reset_at(LONG_BEFORE), FIRST._replace(epoch=TAKEN)),
        (_reset_at(EARLIER), _reset_at(EARLIER)),
        (_reset_at(SAME), _reset_at(SAME)),
        (_reset_at(LATER), _reset_at(LATER)),
        (deleted(BEFORE, LONG_BEFORE, held=True), FIRST._replace(epoch=TAKEN)),
        (deleted(BEFORE, EARLIER, held=True), deleted(BEFORE, EARLIER, held=True)),
        (deleted(BEFORE, EARLIER), FIRST._replace(epoch=TAKEN)),
        (deleted(BEFORE, LATER), deleted(BEFORE, LATER)),
        (expired(BEFORE, LATER), FIRST._replace(epoch=1)),
        (expired(record(12), EARLIER), FIRST._replace(epoch=2)),
        (expired(record(12), LATER), expired(record(12), LATER)),
        (record(3, 2, committed_at_ms=EARLIER), FIRST._replace(epoch=2)),
        (record(3, 2, committed_at_ms=LATER), record(3, 2, committed_at_ms=LATER)),
    ],
    ids=[
        "nothing",
        "a lower offset",
        "a larger offset",
        "a reset long before it",
        "a reset before it, which is held",
        "a reset in the same millisecond",
        "a reset after it",
        "a delete long before it",
        "a delete before it, which is held",
        "a delete before it, which is not held",
        "a delete after it",
        "an expiry of less",
        "an expiry of more, before it",
        "an expiry of more, after it",
        "a rewind before it",
        "a rewind after it",
    ],
)
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed meanwhile"])
async def test_a_first_commit_without_the_meta_service_meets_what_happened_there(
    tmp_path: Path, there: OffsetRecord | None, stands: OffsetRecord, killed: bool
) -> None:
    """A reset after the commit wins; after a reset before it, the commit applies (1, 7)."""
    meta = FakeMeta()
    meta.down, meta.available = DOWN, False
    async with core_over(tmp_path, meta) as core:
        await send(core, Commit([(A, FIRST)], INCREASE))
        assert core.ledger.store.get(A) == FIRST
        if killed:
            core.ledger.store.failure = "killed by the test"
        else:
            await _comes_back(core, meta, there)
            assert await everything_flushed(core, meta) == stands
    if killed:
        async with core_over(tmp_path, meta, recovered=False) as core:
            await _comes_back(core, meta, there)
            await core.recovery.run()
            assert await everything_flushed(core, meta) == stands


async def _comes_back(core: Core, meta: FakeMeta, there: OffsetRecord | None) -> None:
    """End the outage of the Meta Service, in which something was changed there."""
    assert core.ledger.store.get(A) == FIRST
    meta.down, meta.available = None, True
    if there:
        meta.records[A] = there


async def test_duplicates_of_a_first_commit_that_arrive_late_do_not_undo_a_reset(tmp_path: Path) -> None:
    """The save was applied and its reply lost; after a reset, the retry and a late copy of the save arrive (2, 7)."""
    meta = FakeMeta()
    meta.down, meta.available = DOWN, False
    async with core_over(tmp_path, meta) as core:
        await send(core, Commit([(A, FIRST)], INCREASE))
        meta.down, meta.available = None, True
        meta.apply([SaveEntry(A, FIRST)])
        wanted = reset(meta, 2, LATER)
        assert await everything_flushed(core, meta) == wanted
        meta.apply([SaveEntry(A, FIRST), SaveEntry(A, FIRST._replace(epoch=1))])
        assert meta.records[A] == wanted
