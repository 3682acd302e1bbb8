"""Groups that nobody uses leave memory: between commit, flush and read, nothing is decided otherwise than with them there."""

from pathlib import Path

import pytest

from adapter.errors import DiskFullError, StorageFailedError
from adapter.model import names
from adapter.model.records import GroupKey, OffsetRecord, ReadMode, SaveEntry, SaveOutcome, Status
from adapter.runtime import heap
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.ledger import ledger
from adapter.sidecar.ledger.store import LocalStore
from adapter.testing.fake_meta import FakeMeta
from tests.model.disk import Platter, SimDisk
from tests.unit.helpers import commit_of, core_over, key, send
from tests.unit.parted import BOTH, PartedMeta, commit_both
from tests.unit.sidecar.engine.flushing import A, B, commit_all, offsets_in

G = GroupKey(*A[:2])


async def idle(core: Core) -> None:
    """Two rounds in which nobody used anything."""
    await core.ledger.leave_idle()
    await core.ledger.leave_idle()


async def test_what_is_dirty_stays_in_memory_however_idle(tmp_path: Path) -> None:
    """Until the Meta Service has it; it leaves then, and a lower commit still meets what is stored."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 7, "ab")
        await idle(core)
        assert core.ledger.states.records(G).keys() == {"a", "b"}
        await core.flusher.flush_once()
        await idle(core)
        assert len(core.ledger.states) == 0
        await commit_all(core, 5, "a")
        assert core.ledger.store.get(A) == meta.records[A]
        assert A not in core.ledger.dirty
        await idle(core)
        assert await core.reader.read([Wanted(G, [A.shard])], ReadMode.MEMORY) == [(A, meta.records[A])]
        await idle(core)
        await commit_all(core, 9, "a")
        await idle(core)
        await core.flusher.flush_once()
        await idle(core)
        assert offsets_in(meta) == {A: 9, B: 7}
        assert core.ledger.store.get(A) == meta.records[A]


async def test_a_rewind_of_a_key_that_left_gets_the_next_epoch(tmp_path: Path) -> None:
    """As one whose record is in memory."""
    meta = FakeMeta()
    async with core_over(tmp_path, meta) as core:
        await commit_all(core, 7, "a")
        await core.flusher.flush_once()
        await idle(core)
        await send(core, commit_of({A: 3}, overwrite=True))
        stands = core.ledger.store.get(A)
        assert stands is not None
        assert stands.position == (2, 3)


async def test_what_is_refused_or_set_aside_stays_in_memory(tmp_path: Path) -> None:
    """Both are dirty, however often they were sent."""

    class Refusing(FakeMeta):
        async def save(self, entries: list[SaveEntry]) -> list[SaveOutcome]:  # type: ignore[override]
            return [SaveOutcome(Status.INVALID, None, "by the test") for _ in entries]

    async with core_over(tmp_path / "refused", Refusing()) as core:
        await commit_all(core, 7, "a")
        await core.flusher.flush_once()
        assert core.ledger.dirty.is_refused(A)
        await idle(core)
        assert core.ledger.states.get(A)
    async with core_over(tmp_path / "aside", PartedMeta("gone")) as core:
        await commit_both(core, 5)
        await core.flusher.flush_once()
        await idle(core)
        assert [bool(core.ledger.states.get(found)) for found in BOTH] == [False, True]


async def test_a_round_is_made_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the core runs."""
    monkeypatch.setattr(ledger, "IDLE_S", 0.001)
    async with core_over(tmp_path, FakeMeta()) as core:
        await commit_all(core, 7)
        await core.flusher.flush_once()
        while len(core.ledger.states):
            await core.ledger.store.rest()


async def test_a_round_collects_only_while_few_keys_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at many objects would hold up commits."""
    monkeypatch.setattr(ledger, "IDLE_S", 0.001)
    monkeypatch.setattr(ledger, "FEW_KEYS", 1)
    rounds: list[int] = []
    collected: list[int] = []
    async with core_over(tmp_path, FakeMeta()) as core:
        await commit_all(core, 7, "ab")  # dirty: they stay
        monkeypatch.setattr(names, "forget_good", lambda: rounds.append(1))
        monkeypatch.setattr(heap, "collect", lambda: collected.append(len(core.ledger.states)))
        while len(rounds) < 3:
            await core.ledger.store.rest()
        assert not collected
        await core.flusher.flush_once()
        while not collected:
            await core.ledger.store.rest()
    assert set(collected) <= {0, 1}


class Sorting(SimDisk):
    """Remembers which calls sorted, and may fail."""

    def __init__(self) -> None:
        super().__init__(Platter(), lambda: None)
        self.sorted: list[bool] = []
        self.error: Exception | None = None

    def shrink(self, *, sort: bool) -> None:
        self.sorted.append(sort)
        if self.error:
            raise self.error


async def test_what_was_written_last_is_sorted_once_nothing_is_written_any_more() -> None:
    """Not again before the next write; a full disk is no failure of it, any other error is one of the store."""
    disk = Sorting()
    store = LocalStore.over(disk, "never")
    for written in (True, False, False, True, True, False):
        if written:
            store.write({key("a"): OffsetRecord(1, store.seq)})
        await store.rest()
    assert disk.sorted == [False, True, False, False, False, True]
    store.write({key("a"): OffsetRecord(1, 99)})
    await store.rest()
    disk.error = DiskFullError("by the test")
    await store.rest()
    assert store.failure == ""
    disk.error = StorageFailedError("by the test")
    with pytest.raises(StorageFailedError, match="could not begin a table"):
        await store.rest()
    assert disk.sorted[-2:] == [True, True]
