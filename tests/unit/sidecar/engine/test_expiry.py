"""The sweep of old groups: what is removed, what stays, and which calls it makes to the Meta Service."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from adapter.errors import MetaUnavailableError, RefusedError
from adapter.meta.kinds import OFFSETS_ONLY
from adapter.model.records import GroupKey, Member, OffsetRecord, SaveEntry, SaveOutcome, Status, expired, next_era
from adapter.sidecar.engine.core import Core
from adapter.sidecar.engine.expiry import HOUR_MS, LOOKED_AT, PAUSE_S
from adapter.sidecar.engine.groups import PAGE_KEYS, GroupRow
from adapter.sidecar.engine.tombstones import TOMBSTONE_MS
from adapter.sidecar.ledger.operations import Reconcile
from adapter.sidecar.metrics import AdapterMetrics
from adapter.testing.waiting import eventually
from tests.unit.expiring import (
    GROUP,
    NOW_MS,
    OLD_MS,
    YOUNG_MS,
    ExpiringMeta,
    SetClock,
    committed,
    expiry_of,
    flushed,
    local,
    shards,
)
from tests.unit.helpers import core_over, key, refusing

A, B = key("a"), key("b")
DOWN = MetaUnavailableError("down by the test")


def dead_since(at_ms: int) -> OffsetRecord:
    """The tombstone of a delete at this time."""
    return OffsetRecord(1 << 32, 0, live=False, committed_at_ms=at_ms)


async def test_an_old_group_leaves_the_cache_and_the_meta_service(tmp_path: Path) -> None:
    """Its generation is removed too. The Meta Service keeps its position, so that a late commit applies."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "b"]), member=Member(7, "m"))
        before = dict(meta.records)
        await expiry_of(core).sweep_once()
        assert local(core) == {}
        assert core.ledger.store.member(GROUP) is None
        assert meta.records == {found: expired(stood, NOW_MS) for found, stood in before.items()}
        assert [stood.position for stood in meta.records.values()] == [(1, 5), (1, 5)]


@pytest.mark.parametrize(("at_ms", "stays"), [(NOW_MS - 168 * HOUR_MS - 1, False), (NOW_MS - 168 * HOUR_MS, True)])
async def test_the_retention_counts_from_the_last_commit(tmp_path: Path, at_ms: int, *, stays: bool) -> None:
    """To the millisecond, by the clock of the adapter that proposes the expiry."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5}, at_ms)
        await expiry_of(core).sweep_once()
        assert (set(local(core)), set(meta.live())) == (({A}, {A}) if stays else (set(), set()))


async def test_one_young_shard_keeps_its_group(tmp_path: Path) -> None:
    """A group expires as a whole or not at all; other groups have their own time."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "b", "c"]))
        await flushed(core, {key("b"): 6}, YOUNG_MS)
        await flushed(core, {key("a", "f"): 1, key("a", "h"): 1, key("a", "g", "m"): 1})
        await expiry_of(core).sweep_once()
        assert set(local(core)) == set(meta.live()) == set(shards(["a", "b", "c"]))


async def test_a_group_with_a_dirty_key_is_not_even_proposed(tmp_path: Path) -> None:
    """However old it is: the Meta Service does not have all of it."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        await committed(core, {B: 5}, OLD_MS)
        await expiry_of(core).sweep_once()
        assert meta.proposed == []
        assert set(local(core)) == {A, B}


async def test_a_refused_key_counts_as_dirty(tmp_path: Path) -> None:
    """It will be sent again, so its group may not expire."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        meta.faults.append(refusing(meta, {"b"}, Status.INVALID))
        await flushed(core, {B: 5})
        assert core.ledger.dirty.refused == 1
        await expiry_of(core).sweep_once()
        assert meta.proposed == []
        assert set(local(core)) == {A, B}


