"""Epochs: eras of resets and deletes, writers without epochs, and commits over a tombstone."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.metaservice.engine import decide_save
from adapter.model.records import (
    EPOCH_MAX,
    ERA_BITS,
    HOLD_MS,
    CommitMode,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    decide,
    deleted,
    expired,
    is_deleted,
    meet,
    merge,
    next_era,
    resolve,
    taken_up,
)
from tests.unit.helpers import RECORDS, key, record

ERA = 1 << ERA_BITS
TAKEN = ERA + 1
LATE = 10 + HOLD_MS  # just behind the hold of a reset at 9
INCREASE, OVERWRITE = CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE
APPLIED, SUPERSEDED = Status.APPLIED, Status.SUPERSEDED
EPOCHS = st.builds(lambda era, rewinds: era * ERA + rewinds, st.integers(0, 3), st.integers(0, 3))
TIMES = st.integers(0, 4)
POSITIONED = st.builds(OffsetRecord, EPOCHS, st.integers(0, 4), st.booleans(), TIMES)
KNOWN = POSITIONED.filter(lambda found: found.epoch > 0)


def dead(epoch: int, offset: int, at_ms: int = 0) -> OffsetRecord:
    """A tombstone; at offset 0 that of a delete."""
    return OffsetRecord(epoch, offset, live=False, committed_at_ms=at_ms)


def at(offset: int, epoch: int, at_ms: int) -> OffsetRecord:
    """A live record with this commit time."""
    return record(offset, epoch, committed_at_ms=at_ms)


def saved(offered: OffsetRecord, standing: OffsetRecord | None) -> SaveOutcome:
    """The Meta Service's result for a save."""
    return decide_save(SaveEntry(key(), offered), standing)


@pytest.mark.parametrize(
    ("epoch", "following"),
    [(0, ERA), (1, ERA), (2, ERA), (ERA - 1, ERA), (ERA, 2 * ERA), (ERA + 7, 2 * ERA), (5 * ERA + 1, 6 * ERA)],
)
def test_a_reset_begins_the_next_era(epoch: int, following: int) -> None:
    """The upper half of the epoch grows by one, the lower half becomes 0."""
    assert next_era(epoch) == following


@given(st.integers(0, EPOCH_MAX >> ERA_BITS), st.integers(0, 2**31), st.integers(0, 2**31 - 1))
def test_a_reset_is_above_any_number_of_rewinds_of_its_era(era: int, seen: int, more: int) -> None:
    """Also above those that an adapter without a connection acknowledged, which the reset cannot know (7)."""
    assert next_era(era * ERA + seen) > era * ERA + seen + more


@given(st.integers(0, EPOCH_MAX))
def test_every_epoch_that_is_accepted_can_be_reset(epoch: int) -> None:
    """The result is a u64 (10)."""
    assert epoch < next_era(epoch) < 2**64


@given(POSITIONED, POSITIONED, POSITIONED)
def test_the_order_of_the_register_holds_with_tombstones_and_eras(a: OffsetRecord, b: OffsetRecord, c: OffsetRecord) -> None:
    """Idempotent, commutative, associative, never backwards (2)."""
    assert merge(a, a) == a
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, b).position == max(a.position, b.position)


class Meeting(NamedTuple):
    """A record of epoch 0, the stored record, and the expected result."""

    name: str
    offered: OffsetRecord
    standing: OffsetRecord
    after: OffsetRecord


