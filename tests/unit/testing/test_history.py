"""The checker of histories, on histories written by hand."""

import pytest

from adapter.model.records import OffsetKey
from adapter.testing.history import ADAPTER, META, History, Kind, Position
from tests.unit.helpers import key

A, B, C = key("a"), key("b"), key("c")
EVENTS = 1_000_000


def _read(history: History, position: Position | None, *places: str, at: float, until: float | None = None) -> None:
    """A read of the first key, one second long by default."""
    seen = {} if position is None else {A: position}
    history.reading(*places, keys=[A], at=at).found(seen, at=at + 1 if until is None else until)


def _write(history: History, position: Position, *places: str, at: float, until: float | None = None) -> None:
    """An acknowledged write of the first key."""
    history.begin(A, position, places=places or (ADAPTER,), at=at).acknowledged(at=at + 1 if until is None else until)


def _kinds(history: History) -> list[Kind]:
    return [violation.kind for violation in history.check()]


def test_a_read_shows_what_was_acknowledged_before_it_began() -> None:
    """A larger value is allowed; a smaller one is a loss (1)."""
    for position, kinds in (((1, 5), []), ((1, 6), []), ((1, 4), [Kind.LOST]), (None, [Kind.LOST])):
        history = History()
        for offset in (4, 6, 5):
            history.begin(A, (1, offset), at=0)
        _write(history, (1, 5), at=1)
        _read(history, position, at=3)
        assert _kinds(history) == kinds


def test_a_read_need_not_show_what_is_acknowledged_while_it_is_under_way() -> None:
    """Not even at the instant when it begins: operations that touch are concurrent."""
    for began in (1.0, 1.5, 2.0):
        history = History()
        _write(history, (1, 5), at=1, until=2)
        _read(history, None, at=began, until=3)
        assert not history.check()


def test_a_read_is_not_below_one_that_ended_before_it_began() -> None:
    """Even if no write of the value was acknowledged (2); concurrent reads may differ."""
    for began, kinds in ((1.5, []), (2.0, []), (2.5, [Kind.WENT_BACK])):
        history = History()
        history.begin(A, (1, 5), at=0)
        _read(history, (1, 5), at=1, until=2)
        _read(history, None, at=began, until=9)
        assert _kinds(history) == kinds


def test_a_read_does_not_show_what_nobody_had_begun_to_write() -> None:
    """A write without a reply may be applied at any time after it was sent."""
    for position, until, kinds in (((1, 5), 3.0, []), ((1, 5), 1.5, [Kind.UNWRITTEN]), ((1, 4), 3.0, [Kind.UNWRITTEN])):
        history = History()
        history.begin(A, (1, 5), at=2)
        _read(history, position, at=1, until=until)
        assert _kinds(history) == kinds


def test_what_is_sent_when_more_is_acknowledged_is_never_seen() -> None:
    """Not even by a read that began before both; a delete counts too."""
    for value, seen in (((1, 5), (1, 5)), ((1, 0, False), None)):
        history = History()
        for earlier in ((1, 0), (2, 1)):
            history.begin(A, earlier, at=0)
        _read(history, (1, 0), at=0)
        slow = history.reading(keys=[A], at=2)
        _write(history, (2, 1), at=3)
        history.begin(A, value, at=5)
        slow.found({A: seen} if seen else {}, at=6)
        assert len(history.check()) == 1


def test_a_key_that_nobody_wrote_is_absent() -> None:
    """A write of another key explains nothing."""
    history = History()
    _write(history, (1, 5), at=0)
    history.reading(at=2).found({A: (1, 5), B: (1, 5)}, at=3)
    assert [(violation.key, violation.kind) for violation in history.check()] == [(B, Kind.UNWRITTEN)]


def test_a_read_of_everything_misses_what_is_absent() -> None:
    """A written key that the reply does not have was read as absent."""
    history = History()
    for number, name in enumerate((A, B, C)):
        history.begin(name, (1, 5), at=number).acknowledged(at=number)
    history.reading(at=4).found({B: (1, 5)}, at=5)
    assert {violation.key for violation in history.check()} == {A, C}


def test_a_higher_epoch_is_larger_whatever_the_offset() -> None:
    """A rewind is no step back, and values from before it must not return (2)."""
    history = History()
    _write(history, (1, 90), at=0)
    _write(history, (2, 10), at=2)
    _read(history, (2, 10), at=4)
    _read(history, (1, 90), at=6)
    assert _kinds(history) == [Kind.LOST]


