"""Arrow schemas of the journal and of snapshots. Needs the extra `journal`; a plain sidecar never imports this module.

Spark's integers are signed: a larger value becomes null, and the column `problem` says what it was. No row is dropped because of
it.
"""

import pyarrow as pa

JOURNAL_VERSION = "1"
SNAPSHOT_VERSION = "1"
# Keys in a Parquet file's metadata. Values are UTF-8.
VERSION_OF_JOURNAL = b"offset_adapter.journal"
VERSION_OF_SNAPSHOT = b"offset_adapter.snapshot"
BROKER = b"offset_adapter.broker"
TAKEN_AT_MS = b"offset_adapter.taken_at_ms"

TIME = pa.timestamp("us", tz="UTC")
_NAMES = [pa.field(name, pa.string(), nullable=False) for name in ("namespace", "group", "shard")]
_LABELS = [pa.field("topic", pa.string(), nullable=False), pa.field("partition", pa.int64(), nullable=False)]

# The kind of an event. `flush`: the Meta Service acknowledged this value, or a larger one, which the row then shows. `rewind`: a
# consumer committed a lower offset. `heartbeat`: no change, only the time. The others: an admin call, an import, or the expiry.
KINDS = ("flush", "rewind", "reset", "delete", "clone", "import", "expire", "heartbeat")

JOURNAL = pa.schema(
    [
        # When, by the adapter's clock.
        pa.field("at", TIME, nullable=False),
        # The sequence number of the row in one run of the adapter (the segment's file name has the run).
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        *_NAMES,
        *_LABELS,
        # The record after the event; a tombstone is not live.
        pa.field("epoch", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("live", pa.bool_(), nullable=False),
        pa.field("committed_at", TIME),
        # The record before the event; null for `flush` and `heartbeat`.
        pa.field("from_epoch", pa.int64()),
        pa.field("from_offset", pa.int64()),
        # The shard's bounds that the broker reported last, and when.
        pa.field("low_watermark", pa.int64()),
        pa.field("high_watermark", pa.int64()),
        pa.field("watermark_at", TIME),
        # Which log these bounds are of, if the broker told it. Not in journals of earlier releases.
        pa.field("log_id", pa.string()),
        pa.field("problem", pa.string()),
    ]
)

# The records of a store: an adapter's local one, or the Meta Service's.
RECORDS = pa.schema(
    [
        *_NAMES,
        *_LABELS,
        pa.field("epoch", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("live", pa.bool_(), nullable=False),
        pa.field("committed_at", TIME),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("problem", pa.string()),
    ]
)

# A snapshot of an adapter also has `dirty`: True if the Meta Service may not have this record yet.
SNAPSHOT = RECORDS.append(pa.field("dirty", pa.bool_(), nullable=False))
