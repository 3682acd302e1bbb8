"""A snapshot as Parquet: pages of raw records -> row groups of tables.SNAPSHOT. Needs the extra `journal`.

Whoever gives the file decides whether it stays: it is complete when this is left without an error.
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

ROW_GROUP = 131_072


class SnapshotFile:
    """A Parquet file that grows, and what it holds so far. Raises StoreDamagedError for what is no record, OSError."""

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
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def __enter__(self) -> Self:
        """The file, finished at the end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write what waits, and the footer."""
        try:
            if kind is None:
                self._write()
                self._writer.close()
        finally:
            self._writer.is_open = False  # else it would try again once it is collected, on a file that is closed by then

    def add(self, keys: Sequence[bytes], records: Sequence[bytes]) -> None:
        """The next page."""
        batch = decode_records(keys, records)
        dirty = decode_seqs(records) > self._flushed_seq
        rows = pa.RecordBatch.from_arrays([*batch.columns, pa.array(dirty)], schema=self._schema)
        self.records += rows.num_rows
        self.dirty += int(dirty.sum())
        self.tombstones += rows.num_rows - pc.sum(rows["live"]).as_py()
        self.problems += rows.num_rows - rows["problem"].null_count
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=2 * ROW_GROUP)
        self._waiting, self._waiting_rows = [], 0
