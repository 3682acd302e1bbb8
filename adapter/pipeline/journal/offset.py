"""The offset of a stream over journals: for each run of a broker the next segment number, and the missing numbers before it.

Pure functions: a listing and an offset give the next offset; two offsets give the numbers between them. Every segment lies
between exactly one pair of consecutive offsets, in whatever order segments arrive.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import chain
from typing import Any

from adapter.pipeline.journal.listing import Listing, Segment

# (first, last), both inclusive; ascending and not adjacent.
Ranges = tuple[tuple[int, int], ...]

# The size limit of an offset: this many separate ranges of missing numbers are kept for a run. At most every second segment
# begins a range, so 20,000 segments of a run may arrive in any order. Beyond that, the lowest ranges are abandoned and reported.
MAX_HOLES = 10_000
# A run without segments is forgotten when there are segments that are this many days newer. Until then its segments may come back
# (a copy that was cleaned and is copied again) and are recognized as read.
KEEP_DAYS = 7


@dataclass(frozen=True)
class Progress:
    """How far one run has been read: all numbers below `next`, except the `holes`, which may still arrive."""

    next: int = 0
    # The date of the newest segment that was read.
    date: str = ""
    holes: Ranges = ()
    # Numbers that were abandoned in the step to this offset.
    lost: Ranges = ()

    def has(self, number: int) -> bool:
        """True if this number was read or abandoned."""
        if number >= self.next:
            return False
        at = bisect_right(self.holes, (number, number))
        return not any(first <= number <= last for first, last in self.holes[max(0, at - 1) : at + 1])


Offset = dict[str, Progress]


@dataclass(frozen=True)
class Limit:
    """The size limit of a batch; None: unlimited. A batch has at least one segment."""

    files: int | None = None
    # The size of the files, compressed.
    bytes: int | None = None


@dataclass(frozen=True)
class Step:
    """The segment numbers between two offsets, by run."""

    taken: dict[str, Ranges] = field(default_factory=dict)
    # Abandoned: they never arrived.
    lost: dict[str, Ranges] = field(default_factory=dict)


def to_json(offset: Offset) -> dict[str, Any]:
    """The offset as JSON values, which Spark stores."""
    return {key: _progress_json(progress) for key, progress in offset.items()}


def from_json(value: Mapping[str, Any]) -> Offset:
    """The inverse of `to_json`."""
    return {
        key: Progress(stored["next"], stored["date"], _ranges(stored.get("holes", ())), _ranges(stored.get("lost", ())))
        for key, stored in value.items()
    }


def advance(start: Offset, listing: Listing, limit: Limit) -> Offset:
    """The offset after the next batch of segments; `start` itself if there is none."""
    taken: dict[str, list[Segment]] = {}
    for segment in _within(_in_order(start, listing), limit):
        taken.setdefault(segment.key, []).append(segment)
    if not taken:
        return start
    end = start | {key: _after(start.get(key, Progress()), segments) for key, segments in taken.items()}
    return _without_old_runs(end, listing)


def step(start: Offset, end: Offset) -> Step:
    """The numbers that were read and those that were abandoned from `start` to `end`."""
    result = Step()
    for key, after in end.items():
        before = start.get(key, Progress())
        if before == after:
            continue
        open_ = (*before.holes, *_range(before.next, after.next - 1))
        passed = subtract(open_, after.holes)
        result.taken[key] = subtract(passed, after.lost)
        _put(result.lost, key, subtract(passed, result.taken[key]))
    for key in start.keys() - end.keys():
        # Numbers that are missing from the start of the run were deleted before the stream began.
        _put(result.lost, key, tuple(hole for hole in start[key].holes if hole[0] > 0))
    return result


def subtract(ranges: Iterable[tuple[int, int]], less: Sequence[tuple[int, int]]) -> Ranges:
    """The numbers in `ranges` that are not in `less`, as ranges."""
    found = []
    at = 0
    for begin, last in ranges:
        first = begin
        while at < len(less) and less[at][0] <= last:
            if less[at][0] > first:
                found.append((first, less[at][0] - 1))
            first = max(first, less[at][1] + 1)
            if less[at][1] > last:
                break
            at += 1
        found += _range(first, last)
    return tuple(found)


def compact(numbers: Iterable[int]) -> Ranges:
    """These numbers as ranges."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def numbers_of(ranges: Ranges) -> Iterator[int]:
    """Each number of the ranges."""
    return chain.from_iterable(range(first, last + 1) for first, last in ranges)


def _in_order(start: Offset, listing: Listing) -> Iterator[Segment]:
    """The segments that are not read yet, in the order in which to read them: each broker's by time, backlogs in proportion.

    So a broker that returns with thousands of segments does not delay others, and brokers that start together advance together.
    """
    pending: dict[str, list[Segment]] = {}
    for key, run in listing.runs.items():
        progress = start.get(key, Progress())
        left = [segment for number, segment in run.items() if not progress.has(number)]
        if left:
            pending.setdefault(left[0].broker, []).extend(left)
    return (segment for _, segment in heapq.merge(*(_shares(segments) for segments in pending.values())))


def _shares(segments: list[Segment]) -> Iterator[tuple[tuple[float, str, str], Segment]]:
    count = len(segments)
    for at, segment in enumerate(sorted(segments, key=lambda segment: (segment.run, segment.number))):
        yield (at / count, segment.date, segment.broker), segment


def _within(segments: Iterable[Segment], limit: Limit) -> Iterator[Segment]:
    size = 0
    for files, segment in enumerate(segments, 1):
        size += segment.size
        beyond = (limit.files is not None and files > limit.files) or (limit.bytes is not None and size > limit.bytes)
        if beyond and files > 1:
            return
        yield segment


def _after(before: Progress, segments: Sequence[Segment]) -> Progress:
    numbers = compact(segment.number for segment in segments)
    after = max(before.next, numbers[-1][1] + 1)
    holes = subtract((*before.holes, *_range(before.next, after - 1)), numbers)
    lost, kept = holes[:-MAX_HOLES], holes[-MAX_HOLES:]
    return Progress(after, max(before.date, *(segment.date for segment in segments)), kept, lost)


def _without_old_runs(offset: Offset, listing: Listing) -> Offset:
    """Drop runs whose segments are all gone and old. Not if a directory could not be listed: they may be in it."""
    if listing.troubles:
        return offset
    past = (date.fromisoformat(listing.newest_date) - timedelta(days=KEEP_DAYS)).isoformat()
    return {key: progress for key, progress in offset.items() if key in listing.runs or progress.date >= past}


def _range(first: int, last: int) -> Ranges:
    return ((first, last),) if first <= last else ()


def _ranges(stored: Iterable[Sequence[int]]) -> Ranges:
    return tuple((first, last) for first, last in stored)


def _progress_json(progress: Progress) -> dict[str, Any]:
    value: dict[str, Any] = {"next": progress.next, "date": progress.date}
    if progress.holes:
        value["holes"] = [list(hole) for hole in progress.holes]
    if progress.lost:
        value["lost"] = [list(range_) for range_ in progress.lost]
    return value


def _put(into: dict[str, Ranges], key: str, ranges: Ranges) -> None:
    if ranges:
        into[key] = ranges
