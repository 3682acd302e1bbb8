"""The readers of the data sources over journals: a batch, a stream with admission control, and a stream of segments' names.

Every segment is in exactly one batch of a stream. A batch that is read again has the same rows. A bad segment does not stop
others. A segment that a task does not find fails the task: nothing is taken for lost on the word of one machine.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.journal.listing import Lister, Listing, Segment, roots_of
from adapter.pipeline.journal.offset import Limit, Offset, advance, from_json, step, to_json
from adapter.pipeline.journal.options import JournalOptions
from adapter.pipeline.journal.plan import JournalPartition, lacking, planned
from adapter.pipeline.journal.pruning import Pruning
from adapter.pipeline.journal.segment import COLUMNS, read_segment, unreadable
from adapter.pipeline.places import redacted

# The columns of `offset-journal-segments`. `root` has no credentials; `size` is in bytes. `problem`: the segment is gone (its
# date is not known any more: `*`), or the first of several that are not waited for any more; null if it is to be read.
SEGMENTS: pa.Schema = pa.schema(
    [
        *(pa.field(name, pa.string(), nullable=False) for name in ("root", "date", "broker")),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("run", "number", "size")),
        pa.field("problem", pa.string()),
    ]
)


class JournalReader(DataSourceReader):
    """Reads all existing segments as a batch."""

    def __init__(self, options: JournalOptions, columns: pa.Schema = COLUMNS) -> None:
        self._options = options
        self._columns = columns
        self._wanted: Pruning | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read.

        Raises ConfigError if no path exists, AdapterError if a directory cannot be listed: no segment is skipped.
        """
        listing = Lister(self._options.roots, self._wanted).list()
        if listing.failures:
            text = "; ".join(f"{path} {trouble}" for path, trouble in listing.failures.items())
            raise AdapterError(f"offset-journal: not all segments can be found: {text}")
        options = self._options
        return planned(step({}, advance({}, listing, Limit())), listing, options.roots, options.partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, with the selected columns."""
        return _rows(partition, self._columns)


class PruningReader(JournalReader):
    """A reader that opens only the segments in which rows may pass the filters on `at`, `broker` and `run`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Note the filters. Spark applies all of them to the rows."""
        self._wanted = Pruning.by(filters)
        return filters


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The streaming reader. Spark keeps one for a query in a separate process, and sends copies to the tasks for reading."""

    def __init__(self, options: JournalOptions, columns: pa.Schema = COLUMNS) -> None:
        self._options = options
        self._columns = columns
        self._lister: Lister | None = None
        self._seen = Listing({}, {})
        # With availableNow: all segments that the query will read.
        self._target: Listing | None = None
        self._end: Offset | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The offset before the first segment."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a batch by the options. A batch has at least one segment."""
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        return ReadMaxBytes(self._options.max_bytes or 1)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the set of segments: later ones are not read. Raises ConfigError if no path exists."""
        self._target = self._list()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` if there is nothing new. Raises ConfigError if no path exists at the first call."""
        self._seen = self._target or self._list()
        before = from_json(start)
        after = advance(before, self._seen, self._limit(limit))
        self._end = after
        return start if after is before else to_json(after)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The offset after all segments that were found last, for the query's progress; None before the first batch."""
        return None if self._end is None else to_json(advance(self._end, self._seen, Limit()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the batch between two offsets. The result is the same in each call while the segments exist.

        Raises AdapterError if a segment is not found, and may be in what cannot be listed.
        """
        between = step(from_json(start), from_json(end))
        if lacking(between, self._seen):
            self._seen = self._list()
        return planned(between, self._seen, self._options.roots, self._options.partition_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, with the selected columns."""
        return _rows(partition, self._columns)

    def _list(self) -> Listing:
        if self._lister is None:
            self._lister = Lister(self._options.roots)
        return self._lister.list()

    def _limit(self, limit: ReadLimit) -> Limit:
        if isinstance(limit, ReadAllAvailable):
            return Limit()
        return Limit(self._options.max_files, self._options.max_bytes)


class SegmentsStreamReader(JournalStreamReader):
    """The streaming reader of segments."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the segments of a partition."""
        if isinstance(partition, JournalPartition):
            found = [*((segment, None) for segment in partition.segments), *partition.missing]
            rows = [{**segment._asdict(), "root": redacted(segment.root), "problem": problem} for segment, problem in found]
            yield pa.RecordBatch.from_pylist(rows, schema=SEGMENTS)


def segments_of(batch: pa.RecordBatch, roots: Sequence[str]) -> Iterator[tuple[Segment, str | None]]:
    """The segments of rows of `offset-journal-segments`, each with its problem.

    `roots`: the paths as they were given to the source, so that URLs have their credentials again.
    """
    opened = {redacted(root): root for root in roots_of(roots)}
    for row in batch.to_pylist():
        problem = row.pop("problem")
        yield Segment(**row)._replace(root=opened[row["root"]]), problem


def _rows(partition: InputPartition, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, JournalPartition):  # Spark's own placeholder for an empty batch
        return
    for segment, problem in partition.missing:
        yield unreadable(segment, problem, columns)
    for segment in partition.segments:
        yield from read_segment(segment, columns)


def chosen(schema: StructType) -> pa.Schema:
    """The columns to read: all, or those that `schema(...)` names. Raises ConfigError for others."""
    found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    if wrong := [
        field.name for field in found if field.name not in COLUMNS.names or COLUMNS.field(field.name).type != field.type
    ]:
        raise ConfigError(f"offset-journal: no such columns, or not of this type: {', '.join(wrong)}; see docs/pipeline.md")
    return found
