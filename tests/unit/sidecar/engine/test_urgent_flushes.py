"""A flush of many saves lets hand-overs and admin changes go first, after the save that it is at, and loses nothing by it."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from adapter.errors import MetaUnavailableError
from adapter.meta.packed import SaveLimits
from adapter.model.records import OffsetKey
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import PATIENCE_S
from tests.unit.helpers import commit_of, core_over, during, key, send

GROUPS = [f"g{at}" for at in range(6)]
KEYS = {key("a", group) for group in GROUPS}
LAST = key("a", "g5")
ALL = 6


def slow_meta() -> FakeMeta:
    """A Meta Service that takes one group in a save."""
    meta = FakeMeta()
    meta.limits = SaveLimits(groups=1)
    return meta


def groups_of(meta: FakeMeta) -> list[str]:
    """The group of each save."""
    return [save[0].key.group for save in meta.saves]


async def while_flushing(core: Core, meta: FakeMeta, urgent: Callable[[], Coroutine[Any, Any, None]], *, at: int = 0) -> int:
    """Flush all, and let `urgent` begin in the middle of the save number `at`; returns how many keys the flush acknowledged."""
    await send(core, commit_of(dict.fromkeys(sorted(KEYS), 5)))
    async with anyio.create_task_group() as tasks:

        async def begin() -> None:
            tasks.start_soon(urgent)
            await anyio.wait_all_tasks_blocked()

        async def nothing() -> None:
            """Let this save through."""

        meta.faults.extend(during(meta, begin if number == at else nothing) for number in range(at + 1))
        with anyio.fail_after(PATIENCE_S):
            acknowledged = await core.flusher.flush_once()
    return acknowledged


async def test_a_hand_over_does_not_wait_for_the_rest_of_a_flush(tmp_path: Path) -> None:
    """Its group is next, and what the flush had left follows in the old order."""
    meta = slow_meta()
    async with core_over(tmp_path, meta) as core:
        seen: list[list[str]] = []

        async def persist() -> None:
            await core.handover.persist([Wanted(LAST.group_key, ())])
            seen.append(groups_of(meta))

        assert await while_flushing(core, meta, persist) == ALL - 1
        assert seen == [["g0", "g5"]]
        assert groups_of(meta) == ["g0", "g5", "g1", "g2", "g3", "g4"]
        assert not core.ledger.dirty
        assert core.ledger.store.flushed_seq == core.ledger.store.seq


async def test_what_was_committed_during_the_flush_goes_with_the_hand_over(tmp_path: Path) -> None:
    """The newest value, once; an interrupted flush does not send the older one behind it (2)."""
    meta = slow_meta()
    async with core_over(tmp_path, meta) as core:

        async def persist() -> None:
            await send(core, commit_of({LAST: 9}))
            await core.handover.persist([Wanted(LAST.group_key, ())])

        await while_flushing(core, meta, persist)
        assert [entry.record.offset for save in meta.saves for entry in save if entry.key == LAST] == [9]
        assert meta.records[LAST].offset == 9


async def test_a_flush_that_was_interrupted_has_not_flushed_everything(tmp_path: Path) -> None:
    """Killed then, a start has to push the rest: the watermark stays behind it (3)."""
    meta = slow_meta()
    async with core_over(tmp_path, meta) as core:
        seen: list[tuple[int, set[OffsetKey]]] = []

        async def change() -> None:
            async with core.flusher.paused():
                seen.append((core.ledger.store.flushed_seq, core.ledger.dirty.keys()))

        await while_flushing(core, meta, change, at=2)
        assert seen == [(0, KEYS - {key("a", group) for group in ("g0", "g1", "g2")})]
        assert core.ledger.store.flushed_seq == core.ledger.store.seq


async def test_a_hand_over_alone_does_not_advance_the_watermark_past_others(tmp_path: Path) -> None:
    """It sends its own groups and nothing else (3)."""
    meta = slow_meta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of(dict.fromkeys(sorted(KEYS), 5)))
        await core.handover.persist([Wanted(LAST.group_key, ())])
        assert groups_of(meta) == ["g5"]
        assert core.ledger.dirty.keys() == KEYS - {LAST}
        assert core.ledger.store.flushed_seq == 0
        await core.flusher.flush_once()
        assert core.ledger.store.flushed_seq == core.ledger.store.seq


async def test_a_hand_over_that_fails_leaves_everything_dirty(tmp_path: Path) -> None:
    """Its caller is told (4)."""
    meta = slow_meta()
    async with core_over(tmp_path, meta) as core:
        await send(core, commit_of(dict.fromkeys(sorted(KEYS), 5)))
        meta.faults.append(MetaUnavailableError("down by the test"))
        with pytest.raises(MetaUnavailableError):
            await core.handover.persist([Wanted(LAST.group_key, ())])
        assert core.ledger.dirty.keys() == KEYS
        assert await core.flusher.flush_once() == ALL
