"""How far a stream has read the journals: for each run of a broker the next number, and what was missing before it.

Pure: from a listing and an offset it makes the next offset, and from two offsets the numbers between them. Every segment is
between exactly one pair of them, in whatever order segments arrive.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import chain
from typing import Any

from adapter.pipeline.journal_listing import Listing, Segment

# First and last number, both in; ascending and apart.
Ranges = tuple[tuple[int, int], ...]

# The bound of an offset. So many separate ranges of missing numbers are kept for a run: at most one of every two segments can
# begin one, so 20,000 segments of a run may arrive in any order. Beyond, the lowest are given up, and told.
MAX_HOLES = 10_000
# A run of which no segment is there any more is forgotten when segments are there that are so many days newer. Until then its
# segments may come back (a copy that was cleaned and is copied again) and are known.
KEEP_DAYS = 7


@dataclass(frozen=True)
class Progress:
    """How far one run has been read: all numbers below `next`, but for the `holes`, which are waited for."""

    next: int = 0
    # Of the newest segment that was read.
    date: str = ""
    holes: Ranges = ()
    # What was given up by the step to this offset.
    lost: Ranges = ()

    def has(self, number: int) -> bool:
        """True when this number was read, or was given up."""
        if number >= self.next:
            return False
        at = bisect_right(self.holes, (number, number))
        return not any(first <= number <= last for first, last in self.holes[max(0, at - 1) : at + 1])


Offset = dict[str, Progress]


@dataclass(frozen=True)
class Limit:
    """What one batch may have. None: without bound. At least one segment is always taken."""

    files: int | None = None
    # Of files, as they lie there.
    bytes: int | None = None


@dataclass(frozen=True)
class Step:
    """What is between two offsets, by run."""

    taken: dict[str, Ranges] = field(default_factory=dict)
    # Never arrived, and not waited for any more.
    lost: dict[str, Ranges] = field(default_factory=dict)


def to_json(offset: Offset) -> dict[str, Any]:
    """As Spark stores it."""
    return {key: _progress_json(progress) for key, progress in offset.items()}


def from_json(value: Mapping[str, Any]) -> Offset:
    """Back from `to_json`."""
    return {
        key: Progress(stored["next"], stored["date"], _ranges(stored.get("holes", ())), _ranges(stored.get("lost", ())))
        for key, stored in value.items()
    }


def advance(start: Offset, listing: Listing, limit: Limit) -> Offset:
    """The offset after the segments that are next; `start` itself when there are none."""
    taken: dict[str, list[Segment]] = {}
    for segment in _within(_in_turn(start, listing), limit):
        taken.setdefault(segment.key, []).append(segment)
    if not taken:
        return start
    end = start | {key: _after(start.get(key, Progress()), segments) for key, segments in taken.items()}
    return _without_past(end, listing)


def step(start: Offset, end: Offset) -> Step:
    """The numbers that were read, and that were given up, from `start` to `end`."""
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
        # What was missing from the run's begin on was gone before anybody looked.
        _put(result.lost, key, tuple(hole for hole in start[key].holes if hole[0] > 0))
    return result


def subtract(ranges: Iterable[tuple[int, int]], less: Sequence[tuple[int, int]]) -> Ranges:
    """The numbers of `ranges` that are not in `less`."""
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
    """Ranges of these numbers."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


def numbers_of(ranges: Ranges) -> Iterator[int]:
    """Each number."""
    return chain.from_iterable(range(first, last + 1) for first, last in ranges)


def _in_turn(start: Offset, listing: Listing) -> Iterator[Segment]:
    """What was not read yet. Each broker's own in order of time; of several brokers, each backlog shrinks by the same share.

    So a broker that comes back with thousands keeps no other waiting, and brokers that begin together advance together.
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


def _without_past(offset: Offset, listing: Listing) -> Offset:
    """Runs whose segments are all gone, and long past, leave. Not while a directory is away: they may only seem to be gone."""
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
