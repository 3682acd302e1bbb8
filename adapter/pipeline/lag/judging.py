"""Judges the lag job's keys by `adapter.model.lag`, in Spark's Python workers: Arrow batches in, Arrow batches out.

Each row is a live key with the arrays of its points and of its shard's heads; the result has the same rows in the same order.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from adapter.model.lag import Judgement, Status, judge
from adapter.model.lag_rows import UNKNOWN, Bools, Commits, Heads, Ints, LagSettings

# What `judging` reads, beside the columns that it copies.
POINTS = ("t", "epoch", "offset", "lag", "live")
HEADS = ("t", "high")
# What it adds to them, as Spark's types. Unknown is null.
FOUND = {
    "lag": "long",
    "lost": "long",
    "lag_seconds": "double",
    "consume_rate": "double",
    "produce_rate": "double",
    "drain_seconds": "double",
    "trend": "double",
    "status": "string",
    "burrow": "string",
    "points": "int",
}


def judging(settings: LagSettings, copied: tuple[str, ...]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for `mapInArrow`: the columns `copied`, and those of FOUND."""

    def batches(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if batch.num_rows:
                columns = {name: batch.column(name) for name in copied}
                yield pa.RecordBatch.from_pydict({**columns, **_found(_judged(batch, settings))})

    return batches


def _judged(batch: pa.RecordBatch, settings: LagSettings) -> Judgement:
    counts, points = _matrices(batch, "point", POINTS)
    lines, heads = _matrices(batch, "head", HEADS)
    commits = Commits(
        times=points["t"],
        epochs=points["epoch"],
        # A tombstone is no commit.
        offsets=np.where(points["live"] > 0, points["offset"], UNKNOWN),
        lags=points["lag"],
        counts=counts,
        top_epochs=_ints(batch.column("epoch")),
        top_offsets=_ints(batch.column("offset")),
        top_times=_ints(batch.column("committed_at")),
    )
    low = _ints(batch.column("low"))
    ends = Heads(heads["t"], heads["high"], lines, low, np.where(low < 0, UNKNOWN, 0))
    now, settled = (batch.column(name)[0].as_py() for name in ("now", "settled"))
    return judge(commits, ends, np.arange(batch.num_rows), now, settled, settings)


def _matrices(batch: pa.RecordBatch, of: str, names: tuple[str, ...]) -> tuple[Ints, dict[str, Ints]]:
    """The lengths of the rows' arrays, and the arrays as left-aligned matrices."""
    columns = {name: batch.column(f"{of}_{name}") for name in names}
    lengths = _ints(pc.list_value_length(columns[names[0]]), 0)
    # A window that was configured larger before: its keys have more until they commit again.
    there: Bools = np.arange(max(int(lengths.max()), 2)) < lengths[:, None]
    matrices = {name: np.zeros(there.shape, np.int64) for name in names}
    for name, column in columns.items():
        matrices[name][there] = _ints(column.flatten())
    return lengths, matrices


def _ints(column: pa.Array, null: int = UNKNOWN) -> Ints:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    values: Ints = pc.fill_null(column.cast(pa.int64()), null).to_numpy(zero_copy_only=False)
    return values


def _found(judged: Judgement) -> dict[str, pa.Array]:
    names = pa.array([status.name for status in Status])
    unknown = judged.lag < 0
    return {
        "lag": pa.array(judged.lag, mask=unknown),
        "lost": pa.array(judged.lost),
        "lag_seconds": _floats(judged.lag_seconds),
        "consume_rate": _floats(judged.commit_rate),
        "produce_rate": _floats(judged.produce_rate),
        "drain_seconds": _floats(judged.drain_seconds),
        "trend": _floats(judged.trend),
        "status": names.take(pa.array(judged.status)),
        "burrow": names.take(pa.array(judged.burrow)),
        "points": pa.array(judged.points.astype(np.int32)),
    }


def _floats(values: npt.NDArray[np.float64]) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))
