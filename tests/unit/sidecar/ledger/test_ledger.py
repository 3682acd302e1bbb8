"""The ledger: the order of changes, all or nothing, and which keys are dirty afterwards."""

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest

from adapter.errors import ContendedError, DiskFullError, NotReadyError, StorageFailedError
from adapter.model.records import CommitMode, OffsetRecord, next_era
from adapter.sidecar.config import WalSync
from adapter.sidecar.engine.core import Core
from adapter.sidecar.ledger.group_state import MAX_REMOVED
from adapter.sidecar.ledger.operations import Commit, Forget, Load, Operation, Reconcile, Standing
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.unit.helpers import commit_of, core_over, forget_loads, key, record, rocks_of, tombstone, watched

A, B, C = key("a"), key("b"), key("c")
QUIET: dict[str, Any] = {"flush": {"interval_ms": 60_000}}  # no sync but those that are asked for


async def submitted(core: Core, *changes: Operation) -> list[list[Standing] | BaseException]:
    """Submit changes together, so that they share a batch."""
    return await asyncio.gather(*(core.ledger.submit(change) for change in changes), return_exceptions=True)


async def put(core: Core, offset: int) -> None:
    """Commit an offset of the key A."""
    await core.ledger.submit(commit_of({A: offset}))


async def stand(core: Core, local: OffsetRecord, *, dirty: bool) -> None:
    """Store a record of the key A."""
    if local.epoch:
        await core.ledger.submit(Reconcile([(A, local)]))
    else:
        forget_loads(core)
        await core.ledger.submit(Commit([(A, local)], CommitMode.INCREASE_ONLY))
    core.ledger.dirty.discard(A)
    if dirty:
        held = core.ledger.store.hold(A)
        assert held
        core.ledger.dirty.add(A.group_key, {A.shard: held}, 0.0)


async def flushed(core: Core) -> None:
    """Mark everything as acknowledged by the Meta Service."""
    await core.flusher.flush_once()
    assert len(core.ledger.dirty) == 0


async def test_changes_are_applied_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """Each is decided against the result of those before it."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        answers = await submitted(
            core,
            commit_of({A: 5}),
            commit_of({A: 3}),
            commit_of({A: 2}, overwrite=True),
            commit_of({A: 4}),
        )
        expected = [
            Standing(A, record(5)),
            Standing(A, record(5)),
            Standing(A, record(2, 2), raised=True),
            Standing(A, record(4, 2)),
        ]
        assert answers == [[one] for one in expected]
        # The second changed nothing: three records were written.
        assert store.find(A) == (record(4, 2), 3)


async def test_callers_that_come_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    """Group commit: two syncs for any number of callers."""
    store = watched(tmp_path, "always")
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store, **QUIET) as core:
        syncs = store.syncs
        store.gate = asyncio.Event()
        first = asyncio.create_task(core.ledger.submit(commit_of({A: 1})))
        await eventually(lambda: store.syncs == syncs + 1)
        others = [asyncio.create_task(core.ledger.submit(commit_of({key(str(at)): at}))) for at in range(50)]
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, *others)
        assert (store.syncs - syncs, store.unsynced_writes) == (2, 0)


async def test_always_answers_after_the_sync(tmp_path: Path) -> None:
    """The record is written and dirty before the sync, but not acknowledged (1)."""
    store = watched(tmp_path, "always")
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store, **QUIET) as core:
        store.gate = asyncio.Event()
        caller = asyncio.create_task(put(core, 5))
        await eventually(lambda: store.syncs == 1)
        assert store.get(A) == record(5)
        assert A in core.ledger.dirty
        assert store.unsynced_writes == 1
        assert not caller.done()
        store.gate.set()
        await caller
        assert store.unsynced_writes == 0


async def test_always_syncs_before_every_answer(tmp_path: Path) -> None:
    """Consecutive callers cost one sync each; a commit that changes nothing needs none."""
    store = watched(tmp_path, "always")
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store, **QUIET) as core:
        for offset in range(1, 6):
            await put(core, offset)
            assert (store.syncs, store.unsynced_writes) == (offset, 0)
        await put(core, 2)
        assert store.syncs == 5


@pytest.mark.parametrize("wal_sync", ["interval", "never"])
async def test_interval_and_never_answer_without_a_sync(tmp_path: Path, wal_sync: WalSync) -> None:
    """A write to the page cache survives a killed process (1)."""
    store = watched(tmp_path, wal_sync)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store, **QUIET) as core:
        await put(core, 5)
        assert (store.syncs, store.unsynced_writes) == (0, 1)


async def test_a_failed_sync_acknowledges_nobody_of_its_batch(tmp_path: Path) -> None:
    """Later batches are not acknowledged either."""
    store = watched(tmp_path, "always")
    callers = []
    with pytest.RaisesGroup(StorageFailedError):
        async with core_over(tmp_path, FakeMeta(), knows="g", store=store, **QUIET) as core:
            store.gate = asyncio.Event()
            callers += [asyncio.create_task(core.ledger.submit(commit_of({found: 1}))) for found in (A, B)]
            await eventually(lambda: store.syncs == 1)
            callers.append(asyncio.create_task(core.ledger.submit(commit_of({A: 2}))))
            rocks_of(store)._db.close()
            store.gate.set()
            await anyio.sleep_forever()  # ended by the watch of the failed store
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(found) for found in answers] == [StorageFailedError] * 3


async def test_a_batch_that_cannot_be_written_leaves_nothing_dirty(tmp_path: Path) -> None:
    """What is not in the store must not be sent to the Meta Service; the next batch is tried as usual."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        await put(core, 1)
        await flushed(core)
        store.refuses = DiskFullError("full by the test")
        answers = await submitted(core, commit_of({A: 2, B: 2}), commit_of({C: 3}))
        assert answers == [store.refuses, store.refuses]
        assert len(core.ledger.dirty) == 0
        assert [core.ledger.store.get(found) for found in (A, B, C)] == [record(1), None, None]
        store.refuses = None
        await put(core, 2)
        assert core.ledger.store.get(A) == record(2)