def test_a_deletion_reads_as_absent() -> None:
    """From the beginning of the delete; values from before it must not return (7)."""
    history = History()
    _write(history, (1, 90), at=0)
    deletion = history.begin(A, (2**32, 0, False), at=2)
    _read(history, (1, 90), at=3)
    _read(history, None, at=5)
    _read(history, (1, 90), at=7)
    deletion.acknowledged(at=9)
    _read(history, None, at=10)
    _read(history, (1, 90), at=12)
    _read(history, (2**32, 0, False), at=14)
    history.begin(A, (2**32, 3), at=16)
    _read(history, (2**32, 3), at=17)
    _read(history, None, at=19)
    # The first absence read proves that the deletion was applied, so that the last value may not be gone without another one.
    assert _kinds(history) == [Kind.WENT_BACK] * 3


def test_absent_may_be_the_oldest_deletion_that_explains_it() -> None:
    """The checker concludes no more than that."""
    history = History()
    for era in (1, 2):
        history.begin(A, (era << 32, 0, False), at=era)
        history.begin(A, (era << 32, 7), at=era)
    _read(history, None, at=3)  # explained by nothing having been written at all
    _read(history, (1 << 32, 7), at=5)
    _read(history, None, at=7)
    _read(history, (2 << 32, 7), at=9)
    assert not history.check()
    _read(history, None, at=11)
    assert _kinds(history) == [Kind.WENT_BACK]


def test_an_unknown_epoch_that_is_read_counts_as_the_first() -> None:
    """An adapter keeps epoch 0 until it reaches the Meta Service."""
    history = History()
    _write(history, (1, 5), at=0)
    _read(history, (0, 5), at=2)
    _read(history, (0, 4), at=4)
    assert _kinds(history) == [Kind.LOST]


def test_a_write_of_unknown_epoch_may_stand_in_any_that_was_begun() -> None:
    """It takes the epoch that stands, and never creates one."""
    history = History()
    history.begin(A, (1, 5), at=0)
    history.begin(A, (2, 3), at=1)
    history.begin(A, (0, 7), at=2)
    for number, (position, kinds) in enumerate((((1, 7), []), ((2, 7), []), ((3, 7), [Kind.UNWRITTEN]))):
        _read(history, position, at=10 + 2 * number)
        assert _kinds(history) == kinds


def test_an_acknowledgement_of_unknown_epoch_is_in_the_one_that_had_to_stand() -> None:
    """At least in the epoch that the place had to show when the write was sent."""
    history = History()
    _write(history, (2, 3), at=0)
    _write(history, (0, 7), at=2)
    _read(history, (2, 3), at=4)
    assert _kinds(history) == [Kind.LOST]
    assert history.least() == {A: (2, 7)}


def test_one_of_several_possible_values_may_be_shown() -> None:
    """At least the smallest of them, unless the reply says which one it was."""
    for told, position, kinds in (
        (None, (1, 3), []),
        (None, (2, 3), []),
        ((2, 3), (1, 3), [Kind.LOST]),
        (None, (3, 3), [Kind.UNWRITTEN]),
    ):
        history = History()
        history.begin(A, (1, 3), (2, 3), at=0).acknowledged(told, at=1)
        _read(history, position, at=2)
        assert _kinds(history) == kinds


def test_an_answer_of_what_stands_is_a_read() -> None:
    """It is not below earlier values or the write itself, and somebody must have begun to write it."""
    for standing, kinds in (
        ((1, 9), []),
        ((2, 1), []),
        ((1, 8), [Kind.LOST]),
        ((1, 5), [Kind.LOST]),
        ((3, 1), [Kind.UNWRITTEN]),
        ((2, 0, False), []),
    ):
        history = History()
        for position in ((1, 5), (1, 8), (2, 1), (2, 0, False)):
            history.begin(A, position, at=0)
        _write(history, (1, 9), at=0)
        history.begin(A, (1, 7), at=2).superseded(standing, at=3)
        assert _kinds(history) == kinds
        if not kinds:
            assert history.least() == {A: standing[:2]}


def test_places_are_apart() -> None:
    """A value acknowledged by one adapter need not be in another one or in the Meta Service."""
    history = History()
    _write(history, (1, 5), "a", at=0)
    for at, place in enumerate(("b", META)):
        _read(history, None, place, at=2 + at)
    assert not history.check()
    _read(history, None, "a", at=5)
    assert [violation.place for violation in history.check()] == ["a"]


