"""Reads one segment of a journal, as Arrow batches or as a table, and says why it, or the rest of it, is unreadable.

A readable segment is read completely. A file of another kind or version is not read at all. A file that is not there is no
unreadable segment: this machine may lack the mount, so the task fails, and nothing is lost.
"""

import errno
import socket
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from adapter.errors import TransientError
from adapter.model.schemas import BROKER, JOURNAL, JOURNAL_VERSION, VERSION_OF_JOURNAL
from adapter.pipeline.journal.listing import Segment
from adapter.pipeline.places import Place

# The kind of a row that stands for unreadable data.
UNREADABLE = "unreadable"

# The journal's columns and the origin of a row. Broker, run and seq identify a row.
COLUMNS: pa.Schema = pa.unify_schemas(
    [
        JOURNAL,
        pa.schema(
            [
                pa.field("broker", pa.string(), nullable=False),
                pa.field("run", pa.int64(), nullable=False),
                pa.field("segment", pa.string(), nullable=False),
            ]
        ),
    ]
)

# Columns that segments of earlier releases do not have: null there.
_LATER = ("log_id",)
_ROWS_OF_BATCH = 65_536

_AGAIN = "its rows are missing from here on. Once it is whole, a batch read or a new checkpoint has them"
_COPY = f"copy it again from its broker (rsync without --inplace); {_AGAIN}"
_MODE = f"may not be read by the user of this job: change its mode; {_AGAIN}"

_MISSING = (
    "{path}: was listed by the driver, but {host} does not find it: is the journals' directory mounted there, at the same path? "
    "Nothing is lost: start the query again. If the disk bound deleted the segment, that start finds out and says so in a row"
)
GONE = (
    "is gone since it was found: deleted by the disk bound before it was read? Raise disk_max_bytes, or read more often; "
    + _AGAIN
)
# Error numbers that concern this file only, if its directory can be listed. Others, such as a lost network, fail the task.
_OF_FILE = {
    errno.EACCES: _MODE,
    errno.EPERM: _MODE,
    errno.EIO: f"cannot be read from its disk; {_COPY}",
}


class MissingSegmentError(TransientError):
    """A segment that the driver listed is not found by this task. It counts as gone only if the driver does not find it."""


class UnreadableError(Exception):
    """A segment, or the rest of it, is unreadable. The message says why and what to do."""


