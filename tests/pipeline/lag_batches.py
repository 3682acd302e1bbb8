"""The lag job's batches without Spark and files: journal rows in, tables out, by the same functions that its tasks call."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from adapter.model.lag_rows import LagSettings
from adapter.pipeline.lag.clock import clock_of
from adapter.pipeline.lag.evaluate import Evaluated, evaluate, groups
from adapter.pipeline.lag.part import Part, from_bytes, merge, split, to_bytes
from adapter.pipeline.lag.segment_rows import COLUMNS, Gathered, Origin, gather
from tests.pipeline.segments import RUN, START, journal_table

Journal = Sequence[Mapping[str, Any]]
Rows = list[dict[str, Any]]
EXTRA = ("broker", "run", "segment")


def at(seconds: float) -> datetime:
    """The time this many seconds after the start."""
    return START + timedelta(seconds=seconds)


def commit(seconds: float, offset: int, head: int | None = None, low: int = 0, **others: Any) -> dict[str, Any]:
    """A commit that is in the journal immediately."""
    heads = {} if head is None else {"low_watermark": low, "high_watermark": head, "watermark_at": at(seconds)}
    return {"at": at(seconds), "committed_at": at(seconds), "offset": offset, "broker": "b1", **heads, **others}


def gathered(rows: Journal, planned_s: float = 86_400) -> list[Gathered]:
    """What tasks make of the rows, a segment for each broker, run and path; `planned_s`: when, in seconds after the start."""
    segments: dict[Origin, list[Mapping[str, Any]]] = {}
    for row in rows:
        origin = Origin(row.get("broker", "b1"), row.get("run", RUN), row.get("segment", "s"))
        segments.setdefault(origin, []).append({name: value for name, value in row.items() if name not in EXTRA})
    planned = int(at(planned_s).timestamp()) * 1_000_000
    return [gather(journal_table(some).select(COLUMNS), origin, planned) for origin, some in segments.items()]


@dataclass
class LagBatches:
    """The state of a stream. `tasks`: how many the segments of a batch are dealt to; every part goes through bytes."""

    settings: LagSettings = field(default_factory=lambda: LagSettings(window_points=5))
    buckets: int = 1
    tasks: int = 1
    planned_s: float = 86_400
    states: Sequence[Part] = ()
    newest: dict[str, int] = field(default_factory=dict)

    def batch(self, rows: Journal) -> dict[str, Rows]:
        """Process a batch; the rows of its tables, sorted."""
        return {name: sorted(table.to_pylist(), key=repr) for name, table in self.tables(rows).items()}

    def tables(self, rows: Journal) -> dict[str, pa.Table]:
        """Process a batch; its tables."""
        found = gathered(rows, self.planned_s)
        for one, origin in zip(found, _brokers(rows), strict=True):
            if one.newest is not None:
                self.newest[origin] = max(one.newest, self.newest.get(origin, 0))
        clock = clock_of(self.newest)
        merged = [merge([one.part for one in found[task :: self.tasks]], self.settings) for task in range(self.tasks)]
        sent = [[from_bytes(to_bytes(part)) for part in split(one, self.buckets)] for one in merged]
        before: Sequence[Part | None] = self.states or [None] * self.buckets
        judged = [
            evaluate(before[bucket], [task[bucket] for task in sent], clock, self.settings) for bucket in range(self.buckets)
        ]
        self.states = [from_bytes(to_bytes(one.state)) for one in judged]
        return _tables(judged, clock.now)


def by_group(rows: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The rows by group; each group has one shard."""
    return {row["group"]: row for row in rows}


def _brokers(rows: Journal) -> list[str]:
    """The broker of each segment, in the order of `gathered`."""
    return [
        broker for broker, _, _ in dict.fromkeys((r.get("broker", "b1"), r.get("run", RUN), r.get("segment", "s")) for r in rows)
    ]


def _tables(judged: Sequence[Evaluated], now: int) -> dict[str, pa.Table]:
    tables = {
        name: pa.concat_tables([getattr(one, name) for one in judged]).unify_dictionaries()
        for name in ("shards", "rewinds", "rejects")
    }
    return {**tables, "groups": groups([one.groups for one in judged], now)}
