"""Broadcasting groups over time: clients that expire, return, or move to another adapter."""

from pathlib import Path

import pytest

from adapter.errors import MetaUnavailableError
from adapter.model.records import OffsetRecord
from adapter.testing.fake_meta import FakeMeta
from tests.unit.broadcasting import DEAD_MS, WINDOW_MS, world
from tests.unit.expiring import NOW_MS, ExpiringMeta, SetClock
from tests.unit.helpers import commit_of, key, record, send


async def test_the_lowest_moves_up_with_the_slowest_client_and_when_it_expires(tmp_path: Path) -> None:
    """RIP-48: a client without a commit for 300 s is ignored. When all are gone, the last lowest offset stays."""
    async with world(tmp_path) as here:
        await here.commit("slow", {"s": 5})
        here.clock.wall_ms += 1
        await here.commit("fast", {"s": 50})
        assert await here.lowest() == {"s": (5, "slow", 2)}
        await here.commit("slow", {"s": 7})
        assert await here.lowest("s") == {"s": (7, "slow", 2)}
        here.clock.wall_ms += WINDOW_MS
        await here.commit("fast", {"s": 50})
        assert await here.lowest() == {"s": (7, "slow", 2)}
        here.clock.wall_ms += 1
        assert await here.lowest() == {"s": (50, "fast", 1)}
        await here.core.broadcasts.keep()
        assert here.kept() == {"s": (50, "fast")}
        here.clock.wall_ms += DEAD_MS
        assert await here.lowest() == {"s": (50, "", 0)}
        assert await here.own("fast") == {}


async def test_a_client_is_live_in_all_its_shards_by_a_commit_of_one(tmp_path: Path) -> None:
    """Idle shards need no commits. RocketMQ has one timestamp per client too (BroadcastTimedOffsetStore)."""
    async with world(tmp_path) as here:
        await here.commit("c", {"s": 5, "idle": 3})
        here.clock.wall_ms += WINDOW_MS
        await here.commit("c", {"s": 6})
        here.clock.wall_ms += WINDOW_MS
        assert await here.own("c") == {"s": 6, "idle": 3}
        assert await here.lowest("idle", "absent") == {"idle": (3, "c", 1), "absent": (None, "", 0)}


async def test_a_commit_of_the_same_offset_keeps_a_client_alive(tmp_path: Path) -> None:
    """It has nothing to read, but is running."""
    async with world(tmp_path) as here:
        await here.commit("c", {"s": 5})
        here.clock.wall_ms += WINDOW_MS
        assert await here.commit("c", {"s": 5}) == []
        here.clock.wall_ms += WINDOW_MS
        assert await here.own("c") == {"s": 5}


async def test_what_has_expired_holds_no_commit_back(tmp_path: Path) -> None:
    """A returning client begins at the lowest offset, whether or not a sweep has removed its own."""
    async with world(tmp_path) as here:
        await here.commit("c", {"s": 50, "t": 50})
        here.clock.wall_ms += DEAD_MS
        assert await here.commit("c", {"s": 20}) == []
        assert (await here.lowest("s"))["s"] == (20, "c", 1)
        assert await here.commit("c", {"s": 19, "t": 30}) == [("g", "s", 20)]
        assert await here.own("c") == {"s": 20, "t": 30}


async def test_what_is_kept_is_renewed_while_there_are_clients(tmp_path: Path) -> None:
    """Otherwise the stored lowest offset of an idle group would expire before its clients."""
    async with world(tmp_path) as here:
        await here.commit("c", {"s": 50})
        await here.core.broadcasts.keep()
        here.clock.wall_ms += WINDOW_MS
        await here.commit("c", {"s": 50})
        here.clock.wall_ms += 1
        await here.core.broadcasts.keep()
        assert here.stored().committed_at_ms == here.clock.wall_ms