async def test_a_load_that_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    """Its keys have an epoch in the Meta Service, so the next commit of one must not begin in the first (1)."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta({A: record(5, 4)}), store=store) as core:
        store.refuses = DiskFullError("full by the test")
        with pytest.raises(DiskFullError):
            await core.ledger.submit(Load([A.group_key], [(A, record(5, 4))], 0))
        store.refuses = None
        await put(core, 7)
        assert core.ledger.store.get(A) == record(7, 0)


async def test_a_refused_change_leaves_the_others_of_its_batch_alone(tmp_path: Path) -> None:
    """A rewind in an unknown epoch is refused with the rest of its own request only (10)."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await put(core, 5)
        rewind = commit_of({B: 1, A: 3, C: 1}, overwrite=True)
        answers = await submitted(core, commit_of({A: 6}), rewind, commit_of({C: 7}))
        assert answers[0] == [Standing(A, record(6, 0))]
        assert isinstance(answers[1], NotReadyError)
        assert "default/g/a: cannot be rewound now" in str(answers[1])
        assert answers[2] == [Standing(C, record(7, 0))]
        assert [core.ledger.store.get(found) for found in (A, B, C)] == [record(6, 0), None, record(7, 0)]


async def test_a_commit_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    """There is no new record and no dirty key."""
    store = watched(tmp_path)
    async with core_over(tmp_path, FakeMeta(), knows="g", store=store) as core:
        await put(core, 5)
        await flushed(core)
        before = store.seq
        assert await core.ledger.submit(commit_of({A: 4})) == [Standing(A, record(5))]
        assert await core.ledger.submit(commit_of({A: 5})) == [Standing(A, record(5))]
        assert (store.seq, len(core.ledger.dirty)) == (before, 0)


LOCAL_AND_REMOTE = [
    (record(5), record(5), record(5), False),
    (record(5), record(7), record(7), False),
    (record(5), record(3, 2), record(3, 2), False),
    (record(5), tombstone(2), tombstone(2), False),
    (record(7), record(5), record(7), True),
    (record(3, 2), record(5), record(3, 2), True),
    (record(5), None, record(5), True),
    (record(7, 0), record(5, 3), record(7, 3), True),
    (record(5, 0), record(7, 3), record(7, 3), False),
    (record(5, 0), record(5, 3), record(5, 3), False),
    (record(5, 0), tombstone(3), record(5, 3), True),
    (record(5, 0), None, record(5, 0), True),
    (None, record(5, 3), record(5, 3), False),
    (None, tombstone(3), tombstone(3), False),
    (None, None, None, False),
]


