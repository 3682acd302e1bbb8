"""How much the next save carries, by what the last ones took. Times are given, not measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.meta.save_window import SHARE, SaveWindow

TIMEOUT_S = 4.0
TARGET_S = TIMEOUT_S / SHARE


def window(first: int = 16, most: int = 1_000) -> SaveWindow:
    """One of saves with a deadline of 4 s."""
    return SaveWindow(TIMEOUT_S, first=first, most=most)


def test_it_doubles_while_full_saves_are_quick_up_to_its_maximum() -> None:
    """A save that was not full shows nothing about a larger one."""
    found = window(first=300)
    found.answered(200, 0.1)
    assert found.size == 300
    found.answered(300, 0.1)
    assert found.size == 600
    found.answered(600, 0.1)
    assert found.size == 1_000


def test_a_slow_save_shrinks_it_to_what_fits_into_a_fraction_of_the_deadline() -> None:
    """Long before one times out."""
    found = window(first=100)
    found.answered(100, 2 * TARGET_S)
    assert found.size == 50


def test_a_save_without_an_answer_halves_it_and_what_it_had_stored_says_more() -> None:
    """Never below one: that is all that can be asked of a server."""
    found = window(first=100)
    found.timed_out(100)
    assert found.size == 50
    found.timed_out(50, done=20)
    assert found.size == 20 // SHARE
    for _ in range(9):
        found.timed_out(found.size)
    assert found.size == 1


def test_it_never_shrinks_below_its_minimum() -> None:
    """An offset costs so little that smaller saves help nobody; a server without an answer was more often away than slow."""
    found = SaveWindow(TIMEOUT_S, first=1_000, most=1_000, least=100)
    for _ in range(9):
        found.timed_out(min(found.size, 3))
    assert found.size == 100
    found.answered(100, 100 * TARGET_S)
    assert found.size == 100


def test_the_time_for_each_is_an_average_in_which_the_newest_counts_most() -> None:
    """It says what is slow."""
    found = window()
    found.answered(10, 0.1)
    assert found.seconds_each == pytest.approx(0.01)
    found.answered(10, 1.1)
    assert 0.01 < found.seconds_each < 0.11


@given(st.floats(0.0005, 10), st.integers(1, 1_000))
def test_saves_end_up_answered_however_slow_the_server_is(each_s: float, first: int) -> None:
    """Within a few saves none is larger than what the server manages before the deadline, or than one."""
    found = window(first=first)
    for _ in range(20):
        needed_s = found.size * each_s
        if needed_s > TIMEOUT_S:
            found.timed_out(found.size, int(TIMEOUT_S / each_s))
        else:
            found.answered(found.size, needed_s)
    assert found.size == 1 or found.size * each_s <= TIMEOUT_S


def test_a_server_that_becomes_fast_again_gets_large_saves_again() -> None:
    """A window that stays small would be slow for ever."""
    found = window(first=1)
    for _ in range(12):
        found.answered(found.size, 0.001)
    assert found.size == 1_000
