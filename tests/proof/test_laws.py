"""The laws by which records merge, for all values: the production code on symbols. docs/design/laws.md lists them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from adapter.metaservice.engine import decide_save
from adapter.model.records import (
    EPOCH_LIMIT,
    EPOCH_MAX,
    ERA_BITS,
    FIRST_EPOCH,
    HOLD_MS,
    LOWER_HALF,
    U64_MAX,
    CommitMode,
    OffsetRecord,
    SaveEntry,
    SaveOutcome,
    Status,
    as_first,
    as_seen,
    decide,
    deleted,
    epoch_problem,
    exhausted,
    expired,
    is_deleted,
    is_held,
    meet,
    merge,
    next_era,
    resolve,
    taken_up,
)
from adapter.sidecar.ledger.group_state import GroupStates
from adapter.sidecar.ledger.rules import decide_commit
from tests.proof.symbolic import EPOCHS, KNOWN_EPOCHS, NOTHING, U64, Range, Records, assume, search
from tests.unit.helpers import key

# With labels (topic, partition, metadata), which are compared last, a law over three records takes a minute instead of a second.
OFFERED, STORED, LABELLED = Records(), Records(KNOWN_EPOCHS), Records(labels=True)
ACCEPTED = Range(0, EPOCH_LIMIT)
KNOWN_ACCEPTED, NOT_RAISED = Range(1, EPOCH_LIMIT), Range(0, FIRST_EPOCH)
INCREASE, OVERWRITE = CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE

Law = Callable[..., bool]
LAWS: dict[str, tuple[Law, tuple[Records | Range, ...]]] = {}


def law(*inputs: Records | Range) -> Callable[[Law], Law]:
    """A law over any such inputs; its docstring is its text in the documents."""

    def add(function: Law) -> Law:
        LAWS[function.__name__] = function, inputs
        return function

    return add


def saved(offered: OffsetRecord, standing: OffsetRecord | None) -> SaveOutcome:
    """The Meta Service's answer to a save without an expected offset."""
    return decide_save(SaveEntry(key(), offered), standing)


def stands(outcome: SaveOutcome) -> OffsetRecord:
    """The stored record after a save that leaves one."""
    assert outcome.standing is not None
    return outcome.standing


def commute(a: OffsetRecord, b: OffsetRecord, standing: OffsetRecord | None) -> bool:
    """Whether two saves end in the same record in either order; `standing` is None for an absent key."""
    return saved(a, saved(b, standing).standing).standing == saved(b, saved(a, standing).standing).standing


def below_the_last_rewind(record: OffsetRecord) -> None:
    """Not the last epoch of an era, which no key reaches: 4,294,967,295 rewinds without a reset."""
    assume((record.epoch & LOWER_HALF) < LOWER_HALF - 1)


# ---- the register: merge


@law(LABELLED)
def merge_is_idempotent(a: OffsetRecord) -> bool:
    """A record merged with itself is itself."""
    return merge(a, a) == a


@law(LABELLED, LABELLED)
def merge_is_commutative(a: OffsetRecord, b: OffsetRecord) -> bool:
    """The order of two writes does not matter."""
    return merge(a, b) == merge(b, a)


@law(OFFERED, OFFERED, OFFERED)
def merge_is_associative(a: OffsetRecord, b: OffsetRecord, c: OffsetRecord) -> bool:
    """Batches may be cut anywhere."""
    return merge(a, merge(b, c)) == merge(merge(a, b), c)


@law(LABELLED, LABELLED)
def merge_is_the_least_upper_bound(a: OffsetRecord, b: OffsetRecord) -> bool:
    """It is one of the two, and below neither."""
    merged = merge(a, b)
    return merged >= a and merged >= b and merged in (a, b)


@law(OFFERED, OFFERED, OFFERED)
def merge_is_monotonic(a: OffsetRecord, b: OffsetRecord, c: OffsetRecord) -> bool:
    """A larger record never merges to a smaller one."""
    assume(a <= b)
    return merge(a, c) <= merge(b, c)


# ---- unknown epochs: resolve, meet, as_seen


@law(OFFERED)
def meet_is_idempotent(a: OffsetRecord) -> bool:
    """A record that meets itself is itself."""
    return meet(a, a) == a