async def test_a_shard_to_which_nobody_commits_here_is_not_kept_from_here(tmp_path: Path) -> None:
    """It may have moved to another adapter, and the local offsets of it are old."""
    meta = FakeMeta()
    async with world(tmp_path / "1", meta) as one, world(tmp_path / "2", meta) as two:
        await one.commit("c", {"s": 50, "t": 1})
        await one.core.broadcasts.keep()
        await one.core.flusher.flush_once()
        await two.commit("c", {"s": 60})
        await two.core.broadcasts.keep()
        await two.core.flusher.flush_once()
        for turn in range(2):
            one.clock.wall_ms += DEAD_MS
            await one.commit("c", {"t": 2 + turn})
            await one.core.broadcasts.keep()
            await one.core.flusher.flush_once()
        moved = meta.records[key("s", "g@broadcast")]
        assert (moved.position, moved.metadata) == ((1, 60), "c")


async def test_who_takes_a_shard_over_knows_the_slowest_client(tmp_path: Path) -> None:
    """Its id is stored with the lowest offset; otherwise the first client to commit here would count as the slowest."""
    meta = FakeMeta()
    async with world(tmp_path / "1", meta) as one, world(tmp_path / "2", meta) as two:
        await one.commit("slow", {"s": 5})
        await one.commit("fast", {"s": 50})
        await one.core.broadcasts.keep()
        await one.core.flusher.flush_once()
        await two.commit("fast", {"s": 51})
        assert await two.lowest("s") == {"s": (5, "slow", 2)}
        assert await two.own("slow", "s") == {"s": 5}


async def test_without_any_client_here_the_lowest_is_what_was_kept_elsewhere(tmp_path: Path) -> None:
    """Also if it was imported from RocketMQ's `topic@group@broadcast`."""
    meta = FakeMeta({key("s", "g@broadcast"): record(7, committed_at_ms=NOW_MS - 10 * WINDOW_MS)})
    async with world(tmp_path, meta) as here:
        assert await here.lowest() == await here.lowest("s") == {"s": (7, "", 0)}


async def test_clients_leave_both_stores_and_the_last_lowest_stays(tmp_path: Path) -> None:
    """After `broadcast_seconds`, not a week as other groups; also a lowest offset that was not stored in time."""
    meta = ExpiringMeta()
    async with world(tmp_path, meta) as here:
        await here.commit("slow", {"s": 5, "t": 1})
        await here.commit("fast", {"s": 50})
        await send(here.core, commit_of({key("s", "other"): 1}, committed_at_ms=NOW_MS))
        here.clock.wall_ms += WINDOW_MS
        await here.sweep()
        assert (meta.proposed, here.clients()) == ([], {"slow", "fast"})
        here.clock.wall_ms += 1
        await here.sweep()
        await here.core.flusher.flush_once()
        assert sorted(meta.proposed) == ["g@broadcast@fast", "g@broadcast@slow"]
        assert here.clients() == set()
        assert meta.live() == {key("s", "other"): (1, 1), key("s", "g@broadcast"): (1, 5), key("t", "g@broadcast"): (1, 1)}
        assert await here.lowest() == {"s": (5, "", 0), "t": (1, "", 0)}
        assert await here.commit("slow", {"s": 2}) == []
        assert await here.lowest("s") == {"s": (2, "slow", 1)}


async def test_the_last_client_of_a_shard_to_go_leaves_its_lowest(tmp_path: Path) -> None:
    """The offset of a client that leaves earlier is not kept."""
    meta = ExpiringMeta()
    async with world(tmp_path, meta) as here:
        await here.commit("slow", {"s": 5})
        here.clock.wall_ms += WINDOW_MS
        await here.commit("fast", {"s": 50})
        here.clock.wall_ms += 1
        await here.sweep()
        assert (here.clients(), here.kept()) == ({"fast"}, {})
        here.clock.wall_ms += WINDOW_MS
        await here.sweep()
        assert (here.clients(), here.kept()) == (set(), {"s": (50, "")})


