"""The offset of a journal's stream: each segment is between exactly one pair of offsets, in whatever order segments arrive."""

import json
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.pipeline.journal import offset as journal_offset
from adapter.pipeline.journal.listing import Listing, Segment, run_key
from adapter.pipeline.journal.offset import (
    KEEP_DAYS,
    Limit,
    Offset,
    Progress,
    advance,
    compact,
    from_json,
    numbers_of,
    step,
    subtract,
    to_json,
)

ALL = Limit()
DAY = "2025-12-01"
A = run_key("a", 1)


def segments(numbers: Iterable[int], broker: str = "a", run: int = 1, date: str = DAY, size: int = 10) -> list[Segment]:
    """Segments of one run."""
    return [Segment("/j", date, broker, run, number, size) for number in numbers]


def listing(*found: Iterable[Segment], troubles: dict[str, str] | None = None) -> Listing:
    """A listing of these segments."""
    runs: dict[str, dict[int, Segment]] = {}
    for group in found:
        for segment in group:
            runs.setdefault(segment.key, {})[segment.number] = segment
    return Listing(runs, troubles or {})


def taken(start: Offset, end: Offset) -> list[tuple[str, int]]:
    """Run and number of each segment between two offsets."""
    return [(key, number) for key, ranges in step(start, end).taken.items() for number in numbers_of(ranges)]


def in_batches(start: Offset, there: Listing, limit: Limit) -> tuple[Offset, list[list[tuple[str, int]]]]:
    """Advance until nothing is new; returns the segments of each batch."""
    batches = []
    while (end := advance(start, there, limit)) is not start:
        batches.append(taken(start, end))
        start = stored(end)
    return start, batches


def stored(offset: Offset) -> Offset:
    """An offset as it is read back from the checkpoint."""
    return from_json(json.loads(json.dumps(to_json(offset))))


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_ranges_subtract_as_sets_do(numbers: set[int], less: set[int]) -> None:
    """Ranges are a compact form of sets of numbers."""
    found = subtract(compact(numbers), compact(less))
    assert found == compact(numbers - less)
    assert list(numbers_of(found)) == sorted(numbers - less)


@given(st.sets(st.integers(0, 40)), st.integers(0, 41))
def test_progress_knows_each_number_that_was_read(numbers: set[int], probe: int) -> None:
    """All below `next` except the holes."""
    end = advance({}, listing(segments(numbers)), ALL)
    assert end.get(A, Progress()).has(probe) == (probe in numbers)


arrivals = st.lists(st.tuples(st.sampled_from(["a", "b/c"]), st.integers(1, 2), st.integers(0, 12)), max_size=40)


@given(arrivals, st.lists(st.integers(0, 40), max_size=6), st.integers(1, 5))
def test_every_segment_is_taken_exactly_once_in_whatever_order_it_comes(
    order: list[tuple[str, int, int]], cuts: list[int], files: int
) -> None:
    """Late, unordered, in portions, with offsets stored in the checkpoint; never more than the limit."""
    start: Offset = {}
    seen: Counter[tuple[str, int]] = Counter()
    for cut in [*sorted(cuts), len(order)]:
        there = listing(*(segments([number], broker, run) for broker, run, number in order[:cut]))
        start, batches = in_batches(start, there, Limit(files=files))
        assert all(len(batch) <= files for batch in batches)
        seen.update(item for batch in batches for item in batch)
    assert seen == Counter({(run_key(broker, run), number): 1 for broker, run, number in order})


def test_a_late_segment_is_taken_up_once_and_its_hole_closes() -> None:
    """As when rsync copies files in any order."""
    first = advance({}, listing(segments([0, 1, 4, 6])), ALL)
    assert to_json(first) == {A: {"next": 7, "date": DAY, "holes": [[2, 3], [5, 5]]}}
    second = advance(first, listing(segments([0, 1, 3, 4, 6])), ALL)
    assert taken(first, second) == [(A, 3)]
    third = advance(second, listing(segments(range(7))), ALL)
    assert taken(second, third) == [(A, 2), (A, 5)]
    assert to_json(third) == {A: {"next": 7, "date": DAY}}


def test_nothing_new_gives_the_same_offset() -> None:
    """For a different one, Spark would run an empty batch."""
    there = listing(segments(range(3)))
    end = advance({}, there, ALL)
    assert advance(end, there, ALL) is end
    assert advance(end, listing(), ALL) is end


