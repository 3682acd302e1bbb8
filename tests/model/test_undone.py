"""Invariant 7 as the model asks for it: a commit that was decided before a reset began stays below it; one in flight may not."""

import pytest

from adapter.model.records import FIRST_EPOCH, OffsetKey, OffsetRecord, next_era, taken_up
from tests.model.model import Model, Moved, Sent

KEY = OffsetKey("default", "g", "a")
HELD = next_era(FIRST_EPOCH)
BEGUN, ENDED, READ = 100, 110, 120  # ms
MOVED = Moved(BEGUN, OffsetRecord(HELD, 1, committed_at_ms=ENDED))
TAG = "1ga"


def model(*, epoch: int = 0, sent_ms: int = 90, read: bool = True) -> Model:
    """A commit was sent, then a reset was made, and taken up by a reader."""
    made = Model()
    made.sent[TAG] = Sent(KEY, epoch, sent_ms)
    made.carried(KEY, epoch)
    made.was_moved(KEY, MOVED)
    if read:
        made.read_from_store(KEY.group_key, READ)
    return made


def record(epoch: int, committed_at_ms: int = 90) -> OffsetRecord:
    """The commit as it stands."""
    return OffsetRecord(epoch, 7, committed_at_ms=committed_at_ms, metadata=TAG)


ABOVE = record(taken_up(HELD))


def test_a_commit_in_flight_from_before_the_reset_until_behind_it_may_stand_above_it() -> None:
    """Nobody has seen it decided before the reset had ended: it came behind the reset, and what holds it off was taken up."""
    made = model()
    made.decided(KEY, ABOVE, READ + 5)
    assert made.undone(KEY, ABOVE, READ + 5) == ""


@pytest.mark.parametrize("seen_ms", [BEGUN, BEGUN + 5])
def test_a_commit_that_was_decided_while_the_reset_ran_may_be_ordered_either_way(seen_ms: int) -> None:
    """Neither was before the other."""
    made = model()
    made.decided(KEY, record(FIRST_EPOCH), seen_ms)
    assert made.undone(KEY, ABOVE, READ + 5) == ""


def test_a_commit_that_was_stored_before_the_reset_began_must_not() -> None:
    """Whether it was answered or not: its broker may have died."""
    made = model()
    made.decided(KEY, record(FIRST_EPOCH), BEGUN - 1)
    assert "before" in made.undone(KEY, ABOVE, READ + 5)


def test_a_commit_of_unknown_epoch_is_ordered_by_its_time() -> None:
    """However late it meets the reset."""
    made = model()
    made.decided(KEY, record(0), READ + 5)
    assert "before" in made.undone(KEY, ABOVE, READ + 5)


def test_a_commit_of_an_older_epoch_must_not_however_late_it_comes() -> None:
    """It names the epoch that the reset ended."""
    made = model(epoch=FIRST_EPOCH, sent_ms=READ + 1)
    late = record(taken_up(HELD), READ + 1)
    made.decided(KEY, late, READ + 5)
    assert "which" in made.undone(KEY, late, READ + 5)


def test_a_commit_in_flight_must_not_pass_what_is_held() -> None:
    """It came behind the reset, and met the hold."""
    made = model(read=False)
    made.decided(KEY, ABOVE, READ + 5)
    assert "held" in made.undone(KEY, ABOVE, READ + 5)