async def test_commits_through_another_broker_keep_a_group_alive(tmp_path: Path) -> None:
    """The Meta Service replies with their time; the local offsets and the generation stay."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5}, member=Member(7))
        meta.records[B] = OffsetRecord(1, 9, committed_at_ms=YOUNG_MS)
        await expiry_of(core).sweep_once()
        assert meta.proposed == ["g"]
        assert set(local(core)) == {A}
        assert set(meta.live()) == {A, B}
        assert core.ledger.store.member(GROUP) == Member(7)


async def test_a_group_larger_than_a_page_goes_whole(tmp_path: Path) -> None:
    """Its keys are removed one page at a time."""
    meta = ExpiringMeta()
    many = shards([f"{at:05}" for at in range(2 * PAGE_KEYS + 1)])
    async with core_over(tmp_path, meta) as core:
        await flushed(core, many, member=Member(7))
        await flushed(core, {key("a", "z"): 1}, YOUNG_MS)
        await expiry_of(core).sweep_once()
        assert set(local(core)) == set(meta.live()) == {key("a", "z")}
        assert core.ledger.store.member(GROUP) is None


Meanwhile = Callable[[Core], Awaitable[None]]


async def _is_flushed(core: Core) -> None:
    """Clean again, and of a time as old as the group's: an import."""
    await committed(core, {A: 9}, OLD_MS)
    await core.flusher.flush_once()


async def _is_written_through(core: Core) -> None:
    """It is clean as soon as it is stored, and no flush."""
    core.ledger.store.write({A: OffsetRecord(1, 9, committed_at_ms=OLD_MS)})