MEETINGS = [
    Meeting("first epoch, earlier", at(5, 0, 1), at(3, 1, 9), at(5, 1, 1)),
    Meeting("first epoch, no time", at(5, 0, 0), at(3, 1, 9), at(5, 1, 0)),
    Meeting("raised, earlier", at(5, 0, 8), at(3, 2, 9), at(5, 0, 8)),
    Meeting("raised, at the same time", at(5, 0, 9), at(3, 2, 9), at(5, 0, 9)),
    Meeting("raised, later", at(5, 0, 10), at(3, 2, 9), at(5, 2, 10)),
    Meeting("raised, no time", at(5, 0, 0), at(3, 2, 9), at(5, 2, 0)),
    Meeting("raised, what stands has no time", at(5, 0, 1), at(3, 2, 0), at(5, 2, 1)),
    Meeting("reset, earlier", at(5, 0, 8), at(3, ERA, 9), at(5, 0, 8)),
    Meeting("reset, later, held", at(5, 0, 9 + HOLD_MS), at(3, ERA, 9), at(5, 0, 9 + HOLD_MS)),
    Meeting("reset, later, lower", at(1, 0, LATE), at(3, ERA, 9), at(1, ERA, LATE)),
    Meeting("reset, later, further", at(5, 0, LATE), at(3, ERA, 9), at(5, TAKEN, LATE)),
    Meeting("reset, no time", at(5, 0, 0), at(3, ERA, 9), at(5, TAKEN, 0)),
    Meeting("reset and taken up, later, lower", at(1, 0, 10), at(3, TAKEN, 9), at(1, TAKEN, 10)),
    Meeting("deleted, earlier", at(5, 0, 8), dead(ERA, 0, 9), at(5, 0, 8)),
    Meeting("deleted, at the same time", at(5, 0, 9), dead(ERA, 0, 9), at(5, 0, 9)),
    Meeting("deleted, later, held", at(5, 0, 9 + HOLD_MS), dead(ERA, 0, 9), at(5, 0, 9 + HOLD_MS)),
    Meeting("deleted, later", at(5, 0, LATE), dead(ERA, 0, 9), at(5, TAKEN, LATE)),
    Meeting("deleted, later, offset 0", at(0, 0, LATE), dead(ERA, 0, 9), at(0, TAKEN, LATE)),
    Meeting("deleted and taken up, later", at(5, 0, 10), dead(TAKEN, 0, 9), at(5, TAKEN, 10)),
    Meeting("expired, later, further", at(12, 0, 10), dead(1, 10, 9), at(12, 1, 10)),
    Meeting("expired, later, the same", at(10, 0, 10), dead(1, 10, 9), at(10, 1, 10)),
    Meeting("expired, later, lower", at(5, 0, 10), dead(1, 10, 9), at(5, 2, 10)),
    Meeting("expired, earlier, further", at(12, 0, 8), dead(1, 10, 9), at(12, 1, 8)),
    Meeting("expired, earlier, lower", at(5, 0, 8), dead(1, 10, 9), at(5, 0, 8)),
    Meeting("expired, at the same time, lower", at(5, 0, 9), dead(1, 10, 9), at(5, 0, 9)),
    Meeting("expired in a raised epoch, earlier", at(12, 0, 8), dead(4, 10, 9), at(12, 0, 8)),
    Meeting("expired in a raised epoch, later, lower", at(5, 0, 10), dead(4, 10, 9), at(5, 5, 10)),
    Meeting("it stands in epoch 0, too", at(5, 0, 1), at(3, 0, 9), at(5, 0, 1)),
]


@pytest.mark.parametrize("meeting", MEETINGS, ids=lambda meeting: meeting.name)
def test_a_record_of_unknown_epoch_becomes_what_the_table_says(meeting: Meeting) -> None:
    """It gets the stored epoch, unless that was raised after the record was committed (7)."""
    assert resolve(meeting.offered, meeting.standing) == meeting.after
    assert (
        meet(meeting.offered, meeting.standing) == meet(meeting.standing, meeting.offered) == max(meeting.after, meeting.standing)
    )


# No epoch 0 stands in the Meta Service.
@pytest.mark.parametrize("meeting", [found for found in MEETINGS if found.standing.epoch], ids=lambda meeting: meeting.name)
def test_a_save_of_unknown_epoch_ends_as_the_table_says(meeting: Meeting) -> None:
    """The Meta Service applies the same rule; a record that keeps epoch 0 counts as the first epoch, and loses (7)."""
    placed = meeting.after._replace(epoch=meeting.after.epoch or 1)
    wins = placed > meeting.standing
    assert saved(meeting.offered, meeting.standing) == SaveOutcome(
        APPLIED if wins else SUPERSEDED, placed if wins else meeting.standing
    )


@given(POSITIONED, st.none() | KNOWN)
def test_a_save_that_arrives_twice_changes_nothing_more(offered: OffsetRecord, standing: OffsetRecord | None) -> None:
    """As a retry after a lost reply, with a known epoch or not (2)."""
    first = saved(offered, standing)
    again = saved(offered, first.standing)
    assert (again.standing, again.status.acknowledged) == (first.standing, True)


@given(st.lists(POSITIONED, min_size=1, max_size=6), st.data())
def test_no_sequence_of_saves_and_their_duplicates_goes_backwards(saves: list[OffsetRecord], data: st.DataObject) -> None:
    """Late, repeated, in any order: the stored record never decreases, and is at least each one of known epoch (2)."""
    copies = data.draw(st.lists(st.sampled_from(saves), max_size=6))
    standing: OffsetRecord | None = None
    for offered in data.draw(st.permutations([*saves, *copies])):
        outcome = saved(offered, standing)
        assert outcome.standing is not None
        assert standing is None or outcome.standing >= standing
        assert outcome.standing >= offered
        standing = outcome.standing


