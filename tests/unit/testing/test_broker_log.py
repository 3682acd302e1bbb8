"""The broker's log in memory: offsets, ends, and the first message at or after a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.model.bounds import ShardKey
from adapter.testing.broker_log import MemoryLog

S = ShardKey("default", "s")
TIMES = st.integers(0, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(TIMES, max_size=5)),
        st.tuples(st.just("trim"), st.integers(0, 40)),
        st.tuples(st.just("create"), st.none()),
    ),
    max_size=20,
)


def log_of(*timestamps_ms: int) -> MemoryLog:
    """A log with one shard and these messages."""
    log = MemoryLog()
    log.append(S, *timestamps_ms)
    return log


def test_a_shard_begins_at_0_and_grows_by_messages() -> None:
    """`append` returns the end of the log, which is the offset of the next message."""
    log = MemoryLog()
    assert log.append(S, 5) == 1
    assert log.append(S, 6, 7) == 3
    assert log.bounds(S) == (0, 3)


def test_a_trim_moves_the_beginning_and_leaves_the_rest_at_its_offsets() -> None:
    """A trim up to the end leaves an empty log; the next message gets the next offset."""
    log = log_of(10, 20, 30)
    log.trim(S, 2)
    assert (log.bounds(S), log.offset_for_time(S, 0)) == ((2, 3), 2)
    log.trim(S, 1)
    assert log.bounds(S) == (2, 3)
    log.trim(S, 3)
    assert (log.bounds(S), log.offset_for_time(S, 0)) == ((3, 3), None)
    assert log.append(S, 40) == 4
    assert log.offset_for_time(S, 0) == 3


def test_a_trim_beyond_the_end_is_refused() -> None:
    """As Kafka does (OFFSET_OUT_OF_RANGE); nothing is removed."""
    log = log_of(1, 2)
    with pytest.raises(ValueError, match=r"default/s: cannot trim to 3, the log ends at 2"):
        log.trim(S, 3)
    assert log.bounds(S) == (0, 2)


def test_a_shard_made_anew_begins_at_0_again() -> None:
    """No message of the former one is left."""
    log = log_of(1, 2, 3)
    log.trim(S, 2)
    log.create(S)
    assert (log.bounds(S), log.offset_for_time(S, 0)) == ((0, 0), None)


@pytest.mark.parametrize(("time_ms", "offset"), [(0, 0), (10, 0), (11, 1), (30, 1), (31, None)])
def test_the_first_message_at_or_after_a_time(time_ms: int, offset: int | None) -> None:
    """The first by offset: a message at 20 that follows one at 30 is not found first."""
    assert log_of(10, 30, 20).offset_for_time(S, time_ms) == offset


def test_an_unknown_shard_is_an_error_to_its_holder() -> None:
    """Only brokers leave it out of a reply over gRPC."""
    log = log_of(1)
    other = ShardKey("other", "s")
    for ask in (log.bounds, lambda shard: log.trim(shard, 0), lambda shard: log.offset_for_time(shard, 0)):
        with pytest.raises(KeyError):
            ask(other)


@given(STEPS, st.integers(0, 13))
def test_it_answers_as_a_list_of_all_messages_would(steps: list[tuple[str, object]], time_ms: int) -> None:
    """The reference keeps (offset, time) of every message, and searches all of them."""
    log = log_of()
    kept: list[tuple[int, int]] = []
    low = high = 0
    for step, value in steps:
        if step == "append":
            assert isinstance(value, list)
            kept += enumerate(value, start=high)
            high += len(value)
            assert log.append(S, *value) == high
        elif step == "create":
            log.create(S)
            kept, low, high = [], 0, 0
        elif isinstance(value, int) and value <= high:
            log.trim(S, value)
            low = max(low, value)
            kept = [message for message in kept if message[0] >= low]
        assert log.bounds(S) == (low, high)
        found = [offset for offset, written_ms in kept if written_ms >= time_ms]
        assert log.offset_for_time(S, time_ms) == min(found, default=None)
