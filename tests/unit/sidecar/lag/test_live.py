"""The live lag over a real store: every path of a write is seen, and nothing unknown is taken for 0."""

from pathlib import Path

import anyio
import pytest

from adapter.errors import MetaUnavailableError
from adapter.model.lag_rows import Ints
from adapter.model.records import GroupKey, next_era
from adapter.rpc import lag_pb
from adapter.runtime.serving.large_calls import SLICE_ROWS
from adapter.sidecar.lag import feed, service
from adapter.sidecar.lag.view import View
from adapter.sidecar.ledger import group_state
from adapter.sidecar.ledger.operations import Forget, Reconcile
from adapter.testing.fake_meta import FakeMeta
from adapter.testing.waiting import PATIENCE_S
from tests.unit.helpers import core_over, key, record, tombstone
from tests.unit.sidecar.engine.fast_requests import request
from tests.unit.sidecar.lag.lagging import Lagging, lagging

OK, WARN, REWIND, STALL, STOP, UNKNOWN = (
    lag_pb.OK,
    lag_pb.WARN,
    lag_pb.REWIND,
    lag_pb.STALL,
    lag_pb.STOP,
    lag_pb.LAG_STATUS_UNSPECIFIED,
)


async def test_without_bounds_the_lag_is_unknown_and_not_0(tmp_path: Path) -> None:
    """And so is the status, however many commits there are."""
    async with lagging(tmp_path) as lag:
        for offset in range(5):
            lag.pass_s()
            await lag.commit({"s": offset})
            await lag.evaluate()
        group, shard = lag.group(), lag.shard()
        assert group is not None
        assert shard is not None
        assert (group.shards, group.known, group.HasField("lag"), group.status) == (1, 0, False, UNKNOWN)
        assert [shard.HasField(name) for name in ("lag", "high_watermark", "lag_seconds")] == [False] * 3
        assert (shard.offset, shard.points) == (4, 5)


async def test_lag_is_in_messages_and_seconds_by_the_bounds_of_commits(tmp_path: Path) -> None:
    """Ten messages a second are written, and the group is 30 behind: three seconds."""
    async with lagging(tmp_path) as lag:
        for at in range(1, 8):
            await lag.step(at * 10, at * 10 + 30)
        shard = lag.shard()
        assert shard is not None
        assert (shard.lag, shard.lag_seconds, shard.commit_rate, shard.produce_rate) == (30, 3.0, 10.0, 10.0)
        assert (shard.high_watermark, shard.offset, shard.committed_at_ms) == (100, 70, lag.now_ms)


async def test_what_retention_took_is_lost_and_not_lag(tmp_path: Path) -> None:
    """An offset below the log's start counts from there (Redpanda #30624)."""
    async with lagging(tmp_path) as lag:
        await lag.step(10, 100)
        lag.pass_s()
        lag.tell("s", 100, low=60)
        await lag.evaluate()
        shard = lag.shard()
        assert shard is not None
        assert (shard.lag, shard.lost, shard.low_watermark) == (40, 50, 60)


async def test_a_commit_of_the_fast_path_is_seen(tmp_path: Path) -> None:
    """It does nothing for that itself: the look finds it in memory."""
    async with lagging(tmp_path) as lag:
        await lag.step(1, 10)
        lag.pass_s()
        assert lag.core.ledger.commit_plain([(request(offset=7),)], lag.now_ms).counts == [1]
        await lag.evaluate()
        shard = lag.shard()
        assert shard is not None
        assert (shard.offset, shard.lag, shard.points) == (7, 3, 2)


