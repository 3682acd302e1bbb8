"""Plans a read, on the driver: cuts segments into partitions, and decides which segments are gone.

A segment counts as gone only if this listing could have shown it: nothing that may hide it failed to be listed, no root is absent
or empty. Otherwise a lost mount would turn rows that exist into rows that say they are lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from adapter.errors import AdapterError
from adapter.pipeline.journal.listing import Listing, Segment, parse_run_key
from adapter.pipeline.journal.offset import Step, numbers_of
from adapter.pipeline.journal.segment import GONE

# The cost of opening a file, in bytes of reading: it keeps a partition from having thousands of tiny segments.
_OPEN_BYTES = 2**14

_NEVER_CAME = (
    "segments {first} to {last} of this run never arrived, and are not waited for any more: "
    "the disk bound deleted them before they were read, or they were not copied. Raise disk_max_bytes, or read more often"
)


class Missing(NamedTuple):
    """A segment that is gone, or the first of several that are not waited for any more. Its date is not known: `*`."""

    segment: Segment
    problem: str


@dataclass(frozen=True)
class JournalPartition(InputPartition):
    """What one task reads."""

    segments: tuple[Segment, ...] = ()
    missing: tuple[Missing, ...] = ()


def lacking(between: Step, listing: Listing) -> bool:
    """Whether the listing lacks a segment of the step."""
    return any(_find(listing, key, number) is None for key, number in _numbers(between))


def planned(between: Step, listing: Listing, roots: Sequence[str], partition_bytes: int) -> list[JournalPartition]:
    """Partitions of about the same size, each with consecutive segments.

    Raises AdapterError if a segment is not in the listing and may be in what could not be listed.
    """
    segments: list[Segment] = []
    missing: list[Missing] = []
    for key, number in sorted(_numbers(between)):
        if segment := _find(listing, key, number):
            segments.append(segment)
        else:
            missing.append(_gone(roots[0], key, number, listing))
    for key, ranges in sorted(between.lost.items()):
        missing += [Missing(_nowhere(roots[0], key, first), _NEVER_CAME.format(first=first, last=last)) for first, last in ranges]
    parts = [JournalPartition(part) for part in _cut(segments, partition_bytes)]
    return [JournalPartition(missing=tuple(missing)), *parts] if missing else parts


def _cut(segments: Sequence[Segment], partition_bytes: int) -> Iterator[tuple[Segment, ...]]:
    parts: dict[int, list[Segment]] = {}
    costs = [segment.size + _OPEN_BYTES for segment in segments]
    count = -(-sum(costs) // partition_bytes)
    begin = 0
    for segment, cost in zip(segments, costs, strict=True):
        parts.setdefault((begin + cost // 2) * count // sum(costs), []).append(segment)
        begin += cost
    return (tuple(part) for part in parts.values())


def _gone(root: str, key: str, number: int, listing: Listing) -> Missing:
    segment = _nowhere(root, key, number)
    if hiding := listing.hiding(segment.broker):
        text = "; ".join(f"{path} {trouble}" for path, trouble in hiding.items())
        raise AdapterError(
            f"offset-journal: segment {number} of run {segment.run} of broker {segment.broker!r} is not found, "
            f"and may be in what cannot be listed: {text}. "
            "Nothing is lost: mount or mend it, or remove a path that is not needed, and start again"
        )
    return Missing(segment, f"segment {GONE}")


def _nowhere(root: str, key: str, number: int) -> Segment:
    broker, run = parse_run_key(key)
    return Segment(root, "*", broker, run, number, 0)


def _numbers(between: Step) -> Iterator[tuple[str, int]]:
    return ((key, number) for key, ranges in between.taken.items() for number in numbers_of(ranges))


def _find(listing: Listing, key: str, number: int) -> Segment | None:
    return listing.runs.get(key, {}).get(number)