@given(KNOWN, st.lists(POSITIONED, max_size=6))
def test_saves_from_before_a_reset_leave_it_alone_however_often_they_arrive(
    standing: OffsetRecord, saves: list[OffsetRecord]
) -> None:
    """Of its era or an earlier one, of known or unknown epoch, once or repeatedly (7)."""
    reset = at(2, next_era(standing.epoch), 5)
    for offered in (*saves, *saves):
        before = offered._replace(epoch=min(offered.epoch, standing.epoch + 3), committed_at_ms=offered.committed_at_ms + 1)
        assert saved(before, reset).standing == reset
        assert saved(before, deleted(standing, 5)).standing == deleted(standing, 5)


class Decision(NamedTuple):
    """A commit with this epoch (0: none), the stored record, and the expected result in each mode."""

    name: str
    offered: tuple[int, int]
    standing: OffsetRecord
    increased: OffsetRecord
    overwritten: OffsetRecord


STANDING = record(10, 3)
DECISIONS = [
    Decision("no epoch, further", (0, 12), STANDING, record(12, 3), record(12, 3)),
    Decision("no epoch, lower", (0, 8), STANDING, STANDING, record(8, 4)),
    Decision("equal epoch, further", (3, 12), STANDING, record(12, 3), record(12, 3)),
    Decision("equal epoch, lower", (3, 8), STANDING, STANDING, record(8, 4)),
    Decision("older epoch, further", (2, 12), STANDING, STANDING, STANDING),
    Decision("older epoch, lower", (1, 8), STANDING, STANDING, STANDING),
    Decision("no epoch, over a delete", (0, 0), dead(ERA, 0), record(0, TAKEN), record(0, TAKEN)),
    Decision("equal epoch, over a delete", (ERA, 4), dead(ERA, 0), record(4, TAKEN), record(4, TAKEN)),
    Decision("equal epoch, over a delete that is taken up", (ERA, 4), dead(TAKEN, 0), record(4, TAKEN), record(4, TAKEN)),
    Decision("no epoch, over a reset, further", (0, 12), record(10, ERA), record(12, TAKEN), record(12, TAKEN)),
    Decision("no epoch, over a reset, lower", (0, 8), record(10, ERA), record(10, ERA), record(8, TAKEN + 1)),
    Decision("equal epoch, over a reset, further", (ERA, 12), record(10, ERA), record(12, TAKEN), record(12, TAKEN)),
    Decision("equal epoch, over a reset, lower", (ERA, 8), record(10, ERA), record(10, TAKEN), record(8, TAKEN + 1)),
    Decision("epoch as taken up, over a reset", (TAKEN, 12), record(10, ERA), record(12, TAKEN), record(12, TAKEN)),
    Decision("epoch of a reset that is taken up", (ERA, 12), record(10, TAKEN), record(12, TAKEN), record(12, TAKEN)),
    Decision("older epoch, over a reset", (3, 12), record(10, ERA), record(10, ERA), record(10, ERA)),
    Decision("older epoch, over a delete", (3, 12), dead(ERA, 0), dead(ERA, 0), dead(ERA, 0)),
    Decision("no epoch, over an expiry, further", (0, 12), dead(3, 10), record(12, 3), record(12, 3)),
    Decision("no epoch, over an expiry, the same", (0, 10), dead(3, 10), record(10, 3), record(10, 3)),
    Decision("no epoch, over an expiry, lower", (0, 4), dead(3, 10), record(4, 4), record(4, 4)),
    Decision("equal epoch, over an expiry, the same", (3, 10), dead(3, 10), record(10, 3), record(10, 3)),
    Decision("equal epoch, over an expiry, lower", (3, 4), dead(3, 10), record(4, 4), record(4, 4)),
    Decision("older epoch, over an expiry, further", (2, 12), dead(3, 10), dead(3, 10), dead(3, 10)),
]


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.name)
def test_a_commit_ends_as_the_table_says(decision: Decision) -> None:
    """An older epoch changes nothing; over a tombstone every other commit applies; a rewind raises the epoch."""
    epoch, offset = decision.offered
    assert decide(record(offset, epoch), decision.standing, INCREASE) == decision.increased
    assert decide(record(offset, epoch), decision.standing, OVERWRITE) == decision.overwritten


@given(POSITIONED, KNOWN, st.sampled_from(CommitMode))
def test_a_commit_without_an_epoch_over_a_tombstone_always_applies(
    offered: OffsetRecord, standing: OffsetRecord, mode: CommitMode
) -> None:
    """A group that returns may start at any offset (2)."""
    tombstone = standing._replace(live=False)
    after = decide(offered._replace(epoch=0, live=True), tombstone, mode)
    assert (after.offset, after.live) == (offered.offset, True)
    assert after > tombstone