@pytest.mark.parametrize("commit", [_is_flushed, _is_written_through])
async def test_a_commit_while_a_page_is_read_stays(commit: Meanwhile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is older than the commit: neither it nor the generation may go."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5}, member=Member(7))
        read, expiry = core.ledger.store.page, expiry_of(core)
        forget, removing = expiry._forget, False

        async def begun(row: GroupRow, before_ms: int) -> None:
            nonlocal removing
            removing = True
            await forget(row, before_ms)

        async def slow(*args: Any, **named: Any) -> Any:
            nonlocal removing
            found = await read(*args, **named)
            if removing:
                removing = False
                await commit(core)
            return found

        monkeypatch.setattr(core.ledger.store, "page", slow)
        monkeypatch.setattr(expiry, "_forget", begun)
        await expiry.sweep_once()
        assert {found: stood.offset for found, stood in local(core).items()} == {A: 9}
        assert core.ledger.store.member(GROUP) == Member(7)


async def test_a_reset_that_nobody_took_up_comes_back_with_its_group(tmp_path: Path) -> None:
    """Its tombstone is in the epoch behind the hold, and so above the record as it was (7)."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5, B: 5})
        reset = OffsetRecord(next_era(1), 3, committed_at_ms=OLD_MS)
        meta.records[A] = reset
        await core.ledger.submit(Reconcile([(A, reset)]))
        meta.after = lambda: committed(core, {B: 6}, YOUNG_MS)
        await expiry_of(core).sweep_once()
        assert await core.flusher.drain(1) == 0
        assert meta.live() == {A: (next_era(1) + 1, 3), B: (1, 6)}
        assert {found: stood.position for found, stood in local(core).items()} == meta.live()


async def test_a_reset_of_a_group_that_is_put_back_stays_held(tmp_path: Path) -> None:
    """It came while the expiry ran: what is put back is what stood before, and nobody has read the reset (7)."""
    meta = ExpiringMeta()
    reset = OffsetRecord(next_era(1), 3, committed_at_ms=NOW_MS)
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5, B: 5})

        async def move() -> None:
            meta.records[A] = reset
            await core.ledger.submit(Reconcile([(A, reset)]))

        meta.after = move
        await expiry_of(core).sweep_once()
        assert await core.flusher.drain(1) == 0
        assert meta.records[A] == reset
        assert meta.live() == {A: reset.position, B: (1, 5)}
        assert {found: stood.position for found, stood in local(core).items()} == meta.live()


async def test_groups_that_are_named_by_uuid_do_not_pile_up(tmp_path: Path) -> None:
    """Each leaves both stores, with its generation (redpanda #23054)."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {key("a", f"console-consumer-{at:04}"): at for at in range(300)}, member=Member(1))
        await flushed(core, {A: 5}, YOUNG_MS)
        await expiry_of(core).sweep_once()
        assert set(local(core)) == set(meta.live()) == {A}
        assert core.ledger.store.member(GroupKey("default", "console-consumer-0000")) is None


async def test_a_group_that_is_not_here_is_not_proposed(tmp_path: Path) -> None:
    """A sweep lists only the local store, never the Meta Service."""
    meta = ExpiringMeta()
    meta.records[A] = OffsetRecord(1, 5, committed_at_ms=OLD_MS)
    async with core_over(tmp_path, meta) as core:
        await expiry_of(core).sweep_once()
        assert (meta.proposed, set(meta.live())) == ([], {A})


async def test_many_groups_that_expire_at_once_do_not_hammer_the_meta_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep pauses after each call, and regularly while it finds nothing."""
    pauses: list[float] = []
    sleep = anyio.sleep

    async def noted(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(0 if pause_s == PAUSE_S else pause_s)

    monkeypatch.setattr("anyio.sleep", noted)
    async with core_over(tmp_path, ExpiringMeta()) as core:
        await flushed(core, {key("a", f"g{at:03}"): 1 for at in range(50)})
        pauses.clear()
        await expiry_of(core, pause_s=PAUSE_S).sweep_once()
        assert pauses.count(PAUSE_S) == 50
        await flushed(core, {key("a", f"g{at:04}"): 1 for at in range(LOOKED_AT)}, YOUNG_MS)
        pauses.clear()
        await expiry_of(core, pause_s=PAUSE_S).sweep_once()
        assert pauses.count(PAUSE_S) == 1


@pytest.mark.parametrize("now_ms", [OLD_MS, 0, 1, HOUR_MS], ids=["a week back", "1970", "one ms later", "one hour later"])
async def test_a_clock_that_went_back_expires_nothing(tmp_path: Path, now_ms: int) -> None:
    """The next sweep with the right time does."""
    meta = ExpiringMeta()
    clock = SetClock(now_ms)
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        expiry = expiry_of(core, clock)
        await expiry.sweep_once()
        assert (meta.proposed, set(local(core))) == ([], {A})
        clock.wall_ms = NOW_MS
        await expiry.sweep_once()
        assert local(core) == {}


async def test_a_commit_from_the_future_keeps_its_group_until_then(tmp_path: Path) -> None:
    """Consumers may give the time of a commit themselves."""
    meta = ExpiringMeta()
    clock = SetClock()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5}, NOW_MS + HOUR_MS)
        expiry = expiry_of(core, clock, retention_hours=1)
        await expiry.sweep_once()
        clock.wall_ms = NOW_MS + 2 * HOUR_MS
        await expiry.sweep_once()
        assert set(local(core)) == {A}
        clock.wall_ms += 1
        await expiry.sweep_once()
        assert local(core) == {}


async def test_without_a_retention_nothing_expires(tmp_path: Path) -> None:
    """Neither here nor in the Meta Service."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5}, 1)
        await expiry_of(core, retention_hours=0).sweep_once()
        assert (meta.proposed, set(local(core)), set(meta.live())) == ([], {A}, {A})


@pytest.mark.parametrize("retention_hours", [0, 168])
async def test_old_tombstones_are_forgotten_here(tmp_path: Path, retention_hours: int) -> None:
    """Also in a group in use, and dirty ones. One that outlived the Meta Service's could supersede later commits."""
    meta = ExpiringMeta()
    dead, fresh = (
        dead_since(NOW_MS - TOMBSTONE_MS - 1),
        dead_since(NOW_MS - TOMBSTONE_MS),
    )
    async with core_over(tmp_path, meta) as core:
        await flushed(core, shards(["a", "d"]), NOW_MS)
        await flushed(core, shards(["old"]), OLD_MS)
        meta.records |= {B: dead, key("c"): fresh, key("d"): dead, key("a", "other"): dead}
        await core.ledger.submit(Reconcile(list(meta.records.items())))
        await core.ledger.submit(Reconcile([(key("d"), None)]))
        assert key("d") in core.ledger.dirty
        await expiry_of(core, retention_hours=retention_hours).sweep_once()
        assert set(local(core)) == set(shards(["a", "c", "old"]))
        assert key("d") not in core.ledger.dirty
        assert len(meta.records) == 6


async def test_a_tombstone_stays_for_as_long_as_it_may_hold(tmp_path: Path) -> None:
    """However old it is: the adapter may be without its Meta Service when a consumer commits without an epoch."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta, reset={"hold_seconds": 3_600}) as core:
        meta.records[A] = dead_since(NOW_MS - 3_600_000)
        meta.records[B] = dead_since(NOW_MS - 3_600_001)
        await core.loader.load(GROUP)
        await expiry_of(core).sweep_once()
        assert set(local(core)) == {A}


async def test_what_was_committed_over_a_tombstone_meanwhile_stays(tmp_path: Path) -> None:
    """A commit comes while the sweep waits for a flush to end, of a page that it has read."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        meta.records |= {A: dead_since(OLD_MS), B: dead_since(OLD_MS)}
        await core.loader.load(GROUP)
        await core.ledger.submit(Reconcile([(A, None), (B, None)]))
        async with core.flusher.paused():
            sweep = asyncio.create_task(expiry_of(core).sweep_once())
            await eventually(lambda: core.flusher._urgent == 2)
            await committed(core, {A: 3}, NOW_MS)
        await sweep
        assert {found: record.position for found, record in local(core).items()} == {A: ((1 << 32) + 1, 3)}
        assert A in core.ledger.dirty


async def test_a_tombstone_that_a_flush_is_sending_is_forgotten_behind_the_flush(tmp_path: Path) -> None:
    """Else it would be dirty again when the flush has failed, and would be sent long after."""
    meta = ExpiringMeta()
    sweeps: list[asyncio.Task[None]] = []

    async def fail_during_a_sweep(_: Sequence[SaveEntry]) -> list[SaveOutcome]:
        sweeps.append(asyncio.create_task(expiry_of(core).sweep_once()))
        await eventually(lambda: core.flusher._urgent > 0 or sweeps[0].done())
        raise DOWN

    async with core_over(tmp_path, meta) as core:
        meta.records[A] = dead_since(OLD_MS)
        await core.loader.load(GROUP)
        await core.ledger.submit(Reconcile([(A, None)]))
        meta.faults.append(fail_during_a_sweep)
        with pytest.raises(MetaUnavailableError):
            await core.flusher.flush_once()
        await sweeps[0]
        assert local(core) == {}
        assert A not in core.ledger.dirty


async def test_a_load_forgets_a_tombstone_that_the_meta_service_has_forgotten(tmp_path: Path) -> None:
    """What was committed elsewhere since then stands, also here; it is not buried again."""
    meta = ExpiringMeta()
    meta.records |= {A: dead_since(OLD_MS), B: dead_since(OLD_MS)}
    async with core_over(tmp_path, meta) as core:
        await core.loader.load(GROUP)
        meta.records |= {A: OffsetRecord(1, 7, committed_at_ms=NOW_MS)}
        await core.loader.load(GROUP)
        assert {found: record.position for found, record in local(core).items() if record.live} == {A: (1, 7)}
        await core.flusher.flush_once()
        assert meta.live() == {A: (1, 7)}


async def test_a_load_is_not_held_up_by_an_old_tombstone_that_is_dirty(tmp_path: Path) -> None:
    """A flush may be sending it: it is left to the sweep, which waits for the flush."""
    meta = ExpiringMeta()
    meta.records |= {A: dead_since(OLD_MS), B: OffsetRecord(1, 7, committed_at_ms=NOW_MS)}
    async with core_over(tmp_path, meta) as core:
        await core.loader.load(GROUP)
        await core.ledger.submit(Reconcile([(A, None)]))
        meta.records[A] = OffsetRecord(1, 7, committed_at_ms=NOW_MS)
        await core.loader.load(GROUP)
        assert core.loader.is_loaded(GROUP)
        assert A in core.ledger.dirty


async def test_a_load_forgets_nothing_while_the_clock_may_be_wrong(tmp_path: Path) -> None:
    """What seems old may be a minute old, and what was fetched from before it."""
    meta = ExpiringMeta()
    meta.records[A] = dead_since(OLD_MS)
    async with core_over(tmp_path, meta) as core:
        await core.loader.load(GROUP)
        meta.records[A] = OffsetRecord(1, 7, committed_at_ms=NOW_MS)
        meta.server_reports.skew.take(0, 0, 3_600_000)
        assert meta.server_reports.skew.off
        await core.loader.load(GROUP)
        assert not local(core)[A].live


async def test_a_forgotten_tombstone_still_holds_back_what_is_from_before_it(tmp_path: Path) -> None:
    """The next commit loads it again, so a consumer that read before the delete is superseded (7)."""
    meta = ExpiringMeta()
    meta.records[A] = dead_since(OLD_MS)
    async with core_over(tmp_path, meta) as core:
        await core.loader.load(GROUP)
        await expiry_of(core).sweep_once()
        assert local(core) == {}
        await committed(core, {A: 3}, NOW_MS)
        assert local(core)[A].position == ((1 << 32) + 1, 3)


async def test_each_expired_group_is_a_line_that_no_log_level_hides(tmp_path: Path) -> None:
    """The line has the group and its age; metrics have the numbers."""
    metrics = AdapterMetrics()
    async with core_over(tmp_path, ExpiringMeta()) as core:
        await flushed(core, shards(["a", "b"]))
        with capture_logs() as lines:
            await expiry_of(core, metrics=metrics).sweep_once()
    wanted = {"namespace": "default", "group": "g", "keys": 2, "last_commit_at_ms": OLD_MS}
    assert [line for line in lines if line["event"] == "expiry.expired"] == [
        {**wanted, "event": "expiry.expired", "log_level": "info"}
    ]
    values = {
        name: metrics.registry.get_sample_value(f"offset_adapter_{name}")
        for name in ("expired_groups_total", "expired_keys_total")
    }
    assert values == {"expired_groups_total": 1, "expired_keys_total": 2}
    assert metrics.registry.get_sample_value("offset_adapter_expiry_sweep_timestamp_seconds") == NOW_MS / 1000


async def test_a_meta_service_that_knows_no_epochs_keeps_everything(tmp_path: Path) -> None:
    """It cannot expire groups, so nothing expires here either; this is logged once."""
    meta = ExpiringMeta()
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        meta.kind = OFFSETS_ONLY
        expiry = expiry_of(core)
        with capture_logs() as lines:
            await expiry.sweep_once()
            await expiry.sweep_once()
        assert [line["event"] for line in lines] == ["expiry.off"]
        assert (meta.proposed, set(local(core)), set(meta.live())) == ([], {A}, {A})


@pytest.mark.parametrize("error", [DOWN, RefusedError("UNIMPLEMENTED by the test")], ids=["unavailable", "refused"])
async def test_a_sweep_that_fails_is_told_once_and_the_next_ones_go_on(tmp_path: Path, error: Exception) -> None:
    """It ends at the first group, and nothing has left the store."""
    meta = ExpiringMeta()

    async def fail() -> None:
        raise error

    async with core_over(tmp_path, meta) as core:
        await flushed(core, {key("a", name): 5 for name in "ghijk"})
        meta.before = fail
        with capture_logs() as lines:
            core.tasks.start_soon(expiry_of(core, interval_ms=10).run)
            await eventually(lambda: len(meta.proposed) >= 4)
        assert [line["event"] for line in lines].count("expiry.failed") == 1
        assert len(local(core)) == len(meta.live()) == 5
        meta.before = None
        await core.flusher.flush_all()
        await eventually(lambda: local(core) == {} and meta.live() == {})


async def test_groups_of_other_names_and_namespaces_are_left_alone(tmp_path: Path) -> None:
    """Also if a name begins with that of the expired group."""
    meta = ExpiringMeta()
    young = {key("a", "gg"): 1, key("a", "g", "other"): 1, key("a", "g/a"): 1}
    async with core_over(tmp_path, meta) as core:
        await flushed(core, {A: 5})
        await flushed(core, young, NOW_MS)
        await expiry_of(core).sweep_once()
        assert set(local(core)) == set(meta.live()) == set(young)
        assert meta.proposed == [GroupKey(*A[:2]).group]
