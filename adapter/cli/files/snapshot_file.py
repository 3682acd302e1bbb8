"""Writes a snapshot as Parquet: pages of packed records become row groups of `schemas.SNAPSHOT`. Needs the extra `journal`.

The file is complete when the context is left without an error. The caller owns the file object, and removes it after an error.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adapter.model.arrow import decode_records, decode_seqs
from adapter.model.schemas import BROKER, SNAPSHOT, SNAPSHOT_VERSION, TAKEN_AT_MS, VERSION_OF_SNAPSHOT
from adapter.rpc import offsets_pb

ROW_GROUP = 131_072  # rows that are collected before they are written


class SnapshotFile:
    """A Parquet file that is being written, with counts of its rows. Raises StoreDamagedError for a malformed record, OSError."""

    def __init__(self, raw: IO[bytes], head: offsets_pb.SnapshotOffsetsReply.Head) -> None:
        self.records = self.tombstones = self.dirty = self.problems = 0
        self._flushed_seq = head.flushed_seq
        metadata = {
            VERSION_OF_SNAPSHOT: SNAPSHOT_VERSION,
            BROKER: head.broker,
            TAKEN_AT_MS: str(head.taken_at_ms),
        }
        self._schema = SNAPSHOT.with_metadata(metadata)
        self._writer = pq.ParquetWriter(raw, self._schema, compression="zstd", write_page_checksum=True)
        self._collected: list[pa.RecordBatch] = []
        self._collected_rows = 0

    def __enter__(self) -> Self:
        """Return the file; leaving the context finishes it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write the collected rows and the footer, unless an error ended the context."""
        try:
            if kind is None:
                self._write()
                self._writer.close()
        finally:
            self._writer.is_open = False  # otherwise its finalizer writes again, to a closed file

    def add(self, keys: Sequence[bytes], records: Sequence[bytes]) -> None:
        """Append a page of packed keys and records."""
        batch = decode_records(keys, records)
        dirty = decode_seqs(records) > self._flushed_seq
        rows = pa.RecordBatch.from_arrays([*batch.columns, pa.array(dirty)], schema=self._schema)
        self.records += rows.num_rows
        self.dirty += int(dirty.sum())
        self.tombstones += rows.num_rows - pc.sum(rows["live"]).as_py()
        self.problems += rows.num_rows - rows["problem"].null_count
        self._collected.append(rows)
        self._collected_rows += rows.num_rows
        if self._collected_rows >= ROW_GROUP:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._collected, self._schema), row_group_size=2 * ROW_GROUP)
        self._collected, self._collected_rows = [], 0