def read_segment(segment: Segment, columns: pa.Schema = COLUMNS) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment; at the end a row of kind `unreadable` if needed.

    `columns`: some of COLUMNS, nullable or not. Raises MissingSegmentError if the file is not found, OSError if the storage is
    unavailable.
    """
    rows = 0
    try:
        for batch in _batches(segment, pa.schema([JOURNAL.field(name) for name in columns.names if name in JOURNAL.names])):
            rows += batch.num_rows
            yield _located(batch, segment, columns)
    except UnreadableError as error:
        yield unreadable(segment, _told(error, rows), columns)


def read_table(segment: Segment, columns: Sequence[str]) -> tuple[pa.Table, str | None]:
    """The readable rows with these columns of the journal (at least one), and why the rest is unreadable (None: whole).

    Strings are dictionary-encoded. Raises MissingSegmentError if the file is not found, OSError if the storage is unavailable.
    """
    schema = _encoded(columns)
    batches: list[pa.RecordBatch] = []
    problem = None
    try:
        for batch in _batches(segment, schema):
            batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=schema))  # noqa: PERF401 - kept when a later one fails
    except UnreadableError as error:
        problem = _told(error, sum(batch.num_rows for batch in batches))
    return pa.Table.from_batches(batches, schema), problem


def unreadable(segment: Segment, problem: str, columns: pa.Schema = COLUMNS) -> pa.RecordBatch:
    """A batch with the row that stands for unreadable data."""
    empty = {"at": 0, "seq": 0, "kind": UNREADABLE, "partition": 0, "live": False, "problem": problem}
    row = {name: empty.get(name, "") for name in COLUMNS.names if not COLUMNS.field(name).nullable} | empty
    row |= {"broker": segment.broker, "run": segment.run, "segment": segment.path}
    return pa.RecordBatch.from_pylist([row], schema=COLUMNS).select(columns.names).cast(columns)


def _told(error: UnreadableError, rows: int) -> str:
    where = f"after {rows} rows: " if rows else ""
    return f"segment {where}{error}"


def _encoded(names: Sequence[str]) -> pa.Schema:
    fields = (JOURNAL.field(name) for name in names)
    words = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([field.with_type(words) if field.type == pa.string() else field for field in fields])


def _batches(segment: Segment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows with the columns of `schema`, some of the journal's; strings may be dictionary-encoded."""
    content = _content(segment)
    if not content.size:
        raise UnreadableError(f"is empty, 0 bytes: it was not copied whole; {_COPY}")
    try:
        has = _check(pq.ParquetFile(pa.BufferReader(content)), segment)
        there = [field for field in schema if field.name in has]
        words = [field.name for field in there if pa.types.is_dictionary(field.type)]
        names = [field.name for field in there]
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, read_dictionary=words)
        for batch in file.iter_batches(_ROWS_OF_BATCH, columns=names, use_threads=False):
            yield _complete(batch, schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableError(f"is torn, or no Parquet file ({' '.join(str(error).split())}); {_COPY}") from error


def _content(segment: Segment) -> pa.Buffer:
    """The content of the file. It is read before it is parsed, so that storage errors are not taken for damage."""
    files, base = Place(segment.root).opened()
    path = f"{base}/{segment.relative}"
    try:
        with files.open_input_file(path) as file:
            return file.read_buffer()
    except FileNotFoundError as error:
        raise MissingSegmentError(_MISSING.format(path=segment.path, host=socket.gethostname())) from error
    except OSError as error:
        if error.errno in _OF_FILE and _is_listed(files, path):
            raise UnreadableError(_OF_FILE[error.errno]) from error
        raise


def _is_listed(files: fs.FileSystem, path: str) -> bool:
    """Whether its directory has the file. A storage that is away may answer as a bad file does (NFS: EIO). Raises OSError."""
    folder, _, name = path.rpartition("/")
    return any(info.base_name == name for info in files.get_file_info(fs.FileSelector(folder)))


def _check(file: pq.ParquetFile, segment: Segment) -> list[str]:
    """The columns of the file. Raises UnreadableError unless it is a whole segment of this version."""
    metadata = file.metadata.metadata or {}
    version = metadata.get(VERSION_OF_JOURNAL)
    if version is None:
        raise UnreadableError("is no segment of a journal, but another Parquet file: move it elsewhere")
    if version != JOURNAL_VERSION.encode():
        raise UnreadableError(
            f"has version {version.decode(errors='replace')!r} of the journal, this reads {JOURNAL_VERSION!r}: "
            f"use the offset-adapter of its broker's version; {_AGAIN}"
        )
    if (broker := metadata.get(BROKER, b"").decode(errors="replace")) != segment.broker:
        raise UnreadableError(f"is of broker {broker!r}, and lies in the directory of {segment.broker!r}: move it to its own")
    has = file.schema_arrow
    expected = [field for field in JOURNAL if field.name in has.names or field.name not in _LATER]
    wrong = [f.name for f in expected if has.get_field_index(f.name) < 0 or has.field(f.name).type != f.type]
    if wrong:
        raise UnreadableError(f"lacks columns of the journal, or has them with another type: {', '.join(wrong)}; {_AGAIN}")
    names: list[str] = has.names
    return names


def _complete(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of `schema`, null where the file has none.

    Checks that those which the journal declares as not null have no nulls, because Spark relies on it.
    """
    lacking = [name for name in batch.schema.names if not JOURNAL.field(name).nullable and batch.column(name).null_count]
    if lacking:
        raise UnreadableError(f"has nulls where a journal has none: {', '.join(lacking)}; {_AGAIN}")
    there = batch.schema.names
    if there == schema.names:
        return batch
    return pa.RecordBatch.from_arrays(
        [batch.column(field.name) if field.name in there else pa.nulls(batch.num_rows, field.type) for field in schema],
        schema.names,
    )


def _located(batch: pa.RecordBatch, segment: Segment, columns: pa.Schema) -> pa.RecordBatch:
    where = {"broker": segment.broker, "run": segment.run, "segment": segment.path}
    return pa.RecordBatch.from_arrays(
        [pa.repeat(pa.scalar(where[name]), batch.num_rows) if name in where else batch.column(name) for name in columns.names],
        schema=columns,
    )
