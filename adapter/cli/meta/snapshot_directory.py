"""Writes a snapshot of a cluster as a directory of Parquet files and a manifest. Needs the extra `journal`.

The directory appears completely or not at all: it is written beside its place, synced, and renamed when its context is left
without an error.
"""

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from adapter.errors import InvalidInputError
from adapter.model.arrow import decode_packed
from adapter.model.schemas import RECORDS
from adapter.model.snapshots import MANIFEST, Manifest
from adapter.rpc import meta_pb
from adapter.runtime.durable.files import sync_directory

FILE_ROWS = 1_000_000  # a file of some 10 MB
ROW_GROUP = 131_072  # rows that are collected before they are written
# Neighbouring records have near offsets and times: their differences are small numbers, which need no compression, and the JVM
# reads them as fast as plain ones. Names, and the numbers that mostly repeat, are in dictionaries.
_DIFFERENCES = dict.fromkeys(("offset", "committed_at"), "DELTA_BINARY_PACKED")
_DICTIONARIES = [field.name for field in RECORDS if field.name not in {*_DIFFERENCES, "live"}]
_COMPRESSION = {field.name: "zstd" if field.type == pa.string() else "none" for field in RECORDS}


class SnapshotDirectory:
    """A snapshot that is being written to `path`, which must not exist. Raises InvalidInputError, StoreDamagedError."""

    def __init__(self, path: Path, cluster: str, taken_at_ms: int) -> None:
        self.manifest = Manifest(cluster, taken_at_ms, 0, 0, ())
        self._path = path = path.absolute()
        self._fresh = path.with_name(f".{path.name}.{os.getpid()}")
        self._writer: pq.ParquetWriter | None = None
        self._file_rows = 0
        self._collected: list[pa.RecordBatch] = []
        self._collected_rows = 0

    def __enter__(self) -> Self:
        """Make the directory beside its place."""
        try:
            if self._path.exists() or self._path.is_symlink():
                raise InvalidInputError(f"{self._path}: exists; a snapshot needs a new directory")
            shutil.rmtree(
                self._fresh, ignore_errors=True
            )  # what a killed process of the same pid left: in a container pids repeat
            self._fresh.mkdir()
        except OSError as error:
            raise _unwritable(self._path, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Rename the directory to its place, or delete it after an error."""
        try:
            if kind is None:
                self._finish()
        except OSError as failed:
            raise _unwritable(self._path, failed) from failed
        finally:
            if self._writer:
                self._writer.is_open = False  # otherwise its finalizer writes again
            shutil.rmtree(self._fresh, ignore_errors=True)

    def add(self, rows: meta_pb.PackedRows) -> None:
        """Append a page. Blocks."""
        batch = decode_packed(rows.keys, rows.key_sizes, rows.records, rows.record_sizes)
        self._collected.append(batch)
        self._collected_rows += batch.num_rows
        dead = batch["live"].false_count
        self.manifest = self.manifest._replace(
            records=self.manifest.records + batch.num_rows, tombstones=self.manifest.tombstones + dead
        )
        if self._collected_rows >= ROW_GROUP:
            self._write()

    def _write(self) -> None:
        """Write what is collected as one row group, into a new file if the last one is full."""
        try:
            if self._writer is None:
                name = f"part-{len(self.manifest.files):05}.parquet"
                self._writer = pq.ParquetWriter(
                    self._fresh / name,
                    RECORDS,
                    compression=_COMPRESSION,
                    use_dictionary=_DICTIONARIES,
                    column_encoding=_DIFFERENCES,
                    write_page_checksum=True,
                )
                self.manifest = self.manifest._replace(files=(*self.manifest.files, name))
            self._writer.write_table(pa.Table.from_batches(self._collected, RECORDS), row_group_size=2 * ROW_GROUP)
            self._file_rows += self._collected_rows
            self._collected, self._collected_rows = [], 0
            if self._file_rows >= FILE_ROWS:
                self._close_file()
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def _close_file(self) -> None:
        if self._writer:
            self._writer.close()
        self._writer, self._file_rows = None, 0

    def _finish(self) -> None:
        if self._collected or not self.manifest.files:  # an empty snapshot has a file too: it says the columns
            self._write()
        self._close_file()
        (self._fresh / MANIFEST).write_bytes(self.manifest.encode())
        for file in self._fresh.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        sync_directory(self._fresh)
        self._fresh.rename(self._path)
        sync_directory(self._path.parent)


def _unwritable(path: Path, error: OSError) -> InvalidInputError:
    return InvalidInputError(f"{path}: cannot be written: {error.strerror or error}")
