"""Resets with an ID: repeated after a lost answer, half a change, or the death of the adapter, they shift nothing twice (7)."""

import asyncio
from pathlib import Path

import pytest

from adapter.errors import AdapterError, InvalidInputError, MetaUnavailableError, RefusedError, TooLargeError
from adapter.model.records import ERA_BITS, GroupKey
from adapter.rpc import offsets_pb
from adapter.runtime.clocks import Clocks
from adapter.sidecar.api.requests import parse_change_id
from adapter.sidecar.engine import change_memory, reset_writer
from adapter.sidecar.engine.change_memory import PREFIX, SINCE, TAKEN_MS, ChangeId
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.group_loader import Wanted
from adapter.sidecar.engine.reset_plans import Reset, To
from adapter.sidecar.engine.resets import Outcome
from adapter.testing.fake_meta import FakeMeta
from tests.unit.helpers import applied_then, commit, core_over, during, key, record

G = GroupKey("default", "g")
ALL = Wanted(G, ())
BACK = Reset(To.SHIFT, -10)
NOW_MS = 1_764_338_400_000
DOWN = MetaUnavailableError("down by the test")
FIVE = [key(shard) for shard in "abcde"]


def at(now_ms: int) -> Clocks:
    """Clocks that stand."""
    return Clocks(now_ms=lambda: now_ms)


def change_of(number: int = 1, made_ms: int = NOW_MS, request: bytes = b"shift") -> ChangeId:
    """An ID."""
    return ChangeId(f"{made_ms:013}-{number:016x}", made_ms, request)


async def shift(core: Core, change: ChangeId | None = None, *, execute: bool = True) -> Outcome:
    """Shift the group back by ten."""
    return await core.resets.reset(ALL, BACK, execute=execute, change=change or change_of())


def offsets(meta: FakeMeta) -> list[int]:
    """What stands in the Meta Service."""
    return [meta.records[found].offset for found in sorted(meta.records)]


async def test_a_shift_that_is_repeated_shifts_nothing_twice(tmp_path: Path) -> None:
    """It answers with what was done; another ID shifts again."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    async with core_over(tmp_path, meta, clocks=at(NOW_MS)) as core:
        first = await shift(core)
        assert (first.change_id, first.planned_ms) == (change_of().id, 0)
        again = await shift(core)
        assert again.planned_ms == NOW_MS
        assert again.changes == [change._replace(before=record(100)) for change in first.changes]
        assert again.executed
        assert offsets(meta) == [90] * 5
        await shift(core, change_of(2))
        assert offsets(meta) == [80] * 5


@pytest.mark.parametrize("lost", ["before", "behind"])
@pytest.mark.parametrize("killed", [False, True])
async def test_half_a_shift_is_finished_by_its_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, *, killed: bool
) -> None:
    """Two of five are shifted, of two it is unknown: at the same adapter, and at another one after its death."""
    monkeypatch.setattr(reset_writer, "SAVE_ENTRIES", 2)
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    async with core_over(tmp_path / "first", meta, clocks=at(NOW_MS)) as core:
        meta.faults.extend([during(meta, _nothing), DOWN if lost == "before" else applied_then(meta, DOWN)])
        with pytest.raises(MetaUnavailableError, match="2 of 5 offsets changed, of 2 it is unknown"):
            await shift(core)
        assert offsets(meta) == [90, 90, *([100, 100] if lost == "before" else [90, 90]), 100]
        if not killed:
            outcome = await shift(core)
    if killed:
        async with core_over(tmp_path / "second", meta, clocks=at(NOW_MS + 5)) as other:
            outcome = await shift(other)
    assert offsets(meta) == [90] * 5
    assert [(change.before and change.before.offset, change.after and change.after.offset) for change in outcome.changes] == [
        (100, 90)
    ] * 5


async def test_a_plan_whose_answer_was_lost_is_the_one_that_is_made(tmp_path: Path) -> None:
    """Nothing is changed by then; commits that come in between change nothing of it."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    assert meta.metadata
    meta.metadata.faults.append(DOWN)
    async with core_over(tmp_path, meta, clocks=at(NOW_MS)) as core:
        with pytest.raises(MetaUnavailableError):
            await shift(core)
        assert offsets(meta) == [100] * 5
        await commit(core, 104, "a")
        await core.flusher.flush_once()
        await shift(core)
        assert offsets(meta) == [90] * 5


async def test_two_adapters_that_are_asked_for_the_same_change_make_it_once(tmp_path: Path) -> None:
    """Whoever keeps its plan first, both make that one."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    clocks = at(NOW_MS)
    async with core_over(tmp_path / "a", meta, clocks=clocks) as a, core_over(tmp_path / "b", meta, clocks=clocks) as b:
        outcomes = await asyncio.gather(shift(a), shift(b), shift(a))
        assert offsets(meta) == [90] * 5
        assert sorted(bool(outcome.planned_ms) for outcome in outcomes) == [False, True, True]


async def test_a_plan_that_is_kept_meanwhile_is_made_in_place_of_the_own_one(tmp_path: Path) -> None:
    """The other adapter has shifted already when this one comes to keep its plan, of the shifted offsets."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    clocks = at(NOW_MS)
    async with core_over(tmp_path / "a", meta, clocks=clocks) as a, core_over(tmp_path / "b", meta, clocks=clocks) as b:
        recall = b.resets._memory.recall

        async def late(change: ChangeId) -> None:
            assert await recall(change) is None
            await shift(a)

        b.resets._memory.recall = late  # type: ignore[method-assign]
        assert (await shift(b)).planned_ms
        assert offsets(meta) == [90] * 5


