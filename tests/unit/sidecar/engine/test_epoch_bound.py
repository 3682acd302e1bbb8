"""Epochs near their maximum: which commits and resets are refused before they are acknowledged (7)."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from adapter.errors import RefusedError
from adapter.metaservice.engine import decide_save
from adapter.model.records import (
    EPOCH_LIMIT,
    EPOCH_MAX,
    CommitMode,
    OffsetRecord,
    SaveEntry,
    Status,
    decide,
    epoch_warning,
    expired,
    next_era,
)
from adapter.sidecar.api.replies import describe_row
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.ledger.group_state import GroupStates
from adapter.sidecar.ledger.rules import Holds, decide_commit
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import commit, core_over, key, record

A = key("a")
LAST = record(5, EPOCH_MAX)
CLONE = "clone the group to a new one"


async def test_a_rewind_that_the_meta_service_would_refuse_is_refused_before_it_is_acknowledged(tmp_path: Path) -> None:
    """In an epoch that is stored already at the maximum, commits continue, but a rewind is refused."""
    meta = FakeMeta({A: LAST})
    async with core_over(tmp_path, meta) as core:
        with capture_logs() as logs:
            await commit(core, 6, "a")
        assert [(line["event"], line["key"]) for line in logs if line["event"] == "epoch.high"] == [("epoch.high", "default/g/a")]
        assert core.ledger.store.get(A) == record(6, EPOCH_MAX)
        with pytest.raises(RefusedError, match=f"default/g/a: cannot be rewound: it stands in epoch {EPOCH_MAX}: .*{CLONE}"):
            await commit(core, 1, "a", overwrite=True)
        assert core.ledger.store.get(A) == record(6, EPOCH_MAX)
        await core.flusher.flush_once()
        assert meta.records[A] == record(6, EPOCH_MAX)


@pytest.mark.parametrize("execute", [False, True])
async def test_a_reset_or_delete_from_the_last_era_says_what_to_do(tmp_path: Path, execute: bool) -> None:
    """One sentence that suggests a clone; nothing is changed."""
    meta = FakeMeta({A: LAST, key("b"): record(5)})
    async with core_over(tmp_path, meta) as core:
        for change in (
            core.resets.reset(Wanted(A.group_key, []), Reset(To.OFFSET, 1), execute=execute),
            core.resets.delete(Wanted(A.group_key, []), execute=execute),
        ):
            with pytest.raises(RefusedError, match=f"default/g/a: stands in epoch {EPOCH_MAX}: .*{CLONE}.*; nothing was changed"):
                await change
        assert meta.records == {A: LAST, key("b"): record(5)}
        target = key("a", "new").group_key
        await core.resets.clone(Wanted(A.group_key, []), target, execute=True)
        assert meta.records[key("a", "new")].position == (next_era(1), 5)


def test_every_rewind_that_is_acknowledged_is_one_that_the_meta_service_takes() -> None:
    """For stored epochs at the limit, above it, and at the maximum."""
    states = GroupStates()
    for epoch in (1, EPOCH_LIMIT - 1, EPOCH_LIMIT, EPOCH_LIMIT + 1, next_era(EPOCH_LIMIT), EPOCH_MAX - 2, EPOCH_MAX - 1):
        there = here = record(9, epoch)
        for offset in (5, 3):  # two of them, of which the Meta Service sees the second
            try:
                here = decide_commit(A, record(offset, 0), here, CommitMode.OVERWRITE, states)
            except RefusedError:
                assert here.epoch == EPOCH_MAX
        assert decide_save(SaveEntry(A, here), there).status is Status.APPLIED


def test_a_late_commit_over_an_expired_one_of_the_largest_epoch_is_refused() -> None:
    """It would have to begin the next epoch."""
    dead = expired(record(9, EPOCH_MAX), 5)
    assert decide(record(3, 0, committed_at_ms=6), dead, CommitMode.INCREASE_ONLY).epoch == EPOCH_MAX + 1
    with pytest.raises(RefusedError, match="cannot be rewound"):
        decide_commit(A, record(3, 0, committed_at_ms=6), dead, CommitMode.INCREASE_ONLY, GroupStates())
    for late in (record(3, 0, committed_at_ms=6), record(3, EPOCH_MAX, committed_at_ms=6)):
        outcome = decide_save(SaveEntry(A, late), dead)
        assert (outcome.status, outcome.standing) == (Status.INVALID, dead)


def test_a_description_warns_of_such_an_epoch() -> None:
    """It says how many resets are left, or what to do."""
    assert describe_row(A, None, record(1), None, Holds(), dirty=False).warning == ""
    assert describe_row(A, None, OffsetRecord(EPOCH_LIMIT, 1), None, Holds(), dirty=False).warning == ""
    over = describe_row(A, None, OffsetRecord(EPOCH_LIMIT + 1, 1), None, Holds(), dirty=False).warning
    assert over == f"stands in epoch {EPOCH_LIMIT + 1}, over {EPOCH_LIMIT}: 1,073,741,823 resets are left"
    assert describe_row(A, LAST, record(1), None, Holds(), dirty=False).warning == epoch_warning(EPOCH_MAX)
    assert CLONE in epoch_warning(EPOCH_MAX)