async def test_clients_that_went_on_elsewhere_leave_nothing_here(tmp_path: Path) -> None:
    """The local lowest offset is older than the one stored by the other adapter."""
    meta = ExpiringMeta()
    async with world(tmp_path / "1", meta) as one, world(tmp_path / "2", meta) as two:
        await one.commit("fast", {"s": 50})
        await one.core.broadcasts.keep()
        await one.commit("slow", {"s": 5})
        await one.core.flusher.flush_once()
        two.clock.wall_ms += 1
        for name in ("fast", "slow"):
            await two.commit(name, {"s": 60})
        await two.core.broadcasts.keep()
        await two.core.flusher.flush_once()
        one.clock.wall_ms += DEAD_MS
        await one.sweep()
        await one.core.flusher.flush_once()
        assert meta.records[key("s", "g@broadcast")].position == (1, 60)


async def test_a_client_that_was_deleted_holds_nobody_back(tmp_path: Path) -> None:
    """Its tombstone has no position that counts."""
    meta = FakeMeta({key("s", "g@broadcast@c"): OffsetRecord(1 << 32, 0, live=False, committed_at_ms=NOW_MS)})
    async with world(tmp_path, meta) as here:
        assert await here.own("c", "s") == {}
        await here.commit("d", {"s": 5})
        assert await here.lowest() == {"s": (5, "d", 1)}


async def test_many_clients_that_go_at_once_are_looked_at_once(tmp_path: Path) -> None:
    """Otherwise a sweep would cost the square of their number."""
    async with world(tmp_path, ExpiringMeta()) as here:
        for at in range(20):
            await here.commit(f"c{at:02}", {"s": at + 5})
        here.clock.wall_ms += DEAD_MS
        looked: list[str] = []
        named = here.core.groups.named

        def counted(namespace: str, beginning: str) -> object:
            looked.append(beginning)
            return named(namespace, beginning)

        here.core.groups.named = counted  # type: ignore[method-assign,assignment]
        await here.sweep()
        assert (len(looked), here.clients(), here.kept()) == (1, set(), {"s": (5, "")})


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_client_that_comes_back_while_it_is_taken_away_stays(tmp_path: Path, when: str) -> None:
    """Before or after the Meta Service decides: the acknowledged commit is stored (1), and is the lowest offset."""
    meta = ExpiringMeta()
    async with world(tmp_path, meta) as here:
        await here.commit("c", {"s": 5, "t": 7})
        await here.core.flusher.flush_once()
        here.clock.wall_ms += DEAD_MS

        async def come_back() -> None:
            meta.before = meta.after = None
            assert await here.commit("c", {"s": 6}) == []

        setattr(meta, when, come_back)
        await here.sweep()
        assert meta.proposed == ["g@broadcast@c"]
        await here.core.flusher.flush_once()
        assert await here.own("c") == {"s": 6, "t": 7}
        assert await here.lowest("s") == {"s": (6, "c", 1)}
        assert meta.live() == {
            key("s", "g@broadcast@c"): (1, 6),
            key("t", "g@broadcast@c"): (1, 7),
            key("s", "g@broadcast"): (1, 5),
            key("t", "g@broadcast"): (1, 7),
        }


async def test_a_restart_keeps_own_offsets_and_the_lowest(tmp_path: Path) -> None:
    """Also the times of the last commits, so expired clients stay expired. Nothing is in memory only."""
    meta, clock = FakeMeta(), SetClock()
    async with world(tmp_path, meta, clock) as here:
        await here.commit("gone", {"s": 1})
        clock.wall_ms += DEAD_MS
        await here.commit("slow", {"s": 5})
        await here.commit("fast", {"s": 50})
        await here.core.broadcasts.keep()
    async with world(tmp_path, meta, clock) as here:
        meta.down = MetaUnavailableError("down by the test")
        assert await here.lowest("s") == {"s": (5, "slow", 2)}
        meta.down = None
        assert [await here.own(name) for name in ("gone", "slow", "fast")] == [{}, {"s": 5}, {"s": 50}]
        assert await here.lowest() == {"s": (5, "slow", 2)}
        clock.wall_ms += DEAD_MS
        assert await here.lowest() == {"s": (5, "", 0)}