async def test_what_was_moved_on_since_stays(tmp_path: Path) -> None:
    """A consumer that read again and committed; another reset, which stays as it is and is told."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    async with core_over(tmp_path, meta, clocks=at(NOW_MS)) as core:
        meta.faults.append(DOWN)
        with pytest.raises(MetaUnavailableError):
            await shift(core)
        await core.resets.reset(Wanted(G, ["a"]), Reset(To.OFFSET, 7), execute=True)
        assert [(change.changes, change.warning) for change in (await shift(core)).changes][:2] == [(False, SINCE), (True, "")]
        assert offsets(meta) == [7, 90, 90, 90, 90]
        await commit(core, 95, "b", epoch=1 << ERA_BITS)
        await core.flusher.flush_once()
        assert [change.warning for change in (await shift(core)).changes][:2] == [SINCE, ""]
        assert offsets(meta) == [7, 95, 90, 90, 90]


async def test_a_dry_run_with_an_id_shows_what_a_repeat_would_answer(tmp_path: Path) -> None:
    """And changes and remembers nothing."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    assert meta.metadata
    async with core_over(tmp_path, meta, clocks=at(NOW_MS)) as core:
        outcome = await shift(core, execute=False)
        assert (outcome.change_id, outcome.planned_ms, meta.metadata.values) == (change_of().id, 0, {})
        await shift(core)
        outcome = await shift(core, execute=False)
        assert (outcome.executed, outcome.planned_ms) == (False, NOW_MS)
        assert [change.after and change.after.offset for change in outcome.changes] == [90] * 5
        assert offsets(meta) == [90] * 5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (change_of(request=b"other"), "change_id: is that of another request"),
        (change_of(2, NOW_MS - TAKEN_MS - 1), "change_id: was made 24 h ago, and is taken for 24 h"),
        (change_of(2, NOW_MS + TAKEN_MS + 1), "change_id: was made 24 h ahead of this adapter"),
    ],
)
async def test_an_id_that_cannot_be_trusted_is_refused(tmp_path: Path, change: ChangeId, reason: str) -> None:
    """Of another request, or so old that what was done may be forgotten. Nothing is changed."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    async with core_over(tmp_path, meta, clocks=at(NOW_MS)) as core:
        await shift(core)
        with pytest.raises(InvalidInputError, match=reason):
            await shift(core, change)
        assert offsets(meta) == [90] * 5


@pytest.mark.parametrize(
    "kept", [b"\x0e", offsets_pb.PlannedReset(rows=[offsets_pb.PlannedReset.Row(after=b"?")]).SerializeToString()]
)
async def test_a_plan_that_is_damaged_is_refused(tmp_path: Path, kept: bytes) -> None:
    """Nothing is changed, and the error says under which key it is."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    assert meta.metadata
    meta.metadata.values[PREFIX + change_of().id] = kept
    async with core_over(tmp_path, meta, clocks=at(NOW_MS)) as core:
        with pytest.raises(
            RefusedError, match=f"^change_id: what the Meta Service remembers under {PREFIX}{change_of().id} is damaged"
        ):
            await shift(core)
        assert offsets(meta) == [100] * 5


@pytest.mark.parametrize(
    "text", ["x", "1764338400000", "1764338400000-0123456789ABCDEF", f"{NOW_MS}-{0:017x}", f" {NOW_MS}-{0:016x}"]
)
def test_an_id_of_another_form_is_refused(text: str) -> None:
    """The error names the field."""
    with pytest.raises(InvalidInputError, match="change_id: "):
        parse_change_id(offsets_pb.ResetOffsetsRequest(group="g", shift_by=1, change_id=text))


def test_a_request_is_the_same_when_it_is_executed() -> None:
    """As a dry run it has the same digest; with another target it has not."""

    def parsed(by: int, *, execute: bool) -> ChangeId | None:
        return parse_change_id(offsets_pb.ResetOffsetsRequest(group="g", shift_by=by, change_id=change_of().id, execute=execute))

    dry, other = parsed(1, execute=False), parsed(2, execute=True)
    assert dry == parsed(1, execute=True)
    assert dry
    assert other
    assert other.request != dry.request
    assert (dry.id, dry.made_ms) == (other.id, other.made_ms) == (change_of().id, NOW_MS)


async def test_a_plan_is_remembered_for_two_days(tmp_path: Path) -> None:
    """Twice as long as its ID is taken, so that no clock of another adapter takes it for a new one."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    assert meta.metadata
    now = [NOW_MS]
    async with core_over(tmp_path, meta, clocks=Clocks(now_ms=lambda: now[0])) as core:
        await shift(core)
        for days, kept in ((2, 1), (2.001, 0)):
            now[0] = NOW_MS + int(days * TAKEN_MS)
            core.resets._memory._swept_ms = 0
            await shift(core, change_of(3, now[0]))
            assert sum(found == PREFIX + change_of().id for found in meta.metadata.values) == kept


async def test_what_cannot_be_remembered_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Meta Service without metadata, and a plan that is too large: the caller leaves the ID out, or asks for less."""
    meta = FakeMeta(dict.fromkeys(FIVE, record(100)))
    async with core_over(tmp_path, meta, clocks=at(NOW_MS)) as core:
        monkeypatch.setattr(change_memory, "PLAN_BYTES", 10)
        expected: list[tuple[type[AdapterError], str]] = [
            (TooLargeError, "change_id: the plan of 5 shards is over 10 bytes"),
            (RefusedError, "change_id: memory remembers no changes"),
        ]
        for error, reason in expected:
            with pytest.raises(error, match=reason):
                await shift(core)
            meta.metadata = None
        assert offsets(meta) == [100] * 5
        await core.resets.reset(ALL, BACK, execute=True)
        assert offsets(meta) == [90] * 5


async def _nothing() -> None:
    """An untroubled save."""
