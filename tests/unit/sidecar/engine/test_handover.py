"""The hand-over of shards: nothing is removed here that the Meta Service does not have."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import OffsetKey, OffsetRecord
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.ledger.operations import Reconcile
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import applied_then, commit, commit_of, core_over, during, key, record, refusing, send

A, B, C = key("a"), key("b"), key("c")
OTHER = key("a", "other")
GROUP = A.group_key
DOWN = MetaUnavailableError("down by the test")
ALL = [Wanted(GROUP, ())]


def only(*shards: str) -> list[Wanted]:
    """Some shards of the group."""
    return [Wanted(GROUP, shards)]


async def test_persist_returns_when_the_meta_service_has_the_values(tmp_path: Path) -> None:
    """Values of an earlier flush that failed are sent too (3)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({A: 5, B: 6, OTHER: 7}))
        await core.handover.persist(only("a"))
        assert meta.records[A] == record(5)
        assert A not in core.ledger.dirty


async def test_persist_of_clean_shards_sends_nothing(tmp_path: Path) -> None:
    """Other dirty keys are not sent either."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        await core.handover.persist(ALL)
        await commit(core, 5, "b")
        await core.handover.persist(only("a", "nowhere"))
        assert len(meta.saves) == 1


async def test_persist_fails_when_the_meta_service_does(tmp_path: Path) -> None:
    """The caller must not hand over the shard then (4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        meta.faults.append(applied_then(meta, DOWN))
        with pytest.raises(MetaUnavailableError):
            await core.handover.persist(ALL)
        assert A in core.ledger.dirty
        await core.handover.persist(ALL)
        assert A not in core.ledger.dirty


async def test_persist_tells_of_a_shard_that_is_refused_and_tries_it_each_time(tmp_path: Path) -> None:
    """The error names it; callers that persist other shards succeed."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({A: 5, B: 5}))
        meta.faults.extend([refusing(meta, {"b"}), refusing(meta, {"b"})])
        await core.handover.persist(only("a"))
        with pytest.raises(RefusedError, match=r"^default/g/b: default/g/b: INVALID by the test$"):
            await core.handover.persist(ALL)
        await core.handover.persist(ALL)
        assert meta.records[B] == record(5)


async def test_remove_persists_first_and_then_forgets(tmp_path: Path) -> None:
    """Only the named shards are removed, and the reply has their number."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of({A: 5, B: 6, OTHER: 7}))
        assert await core.handover.remove(only("a", "nowhere")) == 1
        assert meta.records[A] == record(5)
        assert [core.ledger.store.get(found) for found in (A, B, OTHER)] == [None, record(6), record(7)]


async def test_remove_of_a_group_leaves_other_groups(tmp_path: Path) -> None:
    """Groups whose names begin alike are separate."""
    near = [key("a", "g/a"), key("a", "gg"), key("a", "g", "other")]
    async with core_over(tmp_path, FakeMeta()) as core:
        await send(core, commit_of(dict.fromkeys([A, B, *near], 5)))
        assert await core.handover.remove(ALL) == 2
        assert sorted(stored.key for stored in core.ledger.store.scan()) == sorted(near)


async def test_a_shard_that_cannot_be_persisted_is_not_removed(tmp_path: Path) -> None:
    """If the Meta Service is down or refuses it, it stays here, dirty (3, 4)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        meta.faults.extend([DOWN, refusing(meta, {"a"})])
        with pytest.raises(MetaUnavailableError):
            await core.handover.remove(ALL)
        with pytest.raises(RefusedError):
            await core.handover.remove(ALL)
        assert core.ledger.store.get(A) == record(5)
        assert A in core.ledger.dirty


async def test_a_commit_during_a_removal_is_persisted_before_it_is_removed(tmp_path: Path) -> None:
    """It comes during the flush: the removal sees a dirty key, and flushes again (1)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        meta.faults.append(during(meta, lambda: commit(core, 6, "a")))
        assert await core.handover.remove(ALL) == 1
        assert meta.records[A] == record(6)
        assert core.ledger.store.get(A) is None


async def test_commits_during_each_flush_of_a_removal_are_persisted_before_it(tmp_path: Path) -> None:
    """Also one that comes during the flush of its own slice (1)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        meta.faults.extend(during(meta, partial(commit, core, offset, "a")) for offset in (6, 7))
        assert await core.handover.remove(ALL) == 1
        assert meta.records[A] == record(7)
        assert core.ledger.store.get(A) is None


async def test_a_commit_after_a_removal_asks_for_the_epoch_again(tmp_path: Path) -> None:
    """Another broker may have changed it meanwhile (2)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit(core, 5, "a")
        await core.handover.remove(ALL)
        meta.records[A] = record(2, 7)
        await commit(core, 6, "a")
        assert core.ledger.store.get(A) == record(6, 7)


async def test_a_group_that_is_loaded_again_during_a_removal_is_not_taken_for_known(tmp_path: Path) -> None:
    """A commit of another shard loads it during the flush; the removed key must not begin in epoch 1 (1)."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(Reconcile([(A, record(5, 3))]))
        await commit(core, 6, "a")
        meta.faults.append(during(meta, lambda: commit(core, 1, "b")))
        await core.handover.remove(only("a"))
        assert meta.records[A] == record(6, 3)
        meta.available = False
        await commit(core, 7, "a")
        await core.flusher.flush_once()
        assert core.ledger.store.get(A) == meta.records[A] == record(7, 3)


async def test_the_next_owner_reads_what_was_persisted(tmp_path: Path) -> None:
    """The whole hand-over, from one adapter to another (1)."""
    meta = FakeMeta()
    async with core_over(tmp_path / "old", meta) as old, core_over(tmp_path / "new", meta) as new:
        await send(old, commit_of({A: 5, B: 6}))
        assert await old.handover.remove(ALL) == 2
        offsets: dict[OffsetKey, int] = {A: 8, C: 1}
        await send(new, commit_of(offsets))
        await new.flusher.flush_once()
        assert {found: standing.offset for found, standing in meta.records.items()} == {A: 8, B: 6, C: 1}


class Overtaken(FakeMeta):
    """A Meta Service without epochs, where another writer has gone on. While it tells of that, a consumer goes back here."""

    kind = OFFSETS_ONLY

    def __init__(self) -> None:
        super().__init__({A: record(100, 0)})
        self.kind = OFFSETS_ONLY
        self.goes_back: Callable[[], Awaitable[object]] | None = None

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """What stands before."""
        found = await super().get(keys, patient=patient)
        if self.goes_back:
            goes_back, self.goes_back = self.goes_back, None
            await goes_back()
        return found


async def test_what_another_writer_stored_does_not_undo_a_rewind_that_came_meanwhile(tmp_path: Path) -> None:
    """Before a server without epochs 120 of before the rewind looks like progress behind it (8)."""
    meta = Overtaken()
    async with core_over(tmp_path, meta) as core:
        await core.ledger.submit(Reconcile([(A, record(100))]))
        meta.records[A] = record(120, 0)
        meta.goes_back = partial(send, core, commit_of({A: 50}, overwrite=True))
        assert await core.renewal.confirm([A]) == [A]
        assert core.ledger.store.get(A) == record(50, 2)
        await core.flusher.flush_once()
        assert (core.ledger.store.get(A), meta.records[A].offset) == (record(50, 2), 50)