def test_a_write_through_is_in_all_of_its_places() -> None:
    """The Meta Service has it before it is acknowledged."""
    history = History()
    _write(history, (1, 5), "a", META, at=0)
    for at, place in enumerate(("a", META)):
        _read(history, None, place, at=2 + at)
    assert [violation.place for violation in history.check()] == ["a", META]


def test_a_flush_carries_what_was_acknowledged_before_it_began() -> None:
    """When it has ended; not what was acknowledged meanwhile (3)."""
    for began, done, kinds in ((2.0, 4.0, [Kind.LOST]), (0.5, 4.0, []), (2.0, 5.0, []), (2.0, None, [])):
        history = History()
        _write(history, (1, 5), at=0, until=1)
        flush = history.carrying(at=began)
        if done:
            flush.done(at=done)
        _read(history, None, META, at=5)
        assert _kinds(history) == kinds


def test_a_flush_carries_what_was_read() -> None:
    """A value that was read had to be stored, so the flush sends it; a recovering adapter then gets it from there."""
    history = History()
    history.begin(A, (1, 5), at=0)
    _read(history, (1, 5), "a", at=1)
    history.carrying("a", META, at=3).done(at=4)
    history.carrying(META, "b", at=5).done(at=6)
    _read(history, None, "b", at=7)
    assert _kinds(history) == [Kind.WENT_BACK]


def test_a_read_of_the_store_shows_what_both_places_must_show() -> None:
    """From then on the adapter has it too."""
    history = History()
    _write(history, (1, 5), META, at=0)
    _write(history, (1, 4), at=0)
    _read(history, (1, 4), ADAPTER, META, at=2)
    assert _kinds(history) == [Kind.LOST]
    _read(history, (1, 5), ADAPTER, META, at=4)
    _read(history, (1, 4), ADAPTER, at=6)
    assert _kinds(history) == [Kind.LOST, Kind.WENT_BACK]


def test_a_violation_is_written_for_a_person() -> None:
    """The text has key, place, the value read, the time, and what it contradicts."""
    history = History()
    history.begin(OffsetKey("n", "g", "s"), (1, 9), places=["a"], at=1).acknowledged(at=1.5)
    history.carrying("a", META, at=2).done(at=3)
    history.reading(META, at=4).found({}, at=4.25)
    history.reading("a", at=5).found({OffsetKey("n", "g", "s"): (1, 10)}, at=6)
    assert [str(violation) for violation in history.check()] == [
        "n/g/s: meta showed nothing (4.000000 to 4.250000 s): less than what was acknowledged: offset 9 of epoch 1 "  # noqa: ISC004
        "was acknowledged by a (1.000000 to 1.500000 s), and was carried to meta (2.000000 to 3.000000 s)",
        "n/g/s: a showed offset 10 of epoch 1 (5.000000 to 6.000000 s): a value that nobody had begun to write",
    ]


def test_a_check_goes_on_from_the_last_one() -> None:
    """Also for operations then in progress; operations that ended before the last check are refused."""
    history = History()
    _write(history, (1, 5), at=0)
    late = history.begin(A, (1, 6), at=2)
    slow = history.reading(at=2)
    assert not history.check()
    late.acknowledged(at=4)
    slow.found({}, at=5)
    _read(history, (1, 5), at=6)
    assert _kinds(history) == [Kind.LOST, Kind.LOST]
    history.begin(A, (1, 7), at=3)
    with pytest.raises(ValueError, match="recorded at 3 s, after a check up to 7 s"):
        history.check()


def test_what_is_sent_without_an_epoch_when_more_must_be_shown_is_never_seen() -> None:
    """In none of the epochs below; in a larger one it may be, and where it, or the same value, was sent before as well."""
    for early, seen, violations in ((None, (2, 1), 1), (None, (2, 9), 0), ((0, 1), (2, 1), 0), ((2, 1), (2, 1), 0)):
        history = History()
        history.begin(A, (2, 0), at=0)
        if early:
            history.begin(A, early, at=0)
        slow = history.reading(keys=[A], at=0)
        _write(history, (2, 5), at=1)
        for offset in (1, 9):
            history.begin(A, (0, offset), at=3)
        history.begin(A, (2, 1), at=3)
        slow.found({A: seen}, at=4)
        assert len(history.check()) == violations
