"""Shards of several adapters as one."""

from hypothesis import given
from hypothesis import strategies as st

from adapter.fleet.merging import Told, merge, sums
from adapter.rpc import lag_pb
from adapter.testing.lag_adapters import shard_lag, sums_of


def test_of_equal_offsets_that_of_an_adapter_that_answers_counts() -> None:
    """After a fail-over, the group is live."""
    shard = shard_lag("s", 5, 9)
    for told in ([Told("a", [shard], 7), Told("b", [shard])], [Told("b", [shard]), Told("a", [shard], 7)]):
        (row,) = merge(told)
        assert (row.adapter, row.stale_since_ms, row.others) == ("b", 0, ("a",))


@st.composite
def told(draw: st.DrawFn) -> list[Told]:
    """Up to three adapters with some of the same shards."""
    shards = st.lists(
        st.builds(
            lambda name, epoch, offset, status: shard_lag(name, offset, 9, epoch=epoch, status=status),
            st.sampled_from("abc"),
            st.integers(1, 2),
            st.integers(0, 9),
            st.sampled_from([lag_pb.OK, lag_pb.WARN, lag_pb.STOP]),
        ),
        max_size=3,
        unique_by=lambda shard: shard.shard,
    )
    return [Told(f"adapter-{number}", part) for number, part in enumerate(draw(st.lists(shards, max_size=3)))]


@given(told())
def test_each_shard_counts_once_where_it_is_newest(parts: list[Told]) -> None:
    """The sums are those of an adapter that has just these shards."""
    rows = merge(parts)
    every = [shard for part in parts for shard in part.shards]
    assert [row.lag.shard for row in rows] == sorted({shard.shard for shard in every})
    for row in rows:
        assert (row.lag.epoch, row.lag.offset) == max(
            (shard.epoch, shard.offset) for shard in every if shard.shard == row.lag.shard
        )
        assert len(row.others) == sum(shard.shard == row.lag.shard for shard in every) - 1
    total = sums("default", "g", rows, {})
    alone = sums_of("default", "g", [row.lag for row in rows])
    for name in ("shards", "known", "lag", "lag_seconds", "moving_lag", "stop", "stall", "status", "last_commit_at_ms"):
        assert getattr(total, name) == getattr(alone, name)


def test_the_time_of_a_status_is_that_of_the_adapter_with_the_worst_shard() -> None:
    """It knows since when."""
    rows = merge([Told("a", [shard_lag("x", 1, 5, status=lag_pb.WARN)]), Told("b", [shard_lag("y", 1, 9, status=lag_pb.STOP)])])
    parts = {name: lag_pb.GroupLag(status_since_ms=since) for name, since in (("a", 1), ("b", 2))}
    total = sums("default", "g", rows, parts)
    assert (total.status, total.worst_shard, total.status_since_ms) == (lag_pb.STOP, "y", 2)
