"""The acknowledgement window: which offset may be committed while messages finish out of order, and what blocks it."""

import pytest

from adapter.client.ack_window import AckWindow
from adapter.model.records import U64_MAX
from tests.unit.client.ack_windows import Clock, window_of


def test_the_committable_offset_is_the_lowest_unfinished_one() -> None:
    """A message that finished above it counts only when all below it have finished too."""
    window = window_of(range(5))
    assert (window.ack(1), window.ack(2), window.committable) == (True, True, 0)
    window.ack(0)
    assert window.committable == 3
    window.ack(4)
    assert window.committable == 3
    window.ack(3)
    assert window.committable == 5


@pytest.mark.parametrize("start", [0, 7, U64_MAX])
def test_before_anything_is_finished_the_start_is_committable(start: int) -> None:
    """It is the next offset to read, as everywhere; there is no -1."""
    window = AckWindow(start)
    assert window.committable == start
    window.try_take(start)
    assert window.committable == start


def test_a_gap_in_the_log_is_passed_over() -> None:
    """Compacted messages and transaction markers are not waited for, not even below the first message."""
    window = window_of([3, 4, 9], start=1)
    assert window.committable == 3
    window.ack(3)
    window.ack(4)
    assert window.committable == 9
    window.ack(9)
    assert window.committable == 10


def test_a_wide_gap_takes_no_room() -> None:
    """A group may begin at 0 in a log whose first message is far above; nothing is unfinished, so nothing waits."""
    window = window_of([10**15], max_span=10)
    assert (window.committable, len(window._states)) == (10**15, 1)


def test_a_window_reaches_the_end_of_the_log_behind_its_last_message() -> None:
    """Transaction markers at the end are not messages: without `skip_to` the lag would never become 0."""
    window = window_of([5, 6], start=5)
    window.skip_to(9)
    assert window.committable == 5
    window.ack_range(5, 7)
    assert window.committable == 9
    window.skip_to(12)
    assert window.committable == 12
    with pytest.raises(ValueError, match=r"offset 11 .* next offset is 12"):
        window.skip_to(11)
    with pytest.raises(ValueError, match="offset 11 "):
        window.try_take(11)
    assert window.try_take(12)


def test_a_second_acknowledgement_changes_nothing() -> None:
    """As when a redelivery finishes too or a call is retried, above and below the committable offset."""
    window = window_of(range(3))
    assert (window.ack(1), window.ack(1), window.committable) == (True, False, 0)
    assert (window.ack(0), window.ack(0), window.ack(1), window.committable) == (True, False, False, 2)


@pytest.mark.parametrize("offset", [15, 21, 23, 5_000, 9, 0, -1])
def test_an_offset_that_was_never_taken_cannot_be_finished(offset: int) -> None:
    """In a gap, above the newest, below the start: the error names the offset, and the window does not change."""
    window = window_of([11, 20, 22], start=10, clock=Clock())
    before = window.status()
    with pytest.raises(ValueError, match=f"^offset {offset} was never taken; the window began at 10, and the next offset is 23$"):
        window.ack(offset)
    assert window.status() == before


def test_a_gap_below_the_committable_offset_counts_as_finished() -> None:
    """The window no longer knows which offsets below it were messages."""
    window = window_of([11, 13], start=10)
    assert not window.ack(10)
    window.ack(11)
    assert (window.ack(12), window.committable) == (False, 13)


def test_offsets_are_taken_in_ascending_order() -> None:
    """A repeated or lower offset is refused; a consumer that went back has to reset its window."""
    window = window_of([4, 6])
    for offset in (6, 5, 4, 0):
        with pytest.raises(ValueError, match=f"^offset {offset} is not above .* next offset is 7. .*`reset`"):
            window.try_take(offset)
    assert window.try_take(7)


def test_a_range_finishes_what_was_taken_in_it() -> None:
    """The count has neither gaps nor messages that were finished before."""
    window = window_of([0, 1, 2, 5, 6, 7])
    window.ack(5)
    assert (window.ack_range(1, 7), window.committable) == (3, 0)
    assert (window.ack_range(0, 1), window.committable) == (1, 7)
    assert window.ack_range(0, 7) == 0
    assert window.ack_range(3, 3) == 0
    assert (window.ack_range(window.committable, 8), window.committable) == (1, 8)


def test_a_range_does_not_finish_its_gaps() -> None:
    """An offset that was not taken must stay an error to acknowledge."""
    window = window_of([0, 1, 5])
    window.ack_range(1, 6)
    assert window.status().ahead == 2
    with pytest.raises(ValueError, match="offset 3 was never taken"):
        window.ack(3)