@pytest.mark.parametrize("dirty_before", [False, True], ids=["was clean", "was dirty"])
@pytest.mark.parametrize(("local", "remote", "stands", "dirty"), LOCAL_AND_REMOTE)
async def test_of_local_and_remote_the_larger_stands_and_a_larger_local_one_is_dirty(
    tmp_path: Path,
    *,
    local: OffsetRecord | None,
    remote: OffsetRecord | None,
    stands: OffsetRecord | None,
    dirty: bool,
    dirty_before: bool,
) -> None:
    """Push or adopt; a key is clean only when the Meta Service holds exactly the local value (2, 3)."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        if local:
            await stand(core, local, dirty=dirty_before)
        assert await core.ledger.submit(Reconcile([(A, remote)])) == [Standing(A, stands)]
        assert core.ledger.store.get(A) == stands
        assert (A in core.ledger.dirty) is dirty


async def test_a_commit_behind_a_reconcile_of_its_batch_is_dirty_and_one_before_it_is_merged(tmp_path: Path) -> None:
    """In either order: an adopted value is clean, a larger one is not (3)."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        await submitted(core, Reconcile([(A, record(7, 2))]), commit_of({A: 9}))
        assert core.ledger.store.get(A) == record(9, 2)
        assert A in core.ledger.dirty
        core.ledger.dirty.discard(A)
        await submitted(core, commit_of({A: 10}), Reconcile([(A, record(12, 2))]))
        assert core.ledger.store.get(A) == record(12, 2)
        assert A not in core.ledger.dirty
        await submitted(core, commit_of({A: 20}), Reconcile([(A, record(15, 2))]))
        assert core.ledger.store.get(A) == record(20, 2)
        assert A in core.ledger.dirty


async def test_forget_removes_clean_keys_and_says_which(tmp_path: Path) -> None:
    """They leave the store too; absent keys are not counted."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        await core.ledger.submit(commit_of({A: 1, B: 2}))
        await flushed(core)
        assert await core.ledger.submit(Forget([A, C])) == [Standing(A, record(1))]
        assert [core.ledger.store.get(found) for found in (A, B)] == [None, record(2)]
        assert core.ledger.store.keys == 1


async def test_forget_of_a_dirty_key_removes_nothing(tmp_path: Path) -> None:
    """If it was dirty before, is in flight, or was committed in the same batch: the Meta Service does not have it (3)."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        await core.ledger.submit(commit_of({A: 1, B: 2}))
        await flushed(core)
        await core.ledger.submit(commit_of({B: 3}))
        answers = await submitted(core, Forget([A, B]), commit_of({A: 5}), Forget([A]))
        assert isinstance(answers[0], ContendedError)
        assert isinstance(answers[2], ContendedError)
        assert "default/g/a: is still being committed" in str(answers[2])
        core.ledger.dirty.take()
        with pytest.raises(ContendedError):
            await core.ledger.submit(Forget([A]))
        assert [core.ledger.store.get(found) for found in (A, B)] == [record(5), record(3)]


async def test_a_new_key_begins_in_the_first_epoch_only_where_its_group_is_known(tmp_path: Path) -> None:
    """In other groups its epoch is unknown and stored as 0, until the flush learns it."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await core.ledger.submit(commit_of({A: 1}))
        await core.ledger.submit(Load([A.group_key], [], 0))
        await core.ledger.submit(commit_of({A: 2, B: 2, key("s", "other"): 2}))
        found = [core.ledger.store.get(where) for where in (A, B, key("s", "other"))]
        assert found == [record(2, 0), record(2), record(2, 0)]


async def test_a_commit_behind_a_forget_of_its_batch_does_not_begin_in_the_first_epoch(tmp_path: Path) -> None:
    """The Meta Service holds the key in an epoch that is no longer known here; a commit in epoch 1 would lose (1)."""
    async with core_over(tmp_path, FakeMeta(), knows="g") as core:
        await core.ledger.submit(Reconcile([(A, record(5, 3))]))
        await submitted(core, Forget([A]), commit_of({A: 6}))
        assert core.ledger.store.get(A) == record(6, 0)


async def test_a_load_that_was_fetched_before_a_forget_is_refused(tmp_path: Path) -> None:
    """Its records may be older than those that were flushed and forgotten (2)."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await core.ledger.submit(Reconcile([(A, record(9, 3))]))
        before = core.ledger.store.states.removals
        answers = await submitted(core, Forget([A]), Load([A.group_key], [(A, record(5, 3))], before))
        assert isinstance(answers[1], ContendedError)
        assert core.ledger.store.get(A) is None
        assert not core.ledger.store.states.is_loaded(A.group_key)
        await submitted(core, Load([A.group_key], [(A, record(9, 3))], before + 1))
        assert core.ledger.store.get(A) == record(9, 3)
        assert core.ledger.store.states.is_loaded(A.group_key)