@law(OFFERED, OFFERED)
def meet_is_commutative(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Two sides of a comparison find the same, whichever of them does not know its epoch."""
    return meet(a, b) == meet(b, a)


@law(OFFERED, OFFERED)
def meet_is_above_both_positions(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Recovery takes back neither what is local nor what is remote."""
    return meet(a, b) >= merge(a, b)


@law(OFFERED, STORED)
def meet_may_be_repeated(a: OffsetRecord, b: OffsetRecord) -> bool:
    """A push that is sent again changes nothing."""
    below_the_last_rewind(b)
    return meet(a, meet(a, b)) == meet(a, b)


@law(STORED, STORED)
def meet_is_merge_unless_a_record_expired(a: OffsetRecord, b: OffsetRecord) -> bool:
    """With known epochs and no tombstone it is the plain maximum."""
    assume(a.live == b.live)
    return meet(a, b) == merge(a, b)


@law(STORED, U64)
def a_reset_that_nobody_took_up_comes_back_over_its_own_expiry(held: OffsetRecord, now_ms: int) -> bool:
    """Taken up, as its tombstone is: an expiry that met a commit is taken back, by whoever still has the offset."""
    assume(held.live and is_held(held.epoch))
    return meet(held, expired(held, now_ms)) == held._replace(epoch=taken_up(held.epoch))


@law(STORED, STORED)
def only_its_own_expiry_takes_a_hold_up(held: OffsetRecord, other: OffsetRecord) -> bool:
    """With any other record a reset meets as its epoch says, also with the tombstone of a reset before or after it."""
    assume(is_held(held.epoch))
    assume(other.live or not held.live or other.position != (taken_up(held.epoch), held.offset))
    return meet(held, other) == merge(resolve(held, other), resolve(other, held))


@law(STORED, OFFERED)
def a_known_epoch_is_kept(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Except for a commit of a lower offset after an expiry in the same epoch, which gets the next one."""
    found = resolve(a, b)
    anew = a.live and not b.live and a.epoch == b.epoch and a.offset < b.offset and a.committed_at_ms > b.committed_at_ms
    return found == (a._replace(epoch=a.epoch + 1) if anew else a)


@law(Records(NOTHING), STORED)
def an_old_commit_without_an_epoch_undoes_no_rewind_reset_or_delete(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Invariant 7: with a time that is not after that of the record, and an epoch that was ever raised, it loses."""
    assume(a.committed_at_ms > 0)
    assume(a.committed_at_ms <= b.committed_at_ms)
    assume(b.epoch > FIRST_EPOCH)
    return meet(a, b) == b


@law(Records(NOTHING), STORED)
def a_held_reset_is_passed_by_no_commit_without_an_epoch_while_it_is_held(a: OffsetRecord, b: OffsetRecord) -> bool:
    """The hold of a reset, by the clocks of the two commits."""
    assume(is_held(b.epoch))
    assume(a.committed_at_ms > 0)
    assume(a.committed_at_ms <= b.committed_at_ms + HOLD_MS)
    return meet(a, b) == b


@law(Records(NOTHING), STORED)
def a_lower_commit_without_an_epoch_takes_nothing_up(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Over a live record, held or not, at whatever time, here and in the Meta Service."""
    assume(standing.live and offered.offset < standing.offset)
    return meet(offered, standing) == standing and decide(offered, standing, INCREASE) == standing


@law(Records(NOTHING), STORED)
def what_a_server_without_epochs_holds_is_seen_at_or_below_what_it_was_sent(remote: OffsetRecord, local: OffsetRecord) -> bool:
    """The same offset counts as the live local record itself."""
    assume(local.live and remote.offset == local.offset)
    return as_seen(remote, local) == local


# ---- a commit on its adapter: decide


def _is_not_below(after: OffsetRecord, standing: OffsetRecord) -> bool:
    return after.position >= standing.position


@law(OFFERED, OFFERED)
def an_increasing_commit_never_goes_back(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Invariant 2, by (epoch, offset)."""
    return _is_not_below(decide(offered, standing, INCREASE), standing)


@law(OFFERED, OFFERED)
def a_rewind_never_goes_back(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Its offset is lower and its epoch is higher."""
    return _is_not_below(decide(offered, standing, OVERWRITE), standing)


@law(OFFERED, OFFERED)
def a_held_record_is_not_taken_up_by_a_commit_without_an_epoch(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """While it is held such a commit changes nothing."""
    assume(is_held(standing.epoch))
    assume(not offered.epoch)
    return decide(offered, standing, OVERWRITE, holds=True) == standing


@law(OFFERED, STORED)
def an_increasing_commit_may_be_retried(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """An acknowledgement that was lost costs nothing."""
    below_the_last_rewind(standing)
    once = decide(offered, standing, INCREASE)
    return decide(offered, once, INCREASE).position == once.position


@law(Records(NOTHING), STORED)
def a_rewind_without_an_epoch_may_be_retried(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """The second one finds its own offset."""
    below_the_last_rewind(standing)
    once = decide(offered, standing, OVERWRITE)
    return decide(offered, once, OVERWRITE).position == once.position


@law(STORED, STORED)
def a_commit_of_an_older_epoch_changes_nothing(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """A consumer that does not know of a reset cannot undo it."""
    assume(taken_up(offered.epoch) < taken_up(standing.epoch))
    return decide(offered, standing, OVERWRITE) == standing


@law(OFFERED, OFFERED)
def an_acknowledged_offset_stands_unless_a_larger_one_does(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Invariant 3, for a commit that is not of an older epoch."""
    assume(not offered.epoch or taken_up(offered.epoch) >= taken_up(standing.epoch))
    after = decide(offered, standing, INCREASE)
    return after.offset >= offered.offset


# ---- resets, deletes, expiry


@law(EPOCHS, EPOCHS)
def a_reset_is_above_every_rewind_of_its_era(seen: int, rewound: int) -> bool:
    """Also above those that an adapter acknowledged while it could not reach the Meta Service."""
    assume((rewound >> ERA_BITS) <= (seen >> ERA_BITS))
    return next_era(seen) > rewound


@law(STORED, STORED, U64)
def a_delete_wins_over_everything_of_its_era(standing: OffsetRecord, late: OffsetRecord, now_ms: int) -> bool:
    """A save that was under way when the key was deleted does not bring it back."""
    assume((late.epoch >> ERA_BITS) <= (standing.epoch >> ERA_BITS))
    tombstone = deleted(standing, now_ms)
    return stands(saved(late, tombstone)) == tombstone if not exhausted(standing.epoch) else True


@law(STORED, U64)
def a_delete_is_a_delete(standing: OffsetRecord, now_ms: int) -> bool:
    """Its tombstone is known as that of a delete."""
    return is_deleted(deleted(standing, now_ms)) and is_deleted(deleted(standing, now_ms, held=True))


@law(STORED, U64)
def an_expiry_of_a_commit_is_no_delete(standing: OffsetRecord, now_ms: int) -> bool:
    """Unless it is that of a reset to offset 0 that nobody has passed: the same position, which both give to the next commit."""
    assume(standing.offset > 0)
    return not is_deleted(expired(standing, now_ms))


@law(STORED, STORED, U64)
def a_commit_acknowledged_before_the_expiry_wins_over_it(standing: OffsetRecord, late: OffsetRecord, now_ms: int) -> bool:
    """A larger live record of the same epoch."""
    below_the_last_rewind(standing)
    assume(late.live and late.epoch == taken_up(standing.epoch) and late.offset > standing.offset)
    return stands(saved(late, expired(standing, now_ms))) == late


# ---- the Meta Service: decide_save


@law(OFFERED, STORED)
def a_save_never_lowers_what_is_stored(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Invariant 2, whatever is sent: the whole record, not its position alone."""
    return stands(saved(offered, standing)) >= standing


@law(OFFERED, STORED)
def an_acknowledged_save_is_stored_or_passed(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Invariant 3."""
    outcome = saved(offered, standing)
    assume(outcome.status.acknowledged)
    return stands(outcome) >= offered


@law(OFFERED, STORED)
def a_save_may_be_repeated(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """A flush that is sent again changes nothing, whether it was lost, half applied or answered."""
    below_the_last_rewind(standing)
    below_the_last_rewind(offered)
    once = stands(saved(offered, standing))
    return stands(saved(offered, once)) == once


@law(OFFERED, STORED, U64)
def a_refused_save_changes_nothing(offered: OffsetRecord, standing: OffsetRecord, expected: int) -> bool:
    """CONFLICT and INVALID leave the record as it is."""
    outcome = decide_save(SaveEntry(key(), offered, expected), standing)
    assume(not outcome.status.acknowledged)
    return outcome.standing == standing


@law(OFFERED, STORED, U64)
def an_expected_offset_that_is_not_stored_conflicts(offered: OffsetRecord, standing: OffsetRecord, expected: int) -> bool:
    """Of two that expect the same offset only one wins, unless it saved that very offset."""
    assume((standing.offset if standing.live else 0) != expected)
    return decide_save(SaveEntry(key(), offered, expected), standing).status is Status.CONFLICT


@law(Records(KNOWN_ACCEPTED), Records(KNOWN_ACCEPTED), STORED)
def saves_of_known_epochs_commute(a: OffsetRecord, b: OffsetRecord, standing: OffsetRecord) -> bool:
    """Flushes of several adapters end in the same record in any order, where no tombstone stands or comes."""
    assume(a.live and b.live and standing.live)
    return commute(a, b, standing)


@law(Records(KNOWN_ACCEPTED), STORED)
def the_short_way_of_a_bulk_merge_is_the_rule(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """A live record of a known epoch over a live one: the larger one stands (`metaservice/bulk.py` compares bytes)."""
    assume(offered.live and standing.live)
    return stands(saved(offered, standing)) == merge(offered, standing)


@law(Records(NOTHING), Records(Range(FIRST_EPOCH, FIRST_EPOCH)))
def the_short_way_of_an_unknown_epoch_is_the_rule(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Over a live record in the first epoch it is that epoch, at whatever time."""
    assume(standing.live)
    return stands(saved(offered, standing)) == stands(saved(offered._replace(epoch=FIRST_EPOCH), standing))


# ---- decide_save: a key that is not there


@law(Records(ACCEPTED, labels=True))
def a_first_save_is_stored_as_it_was_sent(offered: OffsetRecord) -> bool:
    """A tombstone, too. An unknown epoch becomes the first one."""
    return saved(offered, None) == SaveOutcome(Status.APPLIED, as_first(offered))


@law(Records(Range(EPOCH_LIMIT + 1, U64_MAX)))
def a_first_save_over_the_limit_is_refused(offered: OffsetRecord) -> bool:
    """INVALID, and the key stays absent."""
    return saved(offered, None)[:2] == (Status.INVALID, None)


@law(OFFERED, U64)
def a_first_save_that_is_refused_leaves_the_key_absent(offered: OffsetRecord, expected: int) -> bool:
    """CONFLICT and INVALID store nothing."""
    outcome = decide_save(SaveEntry(key(), offered, expected), None)
    return outcome.status.acknowledged or outcome.standing is None


@law(OFFERED, U64)
def an_absent_key_is_expected_to_be_at_offset_0(offered: OffsetRecord, expected: int) -> bool:
    """Any other expected offset conflicts; with 0 a save is as one without."""
    outcome = decide_save(SaveEntry(key(), offered, expected), None)
    return outcome[:2] == ((Status.CONFLICT, None) if expected else saved(offered, None)[:2])


@law(Records(ACCEPTED), OFFERED)
def of_two_that_expect_an_absent_key_only_one_wins(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Unless it saved that very offset, 0, or a tombstone."""
    assume(a.live and a.offset > 0)
    once = stands(decide_save(SaveEntry(key(), a, 0), None))
    return decide_save(SaveEntry(key(), b, 0), once) == SaveOutcome(Status.CONFLICT, once)


@law(Records(ACCEPTED), STORED)
def an_absent_key_is_below_every_record(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """The same save ends at least as high where a record stood."""
    return stands(saved(offered, standing)) >= stands(saved(offered, None))


@law(Records(ACCEPTED), Records(ACCEPTED))
def a_larger_first_save_never_ends_below_a_smaller_one(a: OffsetRecord, b: OffsetRecord) -> bool:
    """The unknown epoch compares as the first one."""
    assume(as_first(a) <= as_first(b))
    return stands(saved(a, None)) <= stands(saved(b, None))


@law(Records(ACCEPTED, labels=True))
def a_first_save_may_be_repeated(offered: OffsetRecord) -> bool:
    """The second one is answered as the first, in the last epoch of an era as well."""
    once = saved(offered, None)
    return saved(offered, once.standing) == once


@law(Records(KNOWN_ACCEPTED), Records(KNOWN_ACCEPTED))
def first_saves_of_known_epochs_commute(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Two adapters that both have a key first end in the same record in any order, where neither sends a tombstone."""
    assume(a.live and b.live)
    return commute(a, b, None)


@law(Records(NOT_RAISED), Records(NOT_RAISED))
def first_saves_of_no_raised_epoch_commute(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Whether each names the first epoch or none, at whatever times: the larger offset stands."""
    assume(a.live and b.live)
    return commute(a, b, None)


@law(Records(KNOWN_ACCEPTED), Records(KNOWN_ACCEPTED))
def a_first_save_that_comes_again_behind_another_changes_nothing(a: OffsetRecord, b: OffsetRecord) -> bool:
    """A late repeat of a known epoch, where neither is a tombstone."""
    assume(a.live and b.live)
    both = stands(saved(b, stands(saved(a, None))))
    return stands(saved(a, both)) == both


@law(Records(ACCEPTED), Records(ACCEPTED))
def two_first_saves_end_at_the_offset_of_one_of_them(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Not below either, by (epoch, offset); of any epochs, live or not."""
    found = stands(saved(b, stands(saved(a, None))))
    return found.offset in (a.offset, b.offset) and found >= as_first(a) and found >= as_first(b)


@law(STORED, Records(ACCEPTED), U64)
def a_delete_of_an_absent_key_wins_over_everything_of_its_era(seen: OffsetRecord, late: OffsetRecord, now_ms: int) -> bool:
    """The tombstone that an adapter sends comes before or after a save of a known epoch that was under way."""
    tombstone = deleted(seen, now_ms)
    assume(tombstone.epoch <= EPOCH_LIMIT)
    assume(late.epoch > 0 and (late.epoch >> ERA_BITS) <= (seen.epoch >> ERA_BITS))
    return commute(late, tombstone, None) and stands(saved(late, stands(saved(tombstone, None)))) == tombstone


@law(STORED, STORED, U64)
def an_expiry_of_an_absent_key_gives_way_to_a_larger_commit(seen: OffsetRecord, late: OffsetRecord, now_ms: int) -> bool:
    """Of the same epoch, acknowledged before it or after, in any order."""
    tombstone = expired(seen, now_ms)
    assume(tombstone.epoch <= EPOCH_LIMIT)
    assume(late.live and late.epoch == tombstone.epoch and late.offset >= tombstone.offset)
    return commute(late, tombstone, None) and stands(saved(late, stands(saved(tombstone, None)))) == late


@law(Records(KNOWN_ACCEPTED), STORED, U64)
def a_delete_of_an_absent_key_and_a_save_commute(late: OffsetRecord, seen: OffsetRecord, now_ms: int) -> bool:
    """Whichever of them is of the higher era, if the save knows its epoch."""
    tombstone = deleted(seen, now_ms)
    assume(tombstone.epoch <= EPOCH_LIMIT)
    return commute(late, tombstone, None)


@law(Records(NOT_RAISED), NOT_RAISED)
def a_first_commit_may_be_retried(offered: OffsetRecord, known: int) -> bool:
    """On its adapter, in either mode, whether it knows that the Meta Service has nothing there, or does not know its epoch."""
    assume(offered.epoch <= known)
    states = GroupStates()
    if known:
        states.note_loaded([key().group_key])
    once = decide_commit(key(), offered, None, INCREASE, states)
    again = [decide_commit(key(), offered, once, mode, states) for mode in CommitMode]
    return once.position == (known, offered.offset) and all(each.position == once.position for each in again)


# ---- epochs from outside


@law(U64, EPOCHS)
def an_epoch_that_is_taken_fits(offered: int, standing: int) -> bool:
    """No accepted epoch is over the largest that is stored."""
    assume(not epoch_problem(offered, standing))
    return offered <= EPOCH_MAX or offered <= standing


@law(Records(Range(EPOCH_LIMIT + 1, U64_MAX)), STORED)
def a_save_of_an_epoch_that_is_far_above_is_refused(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """Over the limit and more than one reset above what stands: INVALID, and nothing is changed."""
    assume((offered.epoch >> ERA_BITS) > (standing.epoch >> ERA_BITS) + 1)
    outcome = saved(offered, standing)
    return outcome.status is Status.INVALID and outcome.standing == standing


@law(ACCEPTED)
def an_epoch_from_outside_leaves_room_for_resets(epoch: int) -> bool:
    """2**30 of them: no caller can use up a key's epochs with one save."""
    return (next_era(epoch) >> ERA_BITS) + 2**30 - 1 <= EPOCH_MAX >> ERA_BITS


@law(EPOCHS)
def a_reset_above_the_limit_is_taken(standing: int) -> bool:
    """A record from before the limit can still be reset, unless it is exhausted."""
    assume(standing > 0)
    assume(not exhausted(standing))
    return not epoch_problem(next_era(standing), standing) and not epoch_problem(taken_up(next_era(standing)), standing)


# ---- what does not hold, and why it is harmless: docs/design/laws.md

BROKEN: dict[str, tuple[Law, tuple[Records | Range, ...]]] = {}
EXAMPLES: dict[str, tuple[OffsetRecord | int, ...]] = {}


def no_law(*inputs: Records | Range, example: tuple[OffsetRecord | int, ...]) -> Callable[[Law], Law]:
    """A sentence that is not true of all such inputs, as the example shows; its docstring says why that is harmless."""

    def add(function: Law) -> Law:
        BROKEN[function.__name__] = function, inputs
        EXAMPLES[function.__name__] = example
        return function

    return add


def at(epoch: int, offset: int, time: int) -> OffsetRecord:
    """A live record of an example."""
    return OffsetRecord(epoch, offset, committed_at_ms=time)


def tombstone_at(epoch: int, offset: int, time: int) -> OffsetRecord:
    """A tombstone of one."""
    return at(epoch, offset, time)._replace(live=False)


@no_law(OFFERED, OFFERED, STORED, example=(at(0, 1, 2), at(2, 1, 1), at(1, 1, 1)))
def meet_is_associative(a: OffsetRecord, b: OffsetRecord, c: OffsetRecord) -> bool:
    """What an unknown epoch means depends on what it meets first. An adapter asks for the epoch before it keeps one."""
    return meet(a, meet(b, c)) == meet(b, meet(a, c))


@no_law(Records(NOTHING), Records(NOTHING), Records(KNOWN_ACCEPTED), example=(at(0, 1, 2), at(0, 2, 1), tombstone_at(1, 2, 1)))
def saves_without_epochs_commute(a: OffsetRecord, b: OffsetRecord, standing: OffsetRecord) -> bool:
    """Over a tombstone the first one begins an epoch, and what comes second is older or is in it: one of both stands."""
    assume(a.live and b.live and not standing.live)
    return commute(a, b, standing)


@no_law(
    Records(KNOWN_ACCEPTED),
    Records(KNOWN_ACCEPTED),
    Records(KNOWN_ACCEPTED),
    example=(at(1, 1, 2), at(1, 2, 1), tombstone_at(1, 2, 1)),
)
def saves_over_an_expiry_commute(a: OffsetRecord, b: OffsetRecord, standing: OffsetRecord) -> bool:
    """Only the lower of two offsets begins an epoch, if it was committed after the expiry and comes first: nothing is skipped."""
    assume(a.live and b.live and not standing.live)
    return commute(a, b, standing)


@no_law(Records(KNOWN_ACCEPTED), Records(KNOWN_ACCEPTED), example=(tombstone_at(1, 2, 1), at(1, 1, 2)))
def first_saves_commute_where_one_is_a_tombstone(a: OffsetRecord, b: OffsetRecord) -> bool:
    """A tombstone of an expiry that comes second hides a lower commit made after it, until the next commit: see below."""
    assume(not a.live and b.live)
    return commute(a, b, None)


@no_law(Records(NOTHING), Records(KNOWN_ACCEPTED), example=(at(0, 2, 2), at(2, 1, 1)))
def first_saves_commute_where_only_one_knows_its_epoch(a: OffsetRecord, b: OffsetRecord) -> bool:
    """Coming first, it counts as older than the other's rewind or reset; coming second, its time decides. One of both stands."""
    assume(a.live and b.live)
    return commute(a, b, None)


@no_law(STORED, STORED, example=(at(EPOCH_LIMIT, 1, 1), at(EPOCH_LIMIT + 1, 1, 1)))
def first_saves_over_the_limit_commute(a: OffsetRecord, b: OffsetRecord) -> bool:
    """The one over the limit is refused if it comes first, and its adapter is told. It takes 2**30 resets to get there."""
    assume(a.live and b.live)
    return commute(a, b, None)


@no_law(Records(NOTHING), Records(KNOWN_ACCEPTED), example=(at(0, 2, 2), at(2, 1, 1)))
def a_save_without_an_epoch_may_come_again_behind_another(a: OffsetRecord, b: OffsetRecord) -> bool:
    """It is taken up if it was committed after what raised the epoch: its consumer had that offset then."""
    assume(a.live and b.live)
    both = stands(saved(b, stands(saved(a, None))))
    return stands(saved(a, both)) == both


@no_law(Records(ACCEPTED), example=(at(0, 1, 1),))
def a_save_that_expects_an_absent_key_may_be_repeated(offered: OffsetRecord) -> bool:
    """The second one conflicts with what the first one stored, and changes nothing. Who is told so reads what stands."""
    entry = SaveEntry(key(), offered, 0)
    once = decide_save(entry, None)
    return decide_save(entry, once.standing) == once


@no_law(OFFERED, STORED, example=(at(0, 1, 0), tombstone_at(LOWER_HALF, 2, 1)))
def a_save_may_be_repeated_in_the_last_epoch_of_an_era(offered: OffsetRecord, standing: OffsetRecord) -> bool:
    """The next one looks like a reset, which the second save takes up. It takes 4,294,967,295 rewinds; no offset is lost."""
    return stands(saved(offered, stands(saved(offered, standing)))) == stands(saved(offered, standing))


@no_law(STORED, U64, example=(at(LOWER_HALF + 1, 0, 1), 5))
def no_expiry_is_a_delete(standing: OffsetRecord, now_ms: int) -> bool:
    """That of a reset to offset 0 that nobody has passed looks like one. The next commit begins at offset 0 in both."""
    return not is_deleted(expired(standing, now_ms))


@pytest.mark.parametrize("name", LAWS)
def test_a_law_holds_for_all_values(name: str) -> None:
    """No path through the code has values that break it, and some path satisfies its conditions."""
    function, inputs = LAWS[name]
    found = search(function, *inputs)
    assert found.counterexample is None, f"{name}: broken by {found.counterexample}"
    assert found.checked


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_said_to_be_no_law_has_a_counterexample(name: str) -> None:
    """Found by the solver, and that of the documents. Else they would excuse something that is gone."""
    function, inputs = BROKEN[name]
    found = search(function, *inputs)
    assert found.counterexample is not None
    assert not function(*found.counterexample)
    assert not function(*EXAMPLES[name])


def test_every_law_is_in_the_documents() -> None:
    """With its text, in the order of this file; what is no law with its example."""
    page = Path("docs/design/laws.md").read_text(encoding="utf-8")
    rows = [_row(name, function) for name, (function, _) in LAWS.items()]
    rows += [f"{_row(name, function)} {_shown(name, function)} |" for name, (function, _) in BROKEN.items()]
    assert [row for row in rows if f"{row}\n" not in page] == [], "add or correct these"
    places = [page.index(row) for row in rows]
    assert places == sorted(places)


def _row(name: str, function: Law) -> str:
    return f"| {name.replace('_', ' ')} | {' '.join((function.__doc__ or '').split())} |"


def _shown(name: str, function: Law) -> str:
    names = function.__code__.co_varnames
    return "; ".join(f"{each}: {_told(value)}" for each, value in zip(names, EXAMPLES[name], strict=False))


def _told(value: OffsetRecord | int) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{'' if value.live else 'tombstone '}({value.epoch:,}, {value.offset:,}) of {value.committed_at_ms:,}"
