"""Parts merge in any order, any number of times; they are split by shard, and damaged bytes are refused."""

from random import Random
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.model.lag_rows import LagSettings
from adapter.pipeline.lag.part import Part, from_bytes, kept, merge, split, to_bytes
from adapter.pipeline.lag.runs import NULL, ints
from tests.pipeline.lag_batches import Journal, commit, gathered

SMALL = LagSettings(window_points=3, minimum_points=2, head_points=4, head_distance_ms=2_000)

_commits = st.fixed_dictionaries(
    {
        "seconds": st.integers(0, 12),
        "offset": st.integers(0, 3) | st.just(2**63 - 1),
        "head": st.none() | st.integers(0, 4),
        "low": st.integers(-1, 3),
        "epoch": st.sampled_from((0, 1, 1 << 32)),
        "live": st.booleans(),
        "group": st.sampled_from(("g", "h", "")),
        "shard": st.sampled_from(("T/0", "T/1", "ü")),
        "broker": st.sampled_from(("b1", "b2")),
        "kind": st.sampled_from(("flush", "flush", "reset", "heartbeat")),
        "seq": st.integers(0, 5),
        "log_id": st.sampled_from((None, "a", "b", "c")),
    }
)
_journals = st.lists(_commits.map(lambda values: commit(**values)), max_size=12)  # type: ignore[arg-type]


def part_of(rows: Journal) -> Part:
    """The rows as one merged part."""
    return merge([one.part for one in gathered(rows)], SMALL)


@settings(max_examples=settings().max_examples // 3)
@given(_journals, _journals, _journals)
def test_merging_is_commutative_associative_and_idempotent(one: Journal, other: Journal, third: Journal) -> None:
    """To the byte, on rows with every kind of equality."""
    a, b, c = part_of(one), part_of(other), part_of(third)
    assert to_bytes(merge([a, b], SMALL)) == to_bytes(merge([b, a], SMALL))
    assert to_bytes(merge([merge([a, b], SMALL), c], SMALL)) == to_bytes(merge([a, merge([b, c], SMALL)], SMALL))
    assert to_bytes(merge([a, a], SMALL)) == to_bytes(merge([a], SMALL)) == to_bytes(a)
    assert to_bytes(part_of([*one, *other])) == to_bytes(merge([a, b], SMALL))


@settings(max_examples=settings().max_examples // 5)
@given(_journals, st.sampled_from((2, 3, 8)))
def test_a_split_part_merges_to_itself_and_each_bucket_is_split_on_by_itself(rows: Journal, buckets: int) -> None:
    """A part of 2n buckets is a half of one of n; the bucket is the documented one."""
    part = part_of(rows)
    pieces = split(part, buckets)
    assert to_bytes(merge(pieces, SMALL)) == to_bytes(part)
    halves = [split(piece, 2 * buckets) for piece in pieces]
    for bucket, whole in enumerate(split(part, 2 * buckets)):
        assert to_bytes(halves[bucket % buckets][bucket]) == to_bytes(whole)
        for row in whole.keys.to_pylist():
            assert crc32(row["shard"].encode(), crc32(row["namespace"].encode())) % (2 * buckets) == bucket


def test_the_largest_record_of_a_slot_and_of_all_counts() -> None:
    """By epoch, offset, live, time; of equal ones the one with the older head, then the one with the larger lag."""
    rows = [
        commit(1.0, 5, 9),
        commit(1.2, 5, 8, committed_at=commit(1.0, 0)["at"], seq=2),
        commit(1.1, 4, 9),
        commit(3.0, 1, epoch=1),
        commit(3.4, 7, epoch=0, topic="zz"),
    ]
    part = part_of(rows)
    key, points = part.keys.to_pylist()[0], part.points.to_pylist()
    assert [key[name] for name in ("epoch", "offset", "topic")] == [1, 1, "T"]
    assert [[point[name] for name in ("epoch", "offset", "lag")] for point in points] == [[0, 5, 4], [1, 1, NULL]]


def test_the_newest_slots_are_kept_and_the_newest_head_of_each() -> None:
    """Of equally old heads the largest; the low is the newest one that is known."""
    rows = [commit(second, second, 100 + second, low=second) for second in range(10)]
    rows += [commit(9, 1, 500, low=-1), commit(9.5, 1, group="h")]
    part = part_of(rows)
    assert ints(part.points, "offset").tolist() == [7, 8, 9, 1]
    assert part.heads["high"].to_pylist() == [103, 105, 107, 500]
    assert part.shards["low"].to_pylist() == [9]


def test_equal_content_has_equal_bytes_whatever_words_its_tables_had() -> None:
    """Words that are no longer used, and their order, are not in the bytes."""
    rows = [commit(second, second, 9, group=group) for second, group in enumerate("cab")]
    assert to_bytes(kept(split(part_of(rows), 1)[0], 0)) == to_bytes(part_of(rows[::-1]))
    (rest,) = [piece for piece in split(part_of([*rows, commit(1, 1, namespace="other")]), 64) if piece.keys.num_rows == 3]
    assert to_bytes(rest) == to_bytes(part_of(rows))


def test_every_damaged_byte_is_found() -> None:
    """And so is what is cut off, or is something else."""
    random = Random(3)
    data = to_bytes(part_of([commit(second, second, 9) for second in range(3)]))
    for place in [*range(80), *random.sample(range(80, len(data)), 100)]:
        damaged = bytearray(data)
        damaged[place] ^= 1 << random.randrange(8)
        if not 12 <= place < 16:  # four bytes of padding
            with pytest.raises(ValueError, match="no part of the lag job, or damaged"):
                from_bytes(bytes(damaged))
    for size in (0, 7, 63, len(data) - 1):
        with pytest.raises(ValueError, match="no part of the lag job"):
            from_bytes(data[:size])
    assert to_bytes(from_bytes(memoryview(data))) == data
    assert to_bytes(from_bytes(pa.py_buffer(data))) == data


def test_no_part_at_all_is_an_empty_part() -> None:
    """Its size is nearly nothing."""
    assert to_bytes(merge([], SMALL)) == to_bytes(Part()) == to_bytes(part_of([]))
    assert Part().nbytes == 0
    assert [to_bytes(piece) for piece in split(Part(), 2)] == [to_bytes(Part())] * 2