async def test_what_is_new_here_is_adopted_clean_and_told(tmp_path: Path) -> None:
    """Only an offset, with labels, in a later era, deleted, or named twice: each stands as it came, and is not sent back."""
    gone, twice = key("d"), key("e")
    found = {A: record(5, 3), B: record(6, 1, metadata="m"), C: record(7, next_era(1)), gone: tombstone(2)}
    async with core_over(tmp_path, FakeMeta()) as core:
        with core.ledger.watches.watcher(()) as watcher:
            assert (await watcher.next()).resync
            await core.ledger.submit(Load([], [*found.items(), (twice, record(8)), (twice, record(9))], 0))
            assert {*(await watcher.next()).keys} == {*found, twice}
        store = core.ledger.store
        assert {one: store.get(one) for one in (*found, twice)} == {**found, twice: record(9)}
        assert not core.ledger.dirty
        assert store.keys == 5
        await core.ledger.submit(Load([], [(A, record(4, 3)), (B, record(2, 2))], store.states.removals))
        assert (store.get(A), store.get(B)) == (record(5, 3), record(2, 2))
        assert A in core.ledger.dirty


async def test_what_was_fetched_before_a_rewind_is_left_out_where_it_has_no_epochs(tmp_path: Path) -> None:
    """By its offset alone it looks like progress after the rewind, which is flushed already (8). Other keys are loaded."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await core.ledger.submit(Reconcile([(A, record(9, 1)), (B, record(9, 1))]))
        before = core.ledger.store.states.removals
        await submitted(core, commit_of({A: 5}, overwrite=True))
        await core.ledger.submit(Reconcile([(A, record(5, 2))]))
        await core.ledger.submit(Load([A.group_key], [(A, record(9, 0)), (B, record(10, 0)), (C, record(3, 0))], before))
        assert [core.ledger.store.get(one) for one in (A, B, C)] == [record(5, 2), record(10, 1), record(3, 1)]
        assert not core.ledger.dirty
        await core.ledger.submit(Load([], [(A, record(6, 0))], core.ledger.store.states.removals))
        assert core.ledger.store.get(A) == record(6, 2)
        await core.ledger.submit(Load([], [(A, record(9, 1))], before))
        assert core.ledger.store.get(A) == record(6, 2)


async def test_a_load_is_refused_where_nobody_knows_what_was_rewound_since(tmp_path: Path) -> None:
    """Not one that has epochs: it needs no such thing."""
    async with core_over(tmp_path, FakeMeta()) as core:
        states = core.ledger.store.states
        for at in range(MAX_REMOVED + 1):
            states.note_rewind([key(f"s{at}")])
        (answer,) = await submitted(core, Load([], [(A, record(9, 0))], 0))
        assert isinstance(answer, ContendedError)
        await core.ledger.submit(Load([], [(A, record(9)), (B, None)], 0))
        assert core.ledger.store.get(A) == record(9)


async def test_a_server_without_epochs_is_compared_by_offset_alone(tmp_path: Path) -> None:
    """Its records have epoch 0, which counts as the local epoch."""
    async with core_over(tmp_path, FakeMeta()) as core:
        await stand(core, record(5, 3), dirty=True)
        assert await core.ledger.submit(Reconcile([(A, record(5, 0))])) == [Standing(A, record(5, 3))]
        assert A not in core.ledger.dirty
        await core.ledger.submit(Reconcile([(A, record(4, 0))]))
        assert A in core.ledger.dirty
        await core.ledger.submit(Reconcile([(A, record(7, 0))]))
        assert core.ledger.store.get(A) == record(7, 3)
        assert A not in core.ledger.dirty


async def test_what_changes_nothing_is_not_acknowledged_after_a_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored value may be one that the failed sync has lost (1). Found by the model test."""
    store = watched(tmp_path, "always")
    callers = []
    with pytest.RaisesGroup(StorageFailedError):
        async with core_over(tmp_path, FakeMeta(), knows="g", store=store, **QUIET) as core:
            store.gate = asyncio.Event()
            callers.append(asyncio.create_task(core.ledger.submit(commit_of({A: 5}))))
            await eventually(lambda: store.syncs == 1)
            callers.append(asyncio.create_task(core.ledger.submit(commit_of({A: 5}))))
            rocks_of(store)._db.close()
            monkeypatch.setattr(store, "find", lambda _: (record(5), 1))  # the closed database cannot be read
            store.gate.set()
            await anyio.sleep_forever()  # ended by the watch of the failed store
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(found) for found in answers] == [StorageFailedError, StorageFailedError]
