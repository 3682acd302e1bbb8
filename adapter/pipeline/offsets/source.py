"""The Spark data source `offsets`: the Meta Service's records as a table, read in parallel parts, written by merge."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from adapter.errors import ConfigError
from adapter.model.schemas import RECORDS
from adapter.pipeline.offsets.options import FORMAT, ReadOptions, WriteOptions, parse_options
from adapter.pipeline.offsets.reader import FilteringReader, OffsetsReader
from adapter.pipeline.offsets.rows import check_columns
from adapter.pipeline.offsets.writer import OffsetsWriter
from adapter.pipeline.pushdown import filters_are_offered


class OffsetsDataSource(DataSource):
    """`spark.read.format("offsets")` and `df.write.format("offsets").mode("append")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of schemas.RECORDS."""
        return from_arrow_schema(RECORDS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create a reader. Raises ConfigError for invalid options."""
        if schema.names != RECORDS.names:
            raise ConfigError(f"{FORMAT}: has its own columns; read without .schema(), then select what you need")
        options = parse_options(ReadOptions, self.options)
        kind = FilteringReader if filters_are_offered() else OffsetsReader
        return kind(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Create a writer.

        Raises ConfigError for invalid options and mode("overwrite"), InvalidInputError for invalid columns.
        """
        options = parse_options(WriteOptions, self.options)
        if overwrite:
            raise ConfigError(
                f"{FORMAT}: mode('overwrite') would take away the offsets that are not in the rows, and there is no such thing: "
                "use mode('append'), which merges; to move offsets back or delete them, use `offset-adapter offsets`"
            )
        check_columns(schema)
        return OffsetsWriter(options)
