"""The tables of the lag job as Arrow schemas, each column with a comment that has its unit. Unknown is null.

Names are dictionaries in memory; in Parquet files they are strings.
"""

import pyarrow as pa

from adapter.model.schemas import TIME

_WORD = pa.dictionary(pa.int32(), pa.string())
_LONG, _INT, _DOUBLE, _TEXT = pa.int64(), pa.int32(), pa.float64(), pa.string()


def _field(name: str, kind: pa.DataType, comment: str) -> pa.Field:
    return pa.field(name, kind, metadata={"comment": comment})


_EVALUATED = _field("evaluated_at", TIME, "the newest time in the journals: what `now` means in this batch")
_NAMES = [
    _field("namespace", _WORD, "of the group"),
    _field("group", _WORD, "the consumer group"),
    _field("shard", _WORD, "the shard: topic and partition, as the broker names it"),
]

# One row for each key (namespace, group, shard) whose largest record is no tombstone.
SHARDS = pa.schema(
    [
        _EVALUATED,
        *_NAMES,
        _field("topic", _WORD, "as the broker told it"),
        _field("partition", _LONG, "as the broker told it"),
        _field("broker", _WORD, "whose journal has the largest record"),
        _field("epoch", _LONG, "of the largest record"),
        _field("offset", _LONG, "of the largest record: the next message to read"),
        _field("committed_at", TIME, "of the largest record"),
        _field("head", _LONG, "the log's end: the offset of the next message to be written"),
        _field("head_at", TIME, "when the broker told the head"),
        _field("lag", _LONG, "messages that can still be read: head - max(offset, log start)"),
        _field("lost", _LONG, "messages that were gone before they were read"),
        _field("lag_seconds", _DOUBLE, "seconds: how long ago the head was at the offset"),
        _field("consume_rate", _DOUBLE, "messages a second, over the window"),
        _field("produce_rate", _DOUBLE, "messages a second, over the heads"),
        _field("drain_seconds", _DOUBLE, "seconds until the lag is 0 at these rates; null if it never will be"),
        _field("trend", _DOUBLE, "messages a second by which the lag grows"),
        _field("status", _WORD, "UNKNOWN, OK, WARN, REWIND, STALL, STOP or BEYOND"),
        _field("burrow", _WORD, "the same by Burrow's rules"),
        _field("points", _INT, "commits of the window"),
    ]
)

# One row for each group.
GROUPS = pa.schema(
    [
        _EVALUATED,
        _field("namespace", _TEXT, "of the group"),
        _field("group", _TEXT, "the consumer group"),
        _field("status", _TEXT, "the worst of its shards: OK < UNKNOWN < WARN < REWIND < STALL < STOP < BEYOND"),
        _field("burrow", _TEXT, "by Burrow's rules: OK, WARN or ERR"),
        _field("shards", _INT, "number of its shards"),
        _field("unknown_lag_shards", _INT, "shards whose lag is unknown"),
        _field("total_lag", _LONG, "messages: the sum over the shards whose lag is known, at most 2^63 - 1"),
        _field("max_lag_seconds", _DOUBLE, "seconds: the largest known one of a shard"),
        _field("drain_seconds", _DOUBLE, "seconds: of the slowest shard; null if one never drains, or is unknown"),
        _field("worst_shard", _TEXT, "the first of those with the worst status and then the largest lag"),
    ]
)

# What several tasks find of a group, before it is summed: the sums as two halves, because each may be up to 2^63 - 1.
GROUP_SUMS = pa.schema(
    [
        pa.field("namespace", _TEXT),
        pa.field("group", _TEXT),
        pa.field("shards", _LONG),
        pa.field("unknown", _LONG),
        pa.field("undrained", _LONG),
        pa.field("lag_upper", _LONG),
        pa.field("lag_lower", _LONG),
        pa.field("lag_seconds", _DOUBLE),
        pa.field("drain_seconds", _DOUBLE),
        pa.field("burrow", _LONG),
        pa.field("worst_severity", _LONG),
        pa.field("worst_lag", _LONG),
        pa.field("worst_shard", _TEXT),
    ]
)

# One row for each reset, rewind, clone or import.
REWINDS = pa.schema(
    [
        _field("at", TIME, "when it was journaled, by the adapter's clock"),
        *_NAMES,
        _field("broker", _WORD, "whose journal has it"),
        _field("kind", _WORD, "rewind, reset, clone or import"),
        _field("from_epoch", _LONG, "before"),
        _field("from_offset", _LONG, "before; null if there was none"),
        _field("epoch", _LONG, "after"),
        _field("offset", _LONG, "after"),
        _field("duplicates", _LONG, "messages read again"),
        _field("skipped", _LONG, "messages never read"),
    ]
)

# One row for each journal row, or segment, that is not taken as it stands.
REJECTS = pa.schema(
    [
        _field("at", TIME, "when it was journaled; 1970 for a segment that cannot be read"),
        _field("broker", _WORD, "whose journal has it"),
        _field("run", _LONG, "the run of the adapter: its start, Unix time in milliseconds"),
        _field("seq", _LONG, "the row's number in the run"),
        _field("segment", _WORD, "the segment's path or URL"),
        _field("kind", _WORD, "the row's kind; unreadable for a segment"),
        *_NAMES,
        _field("epoch", _LONG, "as the row has it"),
        _field("offset", _LONG, "as the row has it"),
        _field("problem", _TEXT, "what is wrong, what was done about it, what to do"),
    ]
)