def test_segments_that_were_deleted_before_the_first_look_cost_one_range() -> None:
    """The disk bound may have deleted thousands; they are not kept as single holes."""
    end = advance({}, listing(segments([5000, 5001])), ALL)
    assert to_json(end)[A]["holes"] == [[0, 4999]]


def test_holes_beyond_the_bound_are_given_up_the_lowest_first_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of an offset is bounded, and each hole that is given up is logged."""
    monkeypatch.setattr(journal_offset, "MAX_HOLES", 2)
    start = advance({}, listing(segments([0, 2])), ALL)
    end = advance(start, listing(segments([0, 2, 4, 6, 8])), ALL)
    assert end[A].holes == ((5, 5), (7, 7))
    assert step(start, end).lost == {A: ((1, 1), (3, 3))}
    assert taken(start, end) == [(A, 4), (A, 6), (A, 8)]
    late = listing(segments(range(9)))
    last = advance(stored(end), late, ALL)
    assert taken(end, last) == [(A, 5), (A, 7)]
    assert not step(end, last).lost


def test_the_bound_holds_for_twenty_thousand_segments_in_the_worst_order() -> None:
    """Every second segment first, then the others: no hole is given up."""
    first = advance({}, listing(segments(range(1, 20_000, 2))), ALL)
    end = advance(first, listing(segments(range(20_000))), ALL)
    assert len(taken({}, first)) + len(taken(first, end)) == 20_000
    assert not step({}, first).lost
    assert end == {A: Progress(20_000, DAY)}


def test_a_run_leaves_when_its_segments_are_gone_and_long_past() -> None:
    """Before that they may return, as when a copy is removed and made again."""
    start = advance({}, listing(segments([0, 1, 3])), ALL)
    soon = advance(start, listing(segments([0], run=2, date="2025-12-08")), ALL)
    assert soon.keys() == {A, run_key("a", 2)}
    again = listing(segments([0, 1, 3]), segments([0], run=2, date="2025-12-08"))
    assert advance(soon, again, ALL) is soon
    later = advance(soon, listing(segments([0, 1], run=2, date="2025-12-09")), ALL)
    assert later.keys() == {run_key("a", 2)}
    assert step(soon, later).lost == {A: ((2, 2),)}
    assert taken(soon, later) == [(run_key("a", 2), 1)]
    assert KEEP_DAYS == 7


def test_a_run_that_was_seen_from_the_middle_on_leaves_without_a_word() -> None:
    """Segments deleted before the first listing are not reported as missing."""
    start = advance({}, listing(segments([8, 9])), ALL)
    end = advance(start, listing(segments([0], run=2, date="2026-01-01")), ALL)
    assert step(start, end).lost == {}


def test_no_run_leaves_while_a_directory_is_away() -> None:
    """A disk that is not mounted looks like deleted segments."""
    start = advance({}, listing(segments([0])), ALL)
    there = listing(segments([0], run=2, date="2026-01-01"), troubles={"/other": "has no segments"})
    assert A in advance(start, there, ALL)


def test_a_batch_has_the_oldest_segments_of_a_broker() -> None:
    """Ordered by run, then by number."""
    there = listing(segments([0, 1], run=2), segments([3, 4], run=1))
    _, batches = in_batches({}, there, Limit(files=2))
    assert batches == [[(A, 3), (A, 4)], [(run_key("a", 2), 0), (run_key("a", 2), 1)]]


def test_a_broker_that_comes_back_with_thousands_keeps_no_other_waiting() -> None:
    """The first batch also has the only segment of the other broker."""
    there = listing(segments(range(1000), "a", date="2025-11-01"), segments([7], "b"))
    end = advance({}, there, Limit(files=10))
    assert (run_key("b", 1), 7) in taken({}, end)
    assert len(taken({}, end)) == 10


def test_backlogs_shrink_by_the_same_share() -> None:
    """Brokers with segments of different lengths stay close in time."""
    there = listing(segments(range(900), "a"), segments(range(100), "b"))
    end = advance({}, there, Limit(files=100))
    assert Counter(key for key, _ in taken({}, end)) == {A: 90, run_key("b", 1): 10}


@pytest.mark.parametrize(("limit", "counts"), [(25, [2, 2, 1]), (30, [3, 2]), (1, [1] * 5)])
def test_bytes_are_a_limit_too_but_a_segment_is_always_taken(limit: int, counts: list[int]) -> None:
    """Otherwise a segment above the limit would stop the stream."""
    _, batches = in_batches({}, listing(segments(range(5), size=10)), Limit(bytes=limit))
    assert [len(batch) for batch in batches] == counts
