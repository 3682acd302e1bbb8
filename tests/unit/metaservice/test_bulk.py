"""Packed entries are decided and checked as single saves are, and a listing is divided into equal parts."""

from collections.abc import Sequence
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapter.metaservice.bulk import EPOCH, FIRST, LIVE, TIME, Cuts, KeySample, Merge, RangeSample
from adapter.metaservice.engine import MergeCounts, Parts, decide_save
from adapter.model.codec import encode_key, encode_record
from adapter.model.records import EPOCH_LIMIT, EPOCH_MAX, OffsetRecord, SaveEntry, Status, next_era
from tests.unit.helpers import key, record, tombstone

NOW_MS = 1_000
EPOCHS = (1, 2, 2**32)
HIGH = (EPOCH_LIMIT, EPOCH_LIMIT + 1, next_era(EPOCH_LIMIT), next_era(EPOCH_LIMIT) + 2**33, EPOCH_MAX - 1, EPOCH_MAX)
VALUES = product((0, 2, 3), (True, False), (0, NOW_MS - 1, NOW_MS), ("", "m"), (("", 0), ("", 1), ("t", 0)))
FIELDS = [(offset, live, at_ms, metadata, *label) for offset, live, at_ms, metadata, label in VALUES]
STANDING = [None, *(OffsetRecord(epoch, *fields) for epoch, fields in product(EPOCHS, FIELDS))]
OFFERED = [OffsetRecord(epoch, *fields) for epoch, fields in product((0, *EPOCHS), FIELDS)]
KEY = encode_key(key())


def packed(found: OffsetRecord | None) -> bytes | None:
    """The stored form."""
    return None if found is None else encode_record(found)


def test_the_fields_are_where_the_codec_puts_them() -> None:
    """The packed form is that of codec.py."""
    data = encode_record(OffsetRecord(epoch=1, offset=2, live=True, committed_at_ms=NOW_MS), seq=7)
    assert (data[EPOCH], data[TIME], data[LIVE]) == (FIRST, NOW_MS.to_bytes(8, "big"), 1)
    assert encode_record(tombstone(1))[LIVE] == 0


def test_a_packed_record_becomes_what_settle_makes_of_it() -> None:
    """`decide_save` gives the same status and the same stored bytes, for any records (2)."""
    # No field has seven values: over all that may stand, each pair of values meets.
    for at, standing in enumerate(STANDING):
        for offered in OFFERED[at % 7 :: 7]:
            merge = Merge()
            changes = merge.changes([KEY], [encode_record(offered)], [packed(standing)])
            wanted = decide_save(SaveEntry(key(), offered), standing)
            assert merge.counts == _counts([wanted.status]), (standing, offered)
            assert changes == ({} if wanted.standing == standing else {KEY: packed(wanted.standing)}), (standing, offered)


HIGH_FIELDS = [(2, True, NOW_MS), (3, True, NOW_MS - 1), (3, False, NOW_MS), (0, False, NOW_MS)]
HIGH_STANDING = [None, *(OffsetRecord(epoch, *fields) for epoch, fields in product((1, *HIGH), HIGH_FIELDS))]
HIGH_OFFERED = [OffsetRecord(epoch, *fields) for epoch, fields in product((0, 1, *HIGH), HIGH_FIELDS)]


def test_packed_records_of_high_epochs_become_what_settle_makes_of_them() -> None:
    """Also if `decide_save` refuses them: with the same message, and nothing is written (2)."""
    for both in product(HIGH_STANDING, HIGH_OFFERED):
        standing, offered = both
        merge = Merge()
        changes = merge.changes([KEY], [encode_record(offered)], [packed(standing)])
        wanted = decide_save(SaveEntry(key(), offered), standing)
        assert [message for _, message in merge.counts.rejected] == [wanted.message] * (wanted.status is Status.INVALID), both
        assert merge.counts[:2] == _counts([wanted.status])[:2], both
        assert changes == ({} if wanted.standing == standing else {KEY: packed(wanted.standing)}), both
        stands = max(standing.epoch if standing else 0, EPOCH_LIMIT)
        assert wanted.standing is None or wanted.standing.epoch <= min(next_era(next_era(stands)) - 1, EPOCH_MAX)


@given(st.integers(0, EPOCH_MAX), st.integers(0, 2**64 - 1), st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans())
def test_any_epochs_are_decided_alike(standing: int, offered: int, here: int, there: int, live: bool, lives: bool) -> None:
    """In both forms of a save; no stored epoch exceeds the largest."""
    stands = OffsetRecord(standing, here, live, NOW_MS) if standing else None
    record = OffsetRecord(offered, there, lives, NOW_MS)
    merge = Merge()
    changes = merge.changes([KEY], [encode_record(record)], [packed(stands)])
    wanted = decide_save(SaveEntry(key(), record), stands)
    assert changes == ({} if wanted.standing == stands else {KEY: packed(wanted.standing)})
    assert [message for _, message in merge.counts.rejected] == [wanted.message] * (wanted.status is Status.INVALID)
    assert wanted.standing is None or wanted.standing.epoch <= EPOCH_MAX


def test_the_places_of_what_is_refused_go_on_over_slices() -> None:
    """Indexes are those of the whole request."""
    merge = Merge()
    high = encode_record(record(1, EPOCH_MAX))
    for _ in range(2):
        merge.changes([KEY, KEY], [encode_record(record(1)), high], [None, None])
    assert [at for at, _ in merge.counts.rejected] == [1, 3]
    assert merge.counts[:2] == (2, 0)


