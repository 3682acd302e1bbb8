"""Reads the Meta Service's records as Arrow batches: split into parts on the driver, read in the tasks."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from adapter.meta.blocking import MetaCalls
from adapter.model.arrow import decode_packed
from adapter.pipeline.offsets.options import ReadOptions
from adapter.pipeline.offsets.selection import Selection, intersection, prefix_ranges
from adapter.rpc import meta_pb

# Without the option `partitions`: the records of a part, and the largest number of parts. A task needs some 50 ms to begin.
PART_RECORDS = 250_000
AUTO_PARTS = 64
# With more ranges of keys than this none of them is split, and a part has so many of them.
SPLIT_RANGES, PART_RANGES = 16, 50
# Up to this number of records, reading them is cheaper than a call for each length of a name.
PREFIX_RECORDS = 100_000


class KeyRange(NamedTuple):
    """The records of a namespace and group (empty: all) after the token `after`, up to the token `until`."""

    namespace: str
    group: str
    after: bytes = b""
    until: bytes = b""


@dataclass
class Part(InputPartition):
    """What one task reads."""

    ranges: list[KeyRange]


class OffsetsReader(DataSourceReader):
    """Reads the records that the options select. Created on the driver; `read` runs in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._selection = Selection.of(options.namespace, options.group)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> list[InputPartition]:
        """Split the records into parts of about the same size. Raises MetaUnavailableError, RefusedError."""
        names, wanted = self._selection.pairs(), self._options.partitions
        if len(names) > SPLIT_RANGES:
            size = -(-len(names) // wanted) if wanted else PART_RANGES
            return [Part([KeyRange(*each) for each in names[at : at + size]]) for at in range(0, len(names), size)]
        with closing(self._calls()) as calls:
            return [part for each in names for part in self._split(calls, *each)]

    def _split(self, calls: MetaCalls, namespace: str, group: str) -> Iterator[Part]:
        options, prefix = self._options, self._selection.group_prefix
        reply = calls.split(namespace, group, options.partitions or AUTO_PARTS)
        tokens = list(reply.tokens)
        if options.partitions is None:
            tokens = _thinned(tokens, max(-(-reply.records // PART_RECORDS), 1))
        parts = list(zip([b"", *tokens], [*tokens, b""], strict=True))
        inside = [[part] for part in parts]
        if prefix and reply.records > PREFIX_RECORDS:
            inside = list(intersection(parts, list(prefix_ranges(options.cluster, namespace, prefix))))
        for ranges in inside:
            yield Part([KeyRange(namespace, group, *found) for found in ranges])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Spark says InputPartition
        """Yield the records of a part, one page in each batch. The next page is fetched while one is used."""
        with closing(self._calls()) as calls, ThreadPoolExecutor(1, "scan") as ahead:
            pages = self._pages(calls, partition.ranges)
            coming = ahead.submit(next, pages, None)
            while page := coming.result():
                coming = ahead.submit(next, pages, None)
                yield self._rows(page)

    def _pages(self, calls: MetaCalls, ranges: Iterable[KeyRange]) -> Iterator[meta_pb.ScanOffsetDataReply]:
        size = self._options.page_size
        for namespace, group, after, until in ranges:
            page = calls.scan(namespace, group, size, after, until)
            yield page
            while page.next_page_token:
                page = calls.scan(namespace, group, size, page.next_page_token, until)
                yield page

    def _rows(self, page: meta_pb.ScanOffsetDataReply) -> pa.RecordBatch:
        rows = page.packed
        batch = decode_packed(rows.keys, rows.key_sizes, rows.records, rows.record_sizes)
        live, prefix = batch.column("live"), self._selection.group_prefix
        if not self._options.tombstones and live.false_count:
            batch = batch.filter(live)
        if prefix:
            batch = batch.filter(pc.starts_with(batch.column("group"), prefix))
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _calls(self) -> MetaCalls:
        return MetaCalls(self._options.meta, self._options.retry_ms / 1000)


class FilteringReader(OffsetsReader):
    """A reader that handles filters of names on namespace and group itself, so that only these records are read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Accept filters, and return those that Spark has to apply."""
        self._selection, left = self._selection.narrowed(filters, by_range=True)
        return left


def _thinned(tokens: list[bytes], parts: int) -> list[bytes]:
    """At most `parts` - 1 of the tokens, evenly distributed."""
    if len(tokens) < parts:
        return tokens
    return [tokens[(len(tokens) + 1) * part // parts - 1] for part in range(1, parts)]
