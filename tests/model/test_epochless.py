"""What docs/discussion.md says is weaker before a Meta Service without epochs, each shown in a run; and no more."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from adapter.model.records import OffsetRecord, ReadMode
from tests.model.broker import Setup
from tests.model.epochless import EpochlessWatch, EpochlessWorld, Row
from tests.model.invariants import BrokenError
from tests.model.machines import GROUPS, KEYS, held_by
from tests.model.network import Fault

KEY = KEYS[0]
OTHER = KEYS[2]  # of a group that nobody moves
SECOND_S = 1.0


class Told(EpochlessWorld):
    """The world; `does` lets a step happen and checks what is promised."""

    watch: EpochlessWatch

    def does(self, seconds: float = SECOND_S) -> None:
        """Let it happen. Raises BrokenError."""
        self.pass_time(seconds)
        self.watch.check()

    @property
    def server(self) -> int | None:
        """The offset that the server has."""
        row = self.service.engine.rows.get(KEY)
        return row.offset if row else None

    def here(self, at: int) -> OffsetRecord | None:
        """What an adapter has."""
        stored = held_by(self.brokers[at]).stored.get(KEY)
        return stored.record if stored else None

    def knows(self, at: int) -> None:
        """An adapter reads from the store."""
        self.read(at, KEY.group_key, ReadMode.STORE)
        self.does()


@pytest.fixture
def world() -> Iterator[Told]:
    """Two adapters; the first has committed 160, which the server has."""
    with closing(Told(0, [Setup("interval", writes_through=False)] * 2)) as world:
        world.watch = EpochlessWatch(world)
        world.commit(0, {KEY: 160})
        world.does()
        assert world.server == 160
        yield world


def test_a_rewind_that_was_not_flushed_when_the_process_ended_is_lost(world: Told) -> None:
    """1: at the next start nobody can say which of the two is newer."""
    world.cut(0, cut=True)
    world.commit(0, {KEY: 3}, overwrite=True)
    world.does()
    rewound = world.here(0)
    assert rewound
    assert rewound.offset == 3
    world.kill(0, None, restart=False)
    world.cut(0, cut=False)
    world.start(0)
    world.does()
    after = world.here(0)
    assert after
    assert (after.offset, world.server) == (160, 160)


def test_a_rewind_that_was_flushed_stands_also_behind_a_kill(world: Told) -> None:
    """No more than that is lost."""
    world.commit(0, {KEY: 3}, overwrite=True)
    world.does()
    world.kill(0, None, restart=True)
    world.does()
    after = world.here(0)
    assert after
    assert (after.offset, world.server) == (3, 3)


def test_a_rewind_loses_against_what_another_writer_saved_since(world: Told) -> None:
    """1: which is larger."""
    world.other_writer(KEY, 300)
    world.commit(0, {KEY: 3}, overwrite=True)
    world.does()
    assert world.server == 300


def test_a_reset_is_undone_by_an_adapter_that_still_has_the_shard(world: Told) -> None:
    """7, race 2: its next commit, or its start, pushes its own offset."""
    world.knows(1)
    world.reset(0, [KEY], 10)
    world.does()
    assert world.server == 10
    world.commit(1, {KEY: 161})
    world.does()
    assert world.server == 161


def test_a_delete_is_undone_by_an_adapter_that_starts(world: Told) -> None:
    """7: nothing is left behind by which it could be told."""
    world.knows(1)
    world.delete(0, KEY.group_key)
    world.does()
    assert world.server is None
    world.kill(1, None, restart=True)
    world.does()
    assert world.server == 160


def test_a_reset_stands_where_no_other_adapter_has_the_shard(world: Told) -> None:
    """7: behind starts, commits of others that have it not, and flushes."""
    world.reset(0, [KEY], 10)
    world.does()
    world.kill(0, None, restart=True)
    world.kill(1, None, restart=True)
    world.does()
    world.knows(1)
    after = world.here(1)
    assert after
    assert (after.offset, world.server) == (10, 10)


def test_a_reset_whose_adapter_is_killed_before_its_own_store_has_it_is_undone(world: Told) -> None:
    """7: it has not said success."""
    world.trouble(0, [Fault.NONE, Fault.NONE, Fault.UNANSWERED])  # of its reads, and of its save
    world.reset(0, [KEY], 10)
    world.does(0.05)
    assert world.server == 10
    world.kill(0, None, restart=True)
    world.does()
    assert world.server == 160


def test_another_writer_lowers_an_offset_until_the_next_commit_of_it(world: Told) -> None:
    """2 and 3: it sends no expectation, and nobody tells the adapter."""
    world.other_writer(KEY, 5)
    world.does()
    assert world.server == 5
    world.commit(0, {KEY: 161})
    world.does()
    assert world.server == 161


def test_adapters_take_nothing_back_from_each_other(world: Told) -> None:
    """2, race 1: A returns with an older offset than B has saved meanwhile."""
    world.cut(0, cut=True)
    world.commit(0, {KEY: 170})
    world.does()
    world.knows(1)
    world.commit(1, {KEY: 180})
    world.does()
    world.cut(0, cut=False)
    world.does(3)
    after = world.here(0)
    assert after
    assert (after.offset, world.server) == (180, 180)


def test_metadata_and_times_stay_with_the_adapter_that_took_the_commit(world: Told) -> None:
    """Another owner sees the offset alone."""
    world.knows(1)
    first, second = world.here(0), world.here(1)
    assert first
    assert second
    assert first.metadata
    assert (second.offset, second.metadata, second.committed_at_ms) == (160, "", 0)


def test_nothing_expires(world: Told) -> None:
    """The server's own expiry is all there is."""
    world.a_day_passes()
    world.does(2)
    assert world.server == 160
    assert world.here(0)


def test_what_nobody_moves_is_watched_strictly(world: Told) -> None:
    """A server that loses such an offset is a violation."""
    world.commit(0, {OTHER: 7})
    world.does()
    assert OTHER.group_key != GROUPS[0]
    world.service.engine.rows[OTHER] = Row(6, OTHER.shard, 0)
    with pytest.raises(BrokenError, match="2: "):
        world.does(0)
