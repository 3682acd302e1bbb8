"""The columns of the journal and of snapshots, as Arrow has them. Needs the extra `journal`: a plain sidecar never imports this.

Spark's integers are signed: what is beyond them is null, and `problem` says what it was. No row is left out for it.
"""

import pyarrow as pa

JOURNAL_VERSION = "1"
SNAPSHOT_VERSION = "1"
# Keys of the metadata that such a Parquet file has. Values are UTF-8.
VERSION_OF_JOURNAL = b"offset_adapter.journal"
VERSION_OF_SNAPSHOT = b"offset_adapter.snapshot"
BROKER = b"offset_adapter.broker"
TAKEN_AT_MS = b"offset_adapter.taken_at_ms"

LONG_MAX = 2**63 - 1

TIME = pa.timestamp("us", tz="UTC")
_NAMES = [pa.field(name, pa.string(), nullable=False) for name in ("namespace", "group", "shard")]
_LABELS = [pa.field("topic", pa.string(), nullable=False), pa.field("partition", pa.int64(), nullable=False)]

# What happened. `flush`: the Meta Service acknowledged this value, or a larger one, which is then shown. `rewind`: a consumer
# went back. The others are what an admin, an import, or the expiry did. `heartbeat`: nothing, but time passed.
KINDS = ("flush", "rewind", "reset", "delete", "clone", "import", "expire", "heartbeat")

JOURNAL = pa.schema(
    [
        # By the adapter's clock.
        pa.field("at", TIME, nullable=False),
        # Counts the rows of one run of the adapter (the segment's file name has the run).
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        *_NAMES,
        *_LABELS,
        # What stands after it; a tombstone is not live.
        pa.field("epoch", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("live", pa.bool_(), nullable=False),
        pa.field("committed_at", TIME),
        # What stood before it; only where it moved on purpose: every kind but `flush` and `heartbeat`.
        pa.field("from_epoch", pa.int64()),
        pa.field("from_offset", pa.int64()),
        # The shard's bounds, as the broker told them last, and when.
        pa.field("low_watermark", pa.int64()),
        pa.field("high_watermark", pa.int64()),
        pa.field("watermark_at", TIME),
        pa.field("problem", pa.string()),
    ]
)

# What is in a store: the local one of an adapter, or the Meta Service's.
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

# A snapshot of an adapter tells as well what the Meta Service may not have yet.
SNAPSHOT = RECORDS.append(pa.field("dirty", pa.bool_(), nullable=False))