async def test_what_is_committed_while_the_meta_service_is_away_is_seen(tmp_path: Path) -> None:
    """Dirty keys pile up, flushes fail; the lag goes on."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await lag.step(1, 10)
        meta.down = MetaUnavailableError("away")
        for offset in (2, 3, 4):
            await lag.step(offset, 10)
            with pytest.raises(MetaUnavailableError):
                await lag.core.flusher.flush_once()
        shard = lag.shard()
        assert shard is not None
        assert (shard.offset, shard.lag, shard.points) == (4, 6, 4)


async def test_a_value_adopted_from_the_meta_service_is_seen(tmp_path: Path) -> None:
    """Another adapter was further."""
    async with lagging(tmp_path) as lag:
        await lag.step(1, 10)
        await lag.core.ledger.submit(Reconcile([(key("s"), record(8, committed_at_ms=lag.now_ms))]))
        await lag.evaluate()
        shard = lag.shard()
        assert shard is not None
        assert (shard.offset, shard.lag) == (8, 2)


async def test_a_reset_begins_the_window_anew(tmp_path: Path) -> None:
    """The lag is of the new offset at once, and rates and status are unknown until there are points of the new era."""
    async with lagging(tmp_path) as lag:
        for at in range(1, 6):
            await lag.step(at * 10, 1_000)
        group = lag.group()
        assert group is not None
        assert group.status == OK
        await lag.core.ledger.submit(Reconcile([(key("s"), record(5, next_era(1), committed_at_ms=lag.now_ms))]))
        await lag.evaluate()
        shard = lag.shard()
        assert shard is not None
        assert (shard.offset, shard.lag, shard.points, shard.epoch) == (5, 995, 1, next_era(1))
        assert (shard.status, shard.HasField("commit_rate")) == (UNKNOWN, False)


async def test_a_rewind_is_shown(tmp_path: Path) -> None:
    """Until the group is where it was, or the window has passed."""
    async with lagging(tmp_path) as lag:
        for offset in (10, 20, 30):
            await lag.step(offset, 100)
        await lag.step(15, 100, overwrite=True)
        group = lag.group()
        assert group is not None
        assert (group.status, group.rewind, group.worst_shard) == (REWIND, 1, "s")


async def test_a_silent_group_is_stop_by_time_alone(tmp_path: Path) -> None:
    """Nothing is committed and no bounds come: the pass over all rows finds it."""
    async with lagging(tmp_path) as lag:
        for offset in (10, 20, 30):
            await lag.step(offset, 100)
        since = lag.now_ms
        lag.pass_s(9)
        await lag.evaluate()
        before = lag.group()
        lag.pass_s(2)
        await lag.evaluate()
        group = lag.group()
        assert before is not None
        assert group is not None
        assert (before.status, group.status) != (STOP, OK)
        assert (group.status, group.stop, group.status_since_ms, group.moving_lag) == (STOP, 1, lag.now_ms, 0)
        assert not group.HasField("moving_lag")
        assert group.last_commit_at_ms == since


async def test_a_stalled_group_is_stall(tmp_path: Path) -> None:
    """It commits the same offset again and again."""
    async with lagging(tmp_path) as lag:
        for at in range(4):
            await lag.step(10, 100 + at)
        group = lag.group()
        assert group is not None
        assert (group.status, group.stall, group.lag) == (STALL, 1, 93)


async def test_a_deleted_key_leaves_and_comes_back_anew(tmp_path: Path) -> None:
    """A tombstone is no offset."""
    async with lagging(tmp_path) as lag:
        await lag.step(10, 100)
        await lag.step(20, 100, "h")
        await lag.core.ledger.submit(Reconcile([(key("s"), tombstone(next_era(1)))]))
        await lag.evaluate()
        assert lag.kept() == {("h", "s")}
        assert lag.group() is None
        await lag.step(5, 100)
        shard = lag.shard()
        assert shard is not None
        assert (shard.offset, shard.points) == (5, 1)


async def test_a_shard_has_nothing_of_the_one_that_left_before_it(tmp_path: Path) -> None:
    """Neither commits nor heads nor the name."""
    async with lagging(tmp_path) as lag:
        for offset in (10, 20, 30):
            await lag.step(offset, 100)
        await lag.core.ledger.submit(Reconcile([(key("s"), tombstone(next_era(1)))]))
        await lag.evaluate()
        lag.pass_s()
        await lag.commit({"t": 5}, "h")
        await lag.evaluate()
        shard = lag.shard("t", "h")
        assert shard is not None
        assert (shard.offset, shard.points, shard.HasField("high_watermark")) == (5, 1, False)
        assert lag.kept() == {("h", "t")}


async def test_a_removed_key_leaves_and_one_that_came_back_stays(tmp_path: Path) -> None:
    """Handed over or expired between two looks; `b` was committed again behind it."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await lag.commit({"a": 1, "b": 1, "c": 1})
        await lag.evaluate()
        await lag.core.flusher.flush_once()
        await lag.core.ledger.submit(Forget([key("a"), key("b")]))
        meta.records.clear()  # else the next commit loads them from there
        lag.pass_s()
        await lag.commit({"b": 3})
        await lag.evaluate()
        assert lag.kept() == {("g", "b"), ("g", "c")}
        shard = lag.shard("b")
        assert shard is not None
        assert (shard.offset, shard.points) == (3, 1)


