"""Notes of the journal -> rows -> Arrow columns of `schemas.JOURNAL`. Pure.

A value that Arrow's signed numbers or a datetime cannot hold is null, and the column `problem` has it as text; no row is left
out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from adapter.model.arrow import TIME_MAX_MS
from adapter.model.bounds import Bounds
from adapter.model.records import LONG_MAX, OffsetKey, OffsetRecord, Status
from adapter.model.schemas import JOURNAL, TIME
from adapter.sidecar.journal.notes import Flushed, Note
from adapter.sidecar.shard_bounds import ReportedBounds

# Unix milliseconds, kind, key, what stands, what stood before. A bare tuple is made in a fraction of the time.
Row: TypeAlias = tuple[int, str, OffsetKey, OffsetRecord, OffsetRecord | None]
Problems: TypeAlias = dict[int, list[str]]

_NO_KEY = OffsetKey("", "", "")
_NOTHING: Any = (None, None, False, 0, "", "", 0)  # in the place of a record: a heartbeat has none


def heartbeat(at_ms: int) -> Row:
    """A row that says that nothing happened up to this Unix time in milliseconds."""
    return at_ms, "heartbeat", _NO_KEY, _NOTHING, None


def rows_of(note: Note) -> Iterator[Row]:
    """The rows of a note. Keys that the Meta Service refused have none."""
    at_ms = note.at_ms
    if not isinstance(note, Flushed):
        kind = note.kind
        return ((at_ms, kind, key, after, before) for key, before, after in note.moved)
    # Not `status.acknowledged`: an Enum's hash would take longer than all the rest.
    applied, superseded = Status.APPLIED, Status.SUPERSEDED
    return (
        (at_ms, "flush", key, standing or record, None)
        for (key, record, _), (status, standing, _) in zip(note.entries, note.outcomes, strict=True)
        if status is applied or status is superseded
    )


def to_batch(rows: Sequence[Row], first_seq: int, reported: ReportedBounds) -> pa.RecordBatch:
    """Rows as columns, numbered from `first_seq` on, with the newest reported bounds of their shards."""
    size = len(rows)
    at_ms, kinds, keys, records, befores = zip(*rows, strict=True)
    namespaces, groups, shards = zip(*keys, strict=True)
    epochs, offsets, live, committed_at_ms, _, topics, partitions = zip(*records, strict=True)
    problems: Problems = {}
    columns = [
        _times(at_ms, "at", problems),
        pa.array(np.arange(first_seq, first_seq + size)),
        _texts(kinds),
        _texts(namespaces),
        _texts(groups),
        _texts(shards),
        _texts(topics),
        pa.array(partitions, pa.int64()),
        _longs(epochs, "epoch", problems),
        _longs(offsets, "offset", problems),
        pa.array(live, pa.bool_()),
        _times(committed_at_ms, "committed_at", problems),
        *_before(befores, problems),
        *_watermarks(list(map(reported.get, zip(namespaces, shards, strict=True))), problems),  # type: ignore[arg-type]
    ]
    return pa.RecordBatch.from_arrays([*columns, _said(problems, size)], schema=JOURNAL)


def _texts(values: Sequence[str]) -> pa.Array:
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], pa.string()), len(values))
    return pa.array(values, pa.string())


def _before(befores: Sequence[OffsetRecord | None], problems: Problems) -> list[pa.Array]:
    return [
        _some(befores, lambda record: record.epoch, lambda values: _longs(values, "from_epoch", problems)),
        _some(befores, lambda record: record.offset, lambda values: _longs(values, "from_offset", problems)),
    ]


def _watermarks(bounds: Sequence[Bounds | None], problems: Problems) -> list[pa.Array]:
    return [
        _some(bounds, lambda told: told.low, lambda values: _longs(values, "low_watermark", problems)),
        _some(bounds, lambda told: told.high, lambda values: _longs(values, "high_watermark", problems)),
        _some(bounds, lambda told: told.seen_at_ms, lambda values: _times(values, "watermark_at", problems), TIME),
        _some(bounds, lambda told: told.log_id or None, lambda values: pa.array(values, pa.string()), pa.string()),
    ]


def _some(
    things: Sequence[Any],
    of: Callable[[Any], Any],
    column: Callable[[Sequence[Any]], pa.Array],
    kind: pa.DataType = pa.int64(),  # noqa: B008 - Arrow's types are constants
) -> pa.Array:
    """A column of mostly missing values: `of` gets the value of each item that is not None."""
    return column([None if thing is None else of(thing) for thing in things]) if any(things) else pa.nulls(len(things), kind)


def _longs(values: Sequence[int | None], name: str, problems: Problems) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except OverflowError:
        return pa.array(_within(values, LONG_MAX, name, problems), pa.int64())


def _times(values: Sequence[int | None], name: str, problems: Problems) -> pa.Array:
    """Unix milliseconds as microseconds; 0 becomes null."""
    try:
        found = np.array([value or 0 for value in values] if None in values else values, np.int64)
        over = bool((found > TIME_MAX_MS).any())
    except OverflowError:
        over = True
    if over:
        found = np.array([value or 0 for value in _within(values, TIME_MAX_MS, name, problems)], np.int64)
    return pa.array(found * 1_000, mask=found == 0).view(TIME)


def _within(values: Sequence[int | None], highest: int, name: str, problems: Problems) -> list[int | None]:
    """The values up to `highest`; larger ones become problems."""
    for at, value in enumerate(values):
        if value is not None and value > highest:
            problems.setdefault(at, []).append(f"{name} {value} is over {highest}")
    return [None if value is None or value > highest else value for value in values]


def _said(problems: Problems, size: int) -> pa.Array:
    if not problems:
        return pa.nulls(size, pa.string())
    return pa.array(["; ".join(problems[at]) if at in problems else None for at in range(size)], pa.string())
