"""The register: `merge`, `resolve`, `decide`, and which names are valid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvalidInputError
from adapter.model.names import METADATA_MAX_BYTES, check_metadata, check_name, check_topic, name_problem
from adapter.model.records import CommitMode, OffsetRecord, Status, as_seen, decide, meet, merge, resolve
from tests.unit.helpers import RECORDS, U64, key, record, tombstone

STANDING = st.none() | RECORDS
INCREASE, OVERWRITE = CommitMode.INCREASE_ONLY, CommitMode.OVERWRITE
LOW_EPOCHS = RECORDS.map(lambda found: found._replace(epoch=found.epoch % 1000))
LIVE = LOW_EPOCHS.map(lambda found: found._replace(live=True))
HINTLESS = RECORDS.map(lambda found: found._replace(epoch=0, live=True))


@given(RECORDS)
def test_merge_is_idempotent(a: OffsetRecord) -> None:
    """A record that arrives twice changes nothing (2)."""
    assert merge(a, a) == a


@given(RECORDS, RECORDS)
def test_merge_is_commutative(a: OffsetRecord, b: OffsetRecord) -> None:
    """The order of two records does not matter (2)."""
    assert merge(a, b) == merge(b, a)


@given(RECORDS, RECORDS, RECORDS)
def test_merge_is_associative(a: OffsetRecord, b: OffsetRecord, c: OffsetRecord) -> None:
    """The grouping of several records does not matter (2)."""
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(RECORDS, RECORDS)
def test_merge_never_goes_backwards(a: OffsetRecord, b: OffsetRecord) -> None:
    """The result is one of both, and at least each of them in (epoch, offset) (2)."""
    merged = merge(a, b)
    assert merged.position == max(a.position, b.position)
    assert merged in {a, b}


@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        (record(0, 2), record(9, 1)),
        (record(9, 1), record(8, 1)),
        (record(5, committed_at_ms=2), record(5, committed_at_ms=1)),
        (record(5, committed_at_ms=1, metadata="b"), record(5, committed_at_ms=1, metadata="a")),
        (record(0, 3), tombstone(3)),
        (tombstone(3), record(9, 2)),
    ],
    ids=["epoch", "offset", "time", "metadata", "live above a tombstone in its epoch", "tombstone above older epochs"],
)
def test_records_are_ordered_by_epoch_offset_live_time_metadata(larger: OffsetRecord, smaller: OffsetRecord) -> None:
    """The order of the register, field by field."""
    assert merge(larger, smaller) == merge(smaller, larger) == larger


@given(LIVE)
def test_a_record_of_unknown_epoch_takes_the_epoch_that_stands(standing: OffsetRecord) -> None:
    """Epoch 0 means that the writer knows no epoch. When it was committed decides only over raised epochs: see test_epochs."""
    assert resolve(record(7, 0), standing) == record(7, standing.epoch)


@given(RECORDS.filter(lambda found: found.epoch > 0), STANDING)
def test_a_known_epoch_is_not_changed_but_by_an_expiry(offered: OffsetRecord, standing: OffsetRecord | None) -> None:
    """Epoch 0 is filled in. A live record committed after an expiry in its epoch, of a lower offset, gets the next epoch."""
    raised = (
        standing is not None
        and offered.live
        and not standing.live
        and offered.epoch == standing.epoch
        and offered.offset < standing.offset
        and offered.committed_at_ms > standing.committed_at_ms
    )
    assert resolve(offered, standing) == offered._replace(epoch=offered.epoch + raised)


def test_an_unknown_epoch_that_meets_nothing_stays_unknown() -> None:
    """The Meta Service decides what the first epoch is."""
    assert resolve(record(7, 0), None) == record(7, 0)
    assert meet(record(7, 0), None) == record(7, 0)


@given(RECORDS, RECORDS)
def test_meet_does_not_depend_on_who_was_first(a: OffsetRecord, b: OffsetRecord) -> None:
    """The result is the same in both directions, whichever epoch is unknown."""
    assert meet(a, b) == meet(b, a)
    assert meet(a, a) == a


@given(RECORDS, RECORDS)
def test_meet_never_goes_backwards(a: OffsetRecord, b: OffsetRecord) -> None:
    """The result is at least each of both records (2)."""
    assert meet(a, b).position >= max(a.position, b.position)


@given(U64, U64)
def test_an_unknown_epoch_is_resolved_in_either_direction(local: int, remote: int) -> None:
    """A local epoch 0 joins the remote epoch, in which the larger offset stands."""
    assert meet(record(remote, 4), record(local, 0)) == record(max(local, remote), 4)
    assert meet(record(remote, 0), record(local, 4)) == record(max(local, remote), 4)


@given(RECORDS, st.sampled_from(CommitMode))
def test_the_first_commit_of_a_key_stands_as_it_is(offered: OffsetRecord, mode: CommitMode) -> None:
    """An absent key is not offset 0, so there is nothing to compare with."""
    assert decide(offered, None, mode) == offered


@given(RECORDS, LOW_EPOCHS, st.sampled_from(CommitMode))
def test_no_commit_moves_a_key_backwards(offered: OffsetRecord, standing: OffsetRecord, mode: CommitMode) -> None:
    """In any mode (epoch, offset) never decreases (2)."""
    assert decide(offered, standing, mode).position >= standing.position


@given(HINTLESS, LIVE)
def test_increase_only_keeps_the_epoch_and_the_larger_offset(offered: OffsetRecord, standing: OffsetRecord) -> None:
    """A lower offset changes nothing; a commit without an epoch gets the stored one."""
    assert decide(offered, standing, INCREASE).position == (standing.epoch, max(offered.offset, standing.offset))


def test_a_lower_offset_leaves_the_whole_record_as_it_was() -> None:
    """Time, metadata and topic stay with the stored offset."""
    standing = record(10, 3, committed_at_ms=5, metadata="kept", topic="t", partition=4)
    assert decide(record(9, committed_at_ms=99, metadata="new"), standing, INCREASE) == standing


@given(HINTLESS, LIVE)
def test_overwrite_always_ends_at_the_offset_that_was_asked_for(offered: OffsetRecord, standing: OffsetRecord) -> None:
    """A lower offset is a rewind into the next epoch; any other stays in the epoch."""
    rewind = offered.offset < standing.offset
    assert decide(offered, standing, OVERWRITE).position == (standing.epoch + rewind, offered.offset)


def test_a_commit_brings_a_deleted_key_back_in_the_epoch_of_its_tombstone() -> None:
    """Also at offset 0: a live record wins over the tombstone."""
    assert decide(record(0, 0), tombstone(4), INCREASE) == record(0, 4)
    assert decide(record(0, 0), tombstone(4), OVERWRITE) == record(0, 4)


def test_only_applied_and_superseded_acknowledge() -> None:
    """A key is clean only when the Meta Service holds at least its value (3)."""
    assert {status for status in Status if status.acknowledged} == {Status.APPLIED, Status.SUPERSEDED}


@pytest.mark.parametrize("name", ["a", "a" * 255, "ä" * 127 + "a", "\U0001f600" * 63 + "abc", "a/b_c:d e", "\u2028", " ", "\xa0"])
def test_names_up_to_255_bytes_of_any_printable_text_are_names(name: str) -> None:
    """No separator is special, because keys have none."""
    assert name_problem(name) is None
    assert check_name(name, "group") == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is empty"),
        ("a" * 256, "is 256 bytes long; at most 255 are allowed"),
        ("ä" * 128, "is 256 bytes long; at most 255 are allowed"),
        ("\U0001f600" * 64, "is 256 bytes long; at most 255 are allowed"),
    ],
    ids=["empty", "256 ASCII", "128 of two bytes", "64 of four bytes"],
)
def test_a_name_is_measured_in_bytes(name: str, problem: str) -> None:
    """255 bytes of UTF-8, not characters."""
    assert name_problem(name) == problem


def test_every_control_character_is_named_with_its_place() -> None:
    """C0, DEL and C1: the message says which and where (10)."""
    for code in (*range(0x20), *range(0x7F, 0xA0)):
        with pytest.raises(InvalidInputError, match=f"^shard has the control character U\\+{code:04X} at position 2$"):
            check_name(f"ab{chr(code)}c", "shard")


def test_metadata_is_measured_in_bytes() -> None:
    """4,096 bytes pass, one more does not, whatever the characters (10)."""
    for text in ("m" * METADATA_MAX_BYTES, "ä" * (METADATA_MAX_BYTES // 2), ""):
        assert check_metadata(text, "metadata") == text
    for text in ("m" * (METADATA_MAX_BYTES + 1), "ä" * (METADATA_MAX_BYTES // 2) + "a", "\U0001f600" * 1025):
        with pytest.raises(InvalidInputError, match=rf"^metadata is {len(text.encode())} bytes long; at most 4096 are allowed$"):
            check_metadata(text, "metadata")


def test_a_topic_may_be_empty_but_not_bad() -> None:
    """It is an optional label; if set, the rules of names apply."""
    assert check_topic("", "topic") == ""
    with pytest.raises(InvalidInputError, match=r"^topic has the control character U\+000A at position 1$"):
        check_topic("a\nb", "topic")


def test_a_key_knows_its_group() -> None:
    """Loads and reads work group by group."""
    assert key("s", "g", "n").group_key == ("n", "g")


def test_a_remote_record_without_epochs_counts_as_in_the_local_epoch() -> None:
    """Such a server has neither metadata nor time: with the same offset, the local record counts."""
    local = record(5, 3, metadata="m", committed_at_ms=9)
    assert as_seen(record(5, 0), local) == local
    assert as_seen(record(6, 0), local) == record(6, 3)
    assert as_seen(record(6, 0), None) == record(6, 1)
    assert as_seen(record(0, 0), tombstone(3)) == record(0, 3)
    assert as_seen(record(1, 2), local) == record(1, 2)
