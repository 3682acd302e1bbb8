"""Opens the data source `offsets`: checks its options, those that a table keeps, and the columns; makes the reader or writer.

Like `source.py`, each function imports what it needs.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from adapter.errors import ConfigError
from adapter.model.schemas import RECORDS
from adapter.pipeline.columns import NEEDED
from adapter.pipeline.offsets.options import FORMAT, Connection, ReadOptions, WriteOptions, parse_options
from adapter.pipeline.places import redacted
from adapter.pipeline.pushdown import filters_are_offered

# Where the schema of a table keeps its options: in the metadata of the first column.
METADATA = "offsets.options"
# What is read. One of them, so that of a statement replaces that of its table.
_WHENCE = ("endpoints", "snapshot")
# Options of a stream that Spark uses itself, and passes on.
_OF_SPARK = {"checkpointlocation", "queryname"}
_OVERWRITE = (
    "mode('overwrite') would take away the offsets that are not in the rows, and there is no such thing: "
    "use mode('append'), which merges; to move offsets back or delete them, use `offset-adapter offsets`"
)
_COMPLETE = (
    "outputMode('complete') would take away the offsets that are not in the rows, and there is no such thing: "
    "use outputMode('update'), which merges the rows that changed"
)


def open_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options, and those of the table that has this schema. Raises ConfigError."""
    if schema.names != RECORDS.names:
        raise ConfigError(
            f"{FORMAT}: has its own columns; read without .schema(), CREATE TABLE without columns, then select what you need"
        )
    stored = _of_table(schema, ReadOptions)
    if any(name in options for name in _WHENCE):
        stored = {name: value for name, value in stored.items() if name not in _WHENCE}
    wanted = parse_options(ReadOptions, _some({**stored, **options}))
    if wanted.snapshot:
        from adapter.pipeline.offsets.snapshot import FilteringSnapshotReader, SnapshotReader

        return (FilteringSnapshotReader if filters_are_offered() else SnapshotReader)(wanted, schema)
    from adapter.pipeline.offsets.reader import FilteringReader, OffsetsReader

    return (FilteringReader if filters_are_offered() else OffsetsReader)(wanted, schema)


def open_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceWriter:
    """The writer of rows of this schema. Raises ConfigError for options and overwriting, InvalidInputError for columns."""
    from adapter.pipeline.offsets.writer import OffsetsWriter

    return OffsetsWriter(_checked(options, schema, NEEDED, _OVERWRITE if overwrite else None))


def open_stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of a stream of such rows. Raises ConfigError for options and overwriting, InvalidInputError for columns."""
    from adapter.pipeline.offsets.writer import OffsetsStreamWriter

    return OffsetsStreamWriter(_checked(options, schema, (*NEEDED, "committed_at"), _COMPLETE if overwrite else None))


def _checked(options: Mapping[str, str], schema: StructType, needed: Sequence[str], refused: str | None) -> WriteOptions:
    from adapter.pipeline.offsets.rows import check_columns

    wanted = _write_options(options, schema)
    if refused:
        raise ConfigError(f"{FORMAT}: {refused}")
    check_columns(schema, needed)
    return wanted


def _write_options(options: Mapping[str, str], schema: StructType) -> WriteOptions:
    # Rows that were read from a table bring that table's options with them: who names another Meta Service means that one.
    of_table = {} if "endpoints" in options else _of_table(schema, WriteOptions)
    given = {name: value for name, value in options.items() if name.lower() not in _OF_SPARK}
    return parse_options(WriteOptions, _some({**of_table, **given}))


def _some(options: dict[str, str]) -> dict[str, str]:
    if not options:
        raise ConfigError(
            f"{FORMAT}: option endpoints: is missing; give host:port of the Meta Service. "
            "A table in SQL keeps its options only if CREATE TABLE has OPTIONS, no list of columns, and no AS SELECT"
        )
    return options


def check_table(options: Mapping[str, str]) -> None:
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
        if stored := (field.metadata or {}).get(METADATA):
            return _of_kind(stored, kind)
    return {}


def _of_kind(options: Mapping[str, str], kind: type[Connection]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items() if name.lower() in _names(kind)}


def _names(kind: type[Connection]) -> set[str]:
    return {name.replace("_", "") for name in kind.model_fields}
