"""Reads one segment of a journal as Arrow batches. An unreadable segment, or the rest of one, becomes a row with the reason.

A readable segment is read completely. A file of another kind or version is not read at all.
"""

import errno
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from adapter.model.schemas import BROKER, JOURNAL, JOURNAL_VERSION, VERSION_OF_JOURNAL
from adapter.pipeline.journal.listing import Segment, open_root

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

_ROWS_OF_BATCH = 65_536

_AGAIN = "its rows are missing from here on. Once it is whole, a batch read or a new checkpoint has them"
_COPY = f"copy it again from its broker (rsync without --inplace); {_AGAIN}"
_MODE = f"may not be read by the user of this job: change its mode; {_AGAIN}"

# Error numbers that concern this file only. Others, such as a lost network, fail the task, which Spark repeats.
_OF_FILE = {
    errno.ENOENT: (
        "is gone since it was found: deleted by the disk bound before it was read? Raise disk_max_bytes, or read more often; "
        + _AGAIN
    ),
    errno.EACCES: _MODE,
    errno.EPERM: _MODE,
    errno.EIO: f"cannot be read from its disk; {_COPY}",
}
GONE = _OF_FILE[errno.ENOENT]


class UnreadableError(Exception):
    """A segment, or the rest of it, is unreadable. The message says why and what to do."""


def read_segment(segment: Segment, columns: pa.Schema = COLUMNS) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment; at the end a row of kind `unreadable` if needed. Raises OSError if the storage is unavailable.

    `columns`: some of COLUMNS, nullable or not.
    """
    rows = 0
    try:
        for batch in _batches(segment, [name for name in columns.names if name in JOURNAL.names]):
            rows += batch.num_rows
            yield _located(batch, segment, columns)
    except UnreadableError as error:
        where = f"after {rows} rows: " if rows else ""
        yield unreadable(segment.broker, segment.run, segment.path, f"segment {where}{error}", columns)


def unreadable(broker: str, run: int, path: str, problem: str, columns: pa.Schema = COLUMNS) -> pa.RecordBatch:
    """A batch with the row that stands for unreadable data."""
    empty = {"at": 0, "seq": 0, "kind": UNREADABLE, "partition": 0, "live": False, "problem": problem}
    row = {name: empty.get(name, "") for name in COLUMNS.names if not COLUMNS.field(name).nullable} | empty
    row |= {"broker": broker, "run": run, "segment": path}
    return pa.RecordBatch.from_pylist([row], schema=COLUMNS).select(columns.names).cast(columns)


def _batches(segment: Segment, names: list[str]) -> Iterator[pa.RecordBatch]:
    content = _content(segment)
    if not content.size:
        raise UnreadableError(f"is empty, 0 bytes: it was not copied whole; {_COPY}")
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        _check(file, segment)
        for batch in file.iter_batches(_ROWS_OF_BATCH, columns=names, use_threads=False):
            yield _complete(batch)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableError(f"is torn, or no Parquet file ({' '.join(str(error).split())}); {_COPY}") from error


def _content(segment: Segment) -> pa.Buffer:
    """The content of the file. It is read before it is parsed, so that storage errors are not taken for damage."""
    files, base = open_root(segment.root)
    try:
        with files.open_input_file(f"{base}/{segment.relative}") as file:
            return file.read_buffer()
    except OSError as error:
        if error.errno in _OF_FILE:
            raise UnreadableError(_OF_FILE[error.errno]) from error
        raise


def _check(file: pq.ParquetFile, segment: Segment) -> None:
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
    wrong = [f.name for f in JOURNAL if has.get_field_index(f.name) < 0 or has.field(f.name).type != f.type]
    if wrong:
        raise UnreadableError(f"lacks columns of the journal, or has them with another type: {', '.join(wrong)}; {_AGAIN}")


def _complete(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Check that columns which the schema declares as not null have no nulls, because Spark relies on it."""
    lacking = [name for name in batch.schema.names if not JOURNAL.field(name).nullable and batch.column(name).null_count]
    if lacking:
        raise UnreadableError(f"has nulls where a journal has none: {', '.join(lacking)}; {_AGAIN}")
    return batch


def _located(batch: pa.RecordBatch, segment: Segment, columns: pa.Schema) -> pa.RecordBatch:
    where = {"broker": segment.broker, "run": segment.run, "segment": segment.path}
    return pa.RecordBatch.from_arrays(
        [pa.repeat(pa.scalar(where[name]), batch.num_rows) if name in where else batch.column(name) for name in columns.names],
        schema=columns,
    )
