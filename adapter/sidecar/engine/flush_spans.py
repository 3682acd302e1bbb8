"""A span for each flush that matters to a trace, with links to the commits that it carried.

A commit is linked by the caller's span, if the caller records it, and followed by one dirty key: its first. Where the flush of
that key fails, the link is kept for the next one. Bounded: `LINKS_MAX` callers of new commits, as many that are kept, and as many
in a span; those beyond are counted in the span. It is only in memory: links that a crash loses do not matter.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from adapter.model.records import GroupKey, Held, OffsetKey
from adapter.runtime.telemetry.spans import Span, TraceContext
from adapter.sidecar.ledger.dirty import DirtyKeys

LINKS_MAX = 128  # what OpenTelemetry's SDK keeps of a span, by default
LOOKED_AT = 100  # keys of a commit among which a dirty one is looked for

NAME = "offset_adapter.flush"

_Links = dict[tuple[TraceContext, GroupKey], str]  # and a shard of the group


class FlushCounts(Protocol):
    """What became of the keys of a flush."""

    acknowledged: int
    refused: int
    unanswered: int
    why_refused: str
    why_unanswered: str


class FlushSpans:
    """Which commits wait for which flush. `record` gets the spans.

    Of flushes that carried no commit that is recorded, and did not fail, `sample_ratio` get a span.
    """

    def __init__(self, record: Callable[[Span], None], sample_ratio: float, draw: Callable[[], float] = random.random) -> None:
        self._record = record
        self._ratio = sample_ratio
        self._draw = draw
        self._new: _Links = {}
        self._kept: _Links = {}  # that a flush failed to bring, or left out
        self._unlinked = 0

    def note(self, context: TraceContext, keys: Iterable[OffsetKey], dirty: DirtyKeys) -> None:
        """Note the span of a caller whose commit is stored, by a key of it that waits for a flush. Without one: not at all."""
        key = next((key for key in islice(keys, LOOKED_AT) if key in dirty), None)
        if key is None:
            return
        place = (context, key.group_key)
        if place in self._new:
            return
        if len(self._new) >= LINKS_MAX:
            self._unlinked += 1
            return
        self._new[place] = key.shard

    @contextmanager
    def flush(self, batch: Mapping[GroupKey, Mapping[str, Held]], dirty: DirtyKeys, counts: FlushCounts) -> Iterator[None]:
        """Record the flush that happens inside. Of `batch`, what is acknowledged or refused is taken out meanwhile."""
        keys, groups = sum(map(len, batch.values())), len(batch)
        carried = self._take(batch, dirty)
        started_ns, began = time.time_ns(), time.perf_counter_ns()
        failure = "interrupted"
        try:
            yield
            failure = counts.why_unanswered or counts.why_refused
        except Exception as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            self._keep({place: shard for place, shard in carried.items() if _is_left(place[1], shard, batch, dirty)})
            unlinked, self._unlinked = self._unlinked, 0
            if carried or failure or self._draw() < self._ratio:
                attributes: dict[str, str | int] = {
                    "offset_adapter.keys": keys,
                    "offset_adapter.groups": groups,
                    "offset_adapter.acknowledged": counts.acknowledged,
                    "offset_adapter.refused": counts.refused,
                    "offset_adapter.unanswered": counts.unanswered,
                    "offset_adapter.unlinked_commits": unlinked,
                }
                links = list(dict.fromkeys(context for context, _ in carried))
                self._record(Span(NAME, started_ns, started_ns + time.perf_counter_ns() - began, attributes, links, failure))

    def _take(self, batch: Mapping[GroupKey, Mapping[str, Held]], dirty: DirtyKeys) -> _Links:
        """Take the links of what a flush carries, and keep the others, but for those of keys that are clean now."""
        waiting = dict(self._kept)
        for place, shard in self._new.items():
            waiting.setdefault(place, shard)
        self._kept, self._new = {}, {}
        taken: _Links = {}
        left: _Links = {}
        for place, shard in waiting.items():
            group = place[1]
            if shard in batch.get(group, ()):
                taken[place] = shard
            elif OffsetKey(*group, shard) in dirty:
                left[place] = shard
        self._keep(left)
        self._unlinked += max(len(taken) - LINKS_MAX, 0)
        return dict(islice(taken.items(), LINKS_MAX))

    def _keep(self, links: _Links) -> None:
        for place, shard in links.items():
            if len(self._kept) < LINKS_MAX:
                self._kept.setdefault(place, shard)
            else:
                self._unlinked += 1


def _is_left(group: GroupKey, shard: str, batch: Mapping[GroupKey, Mapping[str, Held]], dirty: DirtyKeys) -> bool:
    return shard in batch.get(group, ()) or dirty.is_refused(OffsetKey(*group, shard))
