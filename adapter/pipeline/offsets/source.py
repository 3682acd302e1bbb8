"""The Spark data source `offsets`: the Meta Service's records as a table, read in parallel parts, written by merge.

Spark imports this module in a process of its own for each session that looks up data sources, and for each step of a query:
each method imports what it needs.
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

# Spark passes the options of CREATE TABLE to `schema()` alone, with this prefix, and not to readers and writers of the table. It
# stores the schema, though. So the first column's metadata has the options.
_OF_TABLE = "option."


class OffsetsDataSource(DataSource):
    """`spark.read.format("offsets")`, `df.write.format("offsets").mode("append")`, and `df.writeStream.format("offsets")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "offsets"

    def schema(self) -> StructType:
        """The columns of schemas.RECORDS; those that a write may leave out are nullable.

        Raises ConfigError for invalid options of a CREATE TABLE.
        """
        from adapter.model.schemas import RECORDS
        from adapter.pipeline import columns

        found = columns.spark_schema(RECORDS, columns.RECORDS, optional=set(RECORDS.names) - set(columns.NEEDED))
        stored = {name.removeprefix(_OF_TABLE): value for name, value in self.options.items() if name.startswith(_OF_TABLE)}
        if stored:
            from adapter.pipeline.offsets import opening

            opening.check_table(stored)
            found.fields[0].metadata[opening.METADATA] = stored
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create a reader. Raises ConfigError for invalid options."""
        from adapter.pipeline.offsets import opening

        return opening.open_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Create a writer.

        Raises ConfigError for invalid options and mode("overwrite"), InvalidInputError for invalid columns.
        """
        from adapter.pipeline.offsets import opening

        return opening.open_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - Spark's
        """Create the writer of a stream.

        Raises ConfigError for invalid options and outputMode("complete"), InvalidInputError for invalid columns.
        """
        from adapter.pipeline.offsets import opening

        return opening.open_stream_writer(self.options, schema, overwrite=overwrite)