@pytest.mark.parametrize(("first", "end"), [(0, 4), (3, 5), (2, 1), (-1, 2)])
def test_a_range_beyond_what_was_taken_is_refused_whole(first: int, end: int) -> None:
    """A reversed or negative range is refused too; nothing of any of them is finished."""
    window = window_of(range(3))
    with pytest.raises(ValueError, match=f"offsets {first} to {end - 1} .* next offset is 3"):
        window.ack_range(first, end)
    assert window.status().unfinished == 3


def test_a_lost_acknowledgement_blocks_and_is_visible() -> None:
    """If a worker forgets its message, nothing above is committed, and status names the message and its age."""
    clock = Clock()
    window = window_of(range(3), clock=clock)
    clock.now += 60
    assert all(window.try_take(offset) for offset in range(3, 10))
    assert window.ack_range(0, 1) == 1
    assert window.ack_range(2, 10) == 8
    clock.now += 60
    status = window.status()
    assert (status.committable, status.next_offset, status.unfinished, status.ahead) == (1, 10, 1, 8)
    assert (status.oldest, status.oldest_age_s) == (1, 120)
    window.ack(1)
    status = window.status()
    assert (status.committable, status.unfinished, status.ahead, status.oldest, status.oldest_age_s) == (10, 0, 0, None, 0)


def test_times_do_not_pile_up() -> None:
    """On a slow stream, the window keeps one time while something is unfinished, and none otherwise."""
    clock = Clock()
    window = AckWindow(0, clock=clock)
    for offset in range(1_000):
        clock.now += 1
        window.try_take(offset)
        window.ack(offset)
    assert len(window._times) <= 2


def test_what_is_finished_counts_against_the_span() -> None:
    """The span limits what is delivered again. RocketMQ counts only unfinished messages (apache/rocketmq#1404)."""
    window = window_of(range(11), max_span=10)
    window.ack_range(1, 11)
    assert not window.try_take(11)
    assert window.status().next_offset == 11
    window.ack(0)
    assert window.try_take(11)


def test_a_gap_counts_against_the_span_while_something_is_unfinished() -> None:
    """As in RocketMQ, newest minus lowest unfinished offset is at most max_span."""
    window = window_of([5], max_span=10)
    assert not window.try_take(16)
    assert window.try_take(15)
    window.ack(15)
    window.ack(5)
    assert window.try_take(1_000)


def test_a_late_acknowledgement_finishes_nothing_after_a_reset() -> None:
    """The same offset was taken again: only the acknowledgement for the new delivery counts."""
    old = window_of(range(10, 13), start=10)
    old.ack(10)
    new = old.reset(10, epoch=2)
    assert new.try_take(10)
    assert (old.ack(10), old.ack(11), old.ack(99), old.ack_range(11, 13)) == (False, False, False, 0)
    assert (new.committable, new.epoch, new.status().unfinished) == (10, 2, 1)
    assert (old.committable, old.epoch, old.status().late) == (11, 0, 5)
    assert new.ack(10)
    assert new.committable == 11


def test_a_reset_keeps_the_span_and_the_clock() -> None:
    """Both belong to the consumer, not to the assignment."""
    clock = Clock()
    window = AckWindow(5, 3, clock=clock).reset(0)
    window.try_take(0)
    clock.now += 9
    assert not window.try_take(4)
    assert window.status().oldest_age_s == 9


@pytest.mark.parametrize(("epoch", "taken"), [(0, True), (4, False), (5, True), (1 << 32, True)])
def test_a_reset_does_not_go_back_in_epochs(epoch: int, *, taken: bool) -> None:
    """The offset of a lower epoch was read before a reset. Epoch 0 is unknown; the same epoch is a seek or a returned shard."""
    window = AckWindow(9, epoch=5)
    if taken:
        assert window.reset(3, epoch=epoch).epoch == epoch
        return
    with pytest.raises(ValueError, match="offset 3 was read at epoch 4; this window is of epoch 5"):
        window.reset(3, epoch=epoch)
    assert window.try_take(9)


@pytest.mark.parametrize(
    ("start", "max_span", "names"), [(-1, 1, "start -1"), (U64_MAX + 1, 1, "start"), (0, 0, "max_span is 0")]
)
def test_numbers_that_cannot_be_are_refused(start: int, max_span: int, names: str) -> None:
    """For example -1 for "nothing committed", which other systems use."""
    with pytest.raises(ValueError, match=names):
        AckWindow(start, max_span)


def test_a_reset_to_what_cannot_be_leaves_the_window_open() -> None:
    """Arguments are checked before the window is closed."""
    window = AckWindow(4)
    with pytest.raises(ValueError, match="start -1"):
        window.reset(-1)
    assert window.try_take(4)
