"""The Spark data sources `offset-journal`, the rows of journal segments, and `offset-journal-segments`, their names only.

The first is a stream with admission control, or a batch; the second a stream, for jobs that read segments in their own tasks.
Spark imports this module in a process of its own for each session that looks up data sources, and for each step of a query:
each method imports what it needs.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from adapter.pipeline.pushdown import filters_are_offered

if TYPE_CHECKING:
    from adapter.pipeline.journal.readers import JournalReader, JournalStreamReader, SegmentsStreamReader


class JournalDataSource(DataSource):
    """`spark.readStream.format("offset-journal").load(path)`, and the same rows by `spark.read`.

    Options: `paths` (JSON list of several directories or URLs), `maxFilesPerTrigger` (default 1000 unless there is
    `maxBytesPerTrigger`), `maxBytesPerTrigger`, `partitionBytes` (4 MiB). `schema(...)` selects columns, which is faster.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "offset-journal"

    def schema(self) -> StructType:
        """The columns of the journal, plus broker, run and segment."""
        from adapter.pipeline import columns
        from adapter.pipeline.journal.segment import COLUMNS

        return columns.spark_schema(COLUMNS, columns.JOURNAL)

    def reader(self, schema: StructType) -> "JournalReader":
        """The reader of `spark.read`. Raises ConfigError for an invalid option, and for a schema with other columns."""
        from adapter.pipeline.journal import readers
        from adapter.pipeline.journal.options import JournalOptions

        kind = readers.PruningReader if filters_are_offered() else readers.JournalReader
        return kind(JournalOptions.of(self.options), readers.chosen(schema))

    def streamReader(self, schema: StructType) -> "JournalStreamReader":
        """The reader of `spark.readStream`. Raises ConfigError for an invalid option, and for a schema with other columns."""
        from adapter.pipeline.journal import readers
        from adapter.pipeline.journal.options import JournalOptions

        return readers.JournalStreamReader(JournalOptions.of(self.options), readers.chosen(schema))


class SegmentsDataSource(DataSource):
    """`spark.readStream.format("offset-journal-segments")`: a row for each segment, with the options of `offset-journal`.

    No segment is opened. A job reads them by `segments_of` and `read_table` where the rows are: partitions are cut as those of
    `offset-journal`.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "offset-journal-segments"

    def schema(self) -> StructType:
        """The columns of SEGMENTS."""
        from adapter.pipeline import columns
        from adapter.pipeline.journal.readers import SEGMENTS

        return columns.spark_schema(SEGMENTS, columns.SEGMENTS)

    def streamReader(self, schema: StructType) -> "SegmentsStreamReader":  # noqa: ARG002 - its own columns
        """The reader of `spark.readStream`. Raises ConfigError for an invalid option."""
        from adapter.pipeline.journal import readers
        from adapter.pipeline.journal.options import JournalOptions

        return readers.SegmentsStreamReader(JournalOptions.of(self.options))
