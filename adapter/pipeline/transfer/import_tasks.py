"""The work of an import in Spark's workers: read, compare, merge, read back. Rows stay in Arrow columns; the JVM sees none.

Between two stages, rows travel as blobs, one for each bucket of keys. What a task writes is named by the run and by its bucket or
its first piece, so that a repeated task replaces it; a repeated merge changes nothing.
"""

import json
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from adapter.errors import AdapterError, ConfigError
from adapter.pipeline.config import ImportSection
from adapter.pipeline.offsets.reader import OffsetsReader
from adapter.pipeline.offsets.writer import OffsetsWriter
from adapter.pipeline.places import Place, unusable
from adapter.pipeline.tables import MANIFEST, File
from adapter.pipeline.transfer import imports
from adapter.pipeline.transfer.import_entries import entries
from adapter.pipeline.transfer.import_files import Piece
from adapter.pipeline.transfer.summary import SHOWN

# A row between two stages, or for the driver: `number` orders the blobs of the files.
MESSAGES = pa.schema([("bucket", pa.int32()), ("kind", pa.string()), ("number", pa.int64()), ("data", pa.binary())])
# The kinds of messages. `data` of the first three is a table, of the last one JSON.
NAMED, STANDING, COUNTS, REJECTS = "named", "standing", "counts", "rejects"

_BATCHES = 2**20  # more than a piece has
_BLOB_ROWS = 100_000  # stored offsets that are divided into buckets at once
_COLUMNS = ["namespace", *imports.KEY, "topic", "partition", "offset"]  # those of the data source `offsets` that are merged

Batches = Iterable[pa.RecordBatch]


@dataclass(frozen=True)
class Work:
    """What all tasks of an import share. `output` None: a dry run, which writes no table. `run`: a name that is used once."""

    section: ImportSection
    output: Place | None
    run: str
    pieces: Sequence[Piece]
    reader: OffsetsReader
    parts: Sequence[Any]  # of the reader
    buckets: int

    def read(self, numbers: Batches) -> Iterator[pa.RecordBatch]:
        """Read pieces of files, or, from the number `len(pieces)` on, parts of the Meta Service: blobs by bucket, rejects."""
        rejected: list[pa.Table] = []
        wanted = _numbers(numbers)
        for number in wanted:
            if number >= len(self.pieces):
                yield from self.scan(self.parts[number - len(self.pieces)])
                continue
            for at, found in enumerate(entries(self.pieces[number], self.section.format)):
                rows = imports.named(found, self.section)
                yield self._blobs(NAMED, number * _BATCHES + at, imports.accepted(rows))
                rejected.append(imports.rejects(rows))
        refused = pa.concat_tables([imports.REJECTS.empty_table(), *rejected])
        if refused.num_rows:
            self._write("rejects", wanted[0], refused)
            told = {"count": refused.num_rows, "first": refused.slice(0, SHOWN).to_pylist()}
            yield _message(0, REJECTS, wanted[0], json.dumps(told).encode())

    def scan(self, part: Any, *, all_buckets: bool = False) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - of the reader
        """Read a part of the Meta Service: blobs by bucket."""
        pages: list[pa.Table] = []
        for page in self.reader.read(part):
            pages.append(pa.table(page).select(imports.STANDING.names).cast(imports.STANDING))
            if sum(page.num_rows for page in pages) >= _BLOB_ROWS:
                yield self._blobs(STANDING, 0, pa.concat_tables(pages))
                pages = []
        rest = pa.concat_tables([imports.STANDING.empty_table(), *pages])
        yield self._blobs(STANDING, 0, rest, empty=all_buckets)

    def compare(self, messages: Batches) -> Iterator[pa.RecordBatch]:
        """Write the table `preview` of a bucket; tells the counts of its groups, and passes rejects on."""
        for bucket, kinds in _by_bucket(messages).items():
            for number, data in kinds[REJECTS]:
                yield _message(bucket, REJECTS, number, data)
            if kinds[NAMED]:
                wanted = imports.candidates(_joined(imports.NAMED, kinds[NAMED]))
                found = imports.preview(wanted, _joined(imports.STANDING, kinds[STANDING]), self.section.namespace)
                self._write("preview", bucket, found)
                yield _message(bucket, COUNTS, 0, _packed(imports.counts(found)))

    def merge(self, numbers: Batches, buckets: Sequence[int], writer: OffsetsWriter) -> Iterator[pa.RecordBatch]:
        """Merge the rows of `preview` that raise an offset, of the buckets with these numbers. Tells nothing."""
        rows = (self._planned(buckets[number]).select(_COLUMNS) for number in _numbers(numbers))
        writer.write(batch for table in rows for batch in table.to_batches())
        yield pa.RecordBatch.from_pylist([], MESSAGES)

    def read_back(self, numbers: Batches) -> Iterator[pa.RecordBatch]:
        """Read parts of the Meta Service: blobs of all buckets, so that one without stored offsets is compared as well."""
        for number in _numbers(numbers):
            yield from self.scan(self.parts[number], all_buckets=True)

    def verify(self, messages: Batches, merged: frozenset[int]) -> Iterator[pa.RecordBatch]:
        """Write the table `applied` of a bucket that was merged; tells its rows, and how many are below what was merged."""
        for bucket, kinds in _by_bucket(messages).items():
            if bucket in merged:
                found = imports.applied(self._planned(bucket), _joined(imports.STANDING, kinds[STANDING]))
                self._write("applied", bucket, found)
                told = {"merged": found.num_rows, "below": pc.sum(found["below"]).as_py() or 0}
                yield _message(bucket, COUNTS, 0, json.dumps(told).encode())

    def _planned(self, bucket: int) -> pa.Table:
        place = self._part("preview", bucket)
        try:
            return imports.planned(pq.read_table(BytesIO(place.read())))
        except FileNotFoundError as error:
            raise ConfigError(
                f"{place}: is gone, and a worker wrote it: [import] output has to be a directory that all machines share"
            ) from error
        except OSError as error:
            raise unusable(place, "[import] output", error) from error

    def _write(self, table: str, number: int, rows: pa.Table) -> None:
        if self.output:
            write_part(self._part(table, number), rows)

    def _part(self, table: str, number: int) -> Place:
        assert self.output, "a dry run has no tables"  # noqa: S101
        return self.output / f"{table}/{self.part_name(number)}"

    def part_name(self, number: int) -> str:
        """The file of a part of a table."""
        return f"{self.run}-{number:05d}.parquet"

    def _blobs(self, kind: str, number: int, rows: pa.Table, *, empty: bool = False) -> pa.RecordBatch:
        """Messages with the rows of each bucket, in their order. `empty`: also for buckets without rows."""
        bucket = buckets_of(rows, self.buckets)
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(self.buckets + 1))
        rows = rows.take(pa.array(order)).combine_chunks()
        wanted = [at for at in range(self.buckets) if empty or ends[at] < ends[at + 1]]
        blobs = [_packed(rows.slice(ends[at], ends[at + 1] - ends[at])) for at in wanted]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(wanted, pa.int32()),
                pa.repeat(pa.scalar(kind), len(wanted)),
                pa.repeat(number, len(wanted)),
                pa.array(blobs, pa.binary()),
            ],
            schema=MESSAGES,
        )