@given(RECORDS.filter(lambda found: found.epoch < EPOCH_MAX), st.integers(0, 99))
def test_the_tombstone_of_a_delete_is_above_all_of_its_era(standing: OffsetRecord, now_ms: int) -> None:
    """It keeps nothing of the deleted record, in particular not the offset."""
    era = next_era(standing.epoch)
    assert deleted(standing, now_ms, held=True) == OffsetRecord(era, 0, live=False, committed_at_ms=now_ms)
    assert deleted(standing, now_ms) == OffsetRecord(taken_up(era), 0, live=False, committed_at_ms=now_ms)
    assert deleted(standing, now_ms) > deleted(standing, now_ms, held=True) > standing
    assert is_deleted(deleted(standing, now_ms))
    assert is_deleted(deleted(standing, now_ms, held=True))


@given(RECORDS, st.integers(0, 99))
def test_the_tombstone_of_an_expiry_raises_no_epoch(standing: OffsetRecord, now_ms: int) -> None:
    """It keeps the position, so that an earlier acknowledged commit of a higher offset still wins. It is not held."""
    standing = standing._replace(live=True, epoch=taken_up(standing.epoch))
    assert expired(standing._replace(epoch=next_era(standing.epoch)), now_ms).epoch == taken_up(next_era(standing.epoch))
    tombstone = expired(standing, now_ms)
    assert (tombstone.position, tombstone.live, tombstone.metadata) == (standing.position, False, "")
    assert tombstone.committed_at_ms == now_ms
    if standing.offset < 2**64 - 1:
        assert merge(standing._replace(offset=standing.offset + 1), tombstone).live


class Step(NamedTuple):
    """The next action of one of the adapters."""

    who: int
    what: str  # "commit", "rewind", "flush", "flush again", "adopt"
    offset: int


STEPS = st.builds(
    Step, st.integers(0, 2), st.sampled_from(["commit", "rewind", "flush", "flush again", "adopt"]), st.integers(0, 9)
)


class Cluster:
    """Adapters that do not know each other, and a Meta Service, as registers only."""

    def __init__(self, begin: OffsetRecord | None) -> None:
        self.there = begin
        self.here: list[OffsetRecord | None] = [None, begin, begin]
        self.sent: list[list[OffsetRecord]] = [[], [], []]
        self.now_ms = 0

    def take(self, step: Step) -> None:
        """One step of one adapter."""
        self.now_ms += 1
        local = self.here[step.who]
        if step.what == "adopt":
            self.here[step.who] = meet(local, self.there) if local and self.there else local or self.there
        elif step.what == "flush" and local:
            self.sent[step.who].append(local)
            self._save(local)
        elif step.what == "flush again":
            for late in self.sent[step.who]:
                self._save(late)
        elif step.what in {"commit", "rewind"} and (step.what == "commit" or (local and local.epoch)):
            mode = OVERWRITE if step.what == "rewind" else INCREASE
            self.here[step.who] = decide(at(step.offset, 0, self.now_ms), local, mode)

    def reset(self, offset: int) -> OffsetRecord:
        """An admin resets the record in the Meta Service."""
        self.now_ms += 1
        wanted = at(offset, next_era(self.there.epoch if self.there else 1), self.now_ms)
        self._save(wanted)
        return wanted

    def _save(self, offered: OffsetRecord) -> None:
        after = saved(offered, self.there).standing
        assert after is not None
        assert self.there is None or after >= self.there
        self.there = after


@given(st.none() | st.just(record(4)), st.lists(STEPS, max_size=12), st.integers(0, 9), st.lists(STEPS, max_size=12))
def test_any_interleaving_of_adapters_with_a_reset_ends_at_or_above_it(
    begin: OffsetRecord | None, before: list[Step], offset: int, after: list[Step]
) -> None:
    """Commits, rewinds, flushes, duplicates, an adapter without epochs: none undoes it or moves back (2, 7)."""
    cluster = Cluster(begin)
    for step in before:
        cluster.take(step)
    reset = cluster.reset(offset)
    for step in [*after, *(Step(who, what, 0) for what in ("flush", "flush again", "adopt") for who in range(3))]:
        cluster.take(step)
    assert cluster.there is not None
    assert cluster.there >= reset
    assert all(local is not None and local >= reset for local in cluster.here)


def test_nothing_from_before_a_reset_moves_it_and_what_comes_after_it_counts() -> None:
    """An example of the property: an adapter without a connection that rewound a thousand times (7)."""
    reset = at(2, next_era(1), 50)
    assert saved(at(900, 1001, 60), reset).standing == reset
    assert saved(at(900, 0, 40), reset).standing == reset
    assert saved(at(3, 0, 60), reset).standing == reset
    assert saved(at(3, 0, 51 + HOLD_MS), reset) == SaveOutcome(APPLIED, at(3, TAKEN, 51 + HOLD_MS))
    assert saved(at(3, TAKEN, 40), reset) == SaveOutcome(APPLIED, at(3, TAKEN, 40))