async def test_what_left_memory_before_a_look_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for few keys, and in the lag for all."""
    monkeypatch.setattr(group_state, "MAX_KEYS", 2)
    async with lagging(tmp_path) as lag:
        for at in range(6):
            await lag.commit({f"s{at}": at}, f"g{at}")
        await lag.evaluate()
        assert len(lag.kept()) == 6
        assert len(lag.core.ledger.store.held_of([GroupKey("default", f"g{at}") for at in range(6)])) <= 2


async def test_the_shards_that_moved_last_are_kept(tmp_path: Path) -> None:
    """Beyond `lag.shards` the one that moved longest ago leaves first, and is counted."""
    async with lagging(tmp_path, shards=3) as lag:
        for shard in "abc":
            await lag.commit({shard: 1})
        await lag.evaluate()
        await lag.commit({"a": 2})
        await lag.commit({"d": 1}, "h")
        await lag.evaluate()
        assert lag.kept() == {("g", "a"), ("g", "c"), ("h", "d")}
        assert (lag.live.view.shards_kept, lag.live.view.forgotten) == (3, 1)
        await lag.commit({"e": 1}, "h")
        await lag.evaluate()
        assert lag.kept() == {("g", "a"), ("h", "d"), ("h", "e")}
        assert lag.live.view.forgotten == 2


async def test_more_new_shards_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    """The last ones of one commit stay."""
    async with lagging(tmp_path, shards=2) as lag:
        for shard in "abcde":
            await lag.commit({shard: 1})
        await lag.evaluate()
        assert lag.kept() == {("g", "d"), ("g", "e")}


async def test_after_a_restart_the_lag_in_messages_is_there_at_once(tmp_path: Path) -> None:
    """Read from the store; what takes several points is unknown until there are some."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        for offset in (10, 20, 30, 40):
            await lag.step(offset, 100)
        committed_at_ms = lag.now_ms
    again = Lagging(tmp_path)
    again.now_ms = committed_at_ms + 60_000
    async with core_over(tmp_path, meta, clocks=again.clocks) as core:
        again.follow(core)
        again.tell("s", 100)
        await again.live._fill()
        await again.evaluate()
        shard, group = again.shard(), again.group()
        assert shard is not None
        assert group is not None
        assert (shard.offset, shard.lag, shard.points, shard.committed_at_ms) == (40, 60, 1, committed_at_ms)
        assert (group.status, group.HasField("commit_rate"), group.last_commit_at_ms) == (UNKNOWN, False, committed_at_ms)


async def test_of_a_store_that_is_larger_the_newest_offsets_are_read(tmp_path: Path) -> None:
    """In the order of their last write, not in key order."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        for shard in "edcba":
            await lag.commit({shard: 1})
        await lag.commit({"d": 2})
    again = Lagging(tmp_path, shards=3)
    async with core_over(tmp_path, meta, clocks=again.clocks) as core:
        again.follow(core)
        await again.live._fill()
        await again.evaluate()
        assert again.kept() == {("g", "d"), ("g", "a"), ("g", "b")}
        assert (again.live.left_out, again.live.view.forgotten) == (2, 0)


async def test_what_is_committed_while_the_store_is_read_wins(tmp_path: Path) -> None:
    """The read comes later than the look that has the commit."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await lag.commit({"s": 1})
    again = Lagging(tmp_path)
    async with core_over(tmp_path, meta, clocks=again.clocks) as core:
        again.follow(core)
        await again.live._fill()
        again.pass_s()
        await again.commit({"s": 9})
        await again.evaluate()
        shard = again.shard()
        assert shard is not None
        assert shard.offset == 9


async def test_a_key_that_is_removed_while_the_store_is_read_stays_away(tmp_path: Path) -> None:
    """It was read before, and is evaluated after."""
    meta = FakeMeta()
    async with lagging(tmp_path, meta) as lag:
        await lag.commit({"s": 1, "t": 1})
        await lag.core.flusher.flush_once()
    again = Lagging(tmp_path)
    async with core_over(tmp_path, meta, clocks=again.clocks) as core:
        again.follow(core)
        await again.live._fill()
        await core.ledger.submit(Forget([key("s")]))
        await again.evaluate()
        assert again.kept() == {("g", "t")}