FEW = [
    OffsetRecord(epoch, offset, live, at_ms)
    for epoch, offset, live, at_ms in product((0, *EPOCHS), (2, 3), (True, False), (NOW_MS - 1, NOW_MS))
]


def test_entries_of_one_key_count_one_after_the_other() -> None:
    """Each meets the result of those before it (2)."""
    for standing, first, second in product([None, *(found for found in FEW if found.epoch)], FEW, FEW[::3]):
        merge = Merge()
        changes = merge.changes([KEY, KEY], [encode_record(first), encode_record(second)], [packed(standing)] * 2)
        one = decide_save(SaveEntry(key(), first), standing)
        two = decide_save(SaveEntry(key(), second), one.standing)
        assert merge.counts == _counts([one.status, two.status])
        assert changes.get(KEY, packed(standing)) == packed(two.standing)


def test_slices_are_counted_together() -> None:
    """Entries that were stored already count as applied."""
    merge = Merge()
    data, less = encode_record(record(5)), encode_record(record(4))
    assert merge.changes([KEY], [data], [None]) == {KEY: data}
    assert merge.changes([KEY], [data], [data]) == {}
    assert merge.changes([KEY], [less], [data]) == {}
    assert merge.counts == MergeCounts(applied=2, superseded=1)


def _counts(statuses: Sequence[Status]) -> MergeCounts:
    return MergeCounts(statuses.count(Status.APPLIED), statuses.count(Status.SUPERSEDED))


def cut(count: int, parts: int, step: int) -> Parts:
    """The parts of a sequence of this many keys, added in slices of `step`; a key is its index."""
    cuts = Cuts(parts)
    keys = [at.to_bytes(4, "big") for at in range(count)]
    for at in range(0, count, step):
        cuts.add(keys[at : at + step])
    return cuts.parts()


@given(st.integers(0, 3_000), st.integers(1, 40), st.integers(1, 700))
@example(3_000, 1, 1)
@example(1_025, 32, 500)
@example(41, 40, 7)
def test_the_parts_are_about_equal(count: int, parts: int, step: int) -> None:
    """No part is empty, none is off by more than 1/16 and one record, and all keys are counted."""
    found = cut(count, parts, step)
    assert found.records == count
    ends = [0, *(int.from_bytes(token, "big") + 1 for token in found.tokens), count]
    if not count:
        assert found.tokens == []
        return
    assert len(found.tokens) == min(parts, count) - 1
    sizes = [after - before for before, after in pairwise(ends)]
    assert all(size > 0 and abs(size - count / parts) <= max(1.0, count / parts / 16 + 1) for size in sizes)


@pytest.mark.parametrize("slices", [1, 3, 500])
def test_few_keys_are_cut_exactly(slices: int) -> None:
    """Every part ends at its last key."""
    assert [int.from_bytes(token, "big") for token in cut(100, 4, slices).tokens] == [24, 49, 74]


@given(st.integers(0, 2_000), st.integers(1, 700), st.integers(1, 20), st.randoms(use_true_random=False))
@example(2_000, 1, 10, Random(1))
def test_a_sample_divides_what_is_in_the_store(count: int, step: int, parts: int, random: Random) -> None:
    """In whatever order keys were added; with keys that have left again, and with keys beside the range."""
    sample = KeySample(limit=400)
    keys = [b"a" + at.to_bytes(4, "big") for at in range(count)]
    others = [b"b" + key for key in keys]
    mixed = random.sample(keys + others, 2 * count)
    for at in range(0, 2 * count, step):
        sample.add(mixed[at : at + step])
    for added in others:
        sample.remove(added)
    assert sample.parts(b"b", parts) == Parts([], 0)
    found = sample.parts(b"a", parts)
    assert abs(found.records - count) <= count / 2
    assert len(found.tokens) <= parts - 1
    assert found.tokens == sorted({*found.tokens} & {*keys})


def test_the_parts_of_a_sample_are_about_equal() -> None:
    """Though it has few of the keys."""
    sample = KeySample(limit=1_000)
    for at in range(0, 100_000, 500):
        sample.add([number.to_bytes(4, "big") for number in range(at, at + 500)])
    found = sample.parts(b"", 10)
    assert abs(found.records - 100_000) <= 1_000
    assert [round(int.from_bytes(token, "big") / 10_000) for token in found.tokens] == list(range(1, 10))


@given(st.lists(st.integers(1, 40), max_size=300), st.integers(1, 20))
@example([1] * 300, 3)
@example([40, 1, 1, 40], 20)
def test_counted_ranges_are_divided_where_they_begin(counts: list[int], parts: int) -> None:
    """No part is larger than its share and the ranges around it, of which four may have become one."""
    sample = RangeSample(limit=100)
    at = 0
    for count in counts:
        sample.add(at.to_bytes(4, "big"), count)
        at += count
    found = sample.parts(parts)
    assert found.records == sum(counts)
    assert len(found.tokens) <= parts - 1
    assert found.tokens == sorted({*found.tokens})
    ends = [0, *(int.from_bytes(token, "big") + 1 for token in found.tokens), at]
    assert {int.from_bytes(token, "big") for token in found.tokens} <= {sum(counts[:each]) for each in range(len(counts))}
    assert all(size <= at / parts + 1 + 8 * max(counts, default=0) for size in (high - low for low, high in pairwise(ends)))
