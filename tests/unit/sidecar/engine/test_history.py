"""The history of what moved offsets on purpose: what is one change, what is kept, and how honest `since_ms` is."""

from collections.abc import Sequence
from typing import Any

import pytest

from adapter.model.records import OffsetRecord
from adapter.sidecar.engine import history as module
from adapter.sidecar.engine.history import MAX_CHANGES, MAX_ROWS, MERGED_MS, Caller, History, asked_by
from adapter.sidecar.journal.journal import NoJournal
from adapter.sidecar.journal.notes import Moved
from tests.unit.helpers import key

ANN = Caller("token", "ann", "ipv4:10.0.0.1:5")
START_MS = 1_000_000


class Clock:
    """A clock that a test moves."""

    now_ms = START_MS

    def __call__(self) -> int:
        """Unix time in milliseconds."""
        return self.now_ms


class Seen(NoJournal):
    """A journal that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def moved(self, kind: str, moved: Sequence[Moved]) -> None:
        """Keep it."""
        self.told.append((kind, moved))


@pytest.fixture
def clock() -> Clock:
    """Stands until it is moved."""
    return Clock()


@pytest.fixture
def history(clock: Clock) -> History:
    """An empty one."""
    return History(Seen(), clock)


def move(history: History, kind: str, *shards: str, group: str = "g", before: int = 9, after: int = 3, **names: str) -> None:
    """Tell of shards that moved."""
    moved = [Moved(key(shard, group, **names), OffsetRecord(1, before), OffsetRecord(2, after)) for shard in shards]
    history.moved(kind, moved)


def test_a_change_has_who_asked_for_it_and_both_positions(history: History) -> None:
    """As the audit log has them."""
    with asked_by(ANN):
        move(history, "reset", "a", "b")
    (change,) = history.newest((), 10)
    assert (change.kind, change.group, change.caller, change.shards) == ("reset", ("default", "g"), ANN, 2)
    assert change.rows == {"a": ((1, 9, True), (2, 3, True)), "b": ((1, 9, True), (2, 3, True))}


def test_the_journal_is_told_too(history: History) -> None:
    """Of all that moved, as it came; of nothing where nothing moved."""
    move(history, "rewind", "a")
    history.moved("reset", [])
    journal = history._journal
    assert isinstance(journal, Seen)
    assert [(kind, len(moved)) for kind, moved in journal.told] == [("rewind", 1)]


def test_the_parts_of_a_large_change_are_one(history: History) -> None:
    """A reset of a large group is saved in parts. The first shards are kept, all are counted; another call is another change."""
    with asked_by(ANN):
        move(history, "reset", *(f"s{at}" for at in range(500)))
        move(history, "reset", *(f"s{at}" for at in range(500, 700)))
    with asked_by(Caller(*ANN)):
        move(history, "reset", "s1")
    newest = history.newest((), 10)
    assert sorted(change.shards for change in newest) == [1, 700]
    assert {len(change.rows) for change in newest} == {1, MAX_ROWS}


def test_a_call_that_moves_many_groups_is_one_change_for_each(history: History) -> None:
    """As an import does."""
    with asked_by(ANN):
        history.moved("import", [Moved(key("s", group), None, OffsetRecord(1, 5)) for group in ("a", "b", "c")])
    found = history.newest((), 10)
    assert sorted(change.group.group for change in found) == ["a", "b", "c"]
    assert all(change.rows == {"s": (None, (1, 5, True))} for change in found)


def test_rewinds_of_a_group_within_a_minute_are_one_change(history: History, clock: Clock) -> None:
    """With the first position of each shard and its last; the next minute is another change."""
    move(history, "rewind", "a", before=9, after=7)
    clock.now_ms += MERGED_MS - 1
    move(history, "rewind", "a", before=8, after=2)
    move(history, "rewind", "b")
    clock.now_ms += 1
    move(history, "rewind", "a")
    later, earlier = history.newest((), 10)
    assert (earlier.shards, earlier.at_ms) == (3, START_MS + MERGED_MS - 1)
    assert earlier.rows["a"] == ((1, 9, True), (2, 2, True))
    assert (later.shards, later.at_ms) == (1, START_MS + MERGED_MS)


def test_rewinds_never_push_out_what_somebody_asked_for(history: History, clock: Clock) -> None:
    """Consumers that rewind with every commit cannot hide a reset."""
    with asked_by(ANN):
        move(history, "reset", "a")
    for number in range(MAX_CHANGES + 5):
        clock.now_ms += 1
        move(history, "rewind", "a", group=f"g{number}")
    assert [change.kind for change in history.newest(("default", "g"), 10)] == ["reset"]
    assert len(history.newest((), 10 * MAX_CHANGES)) == MAX_CHANGES + 1


def test_since_is_the_start_until_something_was_pushed_out(history: History, clock: Clock) -> None:
    """Then it is just behind the newest change that was."""
    assert history.since_ms == START_MS
    for number in range(MAX_CHANGES):
        clock.now_ms += 10
        move(history, "rewind", "a", group=f"g{number}")
    assert history.since_ms == START_MS
    clock.now_ms += 10
    move(history, "rewind", "a", group="last")
    assert history.since_ms == START_MS + 10 + 1
    assert history.newest((), MAX_CHANGES)[-1].at_ms >= history.since_ms


def test_a_merged_change_that_is_pushed_out_counts_by_its_end(
    history: History, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had at last is gone as well."""
    monkeypatch.setattr(module, "MAX_CHANGES", 1)
    move(history, "rewind", "a")
    clock.now_ms += 500
    move(history, "rewind", "b")
    move(history, "rewind", "a", group="other")
    assert history.since_ms == START_MS + 500 + 1


def test_a_rewind_after_its_change_was_pushed_out_is_another_change(
    history: History, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not added to one that is in no list any more."""
    monkeypatch.setattr(module, "MAX_CHANGES", 1)
    for group in ("a", "b", "a"):
        clock.now_ms += 1
        move(history, "rewind", "s", group=group)
    (change,) = history.newest((), 10)
    assert (change.group.group, change.shards) == ("a", 1)


def test_changes_are_listed_newest_first_below_names(history: History, clock: Clock) -> None:
    """Of all, of a namespace, or of a group; at most as many as are wanted."""
    for number in range(4):
        clock.now_ms += 1
        move(history, "rewind", "s", group=f"g{number % 2}", namespace=f"n{number // 2}")
        with asked_by(ANN):
            move(history, "delete", "s", group="g0", namespace="n0")
    assert [change.group.namespace for change in history.newest((), 3)] == ["n0", "n1", "n1"]
    assert {change.group for change in history.newest(("n1",), 10)} == {("n1", "g0"), ("n1", "g1")}
    found = history.newest(("n0", "g0"), 10)
    assert {change.kind for change in found} == {"rewind", "delete"}
    assert [change.at_ms for change in history.newest((), 10)] == sorted((c.at_ms for c in history.newest((), 10)), reverse=True)


def test_outside_of_a_call_nobody_asked(history: History) -> None:
    """The caller is that of the call under way, and of no other."""
    with asked_by(ANN):
        move(history, "reset", "a", group="a")
    move(history, "expire", "a", group="b")
    assert [change.caller for change in sorted(history.newest((), 10), key=lambda found: found.group)] == [ANN, None]
