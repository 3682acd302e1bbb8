"""Reads a snapshot of a cluster's offsets, as `offset-adapter meta snapshot` writes it: the same rows at each read.

Row groups in which no selected name can be are left out on the driver.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from adapter.errors import ConfigError, StoreDamagedError
from adapter.model.names import NAME_MAX_BYTES
from adapter.model.snapshots import MANIFEST, Manifest
from adapter.pipeline.offsets.options import FORMAT, ReadOptions
from adapter.pipeline.offsets.reader import AUTO_PARTS, PART_RECORDS
from adapter.pipeline.offsets.selection import Selection
from adapter.pipeline.places import Place, unseen


@dataclass
class RowGroups(InputPartition):
    """Row groups of one file, by their numbers."""

    file: str
    numbers: list[int]


class SnapshotReader(DataSourceReader):
    """Reads the records of a snapshot that the options select. Created on the driver; `read` runs in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._place = Place.of(options.snapshot or "")
        self._selection = Selection.of(options.namespace, options.group)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Divide the row groups.

        Raises ConfigError for what is no snapshot, or is of another cluster, StoreDamagedError for one that is not whole.
        """
        manifest = self._manifest()
        files, footers = manifest.files, {name: self._footer(name) for name in manifest.files}
        records = sum(footer.num_rows for footer in footers.values())
        if records != manifest.records:
            raise StoreDamagedError(
                f"{self._place}: has {records:,} records, and {MANIFEST} says {manifest.records:,}: copy the snapshot again"
            )
        found = [(name, number, rows) for name, footer in footers.items() for number, rows in self._row_groups(footer)]
        if not found:  # without any part, Spark would read one that it makes itself
            return [RowGroups(files[0], [])]
        total = sum(rows for _, _, rows in found)
        size = -(-total // (self._options.partitions or min(AUTO_PARTS, -(-total // PART_RECORDS))))
        parts: list[RowGroups] = []
        filled = size
        for name, number, rows in found:
            if filled >= size or parts[-1].file != name:
                parts.append(RowGroups(name, []))
                filled = 0
            parts[-1].numbers.append(number)
            filled += rows
        return [*parts]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Spark says InputPartition
        """Yield the records of a part. Raises StoreDamagedError, AdapterError for a file that this machine does not see."""
        if not partition.numbers:
            return
        try:
            opened = self._opened(partition.file)
        except FileNotFoundError as error:
            raise unseen(self._place / partition.file) from error
        with opened as file:
            batches = file.iter_batches(self._options.page_size, partition.numbers)
            while (batch := self._next(batches, partition.file)) is not None:
                yield pa.RecordBatch.from_arrays(self._selected(batch).columns, schema=self._schema)

    def _selected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        namespaces, groups, prefix = self._selection
        for column, names in (("namespace", namespaces), ("group", groups)):
            if names is not None:
                batch = batch.filter(pc.is_in(batch.column(column), pa.array(names, pa.string())))
        if prefix:
            batch = batch.filter(pc.starts_with(batch.column("group"), prefix))
        if not self._options.tombstones and batch.column("live").false_count:
            batch = batch.filter(batch.column("live"))
        return batch

    def _manifest(self) -> Manifest:
        where = self._place / MANIFEST
        try:
            manifest = Manifest.decode(where.read(), str(where))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{FORMAT}: option snapshot: {self._place} has no {MANIFEST}: it is no snapshot, or is not on this machine; "
                "`offset-adapter meta snapshot` writes one"
            ) from error
        except NotADirectoryError as error:
            raise ConfigError(
                f"{FORMAT}: option snapshot: {self._place} is no directory: a snapshot is the directory that "
                "`offset-adapter meta snapshot` writes"
            ) from error
        except OSError as error:
            raise self._unreadable(where, error) from None
        if "cluster" in self._options.model_fields_set and self._options.cluster != manifest.cluster:
            raise ConfigError(
                f"{FORMAT}: option cluster = {self._options.cluster!r}: {self._place} is of the cluster {manifest.cluster!r}"
            )
        return manifest

    def _footer(self, name: str) -> pq.FileMetaData:
        try:
            with self._opened(name) as file:
                return file.metadata
        except FileNotFoundError as error:
            raise StoreDamagedError(
                f"{self._place / name}: is not there, and {MANIFEST} lists it: copy the snapshot again"
            ) from error

    def _row_groups(self, footer: pq.FileMetaData) -> Iterator[tuple[int, int]]:
        """Number and rows of each row group in which selected names may be, by the statistics in the file."""
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            bounds = [_bounds(group.column(at).statistics) for at in range(2)]
            if group.num_rows and self._may_have_rows(*bounds):
                yield number, group.num_rows

    def _may_have_rows(self, namespace: tuple[str, str], group: tuple[str, str]) -> bool:
        namespaces, groups, prefix = self._selection
        if prefix and not group[0][: len(prefix)] <= prefix <= group[1][: len(prefix)]:
            return False
        wanted = ((namespace, namespaces), (group, groups))
        return all(names is None or any(least <= name <= most for name in names) for (least, most), names in wanted)

    def _opened(self, name: str) -> pq.ParquetFile:
        system, path = (self._place / name).opened()
        try:
            return pq.ParquetFile(path, filesystem=system, page_checksum_verification=True)
        except pa.ArrowException as error:
            raise StoreDamagedError(f"{self._place / name}: cannot be read: {error}") from error
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreadable(self._place / name, error) from None

    def _unreadable(self, file: Place, error: OSError) -> ConfigError:
        """The error of a file, with the option's name; to be raised without its cause, in which Spark would show the URL."""
        reason = (error.strerror or str(error)).partition("\n")[0].replace(self._place.url, str(self._place))
        return ConfigError(f"{FORMAT}: option snapshot: {file}: cannot be read: {reason}")

    def _next(self, batches: Iterator[pa.RecordBatch], name: str) -> pa.RecordBatch | None:
        try:
            return next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise StoreDamagedError(f"{self._place / name}: cannot be read: {error}") from error


class FilteringSnapshotReader(SnapshotReader):
    """A reader that handles filters of names on namespace and group itself."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept filters, and return those that Spark has to apply."""
        self._selection, left = self._selection.narrowed(filters, by_range=False)
        return left


def _bounds(statistics: Any) -> tuple[str, str]:  # noqa: ANN401 - pyarrow has no types
    """The smallest and the largest name in a row group; those of any where the file does not say them."""
    return (statistics.min, statistics.max) if statistics and statistics.has_min_max else ("", "\U0010ffff" * NAME_MAX_BYTES)
