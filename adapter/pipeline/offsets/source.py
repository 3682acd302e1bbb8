"""The Spark data source `offsets`: the Meta Service's records as a table, read in parallel parts, written by merge."""

from collections.abc import Mapping
from urllib.parse import unquote

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from adapter.errors import ConfigError
from adapter.model.schemas import RECORDS
from adapter.pipeline import columns
from adapter.pipeline.columns import spark_schema
from adapter.pipeline.offsets.options import FORMAT, Connection, ReadOptions, WriteOptions, parse_options
from adapter.pipeline.offsets.reader import FilteringReader, OffsetsReader
from adapter.pipeline.offsets.rows import NEEDED, check_columns
from adapter.pipeline.offsets.snapshot import FilteringSnapshotReader, SnapshotReader
from adapter.pipeline.offsets.writer import OffsetsStreamWriter, OffsetsWriter
from adapter.pipeline.places import redacted
from adapter.pipeline.pushdown import filters_are_offered

# Spark passes the options of CREATE TABLE to `schema()` alone, with this prefix, and not to readers and writers of the table. It
# stores the schema, though. So the first column's metadata has the options.
_OF_TABLE = "option."
_METADATA = "offsets.options"
# What is read. One of them, so that of a statement replaces that of its table.
_WHENCE = ("endpoints", "snapshot")
# Options of a stream that Spark uses itself, and passes on.
_OF_SPARK = {"checkpointlocation", "queryname"}


class OffsetsDataSource(DataSource):
    """`spark.read.format("offsets")`, `df.write.format("offsets").mode("append")`, and `df.writeStream.format("offsets")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of schemas.RECORDS; those that a write may leave out are nullable.

        Raises ConfigError for invalid options of a CREATE TABLE.
        """
        found = spark_schema(RECORDS, columns.RECORDS, optional=set(RECORDS.names) - set(NEEDED))
        stored = {name.removeprefix(_OF_TABLE): value for name, value in self.options.items() if name.startswith(_OF_TABLE)}
        if stored:
            _check_table(stored)
            found.fields[0].metadata[_METADATA] = stored
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """Create a reader. Raises ConfigError for invalid options."""
        if schema.names != RECORDS.names:
            raise ConfigError(
                f"{FORMAT}: has its own columns; read without .schema(), CREATE TABLE without columns, then select what you need"
            )
        stored = _of_table(schema, ReadOptions)
        if any(name in self.options for name in _WHENCE):
            stored = {name: value for name, value in stored.items() if name not in _WHENCE}
        options = parse_options(ReadOptions, _some({**stored, **self.options}))
        if options.snapshot:
            return (FilteringSnapshotReader if filters_are_offered() else SnapshotReader)(options, schema)
        return (FilteringReader if filters_are_offered() else OffsetsReader)(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Create a writer.

        Raises ConfigError for invalid options and mode("overwrite"), InvalidInputError for invalid columns.
        """
        options = self._write_options(schema)
        if overwrite:
            raise ConfigError(
                f"{FORMAT}: mode('overwrite') would take away the offsets that are not in the rows, and there is no such thing: "
                "use mode('append'), which merges; to move offsets back or delete them, use `offset-adapter offsets`"
            )
        check_columns(schema)
        return OffsetsWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - Spark's
        """Create the writer of a stream.

        Raises ConfigError for invalid options and outputMode("complete"), InvalidInputError for invalid columns.
        """
        options = self._write_options(schema)
        if overwrite:
            raise ConfigError(
                f"{FORMAT}: outputMode('complete') would take away the offsets that are not in the rows, and there is no such "
                "thing: use outputMode('update'), which merges the rows that changed"
            )
        check_columns(schema, (*NEEDED, "committed_at"))
        return OffsetsStreamWriter(options)

    def _write_options(self, schema: StructType) -> WriteOptions:
        # Rows that were read from a table bring that table's options with them: who names another Meta Service means that one.
        of_table = {} if "endpoints" in self.options else _of_table(schema, WriteOptions)
        given = {name: value for name, value in self.options.items() if name.lower() not in _OF_SPARK}
        return parse_options(WriteOptions, _some({**of_table, **given}))


def _some(options: dict[str, str]) -> dict[str, str]:
    if not options:
        raise ConfigError(
            f"{FORMAT}: option endpoints: is missing; give host:port of the Meta Service. "
            "A table in SQL keeps its options only if CREATE TABLE has OPTIONS, no list of columns, and no AS SELECT"
        )
    return options


def _check_table(options: Mapping[str, str]) -> None:
    """Check the options of a CREATE TABLE. Raises ConfigError."""
    if unknown := [name for name in options if name.lower() not in _names(ReadOptions) | _names(WriteOptions)]:
        raise ConfigError(f"{FORMAT}: no such option: {', '.join(unknown)}; see docs/pipeline.md")
    read = parse_options(ReadOptions, _of_kind(options, ReadOptions))
    if read.snapshot and unquote(redacted(read.snapshot)) != unquote(read.snapshot):
        raise ConfigError(
            f"{FORMAT}: option snapshot: {redacted(read.snapshot)} has credentials, which all who read the table would see: "
            "give them by the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    if read.endpoints:
        parse_options(WriteOptions, _of_kind(options, WriteOptions))


def _of_table(schema: StructType, kind: type[Connection]) -> dict[str, str]:
    """The options of the table that has this schema, as far as they are of this kind."""
    for field in schema:
        if stored := (field.metadata or {}).get(_METADATA):
            return _of_kind(stored, kind)
    return {}


def _of_kind(options: Mapping[str, str], kind: type[Connection]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items() if name.lower() in _names(kind)}


def _names(kind: type[Connection]) -> set[str]:
    return {name.replace("_", "") for name in kind.model_fields}
