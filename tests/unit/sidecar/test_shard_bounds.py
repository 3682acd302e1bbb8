"""Bounds in commits: the newest of each shard are kept, for a limited number of shards."""

from hypothesis import given
from hypothesis import strategies as st

from adapter.model.bounds import Bounds, ShardKey
from adapter.model.records import U64_MAX
from adapter.sidecar.shard_bounds import ReportedBounds
from tests.unit.helpers import U64

A, B, C = (ShardKey("default", name) for name in "abc")


def bounds(high: int) -> Bounds:
    """Bounds of which only the end matters."""
    return Bounds(0, high, 1)


def test_the_newest_bounds_of_a_shard_count() -> None:
    """Lower ones too: a shard that was created anew begins at 0."""
    told = ReportedBounds()
    assert told.get(A) is None
    told.note({A: Bounds(3, 9, 1), B: bounds(5)})
    told.note({A: Bounds(0, 1, 2)})
    assert (told.get(A), told.get(B)) == (Bounds(0, 1, 2), bounds(5))


def test_equal_shards_of_two_namespaces_are_two() -> None:
    """The name of a shard is unique only within its namespace."""
    told = ReportedBounds()
    told.note({A: bounds(1), ShardKey("other", "a"): bounds(2)})
    assert told.get(A) == bounds(1)


def test_the_shard_that_was_told_longest_ago_goes_first() -> None:
    """A new report of a shard renews it, a read does not."""
    told = ReportedBounds(max_shards=2)
    told.note({A: bounds(1)})
    told.note({B: bounds(2)})
    told.note({A: bounds(3)})
    assert told.get(B) == bounds(2)
    told.note({C: bounds(4)})
    assert (told.get(A), told.get(B), told.get(C)) == (bounds(3), None, bounds(4))


def test_more_shards_at_once_than_there_is_room_for() -> None:
    """One commit may have thousands of shards; the last ones stay."""
    told = ReportedBounds(max_shards=2)
    told.note({A: bounds(1), B: bounds(2), C: bounds(3)})
    assert (told.get(A), told.get(B), told.get(C)) == (None, bounds(2), bounds(3))


@given(st.lists(st.dictionaries(st.integers(0, 20), st.integers(0, 99), max_size=8), max_size=30), st.integers(1, 9))
def test_memory_is_bounded_and_the_rest_is_the_newest(batches: list[dict[int, int]], room: int) -> None:
    """Compared with a list of all reports: the last `room` different shards, with their last bounds."""
    told = ReportedBounds(max_shards=room)
    history: list[tuple[ShardKey, Bounds]] = []
    for batch in batches:
        rows = {ShardKey("n", str(name)): bounds(high) for name, high in batch.items()}
        told.note(rows)
        history += rows.items()
    newest = dict(history)
    last = list(dict.fromkeys(shard for shard, _ in reversed(history)))[:room]
    every = [ShardKey("n", str(name)) for name in range(21)]
    assert {shard: row for shard in every if (row := told.get(shard))} == {shard: newest[shard] for shard in last}


@given(U64, U64)
def test_lag_is_what_is_left_to_read(high: int, offset: int) -> None:
    """End minus the next offset to read; a group beyond the end of a log that was created anew has no lag."""
    lag = bounds(high).lag(offset)
    assert 0 <= lag <= U64_MAX
    assert lag == (high - offset if offset < high else 0)
