"""What others change in the Meta Service is known here: told by group, or by a comparison where that is not known any more."""

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from adapter.errors import MetaUnavailableError
from adapter.meta.client import Telling
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import (
    ChangedGroups,
    CommitMode,
    GroupKey,
    OffsetKey,
    OffsetRecord,
    SaveEntry,
    StoreMark,
    next_era,
)
from adapter.runtime.clocks import Clocks
from adapter.sidecar.engine import changed_elsewhere
from adapter.sidecar.engine.changed_elsewhere import OFF
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.operations import Commit
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import eventually
from tests.unit.helpers import commit, core_over, key, record, recover

A, B = key("a"), key("b")
GROUP, CLONE = A.group_key, GroupKey("default", "clone")
ERA = next_era(1)
DOWN = MetaUnavailableError("down by the test")
RESET = record(1, ERA, committed_at_ms=9)


class CountingMeta(FakeMeta):
    """A FakeMeta that counts what is read, and may fail behind a question for changes."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[OffsetKey] = []
        self.down_behind = False

    async def changed_groups(self, after: Sequence[StoreMark]) -> ChangedGroups:
        """As usual; then nothing more is answered, if the test wants that."""
        found = await super().changed_groups(after)
        if self.down_behind:
            self.down = DOWN
        return found

    async def get(self, keys: Sequence[OffsetKey], *, patient: bool = True) -> dict[OffsetKey, OffsetRecord]:
        """Note which keys are asked for."""
        self.read += keys
        return await super().get(keys, patient=patient)


async def began(core: Core, *shards: str, at_ms: int = 0) -> None:
    """Commit 5 in each shard, flush, and compare as at a start."""
    for shard in shards:
        await commit(core, 5, shard=shard, committed_at_ms=at_ms)
    await core.flusher.flush_once()
    await recover(core)


class Clock:
    """Unix time that only a test moves."""

    now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


async def asked_and_looked(core: Core) -> None:
    """Ask once, and look at what expired elsewhere."""
    core.elsewhere.told_at_ms = 0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(core.elsewhere.run)
        await eventually(lambda: bool(core.elsewhere.told_at_ms) and not core.elsewhere._expired)
        tasks.cancel_scope.cancel()


def changed(meta: FakeMeta, *keys: OffsetKey, to: OffsetRecord = RESET) -> None:
    """Somebody else has changed keys."""
    meta.apply(Telling(SaveEntry(where, to) for where in keys))


async def test_a_group_that_was_reset_elsewhere_stands_here_as_it_is_there(tmp_path: Path) -> None:
    """After one question, without a read of it."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a", "b")
        changed(meta, A)
        await core.elsewhere.ask()
        assert core.ledger.store.get(A) == RESET
        assert A not in core.ledger.dirty
        assert core.elsewhere.groups == 1
        assert core.elsewhere.told_at_ms
        assert not core.elsewhere.problem


async def test_a_group_that_was_deleted_elsewhere_is_a_tombstone_here(tmp_path: Path) -> None:
    """So it leaves the lag, the lists and the metrics."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a", "b")
        await meta.delete(GROUP, [])
        await core.elsewhere.ask()
        for where in (A, B):
            assert core.ledger.store.get(where) == meta.records[where]
            assert not meta.records[where].live


async def test_a_group_that_expired_elsewhere_goes_here_too_if_it_is_old_here(tmp_path: Path) -> None:
    """By this adapter's own settings, without waiting for its sweep; else it stays, and is not sent back."""
    meta, clock = CountingMeta(), Clock()
    async with core_over(tmp_path, meta, clocks=Clocks(now_ms=clock), expiry={"retention_hours": 1}) as core:
        await began(core, "a", "b", at_ms=clock())
        await meta.expire(GROUP, 2**62, clock())
        await asked_and_looked(core)
        here = core.ledger.store.get(A)
        assert here is not None
        assert here.live  # with a shorter retention there: it is kept here as before
        assert not core.ledger.dirty
        assert not meta.records[A].live
        clock.now_ms += 2 * 3_600_000
        meta.told.append(GROUP)
        await asked_and_looked(core)
        assert core.ledger.store.get(A) is None
        assert core.ledger.store.get(B) is None
        assert not core.ledger.dirty


async def test_without_changes_nothing_is_read(tmp_path: Path) -> None:
    """The cost of an idle fleet is one call."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a")
        changed(meta, A)
        await core.elsewhere.ask()
        meta.read.clear()
        await core.elsewhere.ask()
        assert meta.read == []


async def test_groups_that_are_not_here_are_not_read(tmp_path: Path) -> None:
    """Of those that are, exactly the keys that are here."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a")
        meta.read.clear()
        changed(meta, A, B, OffsetKey("default", "elsewhere", "a"))
        await core.elsewhere.ask()
        assert set(meta.read) == {A}
        assert core.ledger.store.get(B) is None


async def test_what_is_committed_here_meanwhile_is_decided_by_the_rules_of_merge(tmp_path: Path) -> None:
    """A commit from before the reset loses; an import below a commit changes nothing."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a", "b")
        await commit(core, 8, shard="a")
        await commit(core, 8, shard="b")
        changed(meta, A)
        changed(meta, B, to=record(6))
        await core.elsewhere.ask()
        assert core.ledger.store.get(A) == RESET
        assert A not in core.ledger.dirty
        here = core.ledger.store.get(B)
        assert here is not None
        assert here.offset == 8
        assert B in core.ledger.dirty
        await core.flusher.flush_once()
        assert meta.records[A] == RESET
        assert meta.records[B].offset == 8
        assert not core.ledger.dirty


async def test_a_change_whose_load_failed_is_told_again(tmp_path: Path) -> None:
    """The place moves on when the groups are loaded, not when they are told."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a")
        changed(meta, A)
        meta.down_behind = True
        with pytest.raises(MetaUnavailableError):
            await core.elsewhere.ask()
        assert core.ledger.store.get(A) != RESET
        meta.down, meta.down_behind = None, False
        await core.elsewhere.ask()
        assert core.ledger.store.get(A) == RESET


