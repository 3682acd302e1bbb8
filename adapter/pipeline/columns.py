"""What the columns of the data sources mean, with units: comments that Spark shows by DESCRIBE and in `df.schema`."""

from collections.abc import Collection, Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

# Of RECORDS, those that a row to write must have.
NEEDED = ("namespace", "group", "shard", "offset")

_KEY = {
    "namespace": "tenant of the group",
    "group": "consumer group",
    "shard": "what has one offset for each group, such as TOPIC/PARTITION",
    "topic": "topic of the shard; empty: not stated",
    "partition": "partition of the shard; 0 if not stated",
}
_TOO_LARGE = "the number that is null because it is beyond signed 64 bits"

RECORDS: Mapping[str, str] = _KEY | {
    "epoch": "generation of the position: a reset raises it. Written 0 or null: that which stands",
    "offset": "next message to read, in messages from the start of the log",
    "live": "false: deleted or expired",
    "committed_at": "when it was committed, by the committer's clock; null: not known",
    "metadata": "what the consumer stored beside the offset",
    "problem": _TOO_LARGE,
}
JOURNAL: Mapping[str, str] = _KEY | {
    "at": "when it was noted, by the adapter's clock; the date of its directory, in UTC",
    "seq": "number of the row in its run, from 0; a gap is rows that were dropped",
    "kind": "flush, rewind, reset, delete, clone, import, expire, heartbeat; unreadable: a segment that could not be read",
    "epoch": "generation of the position after the event",
    "offset": "position after the event: next message to read, in messages from the start of the log",
    "live": "false: deleted or expired by the event",
    "committed_at": "when the position was committed, by the committer's clock",
    "from_epoch": "generation of the position before the event",
    "from_offset": "position before the event, in messages from the start of the log",
    "low_watermark": "start of the log, in messages, as the last commit stated it",
    "high_watermark": "end of the log, in messages, as the last commit stated it",
    "watermark_at": "when low_watermark and high_watermark were stated",
    "log_id": "which log they are of: another one when it was made anew; null: not stated",
    "problem": f"why a segment could not be read, or {_TOO_LARGE}",
    "broker": "broker of the adapter",
    "run": "start of the adapter, in ms of Unix time; with broker and seq it identifies a row",
    "segment": "path or URL of the file, without credentials",
}
SEGMENTS: Mapping[str, str] = {
    "root": "path or URL of the journals, without credentials",
    "date": "UTC date of all its rows, YYYY-MM-DD; *: not known, as the segment is gone",
    "broker": "broker of the adapter",
    "run": "start of the adapter, in ms of Unix time",
    "number": "number of the segment in its run, from 0",
    "size": "size of the file, in bytes",
    "problem": "why the segment is not to be read; null: it is",
}


def spark_schema(schema: pa.Schema, comments: Mapping[str, str], optional: Collection[str] = ()) -> StructType:
    """The schema with comments. `optional`: columns that a row may leave out, declared as nullable."""
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable or field.name in optional, {"comment": comments[field.name]})
            for field in from_arrow_schema(schema)
        ]
    )