async def test_an_evaluation_that_fails_forgets_all_and_commits_go_on(tmp_path: Path) -> None:
    """What was half taken in is not shown."""
    async with lagging(tmp_path) as lag:
        await lag.step(1, 10)
        lag.live.table.fail()
        await lag.commit({"t": 5}, "h")
        await lag.evaluate()
        assert lag.kept() == {("h", "t")}


async def test_a_group_that_stands_still_outlives_more_removals_than_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is forgotten then, and read again from the store; until it was, not all is known."""
    monkeypatch.setattr(feed, "MAX_REMOVED", 1)
    async with lagging(tmp_path) as lag, anyio.create_task_group() as tasks:
        await lag.step(1, 10, "still")
        await lag.commit({"a": 1, "b": 1, "c": 1})
        await lag.core.flusher.flush_once()
        lag.live._begin_anew()
        tasks.start_soon(lag.live._keep_filled)
        await _until_complete(lag)
        await lag.core.ledger.submit(Forget([key("a"), key("b")]))
        await lag.evaluate()
        assert not lag.live.complete
        await _until_complete(lag)
        assert lag.kept() == {("still", "s"), ("g", "c")}
        tasks.cancel_scope.cancel()


async def _until_complete(lag: Lagging) -> None:
    """Evaluate until the view has all offsets of the store."""
    with anyio.fail_after(PATIENCE_S):
        while not lag.live.complete:
            await anyio.sleep(0.001)
            await lag.evaluate()


async def test_offsets_above_the_largest_signed_integer_are_clamped(tmp_path: Path) -> None:
    """As in the journal's tables."""
    async with lagging(tmp_path) as lag:
        lag.tell("s", 2**64 - 1)
        await lag.commit({"s": 2**64 - 2})
        await lag.evaluate()
        shard = lag.shard()
        assert shard is not None
        assert (shard.offset, shard.high_watermark, shard.lag) == (2**63 - 1, 2**63 - 1, 0)


async def test_groups_of_one_shard_share_its_bounds(tmp_path: Path) -> None:
    """The log is the shard's, and the lag each group's."""
    async with lagging(tmp_path) as lag:
        lag.tell("s", 10)
        await lag.commit({"s": 4})
        await lag.commit({"s": 7}, "h")
        await lag.evaluate()
        first, second = lag.group("g"), lag.group("h")
        assert first is not None
        assert second is not None
        assert (first.lag, second.lag) == (6, 3)


async def test_the_sums_of_a_group_are_those_of_its_shards(tmp_path: Path) -> None:
    """Also of those whose lag is unknown: they are counted, and not summed."""
    async with lagging(tmp_path) as lag:
        lag.tell("a", 10)
        lag.tell("b", 20, low=15)
        await lag.commit({"a": 4, "b": 12, "c": 1})
        await lag.evaluate()
        group = lag.group()
        assert group is not None
        assert (group.shards, group.known, group.lag, group.lost, group.moving_lag) == (3, 2, 11, 3, 11)


async def test_others_have_turns_while_many_groups_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is put in order by itself, so that a call for 25 large ones holds nobody up for all of them."""
    groups = [f"g{at}" for at in range(5)]
    async with lagging(tmp_path) as lag:
        for group in groups:
            await lag.commit({f"s{at}": 1 for at in range(SLICE_ROWS)}, group)
        await lag.evaluate()
        asked: list[str] = []
        rows_of = View.rows_of

        def noted(self: View, group: int) -> Ints:
            asked.append("rows")
            return rows_of(self, group)

        async def others() -> None:
            asked.append("others")

        monkeypatch.setattr(View, "rows_of", noted)
        monkeypatch.setattr(service, "others", others)
        found = await service._lags_of(lag.core, lag.live, [GroupKey("default", group) for group in groups])
        assert [(len(one.shards), fits) for one, fits in found] == [(SLICE_ROWS, True)] * len(groups)
        assert asked[: 2 * len(groups)] == ["rows", "others"] * len(groups)
