"""The tables of reconcile, import and export: Parquet files in a directory, and a manifest that makes them a table.

    <table>/<run>-<part>.parquet    the rows
    <table>/_manifest.json          the files of the table

Workers write files under names that are used once; the driver looks whether it sees them, writes the manifest, and deletes all
other files. The manifest is the commit: killed before it, the previous table stands, and its files. What a killed run or a
repeated task left is deleted by the next run. Readers that list the directory instead may see such files; whatever begins with _
or . they leave out. Nothing is renamed, so object stores do as well as file systems.
"""

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from adapter.errors import AdapterError
from adapter.pipeline.places import Place
from adapter.pipeline.shared import in_time

MANIFEST = "_manifest.json"
DAMAGED = "is damaged behind its footer"
_GROUP_ROWS = 131_072
_BATCH_ROWS = 16_384
_OURS = re.compile(rf"^adapter\.errors\.AdapterError: (.+: {DAMAGED})$", re.MULTILINE)
# The message of Spark, which has no exception type for a damaged file. The path in it is a URL.
_FAILED_READ = re.compile(r"\[FAILED_READ_FILE\.([A-Z_]+)\] Encountered error while reading file (\S+)\.\s")
_TOLD = pa.schema([pa.field("name", pa.string()), pa.field("size", pa.int64()), pa.field("groups", pa.int64())])


@dataclass(frozen=True)
class File:
    """A Parquet file. `size` in bytes; `groups`: its row groups, which are read in parallel."""

    name: str
    size: int
    groups: int


def write_table(frame: DataFrame, place: Place) -> DataFrame:
    """Replace a table by these rows; returns the rows as they are in it.

    Raises AdapterError if a file that a worker wrote is not there, OSError.
    """
    run = uuid.uuid4().hex[:12]
    schema = to_arrow_schema(frame.schema, timezone="UTC")
    write = partial(_write_part, place, run, schema)
    place.make()
    files = [File(*row) for row in frame.mapInArrow(write, from_arrow_schema(_TOLD)).collect()]
    files = files or [_write(place, f"{run}.parquet", schema, ())]  # a reader of the directory finds the columns
    listed = {entry.path: entry.size for entry in place.entries()}
    for file in files:
        if listed.get(file.name) != file.size and not in_time(partial(_is_there, place, file)):
            raise AdapterError(
                f"{place}: the file {file.name}, which a worker wrote, is not seen here: name a directory that every machine "
                "shares, or a URL"
            )
    (place / MANIFEST).write(json.dumps({"files": [asdict(file) for file in files]}).encode())
    kept = {MANIFEST, *(file.name for file in files)}
    for entry in place.entries():
        if not entry.is_directory and entry.path not in kept:
            (place / entry.path).delete()
    return read_table(frame.sparkSession, place, frame.schema)


def read_table(spark: SparkSession, place: Place, schema: StructType) -> DataFrame:
    """The rows of a table. Raises FileNotFoundError if there is none, OSError."""
    files = [File(**file) for file in json.loads((place / MANIFEST).read())["files"]]
    return read_parquet(spark, [(place / file.name, file.groups) for file in files], schema)


def delete_table(place: Place) -> None:
    """Delete a table; absent is fine. Raises OSError."""
    (place / MANIFEST).delete()
    place.delete_tree()


def read_parquet(spark: SparkSession, files: Sequence[tuple[Place, int]], schema: StructType) -> DataFrame:
    """The rows of files with their numbers of row groups. Spark reads local files, pyarrow those behind URLs.

    A damaged file fails the action, see `damage`.
    """
    if not any(place.is_remote for place, _ in files):
        return spark.read.schema(schema).parquet(*(literal(place.for_spark) for place, _ in files))
    pieces = [(place, group) for place, groups in files for group in range(groups)]
    read = partial(_read_pieces, pieces, to_arrow_schema(schema, timezone="UTC"))
    return spark.range(0, len(pieces), 1, max(len(pieces), 1)).mapInArrow(read, schema)


def damage(error: Exception) -> str | None:
    """The place and the problem of a file that made an action fail; None for other errors."""
    text = str(error)
    if ours := _OURS.search(text):
        return ours[1]
    found = _FAILED_READ.search(text)
    if found is None:
        return None
    place = unquote(found[2].removeprefix("file://"))
    if found[1] == "FILE_NOT_EXIST" or "(No such file or directory)" in text:
        return f"{place}: is not seen by a machine of the cluster, or was deleted meanwhile"
    if "(Permission denied)" in text or "AccessDeniedException" in text:
        return f"{place}: may not be read by the user of Spark's workers"
    return f"{place}: {DAMAGED}"


def _is_there(place: Place, file: File) -> bool:
    system, path = (place / file.name).opened()
    return bool(system.get_file_info(path).size == file.size)


def _write_part(place: Place, run: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task: writes its rows as one file, if there are any, and tells of it."""
    tables = _tables(batches, schema)
    first = next(tables, None)
    if first is not None:
        file = _write(place, f"{run}-{uuid.uuid4().hex}.parquet", schema, chain([first], tables))
        yield pa.RecordBatch.from_pylist([asdict(file)], _TOLD)


def _write(place: Place, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> File:
    """Write a file; one that is cut off is in no manifest, and therefore written under its own name."""
    system, path = (place / name).opened()
    groups = 0
    with system.open_output_stream(path) as stream:
        with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
                groups += 1
        return File(name, stream.tell(), groups)


def _tables(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """The batches in tables of about _GROUP_ROWS rows."""
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(gathered)
            gathered, rows = [], 0
    if rows:
        yield pa.Table.from_batches(gathered)


def _read_pieces(
    pieces: Sequence[tuple[Place, int]], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in a task: the rows of its pieces. Raises AdapterError for a damaged file, FileNotFoundError, OSError."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            place, group = pieces[number]
            table = _read_group(place, group, schema.names)
            yield from table.cast(schema).to_batches(max_chunksize=_BATCH_ROWS)


def _read_group(place: Place, group: int, columns: Sequence[str]) -> pa.Table:
    system, path = place.opened()
    try:
        with system.open_input_file(path) as file, pq.ParquetFile(file) as parquet:
            return parquet.read_row_group(group, columns=columns)
    except (OSError, pa.ArrowException):  # of the file or of the storage: both may be an OSError
        content = pa.BufferReader(place.read())
    try:
        return pq.ParquetFile(content).read_row_group(group, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise AdapterError(f"{place}: {DAMAGED}") from error


def literal(path: str) -> str:
    """A path for Spark, with the characters escaped that it takes for patterns."""
    return "".join(f"\\{char}" if char in "\\{}[]*?" else char for char in path)