async def test_a_change_between_the_start_and_the_first_question_is_told(tmp_path: Path) -> None:
    """The place is taken before the recovery compares: what comes behind it may come behind its comparison, too."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a")
        places = core.elsewhere._places
        assert places
        await core.elsewhere.begin()  # as a recovery does that goes on after a failure
        changed(meta, A)
        await core.elsewhere.begin()
        assert core.elsewhere._places == places
        await core.elsewhere.ask()
        assert core.ledger.store.get(A) == RESET


async def compared(core: Core) -> None:
    """Run until a comparison that is under way has ended."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(core.elsewhere.run)
        await eventually(lambda: bool(core.elsewhere.told_at_ms) and not core.elsewhere.comparing)
        tasks.cancel_scope.cancel()


async def test_where_it_is_not_known_any_more_what_was_changed_all_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page; until that is done, it does not count as told."""
    monkeypatch.setattr(changed_elsewhere, "LOAD_KEYS", 2)
    monkeypatch.setattr(changed_elsewhere, "ASK_S", 0.01)
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, *"abcde")
        changed(meta, *(key(shard) for shard in "abcde"))
        meta.forgotten = len(meta.told)
        meta.read.clear()
        await core.elsewhere.ask()
        assert core.elsewhere.comparing
        assert core.elsewhere.told_at_ms == 0
        assert meta.read == []
        await compared(core)
        assert [core.ledger.store.get(key(shard)) for shard in "abcde"] == [RESET] * 5


async def test_after_a_loss_of_the_meta_service_the_place_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older copy counts its changes from an earlier place on, and may have passed this one unseen."""
    monkeypatch.setattr(changed_elsewhere, "ASK_S", 0.01)
    meta = CountingMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a")
        meta.apply([SaveEntry(A, RESET)])
        await core.elsewhere.ask()
        meta.records[A] = record(2, 2 * ERA)  # noted by the copy below the place that was told
        meta.server_reports.record_loss("restored by the test")
        await core.elsewhere.ask()
        assert core.elsewhere.comparing
        await compared(core)
        assert core.ledger.store.get(A) == record(2, 2 * ERA)


async def test_before_an_older_meta_service_it_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start is not held up by it; and when it is replaced by one that tells, all is compared once."""
    monkeypatch.setattr(changed_elsewhere, "ASK_S", 0.01)
    meta = CountingMeta()
    meta.tells = False
    async with core_over(tmp_path, meta) as core:
        await began(core, "a")
        assert core.ledger.recovered.now
        assert core.elsewhere.problem == OFF
        changed(meta, A)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(core.elsewhere.run)
            await anyio.sleep(0.05)
            assert core.ledger.store.get(A) != RESET
            assert core.elsewhere.told_at_ms == 0
            meta.tells = True
            await eventually(lambda: core.ledger.store.get(A) == RESET)
            await eventually(lambda: not core.elsewhere.problem)
            tasks.cancel_scope.cancel()


async def test_robustmqs_meta_service_is_not_asked(tmp_path: Path) -> None:
    """It has no such call."""
    meta = CountingMeta()
    meta.kind = OFFSETS_ONLY
    meta.tells = False
    async with core_over(tmp_path, meta) as core:
        await core.elsewhere.begin()
        await core.elsewhere.ask()
        assert core.elsewhere.problem == OFF


async def test_a_part_that_does_not_answer_is_said(tmp_path: Path) -> None:
    """What the others tell is loaded; the time stays."""

    class PartedMeta(CountingMeta):
        async def changed_groups(self, after: Sequence[StoreMark]) -> ChangedGroups:
            return (await super().changed_groups(after))._replace(unanswered="west: does not answer")

    meta = PartedMeta()
    async with core_over(tmp_path, meta) as core:
        await began(core, "a")
        changed(meta, A)
        await core.elsewhere.ask()
        assert core.ledger.store.get(A) == RESET
        assert core.elsewhere.problem == "west: does not answer"
        assert core.elsewhere.told_at_ms == 0


async def test_resets_deletes_clones_and_imports_of_an_adapter_are_told_to_others(tmp_path: Path) -> None:
    """Also where nothing is held (`hold_seconds` = 0), and an import that goes forward."""
    meta = CountingMeta()
    async with core_over(tmp_path, meta, reset={"hold_seconds": 0}) as core:
        await began(core, "a")
        before = len(meta.told)
        await core.resets.merge(Commit([(A, record(50, 0))], CommitMode.INCREASE_ONLY), execute=True)
        assert meta.told[before:] == [GROUP]
        await core.resets.reset(Wanted(GROUP, ()), Reset(To.OFFSET, 3), execute=True)
        await core.resets.clone(Wanted(GROUP, ()), CLONE, execute=True)
        await core.resets.delete(Wanted(GROUP, ()), execute=True)
        assert meta.told[before + 1 :] == [GROUP, CLONE, GROUP]