def write_part(place: Place, rows: pa.Table) -> None:
    """Write a Parquet file, whole or not at all. Raises ConfigError, InvalidInputError."""
    buffer = BytesIO()
    pq.write_table(rows, buffer, row_group_size=max(rows.num_rows, 1))  # one row group, as the manifest says
    try:
        place.write(buffer.getvalue())
    except OSError as error:
        raise unusable(place, "[import] output", error) from error


def publish(place: Place, parts: Sequence[str], schema: pa.Schema) -> None:
    """Make these files a table, as `pipeline.tables` does: write its manifest, then delete all other files. On the driver.

    Raises AdapterError if a file is not seen here, ConfigError.
    """
    if not parts:  # a reader of the directory finds the columns
        parts = [f"{uuid.uuid4().hex}.parquet"]
        write_part(place / parts[0], schema.empty_table())
    try:
        seen = {entry.path: entry.size for entry in place.entries()}
        missing = [part for part in parts if part not in seen]
        if missing:
            raise AdapterError(
                f"{place}: {len(missing)} of {len(parts)} files that workers wrote are not seen here, such as {missing[0]}: "
                "name a directory that every machine shares, or a URL"
            )
        files = [asdict(File(part, seen[part], 1)) for part in parts]
        (place / MANIFEST).write(json.dumps({"files": files}).encode())
        for other in seen.keys() - {MANIFEST, *parts}:
            (place / other).delete()
    except OSError as error:
        raise unusable(place, "[import] output", error) from error


def unpacked(data: bytes) -> pa.Table:
    """The table of a message."""
    return pa.ipc.open_stream(data).read_all()


def buckets_of(rows: pa.Table, buckets: int) -> npt.NDArray[np.int64]:
    """The bucket of each row, by crc32 of its group and shard: the same in every process."""
    return (_crc(rows["group"]) * 31 + _crc(rows["shard"])) % buckets


def _crc(names: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """crc32 of each name, computed once for each distinct one."""
    encoded = names.combine_chunks().dictionary_encode()
    distinct = np.array([zlib.crc32(name) for name in encoded.dictionary.cast(pa.binary()).to_pylist()], np.int64)
    each: npt.NDArray[np.int64] = distinct[encoded.indices.to_numpy()]
    return each


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _joined(schema: pa.Schema, blobs: Sequence[tuple[int, bytes]]) -> pa.Table:
    """One table of blobs, by number; those of a file are in the order of its rows."""
    return pa.concat_tables([schema.empty_table(), *(unpacked(data) for _, data in sorted(blobs, key=lambda blob: blob[0]))])


def _by_bucket(messages: Batches) -> dict[int, dict[str, list[tuple[int, bytes]]]]:
    found: dict[int, dict[str, list[tuple[int, bytes]]]] = defaultdict(lambda: defaultdict(list))
    for batch in messages:
        for message in batch.to_pylist():
            found[message["bucket"]][message["kind"]].append((message["number"], message["data"]))
    return found


def _message(bucket: int, kind: str, number: int, data: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"bucket": bucket, "kind": kind, "number": number, "data": data}], MESSAGES)


def _numbers(batches: Batches) -> list[int]:
    return [number for batch in batches for number in batch.column(0).to_pylist()]
