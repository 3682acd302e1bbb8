"""Spark's part in a batch of the lag job, in this process: partitions, shuffles by number, and tasks that are repeated."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame

from adapter.pipeline.journal.listing import Lister
from adapter.pipeline.journal.readers import SEGMENTS
from adapter.pipeline.lag.stages import PLANNED_US

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Frame:
    """The calls of a DataFrame that the lag job makes. `attempts`: how often each task is run; the last result counts."""

    def __init__(self, partitions: Sequence[Sequence[pa.RecordBatch]], attempts: int = 1, schema: str = "") -> None:
        self._partitions, self._attempts, self._schema = partitions, attempts, schema

    def mapInArrow(self, stage: Stage, schema: str) -> "Frame":
        """Run a task for each partition."""
        return Frame([self._task(stage, partition) for partition in self._partitions], self._attempts, schema)

    def repartitionById(self, count: int, column: str) -> "Frame":
        """Shuffle: row by row, the partitions in reverse order."""
        rows = [batch.slice(row, 1) for some in self._partitions[::-1] for batch in some for row in range(batch.num_rows)]
        dealt = [[row for row in rows if row[column][0].as_py() % count == number] for number in range(count)]
        return Frame(dealt, self._attempts, self._schema)

    def toArrow(self) -> pa.Table:
        """All rows."""
        batches = [batch for some in self._partitions for batch in some]
        return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in _names(self._schema)})

    @property
    def sparkSession(self) -> "Frame":
        """What has `createDataFrame` and `conf`."""
        return self

    @property
    def conf(self) -> "Frame":
        """What has `set`."""
        return self

    def set(self, name: str, value: str) -> None:
        """A setting of the session: nothing here depends on one."""

    def createDataFrame(self, rows: Sequence[tuple[Any, ...]], schema: str) -> "Frame":
        """One partition with these rows."""
        types = [pa.int32(), pa.string(), pa.binary()]
        columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
        return Frame([[pa.RecordBatch.from_arrays(columns, _names(schema))]], self._attempts)

    def _task(self, stage: Stage, partition: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        for _ in range(self._attempts - 1):
            list(stage(iter(partition)))
        return list(stage(iter(partition)))


def _names(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


def segments(
    journal: Path, numbers: Sequence[int] | None = None, *, partitions: int = 2, planned_us: int = 2**52, attempts: int = 1
) -> DataFrame:
    """The segments of a journal, or those with these numbers, as the stream has them."""
    found = [segment for run in Lister([str(journal)]).list().runs.values() for segment in run.values()]
    rows = [{**segment._asdict(), "problem": None} for segment in sorted(found) if numbers is None or segment.number in numbers]
    batches = [
        pa.RecordBatch.from_pylist(rows[number::partitions], schema=SEGMENTS).append_column(
            PLANNED_US, pa.array([planned_us] * len(rows[number::partitions]), pa.int64())
        )
        for number in range(partitions)
    ]
    return cast("DataFrame", Frame([[batch] for batch in batches], attempts))
