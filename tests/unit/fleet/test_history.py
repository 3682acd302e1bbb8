"""The ring of samples against plain lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapter.fleet.history import POINTS, History

NONE = np.zeros(0, np.intp)


def rows(*numbers: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """Numbers of rows."""
    return np.array(numbers, np.intp)


def lags(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The lag of all rows."""
    return np.array(values, np.int64)


def test_the_last_samples_are_kept_the_oldest_first() -> None:
    """As many as there is room for."""
    history = History(2)
    for value in range(POINTS + 10):
        history.sample(rows(0), lags(value), NONE)
    assert list(history.of(0)) == list(range(10, POINTS + 10))


def test_a_group_that_did_not_change_has_no_samples() -> None:
    """It needs no room: its line is flat."""
    history = History(2)
    for _ in range(3):
        history.sample(NONE, lags(5), NONE)
    assert history.of(0) == ()
    assert history.of(7) == ()


def test_a_change_shows_what_was_before() -> None:
    """The line begins at the lag of the last sample."""
    history = History(2)
    history.sample(NONE, lags(0), NONE)
    history.sample(rows(0), lags(4), NONE)
    history.sample(rows(0), lags(9), NONE)
    assert list(history.of(0)) == [4, 9] or list(history.of(0)) == [0, 4, 9]


def test_unknown_is_not_a_number() -> None:
    """Not -1, and not 0."""
    history = History(1)
    history.sample(rows(0), lags(3), NONE)
    history.sample(rows(0), lags(-1), NONE)
    history.sample(rows(0), lags(5), NONE)
    assert list(history.of(0))[-3:] == [3, None, 5]


def test_the_group_that_changed_longest_ago_gives_its_place_up() -> None:
    """Memory is bounded."""
    history = History(2)
    history.sample(rows(0), lags(1, 0, 0), NONE)
    history.sample(rows(1), lags(1, 1, 0), NONE)
    history.sample(rows(2), lags(1, 1, 1), NONE)
    assert history.of(0) == ()
    assert history.of(1)
    assert history.of(2)


def test_a_row_that_has_another_group_begins_anew() -> None:
    """The history of a group that is gone is not that of the next one."""
    history = History(2)
    for value in (1, 2, 3):
        history.sample(rows(0), lags(value), NONE)
    history.sample(rows(0), lags(70), rows(0))
    history.sample(rows(0), lags(71), NONE)
    assert set(history.of(0)) <= {None, 70, 71}


def test_without_room_there_is_none() -> None:
    """`history_groups` = 0 turns it off."""
    history = History(0)
    history.sample(rows(0, 1), lags(1, 2), NONE)
    assert history.of(0) == ()


@given(st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=1, max_size=80), st.integers(1, 4))
def test_what_is_kept_is_what_was_sampled(samples: list[list[int]], room: int) -> None:
    """Of each group that has a place, its last samples, without a gap."""
    history = History(room)
    for sample in samples:
        history.sample(rows(0, 1, 2, 3), lags(*sample), NONE)
    kept = [history.of(row) for row in range(4)]
    assert sum(map(bool, kept)) <= room
    for row, found in enumerate(kept):
        seen: list[int | None] = [None, *(sample[row] for sample in samples)]
        assert len(found) <= POINTS
        assert not found or list(found) == seen[-len(found) :]
